"""The best model at the sites whose data are here: one pass over a test part, and what is kept of it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedshift.data.locate import find_sites
from fedshift.federation.in_process import SITE_STATE
from fedshift.federation.model_files import read_model
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.reporting.report.images.picks import of_pictures, pick
from fedshift.reporting.report.images.volumes import Volume, volumes
from fedshift.reporting.report.runs import ModelFile, Run
from fedshift.schema.errors import ConfigError
from fedshift.schema.manifest import manifest_sha256, read_manifest
from fedshift.schema.messages import Broadcast
from fedshift.tasks.base import SiteData, Subset, Task
from fedshift.tasks.kinds import build_task
from fedshift.tasks.saliency import grad_cam
from fedshift.tasks.segmentation.patch_task import Task as PatchTask
from fedshift.tasks.segmentation.patches import Patches
from fedshift.tasks.stages import Stage

if TYPE_CHECKING:
    from fedshift.schema.job import JobSpec

IN_SIMULATOR = "sites"
"""Folder of a client's job folder with its sites' state."""
PIXELS = 40_000
"""Of a batch, taken at equal distances, for histograms."""
PIXELS_OF_A_PASS = 2_000
"""The same, where a batch passes in many windows."""
Shows = Literal["slices", "volumes", "pictures"]


@dataclass(frozen=True)
class Places:
    """Where a picture speaks for the class that a model finds most likely: (S, S) from 0 to 1."""

    number: int
    map: np.ndarray


@dataclass(frozen=True)
class Looked:
    """A site's test part and what the model makes of it; n samples in the order of ``data.members(part)``.

    With patches a sample is a volume.
    """

    site: str
    job: JobSpec
    data: SiteData
    part: Subset
    predicted: np.ndarray
    """(n, M, M) bool for slices, probabilities (n, K) float32 for pictures; of volumes nothing."""
    features: np.ndarray
    """(n, d): the input of the last layer, or the mean over the bottleneck of a segmentation network, of a volume the
    mean over its windows."""
    before: np.ndarray
    """A sample of the pixels of the images, as the task prepares them."""
    after: np.ndarray
    """Of the same images as the network gets them."""
    recorded: Sequence[float] | None
    """Scores by case that the record of the run holds."""
    complete: bool
    """Whether the model had the parts that the site keeps for itself, if the methods have such parts."""
    volumes: Sequence[Volume] = ()
    """What is shown of each case of a task on patches."""
    saliency: Mapping[int, Places] = field(default_factory=dict)
    """Of the pictures that are shown, by their place; none of a network without stages."""

    @property
    def shows(self) -> Shows:
        """What samples are."""
        if isinstance(self.data, Patches):
            return "volumes"
        return "slices" if self.predicted.dtype == bool else "pictures"

    @property
    def members(self) -> np.ndarray:
        """Sample numbers."""
        return self.data.members(self.part)


def look(
    run: Run,
    *,
    folders: Mapping[str, Path] | None,
    most_sites: int,
    progress: Callable[[str], None],
    models: Mapping[str, ModelFile] | None = None,
) -> list[Looked]:
    """See `fedshift.reporting.report.images.sections`; with ``models`` each site that has its own is passed by it."""
    if run.model is None:
        reason = run.fault or f"there is no model file beside {run.source}"
        raise ConfigError("no-model", f"--images needs the run's best model, and {reason}")
    job = run.model.job
    site_folders = find_sites(job) if folders is None else folders
    unknown = [site for site in site_folders if site not in job.task.everyone]
    if unknown:
        raise ConfigError(
            "unknown-site",
            f"--site-data: {', '.join(unknown)} is no site of job {job.name}: {', '.join(job.task.everyone)}",
        )
    chosen = [site for site in job.task.everyone if site in site_folders and (models is None or site in models)][
        :most_sites
    ]
    for site in chosen:
        read_manifest(site_folders[site])
        record = run.results.data.get(site)
        if record is not None and manifest_sha256(site_folders[site]) != record.manifest_sha256:
            raise ConfigError(
                "other-data",
                f"{site_folders[site]} is not what {site} had in this run (another manifest): name its folder with "
                f"--site-data {site}=DIR",
            )
    label = f"{run.label}: " if run.label else ""
    looked = []
    previous: Site | None = None
    with tempfile.TemporaryDirectory() as nothing:
        for site in chosen:
            progress(f"{label}{'the best' if models is None else 'its own'} model at {site}")
            model = run.model if models is None else models[site]
            kept = _state(run.source, site) if models is None else None
            state = Path(nothing) if kept is None else kept
            network = None if previous is None else previous.job_network
            previous = Site(job, site, site_folders[site], SiteOptions(state, job_network=network))
            data = build_task(job).open(site_folders[site], site)
            part: Subset = "test" if data.count("test") else "all"
            complete = kept is not None or not model.personal
            looked.append(_pass(previous, run, model, data, site_folders[site], part, complete=complete))
    return looked


def _state(source: Path, site: str) -> Path | None:
    """Where a site's own parts are: beside a run in one process, or in the site's part of a simulator's workspace."""
    job = source.parent
    for folder in (job / SITE_STATE, job.parent.parent / site / job.name / IN_SIMULATOR):
        if (folder / site).is_dir():
            return folder
    return None


