"""Networks, found by module name. Each module's ``build(in_channels, n_classes, **options)`` makes one.

A network gives ``stages`` (places where methods see features, see `fedshift.tasks.stages.Stage`).
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import partial
from typing import Any

from torch import nn

from fedshift.schema.errors import ConfigError
from fedshift.schema.seeding import seeded_global
from fedshift.schema.strict import nearest


def available() -> list[str]:
    """Names of all networks."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def build(
    name: str, options: dict[str, Any], *, in_channels: int, n_classes: int, seed: int, spatial_dims: int = 2
) -> nn.Module:
    """A network with initial weights that depend on ``seed`` only.

    Raises:
        ConfigError: no such network, or an option that it does not have.
    """
    if name not in available():
        raise ConfigError(f"there is no network {name!r}{nearest(name, available())}")
    make = importlib.import_module(f"fedshift.tasks.networks.{name}").build
    parameters = inspect.signature(make).parameters
    known = [p for p in parameters if p not in ("in_channels", "n_classes", "spatial_dims")]
    if "spatial_dims" in parameters:
        make = partial(make, spatial_dims=spatial_dims)
    elif spatial_dims != 2:
        raise ConfigError(f"network {name}: is for 2D; take monai_basic_unet")
    for key in options:
        if key not in known:
            raise ConfigError(f"network {name}: unknown option {key!r}{nearest(key, known)}")
    try:
        with seeded_global(seed):
            net: nn.Module = make(in_channels=in_channels, n_classes=n_classes, **options)
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"network {name}: no such network can be made with options {options} ({reason})") from None
    return net
