"""A fully resolved job: task, methods, schedule. It is all that a site reads of a run's configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from fedshift.schema.adapters import AdaptersSpec
from fedshift.schema.codes import ClassCodes, takes_empty
from fedshift.schema.components import packages_of
from fedshift.schema.compression import WeightsAs
from fedshift.schema.errors import ConfigError
from fedshift.schema.names import ClassName, Line, Name
from fedshift.schema.optimizer import OptimizerSpec
from fedshift.schema.packages import PackageName, PackageSpec
from fedshift.schema.regions import Regions, make_regions, overlapping
from fedshift.schema.strict import Sparse, Strict, nearest

FILE_NAME = "fedshift.yaml"
DEEPEST = 100
"""Levels of a YAML file. Our own have fewer than ten."""

Precision = Literal["fp32", "bf16", "auto"]
"""``auto`` is bf16 on hardware that computes in bf16 natively, else fp32 (`fedshift.tasks.precision.uses_bf16`)."""


def _unique(names: tuple[str, ...]) -> tuple[str, ...]:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{', '.join(twice)} is named twice")
    return names


def _threads(value: object) -> object:
    if value != "auto" and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError("must be a whole number from 1, or auto")
    return value


def _select(value: object) -> object:
    if value not in ("mean", "worst") and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError("must be mean, worst, or the number of a round")
    return value


Threads = Annotated[int | Literal["auto"], BeforeValidator(_threads)]
"""PyTorch threads of a site; ``auto`` divides the machine's cores among the processes that run in parallel."""


Tracking = Literal["tensorboard", "mlflow", "wandb"]
"""Where a run's curves go beside TensorBoard's files, which are always written."""


class WeightsSpec(Sparse):
    """A file of initial weights on the server (`fedshift.tasks.pretrained`). No path, since sites read the job.

    ``file``: its name. ``sha256``: its hash. ``partial``: arrays that the file does not have, or in another shape, keep
    their random initial values.
    """

    RARE = ("partial",)

    file: Name
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    partial: bool = False


class NetworkSpec(Sparse):
    """A network from `fedshift.tasks.networks`, its options, and optionally a file of initial weights.

    ``name``: one of fedshift's, or of MONAI's as ``monai.DynUNet``. ``options``: its keyword arguments. ``weights``:
    the file that a run starts from, which ``fedshift job --weights`` and ``--init`` write; null for random weights.
    ``adapters``: small layers that are trained in place of the file's weights, which then every site must have.
    """

    RARE = ("weights", "adapters")

    name: str
    options: dict[str, Any] = {}
    weights: WeightsSpec | None = None
    adapters: AdaptersSpec | None = None

    @model_validator(mode="after")
    def _adapters_have_a_base(self) -> Self:
        if self.adapters is not None and self.weights is None:
            raise ValueError(
                "adapters are trained beside the weights of a file, and the job names none: give it with --weights, "
                "or leave adapters out"
            )
        return self


class LossSpec(Strict):
    """A loss by name, with its options: ``loss: ce_dice``, or ``loss: {name: monai.DiceCELoss, options: {…}}``.

    ``name``: one of fedshift's, or of MONAI's as ``monai.DiceCELoss``. ``options``: its keyword arguments. Without
    options it is its name alone, in job files as in messages.
    """

    name: str
    options: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _of_a_name(cls, raw: Any) -> Any:
        return {"name": raw} if isinstance(raw, str) else raw

    @model_serializer(mode="wrap")
    def _short(self, serialise: SerializerFunctionWrapHandler) -> str | dict[str, Any]:
        content: dict[str, Any] = serialise(self)
        return content if self.options else self.name

    def __str__(self) -> str:
        """``monai.DiceCELoss (lambda_ce 0.5)``."""
        said = ", ".join(f"{key} {value}" for key, value in self.options.items())
        return f"{self.name} ({said})" if said else self.name


BY_CLOCK = "rounds end by the sites' clocks (schedule.minutes), so this run cannot be repeated bit for bit"
"""What is said of such a job wherever it is shown."""


