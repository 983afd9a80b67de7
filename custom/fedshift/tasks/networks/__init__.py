"""Networks by name: the papers', each a module here with ``build(in_channels, n_classes, **options)``, MONAI's
(`fedshift.tasks.monai_networks`, `fedshift.tasks.monai_classifiers`), as ``monai.DynUNet``, and nnU-Net's
(`fedshift.tasks.nnunet_networks`), as ``nnunet.PlainConvUNet``; and those of installed packages
(`fedshift.schema.components`), as ``acme-nets:unet``, each a module with the same ``build``.

A network gives ``stages`` (places where methods see features, see `fedshift.tasks.stages.Stage`).
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from torch import nn

from fedshift.schema.components import load, package_of
from fedshift.schema.errors import ConfigError
from fedshift.schema.seeding import seeded_global
from fedshift.schema.strict import nearest
from fedshift.tasks import monai_classifiers, monai_networks, nnunet_networks

SET_BY_TASK = ("in_channels", "n_classes", "spatial_dims")


def built_in() -> list[str]:
    """Names of the networks whose code is here."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg)


def available() -> list[str]:
    return [*built_in(), *monai_networks.names(), *monai_classifiers.names(), *nnunet_networks.names()]


def build(
    name: str,
    options: dict[str, Any],
    *,
    in_channels: int,
    n_classes: int,
    seed: int,
    spatial_dims: int = 2,
    patch: Sequence[int] | None = None,
) -> nn.Module:
    """A network with initial weights that depend on ``seed`` only.

    Args:
        name: one of `available`, or of an installed package that was admitted.
        options: plain data; channels, classes, dimensions and sizes follow from the task and are none of them.
        in_channels: channels of an image.
        n_classes: channels of the logits, background included.
        seed: of the initial weights.
        spatial_dims: 2 or 3.
        patch: the size of a patch, for networks that are made for one size.

    Raises:
        ConfigError: no such network, one that is not for ``spatial_dims``, or an option that it does not have.
    """
    of_package = load("network", name) if package_of(name) is not None else None
    if of_package is None and name not in available():
        raise ConfigError("unknown-network", f"there is no network {name!r}{nearest(name, available())}")
    settings = {"in_channels": in_channels, "n_classes": n_classes}
    try:
        with seeded_global(seed):
            if name in monai_classifiers.names():
                return monai_classifiers.build(name, options, **settings, spatial_dims=spatial_dims, patch=patch)
            if name in monai_networks.names():
                return monai_networks.build(name, options, **settings, spatial_dims=spatial_dims, patch=patch)
            if name in nnunet_networks.names():
                return nnunet_networks.build(name, options, **settings, spatial_dims=spatial_dims)
            module = of_package or importlib.import_module(f"fedshift.tasks.networks.{name}")
            return _of_module(module, name, options, settings, spatial_dims)
    except (TypeError, ValueError, RuntimeError, IndexError, AssertionError, KeyError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            "network-unmade", f"network {name}: no such network can be made with options {options} ({reason})"
        ) from None


def _of_module(
    module: ModuleType, name: str, options: dict[str, Any], settings: dict[str, int], spatial_dims: int
) -> nn.Module:
    make = module.build
    parameters = inspect.signature(make).parameters
    known = [key for key in parameters if key not in SET_BY_TASK]
    for key in options:
        if key not in known:
            raise ConfigError("unknown-option", f"network {name}: unknown option {key!r}{nearest(key, known)}")
    if "spatial_dims" in parameters:
        settings = {**settings, "spatial_dims": spatial_dims}
    elif spatial_dims != 2:
        raise ConfigError(
            "network-dims",
            f"network {name} has two dimensions, and the task's images have {spatial_dims} (data.dims, or the sides of "
            f"data.patch): set network.name=unet, or one of MONAI's such as {monai_networks.PREFIX}DynUNet, or "
            f"{monai_networks.PREFIX}DenseNet121 to classify",
        )
    net: nn.Module = make(**settings, **options)
    return net
