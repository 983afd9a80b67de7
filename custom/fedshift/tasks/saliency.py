"""Which parts of an image speak for a class: Grad-CAM, by MONAI (Selvaraju et al., ICCV 2017)."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedshift.schema.errors import ConfigError
from fedshift.tasks.stages import Stage


def grad_cam(net: nn.Module, x: Tensor, class_number: int) -> Tensor:
    """How much each place of an image speaks for a class, from 0 to 1.

    By the features of the last of the network's stages, so that it is as coarse as these.

    Args:
        net: a classifier; it is left as it was.
        x: one image (1, C, *spatial) as the network gets it.
        class_number: of the logit.

    Returns:
        (*spatial) on the CPU; all 0 if nothing speaks for it.

    Raises:
        ConfigError: the network names no stages.
    """
    from monai.visualize import GradCAM

    name = _last_stage(net)
    with torch.inference_mode(False), torch.enable_grad():
        watched = copy.deepcopy(net).float().eval()  # MONAI leaves its hooks
        for module in watched.modules():
            if getattr(module, "inplace", False):
                cast(Any, module).inplace = False  # what a later layer overwrites would be seen
        image = x.detach().float().clone().requires_grad_()
        coarse: Tensor = GradCAM(watched, name).compute_map(image, class_idx=class_number)
    mode = "bilinear" if x.dim() == 4 else "trilinear"
    whole = functional.interpolate(coarse.detach(), x.shape[2:], mode=mode, align_corners=False)[0, 0]
    peak = whole.max()
    return (whole / peak if peak > 0 else whole).cpu()


def _last_stage(net: nn.Module) -> str:
    """The name of the last module whose output is a stage's features."""
    stages: tuple[Stage, ...] = getattr(net, "stages", ())
    modules = [stage.module for stage in stages if stage.where == "output"]
    if not modules:
        raise ConfigError(
            "no-saliency",
            f"network {type(net).__name__} names no stages, whose features would say what a class rests on",
        )
    return next(str(name) for name, module in net.named_modules() if module is modules[-1])
