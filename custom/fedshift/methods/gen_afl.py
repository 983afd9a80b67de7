"""Gen-AFL: AFL whose weights may go below zero, down to lambda_min, so that the worst-off site counts even more.

Back de Luca et al., "Mitigating Data Heterogeneity in Federated Learning with Data Augmentation", 2022, Algorithm 1.
The same as AFL, but λ is projected onto a larger set::

    Δ(λ_min) = {λ : Σ λ = 1, λ ≥ λ_min}
    proj_Δ(λ_min)(λ) = (1 − n λ_min) proj_Δ((λ − λ_min) / (1 − n λ_min)) + λ_min        (18)

λ_min = 0 is AFL; λ_min = 1/n is FedAvg with uniform weights; with λ_min < 0 the aggregate moves away from the models of
the sites with the smallest losses. The paper's experiments use λ_min = −1.

Deviations from the paper:

- The authors' code never passes λ_min to the projection, so it runs plain AFL.
- The initial λ, n_i / n, is projected too. This changes it only if λ_min exceeds a site's share of the samples.
- Negative weights apply to parameters only. For batch-norm statistics and all other choices see AFL.

When: ``afl`` reacts too slowly. Extrapolation can overshoot and oscillate; a smaller ``eta`` damps it.
"""

from __future__ import annotations

from pydantic import Field
from torch import nn

from fedshift.methods import afl
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec


class Config(afl.Config):
    """Options of Gen-AFL.

    ``lambda_min``: the least weight, at most 1/n for n sites; 0 is ``afl``. ``eta``: as in ``afl``.
    """

    lambda_min: float = Field(default=-1.0, gt=-1e3, le=1)

    @property
    def lowest(self) -> float:
        return self.lambda_min


class Client(afl.Client):
    """The same as AFL's, with a check of λ_min."""

    config: Config

    def check(self, job: JobSpec, net: nn.Module) -> None:
        n = len(job.task.sites)
        if self.config.lambda_min > 1 / n:
            raise ConfigError(
                "invalid-value",
                f"method gen_afl: with lambda_min {self.config.lambda_min:g} the weights of {n} sites sum to more "
                f"than 1: use at most 1/{n}, such as --set gen_afl.lambda_min=0",
            )


class Server(afl.Server):
    """The same as AFL's, with the projection onto Δ(λ_min)."""

    method = "gen_afl"
