"""A task: its data, network, loss, optimiser and schedule, as a task file or a job has them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from fedshift.schema.adapters import AdaptersSpec
from fedshift.schema.codes import ClassCodes, takes_empty
from fedshift.schema.names import ClassName, Line, Name
from fedshift.schema.optimizer import OptimizerSpec
from fedshift.schema.regions import Regions, make_regions, overlapping
from fedshift.schema.strict import Sparse, Strict, nearest

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


Threads = Annotated[int | Literal["auto"], BeforeValidator(_threads)]
"""PyTorch threads of a site; ``auto`` divides the machine's cores among the processes that run in parallel."""


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
        options = ", ".join(f"{key} {value}" for key, value in self.options.items())
        return f"{self.name} ({options})" if options else self.name


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
    declared = dict(raw)
    structures = declared.pop("overlapping", None)
    if structures is None:
        return declared
    for key in ("classes", "regions", "regions_class_order"):
        if declared.get(key):
            raise ValueError(f"'overlapping' takes the place of {key!r}: leave one of the two out")
    if (
        not isinstance(structures, list | tuple)
        or len(structures) < 2
        or not all(isinstance(s, str) for s in structures)
    ):
        raise ValueError("'overlapping' must be a list of two or more names")
    declared["classes"], declared["regions"] = overlapping(_unique(tuple(structures)))
    return declared


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
    names: dict[object, str] = {}
    for name in structures:
        if (twin := names.setdefault(codes[name].same_as, name)) != name:
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
