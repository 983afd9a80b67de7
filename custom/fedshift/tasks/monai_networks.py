"""Segmentation networks of ``monai.networks.nets``, by name: ``network: {name: monai.DynUNet, options: {…}}``.

The network is a subclass of MONAI's, so that its arrays have MONAI's own names: weights go between MONAI and fedshift
as they are. It adds what fedshift needs: encoder stages, found by a trial (`fedshift.tasks.trial`), and one kind of
output, whatever MONAI's network gives.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedshift.schema.errors import ConfigError
from fedshift.schema.strict import nearest
from fedshift.tasks import trial
from fedshift.tasks.stages import Stage

if TYPE_CHECKING:
    from monai.networks.nets.basic_unet import UpCat

PREFIX = "monai."

# --- the networks -----------------------------------------------------------------------------------------

Defaults = Callable[[int, Mapping[str, Any]], Mapping[str, Any]]
"""Options by the number of spatial dimensions and the options that are given."""


@dataclass(frozen=True)
class Allowed:
    """A network of ``monai.networks.nets``.

    ``defaults``: options where MONAI has none, or one for 3D only. ``withheld``: options that are not plain data, or
    would download. ``patch``: the constructor's name for the size of a patch, if the network is made for one size;
    ``multiple`` is then what each side must be a multiple of. ``main_last``: the best of several outputs is the last.
    """

    defaults: Defaults = lambda dims, options: {}
    withheld: frozenset[str] = frozenset()
    patch: str | None = None
    multiple: int = 1
    main_last: bool = False
    since: str = "1.4"


WIDTHS = (16, 32, 64, 128, 256)


def _halving(dims: int, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """As many strides of 2 as the widths ask for."""
    channels = options.get("channels", WIDTHS)
    return {"channels": channels, "strides": (2,) * (len(channels) - 1)}


def _dynunet(dims: int, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Kernels of 3, and up again as it went down."""
    strides = options.get("strides", (1, 2, 2, 2, 2))
    return {"kernel_size": (3,) * len(strides), "strides": strides, "upsample_kernel_size": tuple(strides[1:])}


ALLOWED: Mapping[str, Allowed] = {
    "AttentionUnet": Allowed(_halving),
    "BasicUNet": Allowed(),
    "BasicUNetPlusPlus": Allowed(main_last=True),
    "DynUNet": Allowed(_dynunet),
    "FlexibleUNet": Allowed(lambda dims, options: {"backbone": "efficientnet-b0"}, withheld=frozenset({"pretrained"})),
    "HighResNet": Allowed(),
    "MedNeXt": Allowed(since="1.5"),
    "SegResNet": Allowed(),
    "SegResNetDS": Allowed(withheld=frozenset({"preprocess"})),
    "SwinUNETR": Allowed(withheld=frozenset({"norm_layer", "img_size"})),
    "UNETR": Allowed(patch="img_size", multiple=16),
    "UNet": Allowed(lambda dims, options: {**_halving(dims, options), "num_res_units": 2}),
    "VNet": Allowed(lambda dims, options: {"dropout_dim": dims}),
}
"""Left out: networks for other ends (registration, generation, detection), and those whose constructor or output is
not plain (AHNet, DiNTS, SegResNetVAE, SegResNetDS2, VISTA3D, HoverNet)."""


def names() -> list[str]:
    """Names that a job may use."""
    return [PREFIX + name for name in ALLOWED]


