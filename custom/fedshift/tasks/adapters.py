"""Adapters in a network, through peft: small layers are trained beside the frozen weights of a large network.

LoRA (Hu et al., ICLR 2022): the weight W of a chosen layer stays as the base has it, and ::

    W' = W + scale · B A            A: rank x inputs,  B: outputs x rank,  B = 0 at first

takes its place; of a convolution the inputs are those of a kernel. With private adapters (as in Med-DualLoRA) it is
W + scale · (B A + B_k A_k), of which site k keeps A_k and B_k for itself.

What is frozen becomes a buffer that is in no ``state_dict``: the network's keys and parameters are then those of its
adapters and of the parts that are trained whole. So whatever averages, checks, masks, encrypts or adds noise to "the
network's weights" does it to these, and the base neither travels nor changes.

`merge` works without peft, so that a merged model is used where that is not installed.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedshift.schema.adapters import PRIVATE, SHARED, AdaptersSpec
from fedshift.schema.components import package_of
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.seeding import derive_seed, seeded_global
from fedshift.schema.strict import nearest
from fedshift.schema.task import NetworkSpec
from fedshift.tasks import monai_classifiers, monai_networks, nnunet_networks
from fedshift.tasks.last_layers import last_layers
from fedshift.tasks.norms import is_norm

if TYPE_CHECKING:
    from peft import LoraConfig

ATTENTION = frozenset({"SABlock", "CrossAttentionBlock", "WindowAttention"})
"""Classes of MONAI whose linear layers make queries, keys, values and the output of attention."""
Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
BUILT_IN = ("alexnet", "resnet18", "unet")
HEAD, NORMS = "head", "norms"
_PART = re.compile(rf"(?P<layer>.+)\.lora_(?P<factor>[AB])\.(?P<adapter>{SHARED}|{PRIVATE})\.weight")


class Adapted(nn.Module):
    """What is added to the class of a network that has adapters."""

    frozen_norms: tuple[str, ...]

    def train(self, mode: bool = True) -> Adapted:
        """As of every module; but frozen norms use the base's running statistics in training too."""
        super().train(mode)
        for name in self.frozen_norms:
            self.get_submodule(name).training = False
        return self


def names() -> list[str]:
    """Built-in networks that may have adapters: those for which there are files of others, and the U-Net."""
    return [*BUILT_IN, *monai_networks.names(), *monai_classifiers.names(), *nnunet_networks.names()]


def with_adapters(job: JobSpec, adapters: AdaptersSpec | None) -> JobSpec:
    """The job with these adapters in its network, or without."""
    network = job.task.network.model_copy(update={"adapters": adapters})
    return job.model_copy(update={"task": job.task.model_copy(update={"network": network})})


def adapt(net: nn.Module, network: NetworkSpec, *, seed: int) -> nn.Module:
    """Freeze a network in place and put adapters into it. Their initial values depend on the job's ``seed`` only.

    Raises:
        ConfigError: the network is not listed, no layer is to be adapted, or one is smaller than the rank; or there is
            no part of the name that is to be trained, or no peft.
    """
    spec = network.adapters
    assert spec is not None
    if package_of(network.name) is None and network.name not in names():
        raise ConfigError(
            "adapters-unfit", f"network {network.name} cannot have adapters{nearest(network.name, names())}"
        )
    trained = set(_trained(net, network.name, spec))
    layers = {name: layer for name, layer in _layers(net, spec) if layer not in trained}
    if not layers:
        kinds = "linear layers in attention blocks" if spec.on == "attention" else "convolutions to adapt"
        raise ConfigError(
            "adapters-unfit",
            f"network.adapters.on is {spec.on}, and network {network.name} has no {kinds} beside the parts that are "
            "trained whole (network.adapters.trained): choose the other of attention and conv, or another network",
        )
    for name, layer in layers.items():
        most = _full_rank(layer)
        for key in ("rank", "private"):
            if getattr(spec, key) > most:
                raise ConfigError(
                    "adapters-unfit",
                    f"network.adapters.{key} is {getattr(spec, key)}, and layer {name} of network {network.name} has a "
                    f"rank of at most {most}: lower it",
                )
    others = [module for module in net.modules() if module not in trained]
    frozen = {n: module for n, module in net.named_modules() if is_norm(module, "batch") and module not in trained}
    for name, module in frozen.items():
        if not isinstance(module, _BatchNorm):
            raise ConfigError(
                "adapters-unfit",
                f"layer {name} of network {network.name} has running statistics and is no batch norm, and only those "
                "of batch norms can be frozen: add norms to network.adapters.trained",
            )
        module.track_running_stats = False  # it uses those that it has, and load_state_dict asks for no counter
    _insert(net, layers, spec, seed=derive_seed(seed, "server", 0, "adapters"))
    for module in others:
        _freeze(module)
    net.__class__ = type(type(net).__name__, (Adapted, type(net)), {"__module__": type(net).__module__})
    cast(Adapted, net).frozen_norms = tuple(frozen)
    return net.train(net.training)


def merge(
    plain: Mapping[str, Tensor],
    adapted: Mapping[str, Tensor],
    spec: AdaptersSpec,
    *,
    instead_of: Mapping[str, Tensor] = MappingProxyType({}),
) -> dict[str, Tensor]:
    """The weights of a network without adapters that predicts as the network with them.

    Args:
        plain: the base's weights, by the names that they have without adapters.
        adapted: the ``state_dict`` of the network with adapters.
        spec: how the adapters are scaled.
        instead_of: adapters that have been merged into ``plain``, which are taken out.
    """
    merged = dict(plain)
    for key, value in adapted.items():
        part = _PART.fullmatch(key)
        if part is None:
            merged[key] = value
        elif part["factor"] == "B":
            change = _product(adapted, part)
            if key in instead_of:
                change = change - _product(instead_of, part)
            weight = merged[f"{part['layer']}.weight"]
            merged[f"{part['layer']}.weight"] = (weight + spec.scale * change.view(weight.shape)).to(weight.dtype)
    return merged


