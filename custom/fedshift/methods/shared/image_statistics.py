"""A site's mean image statistics: what FedRDN and FedAlign exchange, once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from fedshift.methods.base import ArraySpec, SiteUpdate
from fedshift.methods.shared.features import spatial_dims
from fedshift.schema.errors import DataError
from fedshift.schema.messages import Arrays
from fedshift.tasks.stages import StagedNetwork

SMALLEST_STD = 1e-6


def image_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and (biased) standard deviation per image and channel: (B, C, *spatial) -> 2 x (B, C) float64."""
    x = x.double()
    return x.mean(spatial_dims(x)), x.std(spatial_dims(x), correction=0)


def site_statistics(images: Iterator[Tensor], *, site: str, method: str) -> Arrays:
    """The means over a site's images of their mean and of their standard deviation, ``mean`` and ``std`` (C,).

    Raises:
        DataError: a channel is constant in every image.
    """
    sums: list[Tensor] = []
    count = 0
    for chunk in images:
        sums.append(torch.stack([each.sum(0) for each in image_statistics(chunk)]))
        count += len(chunk)
    mean, std = torch.stack(sums).sum(0) / count
    if float(std.min()) < SMALLEST_STD:
        raise DataError(
            "images-constant",
            f"site {site}: a channel of the training images is constant, so {method} cannot normalise with it: run "
            "'fedshift data check' on the site",
        )
    return {"mean": mean.numpy(), "std": std.numpy()}


def sent(net: nn.Module) -> dict[str, ArraySpec]:
    """What a site sends: ``mean`` and ``std``. Images are scaled to at most [0, 255] before any method sees them."""
    reveals = "average {} of the site's training images, per channel (of its only image, if it has one)"
    mean = ArraySpec(
        (cast(StagedNetwork, net).in_channels,),
        "float64",
        "once",
        low=-255,
        high=255,
        reveals=reveals.format("brightness"),
        kind="statistics",
        mean_of="intensities",
        alike="norm",
    )
    std = replace(mean, low=SMALLEST_STD, reveals=reveals.format("contrast"), mean_of="deviations", alike="elements")
    return {"mean": mean, "std": std}


def sent_to_all(net: nn.Module) -> dict[str, ArraySpec]:
    """What every site receives: all sites' ``means`` and ``stds`` (K, C)."""
    return {
        f"{name}s": ArraySpec(("sites", *spec.shape), spec.dtype, reveals=f"every site's `{name}`, without names")
        for name, spec in sent(net).items()
    }


def collected(updates: Sequence[SiteUpdate], method: str) -> Arrays:
    """All sites' pairs, in site order."""
    return {f"{name}s": np.stack([update.arrays[method][name] for update in updates]) for name in ("mean", "std")}
