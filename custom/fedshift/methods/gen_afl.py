"""Gen-AFL: AFL whose weights may go below zero, down to lambda_min, so that the worst-off site counts even more.

Back de Luca et al., "Mitigating Data Heterogeneity in Federated Learning with Data Augmentation", 2022, Algorithm 1: as
AFL, on another set::

    Δ(λ_min) = {λ : Σ λ = 1, λ ≥ λ_min}
    proj_Δ(λ_min)(λ) = (1 − n λ_min) proj_Δ((λ − λ_min) / (1 − n λ_min)) + λ_min        (18)

λ_min = 0 is AFL, λ_min = 1/n FedAvg with uniform weights; below zero the best-off sites are extrapolated away from.

Deviations: the authors' code never passes λ_min on, so its Gen-AFL is AFL. The λ of the first round, n_i / n, is
projected too (it changes nothing unless λ_min exceeds a site's share). Negative weights act on parameters only; for
batch-norm statistics see AFL, as for all other choices. λ_min = −1 in the paper's experiments.
"""

from __future__ import annotations

from pydantic import Field
from torch import nn

from fedshift.methods import afl
from fedshift.methods.shared.aggregation import refuse_sampled_sites
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec


class Config(afl.Config):
    """Options of Gen-AFL."""

    lambda_min: float = Field(default=-1.0, gt=-1e3, le=1)

    @property
    def lowest(self) -> float:
        """λ_min."""
        return self.lambda_min


class Client(afl.Client):
    """As AFL's."""

    config: Config

    def check(self, job: JobSpec, net: nn.Module) -> None:
        """Weights of at least λ_min must be able to add up to 1."""
        refuse_sampled_sites(job, "gen_afl", "λ moves by the losses of all sites")
        n = len(job.task.sites)
        if self.config.lambda_min > 1 / n:
            raise ConfigError(
                f"method gen_afl: with lambda_min {self.config.lambda_min:g} the weights of {n} sites add up to more "
                f"than 1: use at most 1/{n}, such as --set gen_afl.lambda_min=0"
            )


class Server(afl.Server):
    """As AFL's, on Δ(λ_min)."""

    method = "gen_afl"
