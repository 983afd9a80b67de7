"""A model that can predict: the network, the methods' input transforms, and the site state that they need.

Only methods that act at test time are used: those that transform inputs or the network, and those that define how a
site without its own state predicts. A model trained with FedFA, for example, predicts as the plain network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from fedshift.data.scans import Scan
from fedshift.federation.site.state import SiteState, StateStore
from fedshift.inference.model import Model
from fedshift.inference.plausible import MIN_INTENSITY
from fedshift.methods.base import Client, Run
from fedshift.methods.chain import ClientChain
from fedshift.methods.method_set import Method, MethodSet
from fedshift.methods.shared.norms import norm_keys
from fedshift.runtime.segmentation import OnScan, autocast, segment
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.fingerprint import ALL
from fedshift.schema.strict import nearest
from fedshift.tasks.adapters import merge
from fedshift.tasks.device import choose_device
from fedshift.tasks.precision import prepare
from fedshift.tasks.stages import StagedNetwork

Content = TypeVar("Content")
SAME_EVERYWHERE = "the model is the same for every site, so the choice of a site's statistics changes nothing"


@dataclass(frozen=True)
class Choice:
    """Which site's statistics and personal layers to use if the model has none that all sites share.

    Set at most one. ``site``: the statistics of this site, which the model file contains. ``estimate``: statistics
    measured on the given images, as at a site that has never trained. ``state``: one site's complete state, read from
    its folder of the job.
    """

    site: str | None = None
    estimate: bool = False
    state: Path | None = None


class Predictor(nn.Module):
    """Maps the task's images (B, C, *spatial) to logits; the methods' normalisation is applied first."""

    def __init__(self, net: nn.Module, chain: ClientChain) -> None:
        super().__init__()
        self.net = net
        self.chain = chain

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(self.chain.inputs(x, training=False))
        return logits


@dataclass(frozen=True)
class ReadyModel:
    """A model that can predict; of scans, a `fedshift.inference.segment.Segmenter`.

    ``used`` is the requested choice, or the empty one if it has no effect on this model. ``statistics`` names its
    source for users, and ``notes`` are remarks for users.
    """

    model: Model
    predictor: Predictor
    device: torch.device
    used: Choice
    statistics: str
    notes: tuple[str, ...]

    @property
    def classes(self) -> tuple[str, ...]:
        return self.model.structures

    @property
    def written(self) -> tuple[int, ...]:
        """See `fedshift.runtime.segmentation.PatchSpec.written`; empty for classes."""
        regions = self.model.header.job.task.made_regions
        return () if regions is None else regions.written

    @property
    def sequences(self) -> tuple[str, ...]:
        return self.model.sequences

    @property
    def kind(self) -> str:
        return self.model.header.kind

    @property
    def signed(self) -> bool:
        """Whether the task normalises fixed intensities, as CT's, or a site's first sequence has such."""
        sites = [reference.fingerprint for reference in self.model.header.references.values()]
        measured = [site.intensities.get((self.sequences or site.channels)[0], {}).get(ALL) for site in sites]
        low = min((each.values[0][0] for each in measured if each is not None and each.values), default=0.0)
        return self.model.data.get("normalise") == "fixed" or low < MIN_INTENSITY

    @property
    def of_pictures(self) -> bool:
        return self.model.of_pictures

    @property
    def resamples_by_matrix(self) -> bool:
        return self.model.resamples_by_matrix

    def logits(self, images: Tensor) -> Tensor:
        """Of images (B, C, *spatial) on any device; computed in the job's precision on the model's."""
        with autocast(self.model.header.job.task.schedule.precision, self.device):
            logits: Tensor = self.predictor(images.to(self.device))
        return logits

    def mask(
        self, scan: Scan, voxels: np.ndarray, certainty: np.ndarray, *, spacing: Sequence[float] | None
    ) -> np.ndarray:
        return self.segment(voxels, spacing, certainty=certainty)

    def segment(
        self,
        voxels: np.ndarray,
        spacing: Sequence[float] | None,
        *,
        certainty: np.ndarray | None = None,
        see: Callable[[np.ndarray], None] | None = None,
        on_scan: OnScan | None = None,
    ) -> np.ndarray:
        """What `fedshift.runtime.segmentation.segment` gives for a scan, uint8 (z, y, x), with the same arguments.

        Raises:
            DataError: intensities that the task's normalisation cannot take.
        """
        assert self.model.spec is not None
        try:
            return segment(voxels, spacing, self.logits, self.model.spec, certainty=certainty, see=see, on_scan=on_scan)
        except ValueError as error:
            raise DataError("intensities", f"the scan {error}") from None


class Images:
    """Images given for prediction, with the interface of a site's training samples; targets are all zero."""

    def __init__(self, batches: Sequence[Tensor]) -> None:
        """``batches`` are (B, C, *spatial) float32."""
        self._batches = batches
        self.n_train = self.n_images = sum(len(batch) for batch in batches)

    def chunks(self, order: torch.Generator | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches, or as large ones of the images shuffled by ``order``, each with zero targets."""
        if order is None:
            for batch in self._batches:
                yield batch, torch.zeros(len(batch), dtype=torch.int64)
            return
        places = [(batch, row) for batch in self._batches for row in range(len(batch))]
        shuffled = torch.randperm(self.n_train, generator=order).tolist()
        size = max(len(batch) for batch in self._batches)
        for start in range(0, self.n_train, size):
            picked = [places[number] for number in shuffled[start : start + size]]
            yield torch.stack([batch[row] for batch, row in picked]), torch.zeros(len(picked), dtype=torch.int64)

    @property
    def landmarks(self) -> None:
        """Batches are of no volumes."""

    def images_alone(self, order: torch.Generator | None = None) -> Iterator[Tensor]:
        return (x for x, _ in self.chunks(order))

    def validation(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield nothing: images for prediction have no targets."""
        yield from ()


class _MissingSiteState(Exception):
    """A method reads site state that is not available; the argument is the method's name."""


class _TrackedState(dict[str, Tensor]):
    """One method's site state. Records whether it is read; a missing key raises `_MissingSiteState`."""

    def __init__(self, method: str, content: Mapping[str, Tensor]) -> None:
        super().__init__(content)
        self.read = False
        self._method = method

    def __getitem__(self, key: str) -> Tensor:
        self.read = True
        return super().__getitem__(key)

    def __missing__(self, key: str) -> Tensor:
        raise _MissingSiteState(self._method)


def make_ready(
    model: Model,
    choice: Choice,
    *,
    images: Callable[[], Images] | None = None,
    device: str = "auto",
) -> ReadyModel:
    """Combine the network, its methods and the chosen site's state.

    Args:
        model: from `open_model`.
        choice: which site's state to use; if the model does not need it, a note says so.
        images: called for ``choice.estimate``: the images to estimate statistics from.
        device: a torch device name, or ``auto``.

    Raises:
        ConfigError: the model needs a choice and none was made, or the choice does not fit the model.
    """
    header, job = model.header, model.header.job
    if choice.site is not None and choice.site not in header.statistics:
        message = f"{model.path} has no statistics of site {choice.site!r}{nearest(choice.site, header.statistics)}"
        raise ConfigError("site-unknown", message)
    state, torch_device = _load_site_state(model, choice), choose_device(device)
    net = model.task.network()
    methods = MethodSet(job, net)
    net.load_state_dict(_with_personal(model, state.personal))
    run = Run(
        seed=job.seed,
        site=choice.site or "of the given images",
        round=header.round + 1,  # as a site that evaluates the model
        rounds=job.task.schedule.rounds,
        sites=job.task.sites,
        net=net,
        objective=model.task.loss,
        n_classes=len(job.task.classes),
        regions=job.task.made_regions,
        dense=model.task.dense,
        findings=model.task.findings,
        received={key: value.numpy() for key, value in model.weights.items()},
    )
    net = prepare(net, job.task.schedule.precision, torch_device).eval()  # in place
    active = [method for method in methods if _acts_at_test_time(method, net, choice)]
    states = {m.name: _TrackedState(m.name, state.methods.get(m.name, {})) for m in active}
    ClientChain([method for method in active if method.client().attached_to_predict], run, {}).attach(net)
    chain = ClientChain(active, run, cast("dict[str, dict[str, Tensor]]", states))
    notes, images_given = _personal_notes(model, methods, choice), None
    if choice.estimate:
        assert images is not None
        images_given = images()
        chain.statistics(images_given)
    try:
        if choice.site is not None:
            index = header.statistics.index(choice.site)
            for method in active:
                from_file = method.client().state_from_model(model.arrays.get(method.name, {}), index)
                states[method.name].update(from_file)
        with _site_state_needed(model, choice):
            chain.receive(model.arrays)
    except (KeyError, IndexError) as error:
        message = f"lacks arrays that its methods need ({type(error).__name__}: {error}): copy it again from the server"
        raise ConfigError("model-incomplete", f"{model.path} {message}") from None
    if images_given is not None:
        chain.newcomer(images_given)
    with _site_state_needed(model, choice):  # found here, and not at the first prediction
        x = torch.zeros(1, cast(StagedNetwork, net).in_channels, *model.task.spatial)
        chain.inputs(x.to(torch_device), training=False)
    has_effect = (
        bool(header.personal and choice != Choice())
        or any(method_state.read for method_state in states.values())
        or (choice.state is not None and any(m.client().scores_own_model(net) for m in active))
    )
    if choice != Choice() and not has_effect:
        notes.append(SAME_EVERYWHERE)
    used = choice if has_effect else Choice()
    name = _statistics_name(model, used, images_given)
    adapted = header.adaptation
    if adapted is not None and adapted.decision != "kept" and adapted.statistics.split(",")[0] != name.split(",")[0]:
        notes.append(f"it was adapted with other statistics ({adapted.statistics})")
    return ReadyModel(model, Predictor(net, chain).eval(), torch_device, used, name, tuple(notes))


def readable(readers: Iterable[Callable[[], Content]]) -> list[Content]:
    """What the readers give that can be read: whoever predicts reports the others.

    Raises:
        DataError: none can be read.
    """
    contents, first_error = [], None
    for read in readers:
        try:
            contents.append(read())
        except DataError as error:
            first_error = first_error or error
    if not contents and first_error is not None:
        raise first_error
    return contents


def _acts_at_test_time(method: Method, net: nn.Module, choice: Choice) -> bool:
    """Whether the method's client part has an effect when a site evaluates a model."""
    client = method.client()
    transforms_inputs = type(client).inputs is not Client.inputs or type(client).newcomer is not Client.newcomer
    # Personal models without personal keys: the client mixes its own weights in when it receives the model.
    mixes_own_weights = client.scores_own_model(net) and not client.personal(net)
    return transforms_inputs or client.attached_to_predict or (choice.state is not None and mixes_own_weights)


@contextmanager
def _site_state_needed(model: Model, choice: Choice) -> Iterator[None]:
    """Say which choice a method lacks that reads what only a site has."""
    try:
        yield
    except _MissingSiteState as method_name:
        if choice.site is not None:
            raise ConfigError(
                "statistics-choice",
                f"{model.path}: method {method_name} keeps what it measured at {choice.site} there, and the file does "
                "not have it: name that site's folder of the job with --site-state, or estimate it from the given "
                "images with --statistics own",
            ) from None
        raise ConfigError(
            "statistics-choice",
            f"{model.path}: method {method_name} normalises images with statistics of their site: name one of "
            f"{', '.join(model.header.statistics)} with --site, or estimate them from the given images with "
            "--statistics own",
        ) from None


def _load_site_state(model: Model, choice: Choice) -> SiteState:
    """Load the state that the chosen site had when it evaluated the model; empty if no state was chosen."""
    if choice.state is None:
        return SiteState()
    header, folder = model.header, choice.state
    state = StateStore(folder).before(header.round + 1)
    if state is None:
        raise ConfigError(
            "state-missing",
            f"{folder} has no site state up to round {header.round}: name the site's folder in the job's site_state, "
            f"such as site_state/{header.job.task.sites[0]}",
        )
    known = model.weights | model.adapter_weights
    expected = {key: known[key].shape for key in header.personal if key in known}
    if {key: value.shape for key, value in state.personal.items()} != expected:
        raise ConfigError(
            "state-other-job",
            f"{folder} does not have the personal layers that {model.path} needs: name a folder of the same job, of a "
            "site that had trained by that round",
        )
    return state


def _with_personal(model: Model, personal: dict[str, Tensor]) -> dict[str, Tensor]:
    """A model's weights with a site's own parts."""
    adapters, merged = model.header.adapters, model.adapter_weights
    if adapters is None:
        return model.weights | personal
    return merge(model.weights, merged | personal, adapters, instead_of=merged)


def _personal_notes(model: Model, methods: MethodSet, choice: Choice) -> list[str]:
    if choice.state is not None:
        return []
    if withheld := methods.withheld:
        names, only_norms = " and ".join(methods.withholding), withheld <= norm_keys(methods.net, "all")
        if choice.estimate and only_norms:
            return [
                f"method {names}: the norm layers that every site keeps have their initial scale and shift, and "
                "running statistics of the given images"
            ]
        estimate = ", or estimate running statistics from the given images with --statistics own" if only_norms else ""
        raise ConfigError(
            "model-personal",
            f"{model.path} is personal (method {names}): every site keeps {len(withheld)} of its "
            f"{len(model.weights)} arrays, and the file has only their initial values: name a site's folder of "
            f"the job with --site-state{estimate}",
        )
    if model.header.adapters is not None and model.header.adapters.private:
        return ["without the private adapters, which every site keeps for itself: --site-state adds those of a site"]
    if model.header.personal:
        return ["personal layers, which every site keeps for itself, are the average of the sites'"]
    if methods.scores_own_model or methods.fine_tune_epochs:
        return ["this is the shared model before each site adapts it; scores of personal models do not apply to it"]
    return []


def _statistics_name(model: Model, choice: Choice, images: Images | None) -> str:
    """The source of the statistics, for users."""
    if choice.site is not None:
        return f"site {choice.site}"
    if choice.state is not None:
        return f"state of {choice.state.resolve().name}"
    if choice.estimate and images is not None:
        units = "patches" if model.uses_spacing else "slices" if model.is_segmentation else "images"
        return f"own, of {images.n_train} {units}"
    return "the model's own"
