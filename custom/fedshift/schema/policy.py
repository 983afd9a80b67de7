"""A site's privacy policy: ``privacy:`` in its ``local/fedshift.yaml``. No job can read, change or disable it.

Beside it lies the site's ledger of what has left it with noise, of which the server knows the head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from fedshift.schema.names import Name
from fedshift.schema.packages import PackageName, PackageSpec
from fedshift.schema.strict import Strict

USUAL_SITES_IN_SUM = 3
"""In a sum over two sites each knows the other's part, and one that helps a dishonest server lays it open."""

LEDGER_FILE = "privacy_ledger.jsonl"
"""Of a site, in its kit's ``local``."""

ArrayKind = Literal["statistics", "prototypes", "images", "generator", "control", "loss", "other"]
"""What an array that a method sends contains: statistics of images or features; one mean embedding per class
(prototypes); averaged images or their targets; a trained generator of embeddings; control variates; a loss or an
error on the site's images; or something that the method does not declare."""


class Noise(Strict):
    """Gaussian noise for differential privacy, over a whole job.

    Give either ``epsilon`` and ``delta``, the guarantee over all rounds of the job, from which the noise is computed;
    or ``multiplier``, the standard deviation of the noise of one message in multiples of its sensitivity. The log then
    reports the epsilon that this gives at ``delta``.
    """

    epsilon: float | None = Field(default=None, gt=0, le=100)
    delta: float = Field(default=1e-5, gt=0, lt=0.1)
    multiplier: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.epsilon is None) == (self.multiplier is None):
            raise ValueError("give either epsilon (with delta) or multiplier")
        return self


class StatisticsNoise(Noise):
    """Noise on statistics of images and features.

    ``clip`` bounds how far the statistics of features may be from those that the site received: the L2 norm of the
    difference, over all arrays of a round. Statistics of images need no bound, since the task bounds intensities.
    """

    clip: float | None = Field(default=None, gt=0)


class WeightNoise(Noise):
    """Noise on the network's weights. ``clip`` bounds the L2 norm of a round's change of all parameters."""

    clip: float = Field(gt=0)


class DpSgd(Strict):
    """Training by DP-SGD: the gradient of each training case clipped to L2 norm ``clip``, and noise on every step.

    ``epsilon`` and ``delta`` hold for all steps of all rounds of a job.
    """

    epsilon: float = Field(gt=0, le=100)
    delta: float = Field(default=1e-5, gt=0, lt=0.1)
    clip: float = Field(gt=0)


class PrivacyBudget(Strict):
    """The most that all jobs and surveys together may spend of a site's cases."""

    epsilon: float = Field(gt=0)
    delta: float = Field(default=1e-5, gt=0, lt=0.1)


class Policy(Strict):
    """A site's rules.

    ``train``: whether the site trains. If not, it only scores models, in jobs that hold it out. ``allow``: which kinds
    of arrays methods may send in addition to the network's weights (`ArrayKind`). ``min_cases``: minimum training cases
    (patients, whose several scans count as one where their names say so, see `fedshift.data.splits.subject_of`; or
    pictures) before any such array may leave; for prototypes, the minimum in each class. Noise, too, is for all scans
    of a patient together. ``encryption``: ``required`` refuses jobs without encrypted or masked updates.
    ``min_sites_in_sum``: the fewest sites in a sum that the site lets a server unmask (``federation.encryption:
    masks``), whatever the job says. ``statistics`` and ``weights``: noise on these, none by default. With noise on the
    weights, nothing computed from training images leaves without noise, but for counts and for scores of a model with
    normalisation layers or statistics of the site's own (FedBN, FedRDN). ``dp_sgd``: training by DP-SGD in place of
    ``weights``, under the same rule. ``budget``: what all jobs together may spend; what then leaves has noise, but for
    counts and scores. ``case_scores``: whether the final models' scores of single cases leave (without ids); otherwise
    only their number and mean leave and, from ten cases on, their spread.

    A survey (``fedshift survey``) gets sums over the site's cases: for it ``allow`` (statistics), ``min_cases``,
    ``encryption`` and the noise hold as for a job. ``survey_cases``: minimum cases for that, at least three, because of
    two whoever knows one could compute the other. ``scanners``: whether it gets the scanners' makes and models.

    A validation (``fedshift job --evaluate``) gets sums over groups of cases, none of fewer than ``survey_cases`` and
    ``min_cases``. ``strata``: the columns of the site's table that make such groups; None for all that it has kept.

    ``packages``: the installed packages whose networks, methods and losses a job may use here, each with version and
    hash (`fedshift.schema.packages`); none by default.
    """

    train: bool = True
    allow: tuple[ArrayKind, ...] = ("statistics", "control", "loss")
    min_cases: int = Field(default=1, ge=1)
    encryption: Literal["required"] | None = None
    min_sites_in_sum: int = Field(default=USUAL_SITES_IN_SUM, ge=2)
    statistics: StatisticsNoise | None = None
    weights: WeightNoise | None = None
    dp_sgd: DpSgd | None = None
    budget: PrivacyBudget | None = None
    case_scores: bool = False
    survey_cases: int = Field(default=3, ge=3)
    scanners: bool = False
    strata: tuple[Name, ...] | None = None
    packages: dict[PackageName, PackageSpec] = {}

    @model_validator(mode="after")
    def _one_noise_on_the_network(self) -> Self:
        if self.weights is not None and self.dp_sgd is not None:
            raise ValueError("give weights (noise on a round's change) or dp_sgd (noise on every step), not both")
        return self

    @property
    def least_told(self) -> int:
        """The fewest subjects whose sums alone may leave: in a survey, a validation, or risk curves."""
        return max(self.min_cases, self.survey_cases)

    @property
    def covers_network(self) -> bool:
        """Whether the network leaves with noise only."""
        return self.weights is not None or self.dp_sgd is not None

    @property
    def withholds_means(self) -> str:
        """Why means over the site's cases that are no scores, and have no noise, may not leave; empty if they may."""
        if "statistics" not in self.allow:
            return "its policy does not allow statistics (privacy.allow)"
        if self.encryption is not None:
            return "its policy wants what leaves encrypted (privacy.encryption), and they are not"
        if self.statistics is not None or self.covers_network:
            return "its policy puts noise on what leaves (privacy.statistics, weights or dp_sgd), and they have none"
        if self.budget is not None:
            return "its policy has a budget (privacy.budget), and they have no noise"
        return ""


def listed_packages(policy: Policy | None, *, simulated: bool) -> Mapping[str, PackageSpec] | None:
    """The packages that a site lets jobs use, for `fedshift.schema.components.admit`.

    A provisioned site without a policy lists none. On one machine, a site without a policy uses what is installed.
    """
    if policy is None:
        return None if simulated else {}
    return policy.packages


class LedgerHead(Strict):
    """Where a ledger ends, or ended when it was last seen. Nothing about patients follows from it.

    Attributes:
        number: of releases.
        hash: SHA-256 of the last one's line, hexadecimal.
    """

    number: int = Field(ge=1, le=2**53)
    hash: str = Field(pattern="^[0-9a-f]{64}$")
