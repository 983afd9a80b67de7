"""nnU-Net's own networks, by name: ``network: {name: nnunet.PlainConvUNet, options: {…}}``.

They are those of the package ``dynamic-network-architectures``, which nnU-Net 2 trains: `PlainConvUNet` of its default
plans and `ResidualEncoderUNet` of its residual-encoder plans (Isensee et al., "nnU-Net Revisited", MICCAI 2024).
Options have the names that a plans file has (``arch_kwargs``) and the plans' values by default, so that a network of
plans is one of a job with the same numbers. What plans name by a class (``torch.nn.LeakyReLU``) is a word here.

The package gives each array up to four names: a block keeps its layers by name and in a sequence, and the decoder keeps
the encoder. Here every array has its first name, as torch lists it; `without_second_names` reads the arrays of a
checkpoint and `with_second_names` makes those that nnU-Net loads.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fedshift.schema.errors import ConfigError
from fedshift.tasks import trial
from fedshift.tasks.monai_networks import Segmenter, check_options, with_tuples

PREFIX = "nnunet."
MODULE = "dynamic_network_architectures.architectures.unet"
EXTRA = "pip install 'fedshift[nnunet]'"

STAGES = 5
"""Stages of a network whose options say nothing of them."""
BASE_FEATURES = 32
MOST_FEATURES = {2: 512, 3: 320}
"""nnU-Net's widths: 32 in the first stage, twice as many in each further one up to these."""
BLOCKS = (1, 3, 4, 6)
"""Residual blocks of the first stages; 6 in all further ones (presets M, L and XL have the same network)."""
PER_STAGE = ("features_per_stage", "kernel_sizes", "strides", "n_conv_per_stage", "n_blocks_per_stage")

NORMS = ("instance", "batch")
NONLINEARITIES = ("LeakyReLU", "ReLU", "ELU", "GELU", "SiLU")
DROPOUTS = ("dropout",)
CLASSES: Mapping[str, Mapping[str, str]] = {
    "norm_op": {"instance": "InstanceNorm", "batch": "BatchNorm"},
    "dropout_op": {"dropout": "Dropout"},
}
"""Words of options and torch's classes, whose names end with the number of dimensions (``InstanceNorm3d``)."""


@dataclass(frozen=True)
class Allowed:
    """A network of the package: the option that counts a stage's layers, and its defaults beside the common ones."""

    layers: str
    convolutions_up: int


ALLOWED: Mapping[str, Allowed] = {
    "PlainConvUNet": Allowed("n_conv_per_stage", 2),
    "ResidualEncoderUNet": Allowed("n_blocks_per_stage", 1),
}
COMMON: Mapping[str, Any] = {
    "conv_bias": True,
    "norm_op": "instance",
    "norm_op_kwargs": {"eps": 1e-5, "affine": True},
    "dropout_op": None,
    "dropout_op_kwargs": None,
    "nonlin": "LeakyReLU",
    "nonlin_kwargs": {"inplace": True},
    "deep_supervision": True,
}
"""What nnU-Net's planners set for all networks, and its trainer's deep supervision."""


def names() -> list[str]:
    """Names that a job may use."""
    return [PREFIX + name for name in ALLOWED]


def known_options(short: str) -> tuple[str, ...]:
    """Names of a network's options."""
    kept = (key for key in PER_STAGE if not key.startswith("n_") or key == ALLOWED[short].layers)
    return ("n_stages", *kept, "n_conv_per_stage_decoder", *COMMON)


def complete(short: str, options: Mapping[str, Any], *, dims: int) -> dict[str, Any]:
    """All options of a network, with nnU-Net's values where none are given.

    The number of stages follows from any option that has a number for each.

    Raises:
        ConfigError: an option is unknown or no plain data, or options say different numbers of stages.
    """
    name, allowed = PREFIX + short, ALLOWED[short]
    check_options(name, options, known=known_options(short), fixed=("input_channels", "num_classes", "conv_op"))
    stages = _stages(name, options)
    chosen: dict[str, Any] = {
        "n_stages": stages,
        "features_per_stage": [min(BASE_FEATURES * 2**k, MOST_FEATURES[dims]) for k in range(stages)],
        "kernel_sizes": [[3] * dims] * stages,
        "strides": [[1] * dims, *[[2] * dims] * (stages - 1)],
        allowed.layers: [*BLOCKS, *[BLOCKS[-1]] * stages][:stages] if short == "ResidualEncoderUNet" else [2] * stages,
        "n_conv_per_stage_decoder": [allowed.convolutions_up] * (stages - 1),
        **COMMON,
        **options,
    }
    for key, words in (("norm_op", NORMS), ("nonlin", NONLINEARITIES), ("dropout_op", DROPOUTS)):
        value = chosen[key]
        if value not in words and not (value is None and key != "nonlin"):
            raise ConfigError(
                "invalid-value", f"network {name}: {key} must be one of {', '.join(words)}, not {value!r}"
            )
    for key, value in chosen.items():
        numbers = [number for number in _flat(value) if isinstance(number, int | float)]
        if key in (*PER_STAGE, "n_conv_per_stage_decoder") and any(number < 1 for number in numbers):
            raise ConfigError("invalid-value", f"network {name}: {key} must be at least 1 everywhere, not {value}")
    for kernel in _flat(chosen["kernel_sizes"]):
        if kernel % 2 == 0:  # padding would not keep the size
            raise ConfigError("invalid-value", f"network {name}: kernel_sizes must be odd, not {kernel}")
    return chosen


