"""MONAI's ``UpCat`` without its padding where nothing is to be padded.

It brings up-sampled features to the encoder's size, which differs by one where that was odd. Where sizes agree, its
padding still copies the features, and under autocast to float32 at that, with all that follows up to the next
convolution. The values are the same without (docs/performance.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from monai.networks.nets.basic_unet import UpCat


def pad_only_odd_sizes(net: nn.Module) -> None:
    """Have every ``UpCat`` of a network that may pad do so only for a batch that needs it."""
    from monai.networks.nets.basic_unet import UpCat

    for module in net.modules():
        if isinstance(module, UpCat) and module.is_pad:
            module.register_forward_pre_hook(_decide)


def _decide(up: UpCat, inputs: tuple[Tensor, Tensor | None]) -> None:
    """Before ``up(x, x_e)``: features (B, C, *spatial), and the encoder's of twice the size or one more."""
    x, x_e = inputs
    up.is_pad = x_e is not None and any(size != 2 * half for size, half in zip(x_e.shape[2:], x.shape[2:], strict=True))
