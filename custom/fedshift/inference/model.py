"""Load a model file for prediction: the network, the methods' input transforms, and the site state they need.

Only methods that act at test time are used: those that transform inputs or the network, and those that define how a
site without its own state predicts. A model trained with FedFA, for example, predicts as the plain network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedshift.federation.model_files import Header, header_of, read_model_file
from fedshift.federation.site.state import SiteState, StateStore
from fedshift.methods.base import Client, Run
from fedshift.methods.chain import ClientChain
from fedshift.methods.method_set import Method, MethodSet
from fedshift.methods.shared.norms import norm_keys
from fedshift.schema.errors import ConfigError
from fedshift.schema.messages import MethodArrays
from fedshift.schema.strict import nearest
from fedshift.tasks.base import Task
from fedshift.tasks.device import choose_device
from fedshift.tasks.kinds import build_task
from fedshift.tasks.precision import prepare
from fedshift.tasks.segmentation.patch_task import Task as PatchTask
from fedshift.tasks.stages import StagedNetwork


@dataclass(frozen=True)
class Choice:
    """Which site's statistics and personal layers to use if the model has none that all sites share.

    Set at most one. ``site``: the statistics of this site, which the model file contains. ``own``: statistics measured
    on the given images, as at a site that has never trained. ``state``: one site's complete state, read from its
    folder of the job.
    """

    site: str | None = None
    own: bool = False
    state: Path | None = None


@dataclass(frozen=True)
class Model:
    """The content of a model file."""

    path: Path
    header: Header
    task: Task
    weights: dict[str, Tensor]
    arrays: MethodArrays

    @property
    def is_segmentation(self) -> bool:
        """True if the model segments volumes, False if it classifies images."""
        return self.header.job.task.kind == "segmentation"

    @property
    def patches(self) -> PatchTask | None:
        """The task if it segments by patches; None if by slices, or if it classifies."""
        return self.task if isinstance(self.task, PatchTask) else None

    @property
    def sequences(self) -> tuple[str, ...]:
        """Names of the sequences that a case must have; empty for a single one without a name."""
        return () if self.patches is None else self.patches.sequences

    @property
    def resamples_by_matrix(self) -> bool:
        """Whether scans without a voxel size are resampled by ``data.matrix`` and all others by ``data.spacing``."""
        if self.patches is None:
            return False
        options = self.patches.inference()
        return None not in (options["wanted"], options["matrix"])

    @property
    def data(self) -> dict[str, Any]:
        """How the training images were prepared: `fedshift.tasks.base.Task.preparation`."""
        return self.header.preparation


class Predictor(nn.Module):
    """Maps the task's images (B, C, *spatial) to logits; the methods' normalisation is applied first."""

    def __init__(self, net: nn.Module, chain: ClientChain) -> None:
        """Wrap a network and its method chain, both with the same site's state."""
        super().__init__()
        self.net = net
        self._chain = chain

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of ``x`` (B, C, *spatial)."""
        logits: Tensor = self.net(self._chain.inputs(x, training=False))
        return logits


@dataclass(frozen=True)
class ReadyModel:
    """A model that can predict.

    ``used`` is the requested choice, or the empty one if it has no effect on this model. ``statistics`` names its
    source for users, and ``notes`` are remarks for users.
    """

    predictor: Predictor
    device: torch.device
    used: Choice
    statistics: str
    notes: tuple[str, ...]


class Images:
    """Images given for prediction, with the interface of a site's training samples; targets are all zero."""

    def __init__(self, batches: Sequence[Tensor]) -> None:
        """``batches`` are (B, C, *spatial) float32."""
        self._batches = batches
        self.n_train = sum(len(batch) for batch in batches)

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
    def n_images(self) -> int:
        """All."""
        return self.n_train

    def images_alone(self, order: torch.Generator | None = None) -> Iterator[Tensor]:
        """Yield the images of `chunks`."""
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


