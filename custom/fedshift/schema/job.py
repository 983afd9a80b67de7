"""A fully resolved job: task, methods, federation. It is all that a site reads of a run's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    field_validator,
    model_validator,
)

from fedshift.schema.components import packages_of
from fedshift.schema.compression import WeightsAs
from fedshift.schema.names import ClassName, Name
from fedshift.schema.packages import PackageName, PackageSpec
from fedshift.schema.strict import Sparse, Strict
from fedshift.schema.task import TaskSpec
from fedshift.schema.yaml_file import read_yaml

FILE_NAME = "fedshift.yaml"


def _select(value: object) -> object:
    if value not in ("mean", "worst") and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError("must be mean, worst, or the number of a round")
    return value


Tracking = Literal["tensorboard", "mlflow", "wandb"]
"""Where a run's curves go beside TensorBoard's files, which are always written."""


BY_CLOCK = "rounds end by the sites' clocks (schedule.minutes), so this run cannot be repeated bit for bit"
"""What is said of such a job wherever it is shown."""


class RobustSpec(Strict):
    """Robust aggregation, for federations that do not trust every site (`fedshift.federation.server.robust`).

    ``rule``: how updates are summed. ``trim``: how many of the largest and of the smallest values rule ``trimmed_mean``
    discards. ``clip``: the limit of rule ``norm_clipping`` for the norm of a site's change, as a multiple of the median
    norm over sites, and for its sample count, as a multiple of the median count.
    """

    rule: Literal["median", "trimmed_mean", "norm_clipping"]
    trim: int = Field(default=1, ge=0)
    clip: float = Field(default=1.0, gt=0)

    @model_validator(mode="after")
    def _of_the_rule(self) -> Self:
        for key, rule in (("trim", "trimmed_mean"), ("clip", "norm_clipping")):
            if getattr(self, key) != type(self).model_fields[key].default and self.rule != rule:
                raise ValueError(f"'{key}' is an option of rule {rule}, not of {self.rule}")
        return self


class FederationSpec(Sparse):
    """Who takes part in a round, how long it waits, and which updates it accepts.

    ``sites_per_round``: how many sites the server samples (by seed) to train in each round. All sites take part in the
    statistics round and in the last evaluation. ``hosts``: for simulations of many sites, the number of FLARE clients
    that share the sites and process them one after another; by default each site is one client. ``shares``: the sites
    of each host; by default they are dealt out in turn (``fedshift run`` balances them by the number of images).

    A round needs ``min_sites`` accepted updates within ``round_timeout`` seconds, else the job ends with an error. Once
    it has them it waits for the remaining sites as long again as it has taken so far, plus ``grace`` seconds. Models of
    8 MB or more travel between provisioned parties in pieces, and both times then count from the latest piece of a site
    that is waited for. Pieces put the end off by no more than what a round's messages take at 1 Mbit/s.

    An update is refused if its parameters moved by more than ``max_update_norm`` times the norm of the model. With at
    least three updates in a round, one is also refused if its parameters moved by more than ``max_norm_ratio`` times
    the median over sites (the largest median of any round so far, scaled up for a site that made more than the median
    number of steps), or if its site reports more than ``max_sample_ratio`` times the median number of samples. None
    disables either limit.

    An accepted update is limited, so that no site alone decides what the model is. With at least three updates, a
    change of the parameters or of the running statistics larger than ``clip_norm_ratio`` times that median is scaled
    down to it, and one of the parameters so far that the part of it that points against the other sites' changes is no
    longer than ``clip_opposed_ratio`` times that median. No site counts for more than ``clip_sample_ratio`` times the
    median number of samples, or for more than all others together; with ``schedule.minutes`` none counts with fewer
    steps than the median divided by that ratio. Each limit that is met is logged. None disables a limit.

    ``robust`` limits the influence of each accepted update further, in place of these limits. ``encryption`` makes
    the server add updates that it cannot read: ``ckks``, encrypted with a key that all sites share
    (`fedshift.federation.encryption`); ``masks``, which cancel in the sum (`fedshift.federation.encryption.masks`).
    ``weights_as`` sends weights in fewer bytes, in both directions (`fedshift.schema.compression`). ``model_average``
    makes the last round's model an exponential average of the rounds'
    (`fedshift.federation.server.global_model`). ``tracking`` sends the curves to an experiment tracker that the
    server's environment names (`fedshift.reporting.trackers`).
    """

    RARE = (
        *("shares", "max_norm_ratio", "max_sample_ratio", "clip_norm_ratio", "clip_opposed_ratio", "clip_sample_ratio"),
        *("robust", "encryption", "weights_as", "model_average", "tracking"),
    )

    min_sites: int = Field(ge=1)
    sites_per_round: int | None = Field(default=None, ge=1)
    hosts: int | None = Field(default=None, ge=1)
    shares: tuple[tuple[str, ...], ...] = ()
    round_timeout: float = Field(default=3600.0, gt=0)
    grace: float = Field(default=60.0, ge=0)
    max_update_norm: float = Field(default=10.0, gt=0)
    max_norm_ratio: float | None = Field(default=20.0, ge=1)
    max_sample_ratio: float | None = Field(default=1000.0, ge=1)
    clip_norm_ratio: float | None = Field(default=5.0, ge=1)
    clip_opposed_ratio: float | None = Field(default=0.5, gt=0)
    clip_sample_ratio: float | None = Field(default=5.0, ge=1)
    robust: RobustSpec | None = None
    encryption: Literal["ckks", "masks"] | None = None
    weights_as: WeightsAs = "fp32"
    model_average: float | None = Field(default=None, gt=0, lt=1)
    tracking: Tracking = "tensorboard"

    def min_clients(self, n_sites: int) -> int:
        """Minimum connected sites. Sampling sites doesn't change how many may be missing."""
        return self.min_sites + n_sites - min(self.sites_per_round or n_sites, n_sites)