class ScheduleSpec(Sparse):
    """Rounds, local epochs or steps, batch size, precision and PyTorch threads of each site.

    ``rounds``: how many. ``local_epochs``: passes over a site's training samples in a round. ``batch_size``: samples of
    an optimiser step; a site whose memory runs out has them go through the network in parts. ``precision``: ``auto`` is
    bf16 on hardware that computes in it natively, else fp32. ``threads``: PyTorch threads of a site; ``auto`` divides
    the machine's cores among the processes that run at once.

    ``local_steps`` sets the optimiser steps of a round and replaces ``local_epochs``. ``drop_last`` skips the last
    batch of an epoch if it is smaller than ``batch_size``. ``patience`` ends the run when the mean validation score has
    not risen for so many rounds.

    ``minutes`` ends a round's training at a site after so many minutes of steps, of which it makes one at least, or
    with the planned number of steps, whichever comes first. How many steps that is depends on the machine, so such a
    run cannot be repeated bit for bit.

    ``checkpoint_minutes``: how often a site writes down, in the middle of a round, what it needs to go on to the same
    bits if it is killed (`fedshift.federation.site.checkpoint`). None for never; shorter rounds write nothing.
    """

    RARE = ("patience", "minutes", "checkpoint_minutes")

    rounds: int = Field(ge=1)
    patience: int | None = Field(default=None, ge=1)
    local_epochs: int = Field(default=1, ge=1)
    local_steps: int | None = Field(default=None, ge=1)
    minutes: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    batch_size: int = Field(ge=1)
    drop_last: bool = True
    precision: Precision = "fp32"
    threads: Threads = 1
    checkpoint_minutes: float | None = Field(default=10.0, gt=0, allow_inf_nan=False)

    def steps(self, batches: int) -> int:
        """Optimiser steps of a round at a site whose epochs have so many batches."""
        return self.local_epochs * batches if self.local_steps is None else self.local_steps


class TaskSpec(Sparse):
    """What is learned.

    ``name``: of the task. ``kind``: ``segmentation`` or ``classification``. ``dataset``: the prepared data set.
    ``protocol``: the named settings that the job was made with. ``sites``: those that train. ``classes``: background
    first in a segmentation. ``data``: how scans or pictures become samples; the task's kind checks it.

    Sites in ``held_out`` do not train: they only score the final models. ``domains``: name → sites that are parts of
    one domain, which a centralised reference trains on as one (`groups`); sites that it does not name stand alone.
    ``codes``: of the classes without the background, for DICOM, all of them or none; of regions in the same way, and of
    their classes too where masks name these.
    ``departures``: sentences on what ``protocol`` has and this job has not (`ProtocolExpects`).

    ``regions``: structures that overlap, each with its classes, which take the classes' place in what the network
    gives and in scores (`fedshift.schema.regions`). ``regions_class_order``: the class as which each region is written
    into a map of classes, in the order of the regions, of which later ones cover earlier ones; by default a voxel gets
    the class that is in just its regions. ``overlapping``, in place of ``classes`` and ``regions``: structures that may
    overlap in any way. ``ignore``: whether masks may have voxels that count neither in losses nor in scores.
    """

    RARE = ("domains", "departures", "codes", "regions", "regions_class_order", "ignore")

    name: Name
    kind: str
    dataset: Name
    protocol: Line = "default"
    departures: tuple[Line, ...] = ()
    sites: Annotated[tuple[Name, ...], Field(min_length=1), AfterValidator(_unique)]
    held_out: Annotated[tuple[Name, ...], AfterValidator(_unique)] = ()
    domains: dict[Name, tuple[Name, ...]] = {}
    classes: Annotated[tuple[ClassName, ...], Field(min_length=2, max_length=256), AfterValidator(_unique)]
    regions: dict[ClassName, tuple[ClassName, ...]] = {}
    regions_class_order: tuple[ClassName, ...] = ()
    ignore: bool = False
    codes: dict[ClassName, ClassCodes] = {}
    data: dict[str, Any] = {}
    network: NetworkSpec
    loss: LossSpec
    optimizer: OptimizerSpec
    schedule: ScheduleSpec

    @model_validator(mode="before")
    @classmethod
    def _of_overlapping(cls, raw: Any) -> Any:
        return with_overlapping(raw) if isinstance(raw, dict) else raw

    @model_validator(mode="after")
    def _apart(self) -> Self:
        both = [site for site in self.sites if site in self.held_out]
        if both:
            raise ValueError(f"{', '.join(both)} cannot both train ('sites') and be held out ('held_out')")
        _unique(tuple(site for sites in self.domains.values() for site in sites))
        return self

    @model_validator(mode="after")
    def _of_all_classes(self) -> Self:
        _ = self.made_regions  # refuses them
        check_codes(self.codes, self.structures, parts=self.classes[1:] if self.regions else ())
        return self

    @model_validator(mode="after")
    def _warms_up_in_time(self) -> Self:
        warm_up, rounds = self.optimizer.lr_schedule.warm_up, self.schedule.rounds
        if warm_up >= rounds:
            raise ValueError(f"optimizer.lr_schedule.warm_up is {warm_up}, and must end within the {rounds} rounds")
        return self

    @property
    def everyone(self) -> tuple[str, ...]:
        """Training sites followed by held-out sites."""
        return (*self.sites, *self.held_out)

    @property
    def made_regions(self) -> Regions | None:
        """The regions; None where classes do not overlap."""
        return make_regions(self.regions, self.classes, self.regions_class_order)

    @property
    def structures(self) -> tuple[str, ...]:
        """What is segmented: the regions, or the classes without the background."""
        return tuple(self.regions) or self.classes[1:]

    @property
    def outputs(self) -> int:
        """Channels of what the network gives."""
        return len(self.regions) or len(self.classes)

    @property
    def takes_empty(self) -> bool:
        """Whether cases may lack the task's structures (`fedshift.schema.codes`)."""
        return takes_empty(self.data, ("", *self.structures), self.codes)

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The training sites by domain, in the order of their first sites."""
        domain_of = {site: name for name, sites in self.domains.items() for site in sites}
        groups: dict[tuple[str, str], list[str]] = {}
        for site in self.sites:
            domain = domain_of.get(site)
            groups.setdefault(("site", site) if domain is None else ("domain", domain), []).append(site)
        return tuple(tuple(sites) for sites in groups.values())


def with_overlapping(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A task's settings with the classes and regions of its structures that overlap in any way, if it has such.

    Raises:
        ValueError: it has classes or regions too, or too many structures.
    """
    made = dict(raw)
    structures = made.pop("overlapping", None)
    if structures is None:
        return made
    for key in ("classes", "regions", "regions_class_order"):
        if made.get(key):
            raise ValueError(f"'overlapping' takes the place of {key!r}: leave one of the two out")
    if (
        not isinstance(structures, list | tuple)
        or len(structures) < 2
        or not all(isinstance(s, str) for s in structures)
    ):
        raise ValueError("'overlapping' must be a list of two or more names")
    made["classes"], made["regions"] = overlapping(_unique(tuple(structures)))
    return made


