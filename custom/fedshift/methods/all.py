"""All: one model trained on the union of all sites' images (ERM), an upper reference for federations.

"All" in the tables of Chen et al. (FRAug, arXiv 2022), "ERM" in "Mitigating Data Heterogeneity in Federated Learning
with Data Augmentation" (Back de Luca et al., 2022)::

    minimise 1/n Σ_i f(x_i)         over the union of all sites' training images

When: the centralised reference of a table (ERM). Run it with ``fedshift pooled all <task>``.
"""

from __future__ import annotations

from fedshift.methods import base
from fedshift.schema.strict import Strict


class Config(Strict):
    """No options."""


class Client(base.Client[Config]):
    """Plain training on the union."""

    trains_on = "union"
