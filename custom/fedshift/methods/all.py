"""All: one model trained on all sites' images put together (ERM), the reference that no federation reaches.

"All" of the FRAug paper's tables, "ERM" of "Mitigating Data Heterogeneity in Federated Learning with Data
Augmentation". Batches are drawn from the union of all sites' training images; the loss is the task's.
"""

from __future__ import annotations

from fedshift.methods import base
from fedshift.schema.strict import Strict


class Config(Strict):
    """No options."""


class Client(base.Client[Config]):
    """Plain training on the union."""

    trains_on = "union"
