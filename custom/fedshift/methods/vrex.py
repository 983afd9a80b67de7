"""V-REx: train on all sites' images so that the domains' losses are small and alike (centralised).

Krueger et al., "Out-of-Distribution Generalization via Risk Extrapolation", ICML 2021; also in "Mitigating Data
Heterogeneity in Federated Learning with Data Augmentation" (22), whose federated counterpart is VM. A batch holds
equally many samples of each of K domains (each site is one, unless the task's ``domains`` put several together), with
the losses f_i::

    minimise mean_i f_i + β mean_i (f_i − mean_j f_j)²

Schedule of β and its deviation as in ``fedirm``, without the division by β; ``weight=0`` is the mean over domains.

When: the centralised counterpart of VM. Run it with ``fedshift pooled vrex <task>``.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from fedshift.methods import base
from fedshift.methods.shared.domains import ByDomain, WarmedUp, site_losses
from fedshift.schema.strict import Strict


class Config(Strict):
    """Options of V-REx.

    ``weight``: β after the warm-up. ``warmup``: steps with β at most 1, after which the optimiser's state is reset.
    """

    weight: float = Field(default=10.0, ge=0)
    warmup: int = Field(default=500, ge=0)


def penalised(losses: Tensor, *, weight: float) -> Tensor:
    """Mean plus ``weight`` times the (biased) variance over domains, (K,) -> ()."""
    return losses.mean() + weight * losses.var(correction=0)


class Client(WarmedUp[Config], ByDomain[Config]):
    """Trains on batches with images of every site and counts its steps."""

    def loss(self, batch: base.Batch, logits: Tensor, loss: Tensor, ctx: base.Context) -> Tensor:
        """Mean plus β times variance of the domains' losses."""
        weight = self.penalty_weight(ctx)
        return penalised(site_losses(batch, logits, ctx.run), weight=weight)