def open_model(path: Path) -> Model:
    """Read a model file.

    Raises:
        ConfigError: as `read_model_file`; or the file is encrypted, or its images were prepared differently.
    """
    content = read_model_file(path)
    header = header_of(content, where=str(path))
    if header.encrypted:
        raise ConfigError(f"{path} is encrypted: open it with 'fedshift site decrypt' at a site first")
    if header.preparation != build_task(header.job).preparation():
        raise ConfigError(
            f"{path} was trained on images prepared differently from this version: use fedshift {header.fedshift}"
        )
    arrays = {name: {key: value.numpy() for key, value in a.items()} for name, a in content["methods"].items()}
    return Model(path, header, build_task(header.job), content["weights"], arrays)


def make_ready(model: Model, choice: Choice, *, images: Images | None = None, device: str = "auto") -> ReadyModel:
    """Combine the network, its methods and the chosen site's state.

    Args:
        model: from `open_model`.
        choice: which site's state to use; if the model does not need it, a note says so.
        images: for ``choice.own``, the images to estimate statistics from.
        device: a torch device name, or ``auto``.

    Raises:
        ConfigError: the model needs a choice and none was made, or the choice does not fit the model.
    """
    header, job = model.header, model.header.job
    if choice.site is not None and choice.site not in header.statistics:
        raise ConfigError(
            f"{model.path} has no statistics of site {choice.site!r}{nearest(choice.site, header.statistics)}"
        )
    net = model.task.network()
    methods = MethodSet(job, net)
    net.load_state_dict(model.weights)
    state = _load_site_state(model, choice)
    notes = _personal_notes(model, methods, choice)
    net.load_state_dict(state.personal, strict=False)
    torch_device = choose_device(device)
    net = prepare(net, job.task.schedule.precision, torch_device).eval()
    active = [method for method in methods if _acts_at_test_time(method, net, choice)]
    states = {m.name: _TrackedState(m.name, state.methods.get(m.name, {})) for m in active}
    if choice.site is not None:
        for method in active:
            arrays, index = model.arrays.get(method.name, {}), header.statistics.index(choice.site)
            try:
                states[method.name].update(method.client().state_from_model(arrays, index))
            except (KeyError, IndexError) as error:
                raise _incomplete_error(model, error) from None
    run = _run(model, net, choice)
    ClientChain([method for method in active if method.client().attached_to_predict], run, {}).attach(net)
    chain = ClientChain(active, run, cast("dict[str, dict[str, Tensor]]", states))
    if choice.own:
        assert images is not None
        chain.statistics(images)
    try:
        chain.receive(model.arrays)
    except (KeyError, IndexError) as error:
        raise _incomplete_error(model, error) from None
    if choice.own:
        assert images is not None
        chain.newcomer(images)
    _check_complete(model, net, chain)
    has_effect = (
        bool(header.personal and choice != Choice())
        or any(method_state.read for method_state in states.values())
        or (choice.state is not None and any(m.client().scores_own_model(net) for m in active))
    )
    if choice != Choice() and not has_effect:
        notes.append("the model is the same for every site, so the choice of a site's statistics changes nothing")
    used = choice if has_effect else Choice()
    what = "images" if not model.is_segmentation else "slices" if model.patches is None else "patches"
    name = _statistics_name(used, images, what)
    return ReadyModel(Predictor(net, chain).eval(), torch_device, used, name, tuple(notes))


def _incomplete_error(model: Model, error: Exception) -> ConfigError:
    return ConfigError(
        f"{model.path} lacks arrays that its methods need ({type(error).__name__}: {error}): copy it again from "
        "the server"
    )


def _run(model: Model, net: nn.Module, choice: Choice) -> Run:
    """The run description that a site would use to evaluate the model."""
    job = model.header.job
    return Run(
        seed=job.seed,
        site=choice.site or "of the given images",
        round=model.header.round + 1,
        rounds=job.task.schedule.rounds,
        sites=job.task.sites,
        net=net,
        objective=model.task.loss,
        n_classes=len(job.task.classes),
        dense=model.task.dense,
        received={key: value.numpy() for key, value in model.weights.items()},
    )