def check_codes(codes: Mapping[str, ClassCodes], structures: Sequence[str], *, parts: Sequence[str] = ()) -> None:
    """Check that codes are of all structures (`TaskSpec.structures`), each its own; and of ``parts`` of them, if given.

    Raises:
        ValueError: they are not.
    """
    if not codes:
        return
    known = tuple(dict.fromkeys((*structures, *parts)))
    for name in codes:
        if name not in known:
            raise ValueError(f"codes are given for {name!r}, which is no class{nearest(name, known)}")
    for name in structures:
        if name not in codes:
            raise ValueError(f"codes are given, but none for the class {name!r}: give category and type of each")
    seen: dict[object, str] = {}
    for name in structures:
        if (twin := seen.setdefault(codes[name].same_as, name)) != name:
            raise ValueError(f"{twin!r} and {name!r} have the same codes: give them other types or modifiers")


class ProtocolExpects(Strict):
    """What a task file's protocol has besides settings: methods, and a file of starting weights."""

    methods: tuple[str, ...] = ()
    weights: Name | None = None

    def departures(self, protocol: str, *, methods: Collection[str], weights: WeightsSpec | None) -> tuple[str, ...]:
        """A sentence on each thing that a job with these methods and starting weights lacks."""
        lacks = [
            f"protocol {protocol} has the method {method}, this job has not: add +{method}"
            for method in self.methods
            if method not in methods
        ]
        if self.weights is not None and (weights is None or weights.file != self.weights):
            begins = "random ones" if weights is None else weights.file
            lacks.append(
                f"protocol {protocol} starts from the weights {self.weights}, this job from {begins}: give them with "
                "--weights"
            )
        return tuple(lacks)


class Practical(Strict):
    """What a task file recommends for patients' scans, with its default settings, and why (``practical:``).

    ``because`` gives the methods' reason and ``settings`` that of the settings, each in a sentence without a full stop.
    """

    methods: tuple[Name, ...] = Field(min_length=1)
    because: str = Field(min_length=1, max_length=400)
    settings: str = Field(min_length=1, max_length=400)


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
    of the network's input; ``largest_component`` keeps only the largest connected part of each class; ``tolerance``
    (mm) is by how much a surface may be off and still count in ``surface_dice``; ``cldice`` names the classes that are
    thin, such as vessels, and have a centre-line Dice too (`fedshift.tasks.evaluation.centre_lines`).

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
    largest_component: bool = False
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


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping.

    Raises:
        ConfigError: no such file, one that cannot be read, or not a mapping.
    """
    try:
        if not path.is_file():
            raise ConfigError("file-missing", f"{path} does not exist")
        raw = _load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            "file-unreadable", f"{path} cannot be read ({error.strerror}): see to its permissions"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError("not-text", f"{path} is not UTF-8 text: save it in that encoding") from None
    except yaml.YAMLError as error:
        raise ConfigError("not-yaml", f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError("too-deep", f"{path} is nested too deeply: write it with fewer levels") from None
    if not isinstance(raw, dict):
        raise ConfigError("not-a-mapping", f"{path} must hold keys and values, not {type(raw).__name__}")
    return raw


def _load(text: str) -> object:
    """A YAML text's content, by libyaml, which takes a tenth of the time of Python's parser."""
    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    level = 0
    for event in yaml.parse(text, Loader=loader):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > DEEPEST:
            raise RecursionError
    return loader(text).get_single_data()  # as yaml.safe_load does with the loader in Python
