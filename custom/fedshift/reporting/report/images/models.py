"""The best model at the sites whose data are here: one pass over a test part, and what is kept of it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fedshift.data.local_sites import find_sites
from fedshift.federation.in_process import SITE_STATE
from fedshift.federation.site.site import Site
from fedshift.reporting.report.runs import ModelFile, Run
from fedshift.schema.errors import ConfigError
from fedshift.schema.manifest import manifest_sha256, read_manifest
from fedshift.schema.messages import Broadcast
from fedshift.tasks.base import SiteData, Subset
from fedshift.tasks.kinds import build_task
from fedshift.tasks.segmentation.patch_task import Task as PatchTask

if TYPE_CHECKING:
    from fedshift.schema.job import JobSpec

IN_SIMULATOR = "sites"
"""Folder of a client's job folder with its sites' state."""
PIXELS = 40_000
"""Of a batch, taken at equal distances, for histograms."""


@dataclass(frozen=True)
class Looked:
    """A site's test part and what the model makes of it; n samples in the order of ``data.members(part)``."""

    site: str
    job: JobSpec
    data: SiteData
    part: Subset
    predicted: np.ndarray
    """(n, M, M) bool for segmentation, else probabilities (n, K) float32."""
    features: np.ndarray
    """(n, d): the input of the last layer, or the mean over the bottleneck of a segmentation network."""
    before: np.ndarray
    """A sample of the pixels of the images."""
    after: np.ndarray
    """Of the same images as the network gets them."""
    recorded: Sequence[float] | None
    """Scores by case that the record of the run holds."""
    complete: bool
    """Whether the model had the parts that the site keeps for itself, if the methods have such parts."""

    @property
    def slices(self) -> bool:
        """Whether samples are slices of volumes."""
        return self.predicted.dtype == bool

    @property
    def members(self) -> np.ndarray:
        """Sample numbers."""
        return self.data.members(self.part)


def look(
    run: Run,
    *,
    folders: Mapping[str, Path] | None,
    most_sites: int,
    tell: Callable[[str], None],
    own: Mapping[str, ModelFile] | None = None,
) -> list[Looked]:
    """See `fedshift.reporting.report.images.sections`; with ``own`` each site that has one is passed by it."""
    if run.model is None:
        reason = run.fault or f"there is no model file beside {run.source}"
        raise ConfigError(f"--images needs the run's best model, and {reason}")
    job = run.model.job
    if isinstance(build_task(job), PatchTask):
        raise ConfigError(
            f"--images shows slices and pictures, and job {job.name} works on patches of volumes: leave it out, and "
            "see masks with 'fedshift predict --overlay'"
        )
    given = find_sites(job) if folders is None else folders
    unknown = [site for site in given if site not in job.task.everyone]
    if unknown:
        raise ConfigError(
            f"--site-data: {', '.join(unknown)} is no site of job {job.name}: {', '.join(job.task.everyone)}"
        )
    chosen = [site for site in job.task.everyone if site in given and (own is None or site in own)][:most_sites]
    for site in chosen:
        read_manifest(given[site])
        told = run.results.data.get(site)
        if told is not None and manifest_sha256(given[site]) != told.manifest_sha256:
            raise ConfigError(
                f"{given[site]} is not what {site} had in this run (another manifest): name its folder with "
                f"--site-data {site}=DIR"
            )
    of = f"{run.label}: " if run.label else ""
    looked = []
    beside: Site | None = None
    with tempfile.TemporaryDirectory() as nothing:
        for site in chosen:
            tell(f"{of}{'the best' if own is None else 'its own'} model at {site}")
            model = run.model if own is None else own[site]
            kept = _state(run.source, site) if own is None else None
            state = Path(nothing) if kept is None else kept
            beside = Site(job, site, data=given[site], state=state, beside=beside)
            data = build_task(job).open(given[site], site)
            part: Subset = "test" if data.count("test") else "all"
            complete = kept is not None or not model.personal
            looked.append(_pass(beside, run, model, site, data, part, complete=complete))
    return looked


def _state(source: Path, site: str) -> Path | None:
    """Where a site's own parts are: beside a run in one process, or in the site's part of a simulator's workspace."""
    job = source.parent
    for folder in (job / SITE_STATE, job.parent.parent / site / job.name / IN_SIMULATOR):
        if (folder / site).is_dir():
            return folder
    return None


def _pass(at: Site, run: Run, model: ModelFile, site: str, data: SiteData, part: Subset, *, complete: bool) -> Looked:
    broadcast = Broadcast(round=model.round + 1, best_round=model.round, weights=model.weights, arrays=model.arrays)
    net = at.network
    seen: dict[str, Tensor] = {}
    handles = [net.register_forward_pre_hook(_keeps_input(seen)), _feature_hook(net, seen)]
    predicted: list[np.ndarray] = []
    features: list[np.ndarray] = []
    before: list[np.ndarray] = []
    after: list[np.ndarray] = []
    try:
        for index, probability in zip(data.eval_index(part), at.predictions(broadcast, part), strict=True):
            slices = probability.dim() == 4
            predicted.append((probability[:, 1] > 0.5).numpy() if slices else probability.numpy())
            features.append(seen["features"].float().cpu().numpy())
            before.append(_some(data.images(index)))
            after.append(_some(seen["input"]))
    finally:
        for handle in handles:
            handle.remove()
    final = run.results.final
    told = None if final is None else final.best.evaluations.get(site, {}).get(part)
    spread = None if told is None else told.distributions.get(run.results.job.metric)
    return Looked(
        site,
        model.job,
        data,
        part,
        np.concatenate(predicted),
        np.concatenate(features),
        np.concatenate(before),
        np.concatenate(after),
        None if spread is None else spread.cases,
        complete,
    )


def _some(x: Tensor) -> np.ndarray:
    """The middle slice of a stack, or all colours; a part of the pixels, the same of every kind of image."""
    x = x[:, x.shape[1] // 2] if x.shape[1] == 3 and x.dim() == 4 else x
    flat = x.detach().float().cpu().contiguous().reshape(-1)
    picked: np.ndarray = flat[:: max(len(flat) // PIXELS, 1)].numpy()
    return picked


def _keeps_input(seen: dict[str, Tensor]) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen["input"] = inputs[0]

    return hook


def _feature_hook(net: nn.Module, seen: dict[str, Tensor]) -> torch.utils.hooks.RemovableHandle:
    """The embedding before the last linear layer; or the bottleneck, which is the last of a network's stages."""
    head = getattr(net, "head", None)
    if isinstance(head, nn.Linear):

        def before_head(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            seen["features"] = inputs[0].flatten(1)

        return head.register_forward_pre_hook(before_head)

    def after_stage(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        seen["features"] = output.mean((2, 3))

    last: nn.Module = net.stages[-1].module  # type: ignore[index, union-attr]
    return last.register_forward_hook(after_stage)
