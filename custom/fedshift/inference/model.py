"""A model file made ready to predict: its network, what its methods do to images first, and whose parts it uses.

Only what works at test time is taken along: methods that change inputs, and those that say what a site without parts of
its own does. A model trained with FedFA, say, predicts as the plain network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from fedshift.federation.model_files import Header, header_of, read_model_file
from fedshift.federation.site.state import SiteState, StateStore
from fedshift.inference.slicewise import batches
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
from fedshift.tasks.stages import StagedNetwork


@dataclass(frozen=True)
class Choice:
    """Whose parts are used where a model has none for everybody; at most one is set.

    ``site``: the statistics of this site, as the model file has them. ``own``: those of the images that are given, as a
    site that has never trained would measure its own. ``state``: all that one site keeps for itself, from its folder of
    the job.
    """

    site: str | None = None
    own: bool = False
    state: Path | None = None


@dataclass(frozen=True)
class Model:
    """A model file as it was read."""

    path: Path
    header: Header
    task: Task
    weights: dict[str, Tensor]
    arrays: MethodArrays

    @property
    def is_segmentation(self) -> bool:
        """Whether it finds what is foreground in volumes; otherwise it tells classes of pictures."""
        return self.header.job.task.kind == "segmentation"

    @property
    def data(self) -> dict[str, Any]:
        """How its images were prepared, `fedshift.tasks.base.Task.preparation`."""
        return self.header.preparation


class Predictor(nn.Module):
    """Images as the task makes them (B, C, H, W) to logits; the methods' normalisation comes first."""

    def __init__(self, net: nn.Module, chain: ClientChain) -> None:
        """Both are of one site's view of the model."""
        super().__init__()
        self.net = net
        self._chain = chain

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.net(self._chain.inputs(x, training=False))
        return logits


@dataclass(frozen=True)
class Ready:
    """A model that predicts.

    ``used`` is the choice as far as it changes anything, ``statistics`` says the same in a few words, ``notes`` are
    sentences for people.
    """

    predictor: Predictor
    device: torch.device
    used: Choice
    statistics: str
    notes: tuple[str, ...]


class Images:
    """Images that are given for prediction, as methods read a site's training samples; they have no targets."""

    def __init__(self, batches: Sequence[Tensor]) -> None:
        """``batches`` are (B, C, H, W) float32."""
        self._batches = batches
        self.n_train = sum(len(batch) for batch in batches)

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """In order."""
        for batch in self._batches:
            yield batch, torch.zeros(len(batch), dtype=torch.int64)

    @classmethod
    def of_scans(cls, scans: Sequence[np.ndarray], *, context: int, scale: float) -> Images:
        """Of scans as `fedshift.inference.slicewise.to_network` makes them."""
        return cls([batch for scan in scans for batch in batches(scan, context=context, scale=scale)])


class _Wanted(Exception):
    """A method asks for what a site would have remembered; its argument is the method's name."""


class _Remembered(dict[str, Tensor]):
    """A method's part of a site's state, which notes whether it is read; what is not there is `_Wanted`."""

    def __init__(self, method: str, content: Mapping[str, Tensor]) -> None:
        super().__init__(content)
        self.read = False
        self._method = method

    def __getitem__(self, key: str) -> Tensor:
        self.read = True
        return super().__getitem__(key)

    def __missing__(self, key: str) -> Tensor:
        raise _Wanted(self._method)


def open_model(path: Path) -> Model:
    """Read a model file.

    Raises:
        ConfigError: as `read_model_file`; or it is encrypted, or trained on images prepared otherwise.
    """
    content = read_model_file(path)
    header = header_of(content, where=str(path))
    if header.encrypted:
        raise ConfigError(f"{path} is encrypted: open it with 'fedshift site decrypt' at a site first")
    if header.preparation != build_task(header.job).preparation():
        raise ConfigError(
            f"{path} was trained on images that were prepared otherwise than this version does: use fedshift "
            f"{header.fedshift}"
        )
    arrays = {name: {key: value.numpy() for key, value in a.items()} for name, a in content["methods"].items()}
    return Model(path, header, build_task(header.job), content["weights"], arrays)


