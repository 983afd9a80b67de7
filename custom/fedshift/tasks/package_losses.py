"""Losses of installed packages, by names such as ``acme-nets:focal`` (`fedshift.schema.components`).

A package's loss is a module with a function ``loss(logits, target, *, option=default, …)`` that gives a scalar. Both
are (B, K, *spatial), or (B, K) of pictures to classify, in float32 (float64 stays): logits, and the share that each
class has, 0 or 1 where no method mixes samples. Its options are plain data. A module may also have

- ``loss_of_regions``, the same for regions that overlap: logits of sigmoids, and the share of each region; and
- ``OF_PROBABILITIES = True`` if the loss depends on the softmax's probabilities (the sigmoid's, of regions) and not on
  where a voxel lies. Then classes that a site has not outlined are added to the background, and voxels to ignore are
  left out. Without it, sites and tasks with such are refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from fedshift.schema.components import load
from fedshift.schema.errors import ConfigError
from fedshift.schema.strict import nearest

Function = Callable[[Tensor, Tensor], Tensor]
"""Of logits and shares, both (B, K, *spatial)."""


def function_of(name: str, options: Mapping[str, Any], *, of_regions: bool = False) -> Function:
    """The loss with its options.

    Raises:
        ConfigError: as `fedshift.schema.components.load`; or it has no such option, or is not for regions.
    """
    attribute = "loss_of_regions" if of_regions else "loss"
    function: Callable[..., Tensor] | None = getattr(load("loss", name), attribute, None)
    if function is None:
        raise ConfigError("loss-unfit", f"loss {name} is not for regions, which overlap: take ce_dice or another loss")
    known = [key for key, each in inspect.signature(function).parameters.items() if each.kind is each.KEYWORD_ONLY]
    for key in options:
        if key not in known:
            raise ConfigError("unknown-option", f"loss {name}: unknown option {key!r}{nearest(key, known)}")
    return partial(function, **options)


def is_of_probabilities(name: str) -> bool:
    """Whether classes may be added up, and voxels left out."""
    return getattr(load("loss", name), "OF_PROBABILITIES", False) is True