def _acts_at_test_time(method: Method, net: nn.Module, choice: Choice) -> bool:
    """Whether the method's client part has an effect when a site evaluates a model."""
    client = method.client()
    transforms_inputs = type(client).inputs is not Client.inputs or type(client).newcomer is not Client.newcomer
    # Personal models without personal keys: the client mixes its own weights in when it receives the model.
    mixes_own_weights = client.scores_own_model(net) and not client.personal(net)
    return transforms_inputs or client.attached_to_predict or (choice.state is not None and mixes_own_weights)


def _check_complete(model: Model, net: nn.Module, chain: ClientChain) -> None:
    """Apply the input transforms to an image of zeros, to find missing site state before the first prediction.

    Raises:
        ConfigError: a method needs a site's statistics.
    """
    channels = cast(StagedNetwork, net).in_channels
    x = torch.zeros(1, channels, *model.task.spatial)
    try:
        chain.inputs(x.to(next(net.parameters()).device), training=False)
    except _MissingSiteState as method_name:
        raise ConfigError(
            f"{model.path}: method {method_name} normalises images with statistics of their site: name one of "
            f"{', '.join(model.header.statistics)} with --site, or estimate them from the given images with "
            "--statistics own"
        ) from None


def _load_site_state(model: Model, choice: Choice) -> SiteState:
    """Load the state that the chosen site had when it evaluated the model; empty if no state was chosen.

    Raises:
        ConfigError: the folder has no state of that round, or of another job.
    """
    if choice.state is None:
        return SiteState()
    header, folder = model.header, choice.state
    state = StateStore(folder).before(header.round + 1)
    if state is None:
        raise ConfigError(
            f"{folder} has no site state up to round {header.round}: name the site's folder in the job's site_state, "
            f"such as site_state/{header.job.task.sites[0]}"
        )
    expected = {key: model.weights[key].shape for key in header.personal}
    if {key: value.shape for key, value in state.personal.items()} != expected:
        raise ConfigError(
            f"{folder} does not have the personal layers that {model.path} needs: name a folder of the same job, of a "
            "site that had trained by that round"
        )
    return state


def _personal_notes(model: Model, methods: MethodSet, choice: Choice) -> list[str]:
    """Notes on personal layers.

    Raises:
        ConfigError: the file lacks layers that each site keeps, and they cannot be replaced by estimates.
    """
    if choice.state is not None:
        return []
    withheld, names = methods.withheld, " and ".join(methods.withholding)
    if withheld:
        only_norms = withheld <= norm_keys(methods.net, "all")
        if not (choice.own and only_norms):
            or_own = (
                ", or estimate running statistics from the given images with --statistics own" if only_norms else ""
            )
            raise ConfigError(
                f"{model.path} is personal (method {names}): every site keeps {len(withheld)} of its "
                f"{len(model.weights)} arrays, and the file has only their initial values: name a site's folder of "
                f"the job with --site-state{or_own}"
            )
        return [
            f"method {names}: the norm layers that every site keeps have their initial scale and shift, and running "
            "statistics of the given images"
        ]
    if model.header.personal:
        return ["personal layers, which every site keeps for itself, are the average of the sites'"]
    if methods.scores_own_model or methods.fine_tune_epochs:
        return ["this is the shared model before each site adapts it; scores of personal models do not apply to it"]
    return []


def _statistics_name(choice: Choice, images: Images | None, what: str) -> str:
    """The source of the statistics, for users."""
    if choice.site is not None:
        return f"site {choice.site}"
    if choice.state is not None:
        return f"state of {choice.state.resolve().name}"
    if choice.own and images is not None:
        return f"own, of {images.n_train} {what}"
    return "the model's own"
