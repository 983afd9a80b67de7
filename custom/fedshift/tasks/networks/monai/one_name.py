"""Each array of a network under one name.

MONAI's DynUNet registers its blocks a second time, as parts of ``skip_layers``. With two names for one array, a message
would hold it twice, and what is done to parameters (noise, averages, limits) would be done to the first name only,
while the second is the one that is loaded last.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

SECOND = "skip_layers"


def name_once(net: nn.Module) -> None:
    """Keep ``skip_layers`` as a plain attribute: the forward pass uses it, and its parts have their first names."""
    again = net._modules.pop(SECOND, None)
    if again is not None:
        net.__dict__[SECOND] = again


def without_second_names(net: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The arrays of a file that MONAI wrote, as `name_once` leaves their names."""
    again = f"{SECOND}." if SECOND in net.__dict__ else None
    return {key: value for key, value in state.items() if again is None or not key.startswith(again)}
