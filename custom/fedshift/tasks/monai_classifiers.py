"""Classification networks of ``monai.networks.nets``, by name: ``network: {name: monai.DenseNet121, options: {…}}``.

In two dimensions and in three, with random weights. As in `fedshift.tasks.monai_networks` the network is a subclass of
MONAI's, whose arrays have MONAI's own names. It adds its linear ``head``, its ``stages``, and one kind of output.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from torch import Tensor, nn

from fedshift.schema.errors import ConfigError
from fedshift.tasks import trial
from fedshift.tasks.monai_networks import PREFIX, check_options, with_tuples
from fedshift.tasks.stages import Stage


@dataclass(frozen=True)
class Listed:
    """A network of ``monai.networks.nets``.

    ``class_name``: of its class, where several names stand for one. ``head``: the name of its linear head.
    ``channels``, ``classes``: the constructor's names for them. ``fixed``: arguments that are no options.
    ``withheld``: options that are not plain data, or would download. ``size``: the constructor's name for the image
    size, if it is made for one; then the network has no stages, since its features have one resolution.
    """

    head: str
    class_name: str = ""
    channels: str = "in_channels"
    classes: str = "num_classes"
    fixed: Mapping[str, Any] = field(default_factory=dict)
    withheld: frozenset[str] = frozenset({"pretrained", "progress"})
    size: str | None = None


def _resnet(block: str, layers: tuple[int, ...]) -> Listed:
    """With MONAI's own widths."""
    fixed = {"block": block, "layers": list(layers), "block_inplanes": [64, 128, 256, 512]}
    return Listed(
        "fc", class_name="ResNet", channels="n_input_channels", fixed=fixed, withheld=frozenset({"feed_forward"})
    )


LISTED: Mapping[str, Listed] = {
    "DenseNet121": Listed("class_layers.out", classes="out_channels"),
    "DenseNet169": Listed("class_layers.out", classes="out_channels"),
    "EfficientNetBN": Listed("_fc", fixed={"pretrained": False}),
    "resnet10": _resnet("basic", (1, 1, 1, 1)),
    "resnet18": _resnet("basic", (2, 2, 2, 2)),
    "resnet50": _resnet("bottleneck", (3, 4, 6, 3)),
    "SEResNet50": Listed("last_linear", withheld=frozenset({"pretrained", "progress", "block"})),
    "ViT": Listed(
        "classification_head",
        fixed={"classification": True, "post_activation": "none"},
        withheld=frozenset({"save_attn"}),
        size="img_size",
    ),
}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "EfficientNetBN": {"model_name": "efficientnet-b0"},
    "ViT": {"patch_size": 16},
}
"""Options that MONAI has no default of."""


def names() -> list[str]:
    """Names that a job may use."""
    return [PREFIX + name for name in LISTED]


class Classifier(nn.Module):
    """What is added to a network of MONAI: ``net(x) = net.head(net.embed(x))`` are logits (B, K)."""

    in_channels: int
    trial_size: tuple[int, ...]
    head_name: str
    staged: bool
    _places: tuple[trial.StagePlace, ...] | None = None

    @property
    def head(self) -> nn.Linear:
        """The last layer, under its name in MONAI."""
        return cast(nn.Linear, self.get_submodule(self.head_name))

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Fine to coarse; found by `fedshift.tasks.trial.find_stages`."""
        if not self.staged:
            return ()
        if self._places is None:
            self._places = trial.find_stages(self, self.trial_size)
        return tuple(place.in_net(self) for place in self._places)

    def embed(self, x: Tensor) -> Tensor:
        """The embedding, (B, d)."""
        above, _, name = self.head_name.rpartition(".")
        holder, head = self.get_submodule(above), self.head
        setattr(holder, name, nn.Identity())
        try:
            return self._logits(x)
        finally:
            setattr(holder, name, head)

    def forward(self, x: Tensor) -> Tensor:
        return self._logits(x)

    def _logits(self, x: Tensor) -> Tensor:
        output = super().forward(x)  # of MONAI's class, the next of the bases; ViT's has its hidden states too
        return output if isinstance(output, Tensor) else cast(Tensor, output[0])


def build(
    name: str,
    options: dict[str, Any],
    *,
    in_channels: int,
    n_classes: int,
    spatial_dims: int,
    patch: Sequence[int] | None,
) -> nn.Module:
    """A network of MONAI, from its name with the prefix; the caller seeds. Errors as `fedshift.tasks.networks.build`.

    ``patch``: the size of an image.
    """
    short = name.removeprefix(PREFIX)
    listed = LISTED[short]
    cls: type[nn.Module] = getattr(importlib.import_module("monai.networks.nets"), listed.class_name or short)
    settings = {listed.channels: in_channels, listed.classes: n_classes, "spatial_dims": spatial_dims, **listed.fixed}
    fixed_names = {*settings, listed.size}
    known = [key for key in _parameters(cls) if key not in fixed_names | listed.withheld]
    check_options(name, options, known=known, fixed=fixed_names)
    chosen = {**DEFAULTS.get(short, {}), **{key: with_tuples(value) for key, value in options.items()}}
    if listed.size is not None:
        settings[listed.size] = _size(name, patch, chosen["patch_size"])
    net: Classifier = type(short, (Classifier, cls), {"__module__": __name__})(**settings, **chosen)
    net.in_channels, net.head_name, net.staged = in_channels, listed.head, listed.size is None
    net.trial_size = tuple(patch) if listed.size and patch else trial.trial_size(spatial_dims)
    return net


def _parameters(cls: type) -> list[str]:
    """Names of the arguments of a constructor, and of those that it passes on."""
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    names: dict[str, None] = {}
    for each in cls.__mro__:
        parameters = inspect.signature(each).parameters.values()
        names.update(
            (parameter.name, None)
            for parameter in parameters
            if parameter.kind not in kinds and parameter.name != "self"
        )
        if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
            break
    return list(names)


def _size(name: str, size: Sequence[int] | None, unit: int | Sequence[int]) -> tuple[int, ...]:
    assert size is not None, "an image has a size"
    units = [unit] * len(size) if isinstance(unit, int) else list(unit)
    if len(units) != len(size) or any(side % part for side, part in zip(size, units, strict=True)):
        raise ConfigError(
            "invalid-value",
            f"network {name}: each side of an image of {' x '.join(map(str, size))} must be a multiple of patch_size "
            f"({' x '.join(map(str, units))}): change data.size or network.options.patch_size",
        )
    return tuple(size)