def _stages(name: str, options: Mapping[str, Any]) -> int:
    lengths = {key: len(value) for key in PER_STAGE if isinstance(value := options.get(key), list | tuple)}
    if isinstance(up := options.get("n_conv_per_stage_decoder"), list | tuple):
        lengths["n_conv_per_stage_decoder"] = len(up) + 1
    if isinstance(options.get("n_stages"), int):
        lengths["n_stages"] = options["n_stages"]
    counts = set(lengths.values())
    if len(counts) > 1:
        fault = ", ".join(f"{key} {count}" for key, count in lengths.items())
        raise ConfigError("options-clash", f"network {name}: options are of different numbers of stages: {fault}")
    stages = counts.pop() if counts else STAGES
    if stages < 2:
        raise ConfigError("invalid-value", f"network {name}: n_stages must be at least 2, not {stages}")
    return stages


def _flat(value: Any) -> list[Any]:
    return [part for each in value for part in _flat(each)] if isinstance(value, list | tuple) else [value]


class _Supervised(Segmenter):
    """In training, the outputs that nnU-Net trains: it gives the coarsest of them the weight 0."""

    def forward(self, x: Tensor) -> Tensor | list[Tensor]:
        outputs = super().forward(x)
        if isinstance(outputs, Tensor):
            return outputs
        return outputs[:-1] if len(outputs) > 2 else outputs[0]


def build(
    name: str,
    options: dict[str, Any],
    *,
    in_channels: int,
    n_classes: int,
    spatial_dims: int,
) -> nn.Module:
    """A network from its name with `PREFIX`; the caller seeds. Errors as `fedshift.tasks.networks.build`."""
    short = name.removeprefix(PREFIX)
    chosen = complete(short, options, dims=spatial_dims)
    package = _package(name)
    arguments = {key: with_tuples(value) for key, value in chosen.items()}
    arguments["conv_op"] = getattr(nn, f"Conv{spatial_dims}d")
    for key, words in CLASSES.items():
        word = chosen[key]
        arguments[key] = None if word is None else getattr(nn, f"{words[word]}{spatial_dims}d")
    arguments["nonlin"] = getattr(nn, chosen["nonlin"])
    network_class: Any = type(short, (_Supervised, getattr(package, short)), {"__module__": __name__})
    net: Segmenter = network_class(input_channels=in_channels, num_classes=n_classes, **arguments)
    net.apply(network_class.initialize)  # nnU-Net's initial weights
    _name_once(net)
    net.in_channels, net.main_last = in_channels, False
    net.trial_size = trial.trial_size(spatial_dims)
    return net


def _package(name: str) -> Any:
    try:
        return importlib.import_module(MODULE)
    except ImportError:
        raise ConfigError(
            "not-installed",
            f"network {name} needs dynamic-network-architectures, which is not installed: {EXTRA}, at every site",
        ) from None


# --- one name for each array ------------------------------------------------------------------------------

AGAIN, SECOND_ENCODER = "all_modules", "decoder.encoder."


class _InOrder:
    """A block's layers in the order in which they were registered, which is that of the package's sequence.

    They are looked up when they are called, so that a layer that is replaced under its name is replaced.
    """

    def __init__(self, block: nn.Module) -> None:
        self._block = block

    def __call__(self, x: Tensor) -> Tensor:
        for layer in self._block.children():
            x = layer(x)
        return x


def _name_once(net: nn.Module) -> None:
    """Keep an array's first name alone: what is done to parameters would else be done to one of several names."""
    del net.decoder.encoder  # type: ignore[union-attr]
    for block in net.modules():
        if AGAIN in block._modules:
            del block._modules[AGAIN]
            block.__dict__[AGAIN] = _InOrder(block)


def is_of_nnunet(net: nn.Module) -> bool:
    """Whether a network is one of this module."""
    return type(net).__module__ == __name__


def without_second_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The arrays of a checkpoint that nnU-Net wrote, with the names that they have here."""
    return {
        key: value for key, value in state.items() if not key.startswith(SECOND_ENCODER) and f".{AGAIN}." not in key
    }


def with_second_names(net: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The arrays of a network of this module with all names that nnU-Net's network loads, in the order of its own."""
    places = {
        f"{name}.{layer}.": f"{name}.{AGAIN}.{place}."
        for name, block in net.named_modules()
        if AGAIN in block.__dict__
        for place, (layer, _) in enumerate(block.named_children())
    }
    named: dict[str, Tensor] = {}
    for key, value in state.items():
        owner, _, last = key.rpartition(".")
        again = places.get(f"{owner}.")
        named |= {each: value for each in (key, *([again + last] if again else []))}
    return {**named, **{f"decoder.{key}": value for key, value in named.items() if key.startswith("encoder.")}}