def _pass(
    at: Site, run: Run, model: ModelFile, data: SiteData, folder: Path, part: Subset, *, complete: bool
) -> Looked:
    weights, arrays = read_model(model.path, round_=model.round)
    broadcast = Broadcast(round=model.round + 1, best_round=model.round, weights=weights, arrays=arrays)
    task, recorder = build_task(model.job), _Recorder(isinstance(data, Patches))
    handles = [recorder.hook_features(at.network)]  # the first: stages are found by a trial pass
    handles.append(at.network.register_forward_pre_hook(recorder.input))
    predicted: list[np.ndarray] = []
    shown: list[Volume] = []
    try:
        probabilities = recorder.batches(at.predictions(broadcast, part))
        if isinstance(data, Patches):
            assert isinstance(task, PatchTask)
            shown += volumes(task, data, folder, part, probabilities)
        else:
            for probability in probabilities:
                slices = probability.dim() == 4
                predicted.append((probability[:, 1] > 0.5).numpy() if slices else probability.numpy())
    finally:
        for handle in handles:
            handle.remove()
    before = [sample for images in data.eval_images(part) for sample in _before(task, images, windows=recorder.windows)]
    final = run.results.final
    result = None if final is None else final.best.evaluations.get(at.name, {}).get(part)
    spread = None if result is None else result.distributions.get(run.results.job.metric)
    return Looked(
        at.name,
        model.job,
        data,
        part,
        np.concatenate(predicted) if predicted else np.zeros(0),
        np.concatenate(recorder.features),
        np.concatenate(before),
        np.concatenate(recorder.inputs),
        None if spread is None else spread.cases,
        complete,
        shown,
        {} if task.dense else _saliency(at, broadcast, data, part, np.concatenate(predicted)),
    )


def _saliency(at: Site, broadcast: Broadcast, data: SiteData, part: Subset, predicted: np.ndarray) -> dict[int, Places]:
    """Of the pictures that are shown."""
    members, saliency = data.members(part), {}
    with at.loaded(broadcast) as scoring:
        if not getattr(scoring.net, "stages", ()):
            return {}
        for picked in pick(of_pictures(data.labels(members).numpy(), predicted)):
            number = int(predicted[picked.place].argmax())
            image = data.images(members[[picked.place]]).to(next(scoring.net.parameters()).device)
            x = scoring.chain.inputs(image, training=False)
            saliency[picked.place] = Places(number, grad_cam(scoring.net, x, number).numpy())
    return saliency


class _Recorder:
    """What passes through a network, kept by hooks: features of samples, and a part of the pixels of its inputs."""

    def __init__(self, windows: bool) -> None:
        """``windows``: whether an image passes in several windows."""
        self.inputs: list[np.ndarray] = []
        self.features: list[np.ndarray] = []
        self.windows = windows
        self._passes: list[np.ndarray] = []

    def batches(self, probabilities: Iterator[Tensor]) -> Iterator[Tensor]:
        """The same; what was seen until each of them is of its samples."""
        for probability in probabilities:
            features = np.concatenate(self._passes)
            self.features.append(features.mean(0, keepdims=True) if self.windows else features)
            self._passes.clear()
            yield probability

    def input(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Hook before the network."""
        self.inputs.append(_some(inputs[0], PIXELS_OF_A_PASS if self.windows else PIXELS))

    def hook_features(self, net: nn.Module) -> RemovableHandle:
        """The embedding before the last linear layer; or the bottleneck, which is the last of a network's stages."""
        head = getattr(net, "head", None)
        if isinstance(head, nn.Linear):
            return head.register_forward_pre_hook(lambda _module, inputs: self._keep(inputs[0].flatten(1)))

        def stage(features: Tensor) -> Tensor:
            self._keep(features.flatten(2).mean(2))
            return features

        last: Stage = net.stages[-1]  # type: ignore[index, assignment]
        return last.hook(stage)

    def _keep(self, features: Tensor) -> None:
        self._passes.append(features.float().cpu().numpy())


def _before(task: Task, images: Tensor, *, windows: bool) -> list[np.ndarray]:
    """What the network would get if methods changed nothing: for volumes the same windows in the same order."""
    if not windows:
        return [_some(images, PIXELS)]
    samples: list[np.ndarray] = []

    def keep(x: Tensor) -> Tensor:
        samples.append(_some(x, PIXELS_OF_A_PASS))
        return x[:, :1]

    next(task.logits(keep, [images], final=True))
    return samples


def _some(x: Tensor, most: int) -> np.ndarray:
    """The middle slice of a stack, or all colours; a part of the pixels, the same of every kind of image."""
    x = x[:, x.shape[1] // 2] if x.shape[1] == 3 and x.dim() == 4 else x
    flat = x.detach().float().cpu().contiguous().reshape(-1)
    picked: np.ndarray = flat[:: max(len(flat) // most, 1)].numpy()
    return picked
