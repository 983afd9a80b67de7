"""A job: a task, its methods and a schedule, resolved to the last key. Sites read this and nothing else."""

from __future__ import annotations

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

from fedshift.schema.compression import WeightsAs
from fedshift.schema.errors import ConfigError
from fedshift.schema.strict import Strict

FILE_NAME = "fedshift.yaml"

Precision = Literal["fp32", "bf16", "auto"]
"""``auto``: bf16 where a site's hardware multiplies it, else fp32 (`fedshift.tasks.precision.uses_bf16`)."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=128)]
"""Of a job, task, data set or site: also a folder's name."""


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
"""``auto``: the machine's cores, shared among the processes that work there side by side."""


class WeightsSpec(Strict):
    """A file of starting weights, which the server has (`fedshift.tasks.pretrained`). No path: sites read this."""

    file: Name
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class NetworkSpec(Strict):
    """A network of `fedshift.tasks.networks`, its options, and a file of starting weights, if it has one."""

    name: str
    options: dict[str, Any] = {}
    weights: WeightsSpec | None = None

    @model_serializer(mode="wrap")
    def _without_none(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = serialise(self)
        return {key: value for key, value in content.items() if key != "weights" or value is not None}


class OptimizerSpec(Strict):
    """The local optimiser. ``keep`` carries its state (Adam's moments) from round to round."""

    name: Literal["adam", "sgd"] = "adam"
    lr: float = Field(gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    keep: bool = True


class ScheduleSpec(Strict):
    """How long, in which batches, in which precision, with how many of torch's threads at a site.

    ``local_steps``, if given, is the number of optimiser steps a round and takes the place of ``local_epochs``.
    ``drop_last`` leaves out an epoch's last batch if it is smaller than the others.
    """

    rounds: int = Field(ge=1)
    local_epochs: int = Field(default=1, ge=1)
    local_steps: int | None = Field(default=None, ge=1)
    batch_size: int = Field(ge=1)
    drop_last: bool = True
    precision: Precision = "fp32"
    threads: Threads = 1


class TaskSpec(Strict):
    """What is learned. ``data`` is checked by the task's kind (``fedshift.tasks.kinds.<kind>``).

    ``held_out`` sites take no part in training: they only score the final models.
    """

    name: Name
    kind: str
    dataset: Name
    protocol: str = "default"
    sites: Annotated[tuple[Name, ...], Field(min_length=1), AfterValidator(_unique)]
    held_out: Annotated[tuple[Name, ...], AfterValidator(_unique)] = ()
    classes: Annotated[tuple[str, ...], Field(min_length=2, max_length=256), AfterValidator(_unique)]
    data: dict[str, Any] = {}
    network: NetworkSpec
    loss: str
    optimizer: OptimizerSpec
    schedule: ScheduleSpec

    @model_validator(mode="after")
    def _apart(self) -> Self:
        both = [site for site in self.sites if site in self.held_out]
        if both:
            raise ValueError(f"{', '.join(both)} cannot both train ('sites') and be held out ('held_out')")
        return self

    @property
    def everyone(self) -> tuple[str, ...]:
        """Sites that train, then those that are held out."""
        return (*self.sites, *self.held_out)


class RobustSpec(Strict):
    """How updates are combined where single sites are not trusted (`fedshift.federation.server.robust`).

    ``trim`` is the number of sites that rule ``trimmed_mean`` leaves out at each end. ``clip`` is how far rule
    ``norm_clipping`` lets a site move, in multiples of the sites' median movement, and for how many samples it counts,
    in multiples of their median.
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


class FederationSpec(Strict):
    """When a round counts, and which updates.

    ``sites_per_round``, if given, is how many sites the server draws, by seed, to train in each round; all sites take
    part in the statistics round and in the last evaluation. ``hosts``, for simulations of many sites, is the number of
    FLARE clients that share them out and do their work one after another; without it every site is a client. ``shares``
    are the sites of each host, where they are not dealt out in turn; ``fedshift run`` makes them.

    A round needs ``min_sites`` usable answers and ends with an error without them after ``round_timeout`` seconds.
    Once it has them it waits for the rest as long again as it took, plus ``grace`` seconds. An update whose
    parameters moved by more than ``max_update_norm`` times the model's norm is refused. So is one that is far outside
    the round's others, if there are at least three: whose parameters moved by more than ``max_norm_ratio`` times the
    median movement, of this round or of the earlier one where it was largest (and as often again as it made the median
    number of steps), or from a site that says it has more
    than ``max_sample_ratio`` times the median number of samples. None turns either off. ``robust`` limits what the
    accepted updates of single sites can do to the model. ``encryption`` lets the server add up updates that it cannot
    read (`fedshift.federation.encryption`). ``weights_as`` makes the network's weights smaller on the
    way, in both directions (`fedshift.schema.compression`).
    """

    min_sites: int = Field(ge=1)
    sites_per_round: int | None = Field(default=None, ge=1)
    hosts: int | None = Field(default=None, ge=1)
    shares: tuple[tuple[str, ...], ...] = ()
    round_timeout: float = Field(default=3600.0, gt=0)
    grace: float = Field(default=60.0, ge=0)
    max_update_norm: float = Field(default=10.0, gt=0)
    max_norm_ratio: float | None = Field(default=20.0, ge=1)
    max_sample_ratio: float | None = Field(default=1000.0, ge=1)
    robust: RobustSpec | None = None
    encryption: Literal["ckks"] | None = None
    weights_as: WeightsAs = "fp32"

    @model_serializer(mode="wrap")
    def _without_defaults(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Jobs written before these options were there stay as they are."""
        content: dict[str, Any] = serialise(self)
        fields = type(self).model_fields
        optional = ("shares", "max_norm_ratio", "max_sample_ratio", "robust", "encryption", "weights_as")
        kept = {key for key in content if key not in optional or getattr(self, key) != fields[key].default}
        return {key: value for key, value in content.items() if key in kept}

    def min_clients(self, n_sites: int) -> int:
        """Sites that must be there at all: as many may be missing as in a drawn round."""
        return self.min_sites + n_sites - min(self.sites_per_round or n_sites, n_sites)


class EvaluationSpec(Strict):
    """What is measured of the final models beside their scores.

    ``gradient_norm``: how far each site's optimum is from the model, the norm of the loss's gradient on
    validation images (on all images at held-out sites).
    """

    gradient_norm: bool = False


class JobSpec(Strict):
    """A fully resolved job (schema 1), as ``fedshift job`` writes it."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    name: Name
    seed: int = 0
    task: TaskSpec
    methods: dict[str, dict[str, Any]]
    federation: FederationSpec
    evaluation: EvaluationSpec = EvaluationSpec()

    @field_validator("seed")
    @classmethod
    def _seed_is_not_negative(cls, seed: int) -> int:
        if seed < 0:
            raise ValueError(f"must be 0 or more, not {seed}")
        return seed

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

    @model_serializer(mode="wrap")
    def _without_default(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = serialise(self)
        return {
            key: value for key, value in content.items() if key != "evaluation" or self.evaluation != EvaluationSpec()
        }

    def dump(self) -> dict[str, Any]:
        """Plain data, as YAML and JSON can hold it."""
        return self.model_dump(mode="json", by_alias=True)


def read_job(path: Path) -> JobSpec:
    """Read a job's ``fedshift.yaml``.

    Raises:
        ConfigError: no such file, not YAML, or a key that does not fit.
    """
    return JobSpec.parse(read_yaml(path), where=str(path))


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping.

    Raises:
        ConfigError: no such file, or not a mapping.
    """
    if not path.is_file():
        raise ConfigError(f"{path} does not exist")
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text in UTF-8: save it as such") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} must hold keys and values, not {type(raw).__name__}")
    return raw