class EvaluationSpec(Sparse):
    """How rounds and final models are scored.

    ``metric``: the validation score that selects the best round, one of the task's; None for the task's first.
    ``select``: by its ``mean`` over sites, or by the ``worst`` site, for models that are to hold at sites that took no
    part; or a number, the round itself, as ``fedshift leave-one-out --choose-round`` finds it: the run then ends after
    this round, its learning rate where it is in a run of ``schedule.rounds``.
    ``start``: sites also score the weights that the run starts from, as round 0, which is never selected.
    ``every``: training sites also score the aggregate of each so-many-th round on their test parts, for curves of test
    scores (the last and the best one are scored at the end anyway); with 1 also the round that is best for each site.
    Test scores never select the best round. ``gradient_norm``: norm of the gradient of the loss on a site's validation
    images (on all its images if it is held out), a measure of how far the site's optimum is from the model.
    ``local``: beside the federation each site trains a model on its own data alone, and compares the two on its test
    cases (`fedshift.federation.site.local_model`); training takes twice as long.

    Of segmentation: with ``reference``, training sites whose policy allows it tell sums over their scans at the end
    (`fedshift.schema.fingerprint`), which the model files keep for ``fedshift drift``.

    ``guarantee``: the largest share, on average, of a structure that an outer outline may miss, or of an inner one that
    may not be the structure, or of cases whose class may be missing in a set: sites whose policy allows it send risk
    curves of the final models, and the model files say at which levels each site keeps that
    (`fedshift.tasks.evaluation.guarantee`).

    Of segmentation by patches, for final models and for predictions: ``mirror`` takes the mean over all mirror images
    of the network's input; ``largest_component`` keeps only the largest connected part of each class, or of those that
    it names; ``tolerance`` (mm) is by how much a surface may be off and still count in ``surface_dice``; ``cldice``
    names the classes that are thin, such as vessels, and have a centre-line Dice too
    (`fedshift.tasks.evaluation.centre_lines`).

    Of classification: ``by_class`` scores final models for each class, with how many cases have it; by default if
    pictures have several findings, if classes are in order, or if ``metric`` is not the accuracy. ``specificity``: the
    one at which sensitivity is given.
    """

    RARE = (
        *("metric", "select", "start", "every", "gradient_norm", "local", "reference", "mirror", "largest_component"),
        *("tolerance", "cldice", "by_class", "specificity", "guarantee"),
    )

    metric: str | None = None
    select: Annotated[int | Literal["mean", "worst"], BeforeValidator(_select)] = "mean"
    start: bool = False
    every: int | None = Field(default=None, ge=1)
    gradient_norm: bool = False
    local: bool = False
    reference: bool = False
    mirror: bool = False
    largest_component: bool | tuple[ClassName, ...] = False
    tolerance: float = Field(default=2.0, gt=0, le=100)
    cldice: tuple[ClassName, ...] = ()
    by_class: bool | None = None
    specificity: float = Field(default=0.9, gt=0, lt=1)
    guarantee: float | None = Field(default=None, gt=0, lt=1)


