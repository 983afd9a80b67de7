"""MONAI's segmentation networks that a job may name, and what each needs besides MONAI's own defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Defaults = Callable[[int, Mapping[str, Any]], Mapping[str, Any]]
"""Options by the number of spatial dimensions and the options that are given."""


@dataclass(frozen=True)
class Allowed:
    """A network of ``monai.networks.nets``.

    ``defaults``: options where MONAI has none, or one for 3D only. ``withheld``: options that are not plain data, or
    would download. ``patch``: the constructor's name for the size of a patch, if the network is made for one size;
    ``multiple`` is then what each side must be a multiple of. ``main_last``: the best of several outputs is the last.
    """

    defaults: Defaults = lambda dims, given: {}
    withheld: frozenset[str] = frozenset()
    patch: str | None = None
    multiple: int = 1
    main_last: bool = False
    since: str = "1.4"
    given: frozenset[str] = field(default=frozenset({"spatial_dims", "in_channels", "out_channels"}))


WIDTHS = (16, 32, 64, 128, 256)


def _halving(dims: int, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """As many strides of 2 as the widths ask for."""
    channels = given.get("channels", WIDTHS)
    return {"channels": channels, "strides": (2,) * (len(channels) - 1)}


def _dynunet(dims: int, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Kernels of 3, and up again as it went down."""
    strides = given.get("strides", (1, 2, 2, 2, 2))
    return {"kernel_size": (3,) * len(strides), "strides": strides, "upsample_kernel_size": tuple(strides[1:])}


ALLOWED: Mapping[str, Allowed] = {
    "AttentionUnet": Allowed(_halving),
    "BasicUNet": Allowed(),
    "BasicUNetPlusPlus": Allowed(main_last=True),
    "DynUNet": Allowed(_dynunet),
    "FlexibleUNet": Allowed(lambda dims, given: {"backbone": "efficientnet-b0"}, withheld=frozenset({"pretrained"})),
    "HighResNet": Allowed(),
    "MedNeXt": Allowed(since="1.5"),
    "SegResNet": Allowed(),
    "SegResNetDS": Allowed(withheld=frozenset({"preprocess"})),
    "SwinUNETR": Allowed(withheld=frozenset({"norm_layer", "img_size"})),
    "UNETR": Allowed(patch="img_size", multiple=16),
    "UNet": Allowed(lambda dims, given: {**_halving(dims, given), "num_res_units": 2}),
    "VNet": Allowed(lambda dims, given: {"dropout_dim": dims}),
}
"""Left out: networks for other ends (registration, generation, detection), and those whose constructor or output is
not plain (AHNet, DiNTS, SegResNetVAE, SegResNetDS2, VISTA3D, HoverNet)."""