def _product(adapted: Mapping[str, Tensor], part: re.Match[str]) -> Tensor:
    """B A of an adapter, (outputs, inputs) float64."""
    factors = (adapted[f"{part['layer']}.lora_{factor}.{part['adapter']}.weight"] for factor in "BA")
    outer, inner = (factor.flatten(1).double() for factor in factors)
    return outer @ inner


def private_keys(net: nn.Module) -> frozenset[str]:
    """``state_dict`` keys of the adapters that a site keeps; none of a network without."""
    if not isinstance(net, Adapted):
        return frozenset()
    parts = {key: _PART.fullmatch(key) for key in net.state_dict()}
    return frozenset(key for key, part in parts.items() if part is not None and part["adapter"] == PRIVATE)


def describe(net: nn.Module, spec: AdaptersSpec) -> str:
    """``LoRA of rank 8 on attention, and head: 120,482 of 62,190,644 weights are trained``."""
    trained = sum(weight.numel() for weight in net.parameters())
    every = trained + sum(buffer.numel() for buffer in net.buffers())
    beside = f", a private one of rank {spec.private}" if spec.private else ""
    whole = f", and {', '.join(spec.trained)}" if spec.trained else ""
    return f"LoRA of rank {spec.rank} on {spec.on}{beside}{whole}: {trained:,} of {every:,} weights are trained"


def _trained(net: nn.Module, network: str, spec: AdaptersSpec) -> Iterator[nn.Module]:
    """The modules that are trained whole, with all that are in them."""
    for part in spec.trained:
        if part == HEAD:
            modules: tuple[nn.Module, ...] = last_layers(net)
        elif part == NORMS:
            modules = tuple(module for module in net.modules() if is_norm(module, "all"))
        else:
            known = dict(net.named_modules())
            if not part or part not in known:
                children = [HEAD, NORMS, *(name for name, _ in net.named_children())]
                raise ConfigError(
                    "adapters-unfit",
                    f"network.adapters.trained: network {network} has no part {part!r}{nearest(part, children)}",
                )
            modules = (known[part],)
        for module in modules:
            yield from module.modules()


def _layers(net: nn.Module, spec: AdaptersSpec) -> Iterator[tuple[str, Layer]]:
    """Name and layer of all that may be adapted."""
    for name, module in net.named_modules():
        if spec.on == "attention" and type(module).__name__ in ATTENTION:
            for inner, layer in module.named_modules(prefix=name):
                if isinstance(layer, nn.Linear):
                    yield inner, layer
        elif spec.on == "conv" and isinstance(module, CONVOLUTIONS) and _can_be_merged(module):
            if _has_few_weights(module, max(spec.rank, spec.private)):
                continue
            yield name, module


def _has_few_weights(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, rank: int) -> bool:
    """Whether a convolution may stay frozen for being narrower than a rank.

    Such as that of one channel to patches, or beside a residual block, and of single voxels to one channel.
    """
    inputs, is_pointwise = prod(layer.weight.shape[1:]), set(layer.kernel_size) == {1}
    return inputs < rank or (is_pointwise and layer.out_channels < rank)


def _full_rank(layer: Layer) -> int:
    """The rank of a product of matrices with which any weights can be added to a layer's."""
    return min(layer.weight.shape[0], prod(layer.weight.shape[1:]))


def _can_be_merged(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> bool:
    """Whether peft's adapter of a convolution can be merged into it: it leaves dilation and padding modes out."""
    return layer.groups == 1 and set(layer.dilation) == {1} and layer.padding_mode == "zeros"


def _freeze(module: nn.Module) -> None:
    """Make a module's own arrays buffers that are in no ``state_dict``."""
    arrays = {
        name: value.detach()
        for name, value in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    }
    for name, value in arrays.items():
        delattr(module, name)
        module.register_buffer(name, value, persistent=False)


def _insert(net: nn.Module, layers: Mapping[str, nn.Module], spec: AdaptersSpec, *, seed: int) -> None:
    """Put an adapter, or two, beside each of the layers."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
        from peft.tuners.lora import LoraLayer
    except ImportError:
        raise ConfigError(
            "not-installed", "network.adapters needs peft: pip install 'fedshift[adapters]', at every site"
        ) from None
    ranks = {SHARED: spec.rank} | ({PRIVATE: spec.private} if spec.private else {})
    wanted = {name: weight.requires_grad for name, weight in net.named_parameters()}

    def config(rank: int) -> LoraConfig:
        targets = "|".join(map(re.escape, layers))
        return LoraConfig(r=rank, lora_alpha=spec.scale * rank, target_modules=targets)  # type: ignore[arg-type]

    with seeded_global(seed), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Already found a `peft_config`")  # of the first of two adapters
        for adapter, rank in ranks.items():
            inject_adapter_in_model(config(rank), net, adapter_name=adapter)
    adapted = {name: module for name, module in net.named_modules() if isinstance(module, LoraLayer)}
    assert adapted.keys() == layers.keys(), sorted(adapted.keys() ^ layers.keys())
    for module in adapted.values():
        module.set_adapter([*ranks])
    for name, weight in net.named_parameters():
        weight.requires_grad_(wanted.get(name, True))
