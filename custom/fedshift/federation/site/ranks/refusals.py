"""What several devices at a site cannot share: refused before anything is trained."""

from __future__ import annotations

from torch import nn

from fedshift.data.locate import SITE_FILE
from fedshift.methods import base
from fedshift.methods.method_set import MethodSet
from fedshift.schema.errors import ConfigError

HOOKS = {
    "step": "takes a step of its own",
    "gradients": "does more with a batch than to change its gradients",
    "loss": "adds to the loss, or keeps, what depends on all images of a batch",
    "augment": "changes images by others of the batch",
    "inputs": "changes images by others of the batch",
    "batch": "changes images by others of the batch, or by what it has learned from them",
    "attach": "has layers that use or keep what the images of a batch have in common",
    "end": "keeps or sends what it has computed of batches",
    "begin": "prepares training by what one device has seen",
}
"""Hooks of a method's client half that training on one device calls, and what a half may do in them that ranks do not
bear (`fedshift.methods.base.Client.in_ranks`)."""
REMEDY = f"set devices: 1 in the site's {SITE_FILE}"


def check(methods: MethodSet, *, devices: int, site: str) -> None:
    """Refuse a job that several devices of a site cannot train.

    Raises:
        ConfigError: a method that needs the whole batch at one device, or a batch that is too small.
    """
    schedule, having = methods.job.task.schedule, f"site {site} has devices: {devices}"
    if devices > schedule.batch_size:
        raise ConfigError(
            "devices-unfit",
            f"{having}, and the job's schedule.batch_size is {schedule.batch_size}: set devices to at most that",
        )
    for method in methods:
        half = method.client()
        if method.is_pooled:
            raise ConfigError("devices-unfit", f"{having}, and method {method.name} trains on one device: {REMEDY}")
        for hook, what in HOOKS.items():
            if getattr(type(half), hook) is not getattr(base.Client, hook) and hook not in half.in_ranks:
                raise ConfigError("devices-unfit", f"{having}, and method {method.name} {what}: {REMEDY}")
    if schedule.drop_last and schedule.batch_size >= 2 * devices:
        return
    for name, module in methods.net.named_modules():
        if isinstance(module, nn.BatchNorm1d):
            raise ConfigError(
                "devices-unfit",
                f"{having}, and layer {name} of the job's network is batch norm of one value an image, which needs two "
                f"images at every device: {REMEDY}",
            )
