"""MM-REx: minimise the worst of all extrapolations of the domains' losses (centralised).

Krueger et al., "Out-of-Distribution Generalization via Risk Extrapolation", ICML 2021; also in "Mitigating Data
Heterogeneity in Federated Learning with Data Augmentation", whose federated counterpart is Gen-AFL. A batch holds
equally many samples of each of K domains, with the losses f_i::

    minimise max_λ Σ_i λ_i f_i = λ_min Σ_i f_i + (1 − K λ_min) max_i f_i        Σ_i λ_i = 1,  λ_i ≥ λ_min

λ_min = 1/K is the mean over domains, 0 the worst domain; below 0 the others have negative weights. The default is the
paper's −1. A domain is a site, unless the task's ``domains`` put several sites together.

When: the centralised counterpart of Gen-AFL. Run it with ``fedshift pooled mmrex <task>``.
"""

from __future__ import annotations

from torch import Tensor, nn

from fedshift.methods import base
from fedshift.methods.shared.domains import ByDomain, site_losses
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.strict import Strict


class Config(Strict):
    """Options of MM-REx.

    ``lambda_min``: smallest weight of a site; 1/K is the mean over sites, 0 the worst site.
    """

    lambda_min: float = -1.0


def worst_extrapolation(losses: Tensor, *, lambda_min: float) -> Tensor:
    """λ_min Σ f + (1 − K λ_min) max f, (K,) -> ()."""
    return lambda_min * losses.sum() + (1 - len(losses) * lambda_min) * losses.max()


class Client(ByDomain[Config]):
    """Trains on batches with images of every site."""

    def check(self, job: JobSpec, net: nn.Module) -> None:
        domains = len(job.task.groups)
        largest = 1 / domains
        if self.config.lambda_min > largest:
            raise ConfigError(
                "invalid-value",
                f"method mmrex: with lambda_min {self.config.lambda_min:g} the weights of {domains} domains "
                f"sum to more than 1: use --set mmrex.lambda_min={largest:.3g} or less",
            )

    def loss(self, batch: base.Batch, logits: Tensor, loss: Tensor, ctx: base.Context) -> Tensor:
        """The worst extrapolation of the domains' losses."""
        return worst_extrapolation(site_losses(batch, logits, ctx.run), lambda_min=self.config.lambda_min)