class Segmenter(nn.Module):
    """What is added to a network of MONAI.

    In evaluation, ``net(x)`` are logits (B, K, *spatial). In training they may be a list: the logits, then those of
    deep supervision from fine to coarse, which `fedshift.tasks.losses` takes.
    """

    in_channels: int
    main_last: bool
    trial_size: tuple[int, ...]
    _places: tuple[trial.StagePlace, ...] | None = None

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Encoder stages, fine to coarse; found by `fedshift.tasks.trial.find_stages`, and empty if there are none."""
        if self._places is None:
            self._places = trial.find_stages(self, self.trial_size)
        return tuple(place.in_net(self) for place in self._places)

    def forward(self, x: Tensor) -> Tensor | list[Tensor]:
        """Logits, or in training with deep supervision a list of them."""
        output = super().forward(x)  # of MONAI's class, the next of the bases
        heads = _flat(output, x)
        if self.main_last:
            heads = heads[::-1]
        kept = getattr(self, "heads", None)
        if isinstance(kept, list):  # DynUNet keeps its heads and blows them up to full size: take them as they were
            if len(heads) > 1:
                heads = [heads[0], *kept]
            kept[:] = [torch.empty(0)] * len(kept)  # a network that holds a graph's tensors cannot be copied
        return heads if self.training and len(heads) > 1 else heads[0]


def _flat(output: Any, x: Tensor) -> list[Tensor]:
    """One tensor, several, or several stacked in dimension 1, as a list."""
    if isinstance(output, Tensor):
        return list(output.unbind(1)) if output.dim() > x.dim() else [output]
    return list(output)


def build(
    name: str,
    options: dict[str, Any],
    *,
    in_channels: int,
    n_classes: int,
    spatial_dims: int,
    patch: Sequence[int] | None,
) -> nn.Module:
    """A network of MONAI, from its name with `PREFIX`; the caller seeds. Errors as `fedshift.tasks.networks.build`."""
    if name not in names():
        raise ConfigError("unknown-network", f"there is no network {name!r}{nearest(name, names())}")
    short = name.removeprefix(PREFIX)
    allowed, cls = ALLOWED[short], _class(short)
    settings: dict[str, Any] = {"in_channels": in_channels, "out_channels": n_classes, "spatial_dims": spatial_dims}
    parameters = inspect.signature(cls.__init__).parameters
    fixed = {"self", *settings, allowed.patch}
    known = [key for key in parameters if key not in fixed | allowed.withheld]
    check_options(name, options, known=known, fixed=fixed)
    if allowed.patch is not None:
        settings[allowed.patch] = _fixed(name, allowed, patch)
    plain = {key: with_tuples(value) for key, value in options.items()}
    chosen = {**allowed.defaults(spatial_dims, plain), **plain}
    network_class = type(short, (Segmenter, cls), {"__module__": __name__})
    net = _instance(network_class, name, {**settings, **chosen})
    pad_only_odd_sizes(net)
    net.in_channels, net.main_last = in_channels, allowed.main_last
    net.trial_size = tuple(patch) if allowed.patch and patch else trial.trial_size(spatial_dims)
    return net


def as_given(short: str, arguments: Mapping[str, Any], *, where: str) -> nn.Module:
    """A network of MONAI with exactly these arguments and MONAI's own defaults, as others have described it.

    ``short`` is the name of a class in the list, ``where`` the place that names it, for messages.

    Raises:
        ConfigError: the name is not in the list, or an argument is not plain, or none of the installed MONAI's.
    """
    if short not in ALLOWED:
        raise ConfigError(
            "unknown-network", f"{where} is {short!r}, and only networks of the list are made{nearest(short, ALLOWED)}"
        )
    cls, allowed = _class(short), ALLOWED[short]
    known = inspect.signature(cls.__init__).parameters
    for key, value in arguments.items():
        if key not in known or key in allowed.withheld:
            raise ConfigError("unknown-option", f"{where}: {short} has no option {key!r} here{nearest(key, known)}")
        if not is_plain(value):
            raise ConfigError("invalid-value", f"{where}: option {key} must be numbers, words or lists of them")
    network_class = type(short, (Segmenter, cls), {"__module__": __name__})
    try:
        net = _instance(network_class, PREFIX + short, {key: with_tuples(value) for key, value in arguments.items()})
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise ConfigError(
            "network-unmade", f"{where}: {short} cannot be made by the installed MONAI ({reason})"
        ) from None
    net.main_last = allowed.main_last
    return net


def defaults(short: str) -> dict[str, Any]:
    """MONAI's own defaults of a listed network's options, by name."""
    parameters = inspect.signature(_class(short).__init__).parameters
    return {
        key: parameter.default
        for key, parameter in parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }


def _class(short: str) -> type[nn.Module]:
    nets = importlib.import_module("monai.networks.nets")
    if not hasattr(nets, short):
        version = importlib.import_module("monai").__version__
        names = ", ".join(PREFIX + listed for listed in ALLOWED if hasattr(nets, listed))
        raise ConfigError(
            "library-old",
            f"network {PREFIX}{short}: MONAI {version} is installed and does not have it: install monai>="
            f"{ALLOWED[short].since}, or take another of {names}",
        )
    cls: type[nn.Module] = getattr(nets, short)
    return cls


def _instance(cls: type[Segmenter], name: str, arguments: dict[str, Any]) -> Segmenter:
    """An instance; on the meta device by way of the CPU, where a constructor reads values."""
    try:
        net = cls(**arguments)
    except ImportError as error:
        missing = re.search(r"No module named '([\w.]+)'", str(error))
        package = missing[1].partition(".")[0] if missing else "a package that MONAI leaves optional"
        raise ConfigError(
            "not-installed", f"network {name} needs {package}: pip install {package}, at every site"
        ) from None
    except RuntimeError:
        if torch.get_default_device().type != "meta":
            raise
        with torch.device("cpu"):
            net = cls(**arguments).to("meta")
    name_once(net)
    return net


def _fixed(name: str, allowed: Allowed, patch: Sequence[int] | None) -> tuple[int, ...]:
    if patch is None:
        raise ConfigError("size-missing", f"network {name} is made for one size of patch: set data.patch")
    unit = allowed.multiple
    near = [max(int(side / unit + 0.5), 1) * unit for side in patch]
    if near != list(patch):
        sides = " x ".join(map(str, patch))
        raise ConfigError(
            "patch-size",
            f"network {name}: each side of a patch must be a multiple of {unit}, not {sides}; the "
            f"nearest that fits is {' x '.join(map(str, near))}: set data.patch=[{', '.join(map(str, near))}]",
        )
    return tuple(patch)


def check_options(
    name: str, options: Mapping[str, Any], *, known: Sequence[str], fixed: Collection[str | None]
) -> None:
    """Refuse options of a network that its task decides (``fixed``), that it has not, or that are no plain data."""
    for key, value in options.items():
        if key in fixed:
            raise ConfigError("option-fixed", f"network {name}: {key} follows from the task or the name: leave it out")
        if key not in known:
            raise ConfigError("unknown-option", f"network {name}: unknown option {key!r}{nearest(key, known)}")
        if not is_plain(value):
            raise ConfigError("invalid-value", f"network {name}: option {key} must be numbers, words or lists of them")


def is_plain(value: Any) -> bool:
    """Whether a value is numbers, words, or lists and mappings of them."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def with_tuples(value: Any) -> Any:
    """Lists as tuples, which some of MONAI's networks insist on."""
    return tuple(map(with_tuples, value)) if isinstance(value, list | tuple) else value