class JobSpec(Sparse):
    """A fully resolved job (schema 1), as ``fedshift job`` writes it.

    ``schema``: of this file. ``name``: of the job and its folder. ``seed``: of all random numbers. ``methods``: each
    with its options. ``evaluation``: how rounds and final models are scored. ``packages``: the installed packages that
    its network, methods and loss are of, where they are not fedshift's own, with version and hash.
    """

    RARE = ("evaluation", "packages")

    schema_: Literal[1] = Field(default=1, alias="schema")
    name: Name
    seed: int = 0
    task: TaskSpec
    methods: dict[str, dict[str, Any]]
    federation: FederationSpec
    evaluation: EvaluationSpec = EvaluationSpec()
    packages: dict[PackageName, PackageSpec] = {}

    @field_validator("seed")
    @classmethod
    def _seed_is_not_negative(cls, seed: int) -> int:
        if seed < 0:
            raise ValueError(f"must be 0 or more, not {seed}")
        return seed

    @model_validator(mode="after")
    def _scores_of_rounds_can_be_compared(self) -> Self:
        drawn = self.federation.sites_per_round
        if drawn is None or drawn >= len(self.task.sites):
            return self
        comparing = {
            "schedule.patience": self.task.schedule.patience is not None,
            "evaluation.select: worst": self.evaluation.select == "worst",
        }
        for key in (key for key, asked in comparing.items() if asked):
            raise ValueError(
                f"{key} compares the scores of rounds, and federation.sites_per_round asks other sites in each: leave "
                "one of the two out"
            )
        return self

    @model_validator(mode="after")
    def _selected_round_is_one_of_the_run(self) -> Self:
        select, schedule = self.evaluation.select, self.task.schedule
        if isinstance(select, int) and select > schedule.rounds:
            raise ValueError(f"evaluation.select is round {select} of {schedule.rounds}: raise schedule.rounds")
        if isinstance(select, int) and schedule.patience is not None:
            raise ValueError(
                "schedule.patience ends a run by its scores, and evaluation.select after the round that it names: "
                "leave one of the two out"
            )
        return self

    @model_validator(mode="after")
    def _models_compared_have_equal_steps(self) -> Self:
        if self.task.schedule.minutes is not None and self.evaluation.local:
            raise ValueError(
                "evaluation.local compares two models that were trained for equally many steps, and schedule.minutes "
                "decides how many by the clock: leave one of the two out"
            )
        return self

    @model_validator(mode="after")
    def _each_site_has_one_host(self) -> Self:
        shares = self.federation.shares
        if not shares:
            return self
        if len(shares) != self.federation.hosts or not all(shares):
            raise ValueError(f"federation.shares has sites of {len(shares)} hosts, not of {self.federation.hosts}")
        if sorted(site for share in shares for site in share) != sorted(self.task.everyone):
            raise ValueError("federation.shares must name each of the job's sites once")
        return self

    @model_validator(mode="after")
    def _packages_are_named(self) -> Self:
        needed = packages_of((*self.methods, self.task.network.name, self.task.loss.name))
        missing = [name for name in needed if name not in self.packages]
        if missing:
            raise ValueError(
                f"the job uses package {missing[0]} and does not say which version and hash of it ('packages'): make "
                "the job anew with 'fedshift job'"
            )
        return self

    def dump(self) -> dict[str, Any]:
        """The job as plain data for YAML or JSON."""
        return self.model_dump(mode="json", by_alias=True)


def read_job(path: Path) -> JobSpec:
    """Read a job's ``fedshift.yaml``.

    Raises:
        ConfigError: no such file, not YAML, or a key that does not fit.
    """
    return JobSpec.parse(read_yaml(path), where=str(path))