def make_ready(model: Model, choice: Choice, *, images: Images | None = None, device: str = "auto") -> Ready:
    """Put network, methods and the chosen site's parts together.

    Args:
        model: what `open_model` gave.
        choice: whose parts to use; what the model does not need is said in the notes.
        images: those to estimate from, with ``choice.own``.
        device: as torch names it, or ``auto``.

    Raises:
        ConfigError: a choice is needed and was not made, or does not fit.
    """
    header, job = model.header, model.header.job
    if choice.site is not None and choice.site not in header.statistics:
        raise ConfigError(
            f"{model.path} has no statistics of a site {choice.site!r}{nearest(choice.site, header.statistics)}"
        )
    net = model.task.network()
    loaded = MethodSet(job, net)
    net.load_state_dict(model.weights)
    state = _state(model, choice)
    notes = _about_personal_parts(model, loaded, choice)
    net.load_state_dict(state.personal, strict=False)
    on = choose_device(device)
    net = prepare(net, job.task.schedule.precision, on).eval()
    taken = [method for method in loaded if _works_at_test(method, net, choice)]
    remembered = {m.name: _Remembered(m.name, state.methods.get(m.name, {})) for m in taken}
    if choice.site is not None:
        for method in taken:
            arrays, index = model.arrays.get(method.name, {}), header.statistics.index(choice.site)
            try:
                remembered[method.name].update(method.client().state_from_model(arrays, index))
            except (KeyError, IndexError) as error:
                raise _incomplete(model, error) from None
    chain = ClientChain(taken, _run(model, net, choice), cast("dict[str, dict[str, Tensor]]", remembered))
    if choice.own:
        assert images is not None
        chain.statistics(images)
    try:
        chain.receive(model.arrays)
    except (KeyError, IndexError) as error:
        raise _incomplete(model, error) from None
    if choice.own:
        assert images is not None
        chain.newcomer(images)
    _probe(model, net, chain)
    used = bool(header.personal and choice != Choice()) or any(part.read for part in remembered.values())
    used = used or (choice.state is not None and any(m.client().scores_own_model(net) for m in taken))
    if choice != Choice() and not used:
        notes.append("the model is the same for every site, so the choice of a site's statistics changes nothing")
    choice = choice if used else Choice()
    return Ready(Predictor(net, chain).eval(), on, choice, _said(choice, images, job.task.kind), tuple(notes))


def _incomplete(model: Model, error: Exception) -> ConfigError:
    return ConfigError(
        f"{model.path} does not hold what its methods need ({type(error).__name__}: {error}): copy it again from the "
        "server"
    )


def _run(model: Model, net: nn.Module, choice: Choice) -> Run:
    """As at a site that scores the model."""
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
        images_are_slices=model.task.images_are_slices,
        received={key: value.numpy() for key, value in model.weights.items()},
    )


def _works_at_test(method: Method, net: nn.Module, choice: Choice) -> bool:
    """Whether a method's half does anything when a site scores a model."""
    half = method.client()
    changes = type(half).inputs is not Client.inputs or type(half).newcomer is not Client.newcomer
    # What is personal, but not by keys: the half mixes it in when it receives a model.
    mixes = half.scores_own_model(net) and not half.personal(net)
    return changes or (choice.state is not None and mixes)


def _probe(model: Model, net: nn.Module, chain: ClientChain) -> None:
    """See whether anything is missing, on an image of zeros."""
    channels = cast(StagedNetwork, net).in_channels
    x = torch.zeros(1, channels, model.task.sizes["rows"], model.task.sizes["columns"])
    try:
        chain.inputs(x.to(next(net.parameters()).device), training=False)
    except _Wanted as wanted:
        raise ConfigError(
            f"{model.path}: method {wanted} normalises images with the statistics of their site: name one of "
            f"{', '.join(model.header.statistics)} with --site, or estimate them from the images given with "
            "--statistics own"
        ) from None


def _state(model: Model, choice: Choice) -> SiteState:
    """What a site held when it scored the model, as `fedshift.federation.site.site` would take it."""
    if choice.state is None:
        return SiteState()
    header, folder = model.header, choice.state
    found = StateStore(folder).before(header.round + 1)
    if found is None:
        raise ConfigError(
            f"{folder} holds no state of a site up to round {header.round}: name the site's own folder among the "
            f"states of the job, such as site_state/{header.job.task.sites[0]}"
        )
    wanted = {key: model.weights[key].shape for key in header.personal}
    if {key: value.shape for key, value in found.personal.items()} != wanted:
        raise ConfigError(
            f"{folder} does not have what {model.path} leaves to its sites: it is of another job, or the site had "
            "not trained by then"
        )
    return found


def _about_personal_parts(model: Model, loaded: MethodSet, choice: Choice) -> list[str]:
    """Notes on what is not everybody's.

    Raises:
        ConfigError: parts that the file does not have, and that nothing can stand in for.
    """
    if choice.state is not None:
        return []
    withheld, keeping = loaded.withheld, " and ".join(loaded.withholding)
    if withheld:
        normalises = withheld <= norm_keys(loaded.net, "all")
        if not (choice.own and normalises):
            or_own = (
                ", or estimate running statistics from the images given with --statistics own" if normalises else ""
            )
            raise ConfigError(
                f"{model.path} is personal (method {keeping}): every site keeps {len(withheld)} of its "
                f"{len(model.weights)} arrays, and here they are as they were at the start: name a site's folder of "
                f"the job with --site-state{or_own}"
            )
        return [
            f"method {keeping}: layers that every site keeps for itself have their first scale and shift, and running "
            "statistics of the images given"
        ]
    if model.header.personal:
        return ["layers that every site keeps for itself are the average of the sites'"]
    if loaded.scores_own_model or loaded.fine_tune_epochs:
        return ["this is the model before sites make it their own; scores of personal models are not its scores"]
    return []


def _said(choice: Choice, images: Images | None, kind: str) -> str:
    if choice.site is not None:
        return f"site {choice.site}"
    if choice.state is not None:
        return f"state of {choice.state.resolve().name}"
    if choice.own and images is not None:
        return f"own, of {images.n_train} {'slices' if kind == 'segmentation' else 'pictures'}"
    return "the model's own"
