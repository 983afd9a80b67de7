"""``results.json`` (schema 1): the record of a run. The server writes it; tables, plots and reports read it."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from fedshift import __version__
from fedshift.schema.errors import ConfigError
from fedshift.schema.evaluation import Evaluation
from fedshift.schema.files import write_text
from fedshift.schema.guarantee import Guarantee
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import PhantomOptions, Split
from fedshift.schema.packages import PackageName, PackageSpec
from fedshift.schema.paired import LocalComparison
from fedshift.schema.strict import first_fault

FILE_NAME = "results.json"
BEST, LAST = "best_global_model.pt", "last_global_model.pt"
"""Model files in the same folder."""
UNMASKING = "unmasking.json"
"""Beside them, with masks: who is in the sum of the last round that sites were asked to unmask."""
Metrics = dict[str, float]
Count = Annotated[int, Field(strict=True, ge=0, le=10**9)]
Lineage = dict[str, tuple[str, ...]]
"""Data set -> sites. Sites of other data sets may have the same names and are others."""
MODEL_FORMAT, MODEL_SCHEMA = "fedshift model", 3
"""What the header of a model file says in ``format`` and ``schema``."""
FROM_SCRATCH = "from scratch"
TRAINED_BEFORE = "took part in training the starting weights"
"""What tables and reports say of a site of `JobRecord.trained_before`."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=(), ser_json_inf_nan="constants")


class MethodRecord(_Model):
    """A method as it ran."""

    name: str
    variant: str | None
    options: dict[str, Any]


