"""The kinds of task: how a site's data become batches, what the loss is, what is scored."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedshift.data.prepared import mask_file
from fedshift.data.samples import Samples
from fedshift.data.splits import subject_of
from fedshift.schema.codes import WITHOUT_STRUCTURE
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.evaluation import Evaluation
from fedshift.schema.job import EvaluationSpec, JobSpec
from fedshift.schema.manifest import Case, Manifest, Picture, Split
from fedshift.schema.seeding import derive_seed
from fedshift.schema.strict import Strict, nearest
from fedshift.tasks import adapters, networks
from fedshift.tasks.cache import Cache, place
from fedshift.tasks.evaluation.case_scores import CaseScores
from fedshift.tasks.evaluation.guarantee import CaseRisks
from fedshift.tasks.losses import Logits

Sizes = Mapping[str, tuple[int, ...]]
Subset = Split | Literal["all"]
"""What can be scored: a split, or all samples of a site that is held out."""


EVALUATED = 64 * 40
"""`Task.evaluated` of pictures and slices, which come in batches, and of which a volume is put together."""


class SiteData(Samples):
    """A prepared site as training and evaluation read it."""

    manifest: Manifest
    split_rule: str
    eval_batch: ClassVar[int]
    """Samples in a batch of evaluation."""
    cache: Cache
    """``data.cache``."""
    standard: np.ndarray | None = None
    """Of each case and sequence its standard landmarks (`fedshift.data.resampled.ResampledVolumes`)."""
    _on_device: tuple[Tensor, Tensor] | None = None
    """The arrays of images and labels, if they lie on the device."""

    @property
    @abstractmethod
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """All images and all labels as they are stored."""

    @abstractmethod
    def keep(self, images: np.ndarray, labels: np.ndarray) -> None:
        """Read from these copies of `arrays` from now on."""

    def hold(self, device: torch.device) -> None:
        """Bring the arrays where ``data.cache`` says (`fedshift.tasks.cache`), for training on a device.

        Raises:
            DataError: they do not fit there.
        """
        size = sum(array.nbytes for array in self.arrays)
        where = place(self.cache, size, device, site=self.manifest.site)
        if where == "host":
            self.keep(*map(np.array, self.arrays))
        elif where == "device":
            images, labels = (torch.from_numpy(np.array(array)).to(device) for array in self.arrays)
            self._on_device = images, labels

    @abstractmethod
    def members(self, subset: Subset) -> np.ndarray:
        """Sample numbers (n,) of a subset of the site."""

    @abstractmethod
    def images(self, index: np.ndarray) -> Tensor:
        """(B, C, *spatial) float32 for sample numbers (B,)."""

    @abstractmethod
    def labels(self, index: np.ndarray) -> Tensor:
        """(B,) or (B, *spatial) int64 for sample numbers (B,)."""

    def count(self, subset: Subset) -> int:
        return len(self.members(subset))

    def cases(self, subset: Subset) -> np.ndarray:
        """Which case each sample of a subset is of, (n,); every picture is a case."""
        return self.members(subset)

    def windows(self, index: np.ndarray, subset: Subset) -> Tensor:
        """Images (B, C, *spatial) as evaluation passes them to the network, by their place among `window_cases`."""
        return self.images(self.members(subset)[index])

    def window_cases(self, subset: Subset) -> np.ndarray:
        """Which case each of the `windows` is of, (n,)."""
        return self.cases(subset)

    def subjects_of(self, cases: np.ndarray) -> np.ndarray:
        """Whose each of these cases is, (n,): the number of the first case of the same subject (`subject_of`)."""
        first: dict[str, int] = {}
        entries: Sequence[Case | Picture] = self.manifest.entries
        subjects = [first.setdefault(subject_of(entry), k) for k, entry in enumerate(entries)]
        return np.asarray(np.array(subjects, dtype=np.int64)[cases])

    def subject_names(self, cases: np.ndarray) -> list[str] | None:
        """Whose each of these cases is; None if each is of another subject."""
        numbers = self.subjects_of(cases)
        return None if len(np.unique(numbers)) == len(numbers) else [str(number) for number in numbers]

    @property
    def n_train(self) -> int:
        return self.count("train")

    @property
    def n_images(self) -> int:
        return len(self.window_cases("train"))

    @property
    def landmarks(self) -> np.ndarray | None:
        return self.landmarks_of("train")

    def landmarks_of(self, subset: Subset) -> np.ndarray | None:
        """Those of a subset's volumes, (cases, S, 9); None without ``normalise: landmarks``."""
        return None if self.standard is None else self.standard[np.unique(self.cases(subset))]

    def image_samples(self, index: np.ndarray) -> Tensor:
        """Windows of the training split by their place."""
        return self.windows(index, "train")

    def train_samples(self, index: np.ndarray) -> tuple[Tensor, Tensor]:
        """Training samples by their place among them."""
        return self.samples(index, "train")

    def samples(self, index: np.ndarray, subset: Subset) -> tuple[Tensor, Tensor]:
        """Samples as in training but without augmentation, by their place among the `n_samples` of a subset."""
        members = self.members(subset)[index]
        return self.images(members), self.labels(members)

    def validation(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Samples of the split ``val`` as in training but without augmentation, in order."""
        for start in range(0, self.n_samples("val"), self.chunk):
            yield self.samples(np.arange(start, min(start + self.chunk, self.n_samples("val"))), "val")

    def n_samples(self, subset: Subset) -> int:
        """Number of samples of a subset as training would see it."""
        return self.count(subset)

    def eval_index(self, subset: Subset) -> Iterator[np.ndarray]:
        """Sample numbers of a subset, batch by batch, in order."""
        members = self.members(subset)
        for start in range(0, len(members), self.eval_batch):
            yield members[start : start + self.eval_batch]

    def eval_images(self, subset: Subset) -> Iterator[Tensor]:
        for index in self.eval_index(subset):
            yield self.images(index)

    def check_fits(self, job: JobSpec, folder: Path, site: str) -> None:
        """Compare with what a job expects of a site.

        Raises:
            DataError: the folder is another site's, or of another data set or other classes; or the site has nothing
                to train on and is not held out.
        """
        task = job.task
        self.manifest.check_is(folder, dataset=task.dataset, site=site, classes=task.classes)
        if self.manifest.ignore and not task.ignore:
            raise DataError(
                "ignore-unknown",
                f"site {site}: its masks have voxels to ignore, and the task {task.name} has none: set ignore=true",
            )
        if (without := self.manifest.preparation.get(WITHOUT_STRUCTURE)) and not task.takes_empty:
            raise DataError(
                "mask-empty",
                f"site {site}: {without} of its cases have an empty mask, and the task {task.name} takes none: set "
                "data.empty=true, or prepare the site without them",
            )
        if not self.n_train and site not in task.held_out:
            raise DataError(
                "no-images", f"site {site}: no image to train on; prepare the site with more of them, or hold it out"
            )


class ScanData(SiteData):
    """A prepared site of scans, whose labels are masks."""

    def check_masks(self, folder: Path) -> None:
        """Refuse a folder without the mask of every case (`DataError`)."""
        lost = next(
            (case.id for case in self.manifest.cases if not mask_file(folder, case.id, self.manifest.stored).is_file()),
            None,
        )
        if lost is not None:
            fault = f"has no mask of case {lost}, which the final evaluation reads: prepare the site again"
            raise DataError("mask-missing", f"{folder / 'volumes'} {fault}")

    @abstractmethod
    def stacks(self, subset: Subset) -> Iterator[np.ndarray]:
        """For each case of a subset the sample numbers with which `labels` gives its slices."""

    @abstractmethod
    def heights(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of each slice of `labels` its place in the scan's stack, from 0 to 1, and its part of it; both (slices,)."""


class Everything(Samples):
    """All samples of a held-out site that has no training split: what methods measure there."""

    def __init__(self, data: SiteData) -> None:
        self._data = data

    @property
    def n_train(self) -> int:
        return self._data.n_samples("all")

    def train_samples(self, index: np.ndarray) -> tuple[Tensor, Tensor]:
        return self._data.samples(index, "all")

    @property
    def n_images(self) -> int:
        return len(self._data.window_cases("all"))

    @property
    def landmarks(self) -> np.ndarray | None:
        return self._data.landmarks_of("all")

    def image_samples(self, index: np.ndarray) -> Tensor:
        return self._data.windows(index, "all")

    @property
    def chunk(self) -> int:
        return self._data.chunk


class Task(Protocol):
    """One kind of task, built from a job."""

    data_spec: type[Strict]
    """The settings under ``data`` of a task of this kind."""
    dense: bool
    """Whether every pixel or voxel has a class, and channels are slices or sequences of a scan and not colours."""
    findings: bool
    """Whether an image may have several of the classes: targets are then (B, K), 1, 0, or NaN where it is unknown."""
    spatial: tuple[int, ...]
    """Size of an image as the network sees it in training, without batch and channels."""
    sizes: Sizes
    """What words in a method's array shapes stand for: ``spatial``, ``half spatial`` (of a real spectrum), ``classes``,
    ``sequences`` (1 of a scan without several)."""
    evaluated: int
    """About how many images of one channel and of this size evaluation holds at once."""
    metric: str
    """The score that selects the best round; higher is better. One of `scores`, as the job says (`selecting`)."""
    metrics: Mapping[str, tuple[float, float]]
    """Every score and its range; sites may send no others."""
    per_case: tuple[str, ...]
    """Those of which every case has one of its own; the first is the one by which two models are compared."""
    intensities: tuple[float, float]
    """The smallest and largest value that an image can have, whatever is on it."""

    def __init__(self, job: JobSpec) -> None: ...

    def network(self) -> nn.Module:
        """The network; its initial weights depend on the job's seed only."""

    def preparation(self) -> dict[str, Any]:
        """How a scan or picture becomes the network's input, as plain values, for the header of a model file.

        A model file whose statement differs from this version's was trained on images prepared otherwise: it is
        refused.
        """

    def open(self, folder: Path, site: str) -> SiteData:
        """A site's prepared folder.

        Raises:
            DataError: it is damaged, or not what the job expects (`SiteData.check_fits`).
        """

    def at(self, data: SiteData, *more: SiteData) -> Task:
        """The task at a site, or at several that are pooled: itself, unless their labels are other than the task's."""

    def loss(self, logits: Logits, target: Tensor) -> Tensor:
        """A scalar for a batch. ``logits`` is what the network gives, in training perhaps several."""

    def logits(
        self, forward: Callable[[Tensor], Tensor], batches: Iterable[Tensor], *, final: bool, apart: bool = False
    ) -> Iterator[Tensor]:
        """Logits of the images of each batch of ``data.eval_images``, one after the other.

        Args:
            forward: the network with every method's inputs; takes images of the size of training (`spatial`).
            batches: on the CPU, or where the network is.
            final: whether final models are evaluated, and not those of each round.
            apart: whether no pass of the network may have images of several batches.
        """

    def predicted(self, logits: Tensor) -> Tensor:
        """What `scores` is given of logits (B, K, …), on the CPU: predicted classes, or sets of regions
        (`fedshift.runtime.regions`), (B, …) uint8; or of a task whose scores need more `probabilities`.
        """

    def probabilities(self, logits: Tensor) -> Tensor:
        """Probabilities of the classes, or regions, of logits, (B, K, …) float32 on the CPU.

        NaN becomes 0 for every class, so that a broken model gets low scores and not an error.
        """

    def scores(self, predictions: Iterator[Tensor], data: SiteData, subset: Subset) -> dict[str, float]:
        """Scores of what `predicted` gives, which comes batch by batch in the order of ``data.eval_images``.

        What selects the best round: quick, on what the network sees.
        """

    def evaluate(
        self,
        probabilities: Iterator[Tensor],
        data: SiteData,
        subset: Subset,
        *,
        seed: int,
        share_cases: bool,
        keep: CaseScores | None = None,
    ) -> Evaluation:
        """Evaluate a final model on a subset that has samples.

        Args:
            probabilities: `probabilities` (B, K, …) on the CPU, batch by batch in the order of ``eval_images``.
            data: the site's.
            subset: which of its samples.
            seed: of the bootstrap.
            share_cases: whether scores of single cases may leave.
            keep: gets every score of single cases, for comparisons at the site, whether they may leave or not.
        """

    def risks(self, probabilities: Iterator[Tensor], data: SiteData, subset: Subset) -> CaseRisks:
        """Risk curves of a subset's cases (`fedshift.tasks.evaluation.guarantee`), on the scans' own grids.

        ``probabilities`` come as for `evaluate`.
        """


class OneClass:
    """What tasks have in common whose images, or their pixels, are each of one class."""

    findings = False

    def predicted(self, logits: Tensor) -> Tensor:
        """The most likely classes, (B, …) uint8."""
        return logits.argmax(1).to(torch.uint8).cpu()  # in this order only bytes leave a GPU

    def probabilities(self, logits: Tensor) -> Tensor:
        """The softmax, (B, K, …)."""
        return logits.float().softmax(1).nan_to_num_(0).cpu()


class ClassifyingTask(Task, Protocol):
    """A task that gives each image classes."""

    @property
    def measures_labels(self) -> str:
        """The setting by which the training of one image depends on the labels of the site's others, if one does."""

    def decided(self, probabilities: Iterator[Tensor], data: SiteData) -> Task:
        """The task as final models are evaluated at a site, whose validation part may choose thresholds.

        ``probabilities`` are those of the validation part, as for `evaluate`.
        """


class ScanTask(Task, Protocol):
    """A task that segments scans."""

    def confidences(self, probabilities: Iterator[Tensor], data: SiteData, subset: Subset) -> Iterator[float | None]:
        """The model's confidence in each case of a subset, see `fedshift.tasks.evaluation.confidence`.

        ``probabilities`` come as for `evaluate`.
        """


def selecting(job: JobSpec, known: Sequence[str]) -> str:
    """The score that selects the best round, of the ``known`` ones of every round, the task's own choice first.

    Raises:
        ConfigError: no round has the score that the job names.
    """
    name = job.evaluation.metric
    if name is not None and name not in known:
        raise ConfigError(
            "unknown-metric",
            f"evaluation.metric: rounds of task {job.task.name} have no score {name!r}{nearest(name, known)}",
        )
    return name or known[0]


def refuse_patch_options(job: JobSpec) -> None:
    """Refuse regions, labels to ignore and options of evaluation, which only segmentation by patches has.

    Raises:
        ConfigError: the job has some.
    """
    for key in ("regions", "ignore"):
        if getattr(job.task, key):
            raise ConfigError(
                "options-clash",
                f"task {job.task.name}: {key!r} is for segmentation by patches: set data.patch, or leave it out",
            )
    fields = EvaluationSpec.model_fields
    for key in ("mirror", "largest_component", "tolerance", "cldice"):
        default = fields[key].default
        if getattr(job.evaluation, key) != default:
            plain = str(default).lower() if default != () else "[]"
            raise ConfigError(
                "options-clash",
                f"evaluation.{key} is for segmentation by patches: set data.patch, or evaluation.{key}={plain}",
            )


def sizes(spatial: Sequence[int], n_classes: int, *, sequences: int = 1) -> Sizes:
    """`Task.sizes` of images of one size."""
    half = (*spatial[:-1], spatial[-1] // 2 + 1)
    return {"spatial": tuple(spatial), "half spatial": half, "classes": (n_classes,), "sequences": (sequences,)}


def initial_network(job: JobSpec, *, in_channels: int, spatial: Sequence[int] = ()) -> nn.Module:
    """The job's network; its initial weights depend on the seed only. ``spatial``: the size of its images.

    With adapters their base has random weights too: `fedshift.tasks.starting` has a network with those of the file.
    """
    spec = job.task.network
    net = networks.build(
        spec.name,
        spec.options,
        in_channels=in_channels,
        n_classes=job.task.outputs,
        seed=derive_seed(job.seed, "server", 0, "weights"),
        spatial_dims=len(spatial) or 2,
        patch=spatial or None,
    )
    return net if spec.adapters is None else adapters.adapt(net, spec, seed=job.seed)