# --- what MONAI's networks do otherwise -------------------------------------------------------------------


def pad_only_odd_sizes(net: nn.Module) -> None:
    """Have every ``UpCat`` of a network do without its padding where nothing is to be padded.

    It brings up-sampled features to the encoder's size, which differs by one where that was odd. Where sizes agree, its
    padding still copies the features, and under autocast to float32 at that, with all that follows up to the next
    convolution. The values are the same without (docs/performance.md).
    """
    from monai.networks.nets.basic_unet import UpCat

    for module in net.modules():
        if isinstance(module, UpCat) and module.is_pad:
            module.register_forward_pre_hook(_decide)


def _decide(up: UpCat, inputs: tuple[Tensor, Tensor | None]) -> None:
    """Before ``up(x, x_e)``: features (B, C, *spatial), and the encoder's of twice the size or one more."""
    x, x_e = inputs
    up.is_pad = x_e is not None and any(size != 2 * half for size, half in zip(x_e.shape[2:], x.shape[2:], strict=True))


SECOND = "skip_layers"


def name_once(net: nn.Module) -> None:
    """Keep ``skip_layers`` as a plain attribute: the forward pass uses it, and its parts have their first names.

    MONAI's DynUNet registers its blocks a second time there. With two names for one array, a message would hold it
    twice, and what is done to parameters (noise, averages, limits) would be done to the first name only, while the
    second is the one that is loaded last.
    """
    again = net._modules.pop(SECOND, None)
    if again is not None:
        net.__dict__[SECOND] = again


def without_second_names(net: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The arrays of a file that MONAI wrote, as `name_once` leaves their names."""
    again = f"{SECOND}." if SECOND in net.__dict__ else None
    return {key: value for key, value in state.items() if again is None or not key.startswith(again)}