class JobRecord(_Model):
    """What was run."""

    name: str
    task: str
    dataset: str = ""
    protocol: str
    departures: list[str] = []
    """What the protocol has and this job has not."""
    methods: list[MethodRecord]
    seed: int
    precision: str
    threads: int | str
    """``precision`` and ``threads`` may be ``auto``; the values that each site used are in ``machines``."""
    rounds: int
    minutes: float | None = None
    """After which a site's round ended, if it did by the clock: such a run cannot be repeated bit for bit."""
    network: dict[str, Any]
    initial_weights: str = FROM_SCRATCH
    """Or the name of the file, and which layers were taken from it."""
    lineage: Lineage = {}
    """Sites that trained the starting weights, or those that these started from, if a fedshift model was the start."""
    packages: dict[PackageName, PackageSpec] = {}
    """Installed packages that network, methods and loss are of, where they are not fedshift's own."""
    data: dict[str, Any]
    metric: str = "dice"
    """The score that selects the best round."""
    held_out: list[str] = []
    """Sites that only score the final models."""
    local: bool = False
    """Whether every site also trained a model alone (``evaluation.local``)."""
    settings: dict[str, Any] = {}
    """`deciding_settings` of the job; empty in records of earlier versions."""

    @model_serializer(mode="wrap")
    def _without_packages(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """As most runs have none."""
        content: dict[str, Any] = serialise(self)
        return content if self.packages else {key: value for key, value in content.items() if key != "packages"}

    def trained_before(self, sites: Iterable[str]) -> list[str]:
        """Those of this run's ``sites`` that took part in training the starting weights."""
        return [site for site in sites if site in self.lineage.get(self.dataset, ())]


WITHOUT_EFFECT = {
    "schedule": {"threads", "checkpoint_minutes"},
    "federation": {"min_sites", "hosts", "shares", "round_timeout", "grace", "tracking"},
    "evaluation": {"start", "every", "gradient_norm", "local", "reference"},
}
"""Settings with which a job's models and their scores are the same: of how it runs, and of what else is told of it."""


def deciding_settings(job: JobSpec) -> dict[str, Any]:
    """The job's loss, optimizer, schedule, federation and evaluation, but for what is `WITHOUT_EFFECT`.

    Data, network and methods are in a `JobRecord` of their own.
    """
    task = job.task.model_dump(mode="json")
    parts = {"optimizer": task["optimizer"], "schedule": task["schedule"]}
    parts |= {name: getattr(job, name).model_dump(mode="json") for name in ("federation", "evaluation")}
    kept = {
        name: {key: value for key, value in part.items() if key not in WITHOUT_EFFECT.get(name, ())}
        for name, part in parts.items()
    }
    return {"loss": task["loss"], **kept}


class DataRecord(_Model):
    """A site's data: counts of samples (slices, patches or pictures) and cases a split, and its manifest's fingerprint.

    ``cases`` is empty in records of earlier versions.
    """

    kind: Literal["patients", "images", "phantom"]
    n: dict[str, Count]
    manifest_sha256: str = Field(max_length=64, pattern=r"^[0-9A-Za-z]+$")
    split_rule: str = Field(max_length=64, pattern=r"^\w[ -~]*$")
    unknown_spacing: bool = False
    """Whether headers of some cases hold no voxel size, so that distances in mm mean nothing."""
    simulated: str = Field(default="", max_length=64, pattern=r"^(\w[ -~]*)?$")
    """What was simulated of real scans, such as their scanners."""
    phantom: PhantomOptions | None = None
    """What ``fedshift data phantom`` made the scans with; None in records of earlier versions too."""
    cases: dict[Split, Count] = {}


class MachineRecord(_Model):
    """A site's hardware as it reports it: device model, precision and PyTorch threads.

    ``devices``: how many such devices share each batch, with so many threads each; it is written if it is not 1.
    """

    device: str = Field(max_length=64, pattern=r"^\w[ -~]*$")
    precision: Literal["fp32", "bf16"]
    threads: int = Field(strict=True, ge=1, le=4096)
    devices: int = Field(default=1, strict=True, ge=1, le=4096)

    @model_serializer(mode="wrap")
    def _in_short(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in write(self).items() if name != "devices" or value != 1}


class SiteRound(_Model):
    """One site in one round. ``val`` and ``test`` are scores of the round's aggregate at the site.

    ``test`` is of the rounds that the job asks for (``evaluation.every``), and of the best and the last one.

    A site that missed the round but scored its aggregate later has only scores. ``parts``: in how many parts batches
    went through the network, for want of memory; left out of the file where they were whole.
    """

    n: int = 0
    steps: int = 0
    train_loss: float | None = None
    val: Metrics = {}
    test: Metrics | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    parts: int = 1

    @model_serializer(mode="wrap")
    def _without_one_part(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = serialise(self)
        return {key: value for key, value in content.items() if key != "parts" or value != 1}


class Rejection(_Model):
    """An update that the server refused, and why."""

    site: str
    key: str
    reason: str


class RoundRecord(_Model):
    """One round.

    ``contributions``: how much each site contributed to the round's model, as a method estimates it: method -> site ->
    share. Empty without such a method. ``held_out``: validation scores of the round's aggregate at sites that are held
    out, in `fedshift leave-one-out --choose-round`; left out of files where there are none.
    """

    round: int
    seconds: float = 0.0
    sites: dict[str, SiteRound] = {}
    rejected: list[Rejection] = []
    absent: list[str] = []
    contributions: dict[str, dict[str, float]] = {}
    held_out: dict[str, Metrics] = {}

    @model_serializer(mode="wrap")
    def _without_held_out(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = serialise(self)
        return {key: value for key, value in content.items() if value or key != "held_out"}


class Selected(_Model):
    """The round whose aggregate is the best model, and by which rule."""

    round: int
    rule: str


class FinalScores(_Model):
    """Scores of an aggregate: site -> split -> metrics.

    Those of sites that are held out are apart: ``all`` is over all samples of such a site, ``test`` over its test part.
    ``evaluations`` say more of both kinds of sites, for every split but ``val``: site -> split -> evaluation.
    ``domain_gradient_norms``: norm of the gradient over the validation samples of each domain that is divided among
    sites, of runs in one process (`fedshift.federation.in_process.DomainGradients`).
    """

    round: int
    sites: dict[str, dict[str, Metrics]]
    held_out: dict[str, dict[str, Metrics]] = {}
    evaluations: dict[str, dict[str, Evaluation]] = {}
    domain_gradient_norms: dict[str, float] = {}


class SiteBest(_Model):
    """The round whose aggregate, with the site's own parts, is best on the site's validation samples."""

    round: int
    val: Metrics
    test: Metrics


class Final(_Model):
    """Scores of the best and the last aggregate.

    ``personal`` is filled when methods keep parts at the sites: test scores of the best round, each site with its own
    parts (so are ``best`` and ``last`` then; the model files hold none of these parts); or, with ``fine_tuned``, with
    the best model as the site trained it on (``best`` and ``last`` are then of the model itself). ``newcomers`` had not
    trained up to the best round: they had no parts of their own, and the methods' options say what they used instead.
    ``site_best``: each site's own best round, if the job has test scores of every round. ``against_local``: the best
    model at each site, as the site would use it, against the model that the site trained alone. ``image_free``: scores
    of a guess from the training masks alone (`fedshift.tasks.evaluation.image_free`), site -> split -> metrics, of runs
    that segment with all sites on one machine; ``all`` of sites that are held out. ``guarantee``: what the best model
    promises, with what came of it on test cases, if the job has ``evaluation.guarantee``.
    """

    best: FinalScores
    last: FinalScores
    personal: dict[str, Metrics] = {}
    personal_evaluations: dict[str, Evaluation] = {}
    fine_tuned: bool = False
    newcomers: list[str] = []
    site_best: dict[str, SiteBest] = {}
    against_local: dict[str, LocalComparison] = {}
    image_free: dict[str, dict[str, Metrics]] = {}
    guarantee: Guarantee | None = None

    @model_serializer(mode="wrap")
    def _without_no_guarantee(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = serialise(self)
        return {key: value for key, value in content.items() if key != "guarantee" or value is not None}


class Results(_Model):
    """The record of a run."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    job: JobRecord
    versions: dict[str, str]
    data: dict[str, DataRecord] = {}
    machines: dict[str, MachineRecord] = {}
    statistics: RoundRecord | None = None
    rounds: list[RoundRecord] = []
    evaluations: list[RoundRecord] = []
    selected: Selected | None = None
    final: Final | None = None

    @property
    def is_phantom(self) -> bool:
        """Whether any site's data are simulated."""
        return any(record.kind == "phantom" for record in self.data.values())

    @property
    def simulated_sites(self) -> dict[str, list[str]]:
        """What was simulated of real scans -> the sites where it was."""
        sites: dict[str, list[str]] = {}
        for site, record in self.data.items():
            if record.simulated:
                sites.setdefault(record.simulated, []).append(site)
        return sites

    @property
    def scored_rounds(self) -> list[RoundRecord]:
        """The rounds whose model can have scores. Round 0, the statistics round, stands for the initial weights."""
        start = self.statistics
        return [*([start] if start is not None and start.sites else []), *self.rounds]

    def write(self, folder: Path) -> None:
        # Not json.dumps: this is written after every round, and grows with them.
        write_text(folder / FILE_NAME, self.model_dump_json(by_alias=True, indent=1))


def read_results(path: Path) -> Results:
    """Read a ``results.json`` or the one in a folder.

    Raises:
        ConfigError: not there, or not such a file.
    """
    path = path / FILE_NAME if path.is_dir() else path
    if not path.is_file():
        raise ConfigError("file-missing", f"{path} does not exist: a run writes it into the server's job folder")
    try:
        return Results.model_validate_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(
            "other-version", f"{path} is not a results file of this version ({first_fault(error)})"
        ) from None


def new_results(job: JobSpec, *, metric: str) -> Results:
    """An empty record of a job; ``metric`` is its task's."""
    schedule = job.task.schedule
    return Results(
        job=JobRecord(
            name=job.name,
            task=job.task.name,
            dataset=job.task.dataset,
            protocol=job.task.protocol,
            departures=list(job.task.departures),
            methods=[
                MethodRecord(name=name, variant=options.get("variant"), options=options)
                for name, options in job.methods.items()
            ],
            seed=job.seed,
            precision=schedule.precision,
            threads=schedule.threads,
            rounds=schedule.rounds,
            minutes=schedule.minutes,
            network=job.task.network.model_dump(mode="json"),
            packages=job.packages,
            data=job.task.data,
            metric=metric,
            held_out=list(job.task.held_out),
            local=job.evaluation.local,
            settings=deciding_settings(job),
        ),
        versions=versions(),
    )


def versions() -> dict[str, str]:
    versions = {"fedshift": __version__, "python": platform.python_version(), "machine": platform.machine()}
    for package in ("torch", "numpy", "monai", "nvflare"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def joined(lineage: Mapping[str, Iterable[str]], dataset: str, sites: Iterable[str]) -> Lineage:
    """``lineage`` and more sites of a data set; without data sets that have no sites."""
    every = {name: dict.fromkeys(trained) for name, trained in lineage.items()}
    every[dataset] = every.get(dataset, {}) | dict.fromkeys(sites)
    return {name: tuple(trained) for name, trained in every.items() if trained}


def lineage_of(content: object, *, where: str) -> Lineage:
    """The sites that have trained the model in a file that fedshift wrote; nobody for any other file.

    Args:
        content: what the file holds.
        where: how to name the file in errors.

    Raises:
        ConfigError: a model of another version of fedshift, or one whose header is damaged.
    """
    if not isinstance(content, dict) or content.get("format") != MODEL_FORMAT:
        return {}
    header: dict[Any, Any] = content
    try:
        known = {str(name): _names(trained) for name, trained in header["lineage"].items()}
        return joined(known, str(header["job"]["task"]["dataset"]), _names(header["sites"]))
    except (KeyError, TypeError, AttributeError):
        raise ConfigError(
            "other-version",
            f"{where} does not say which sites trained it: another version of fedshift wrote it, or it is damaged",
        ) from None


def _names(value: object) -> list[str]:
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise TypeError
    return list(value)
