"""What methods need of a job, and what two of them may not do together: declared by their client halves, checked here.

A half lists words of the two tables below: in `Client.needs` what it needs, in `Client.clashes` what another method of
the job may not do. What a method does is seen from its hooks, or is in its `Client.traits` where no hook shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from fedshift.methods.base import Case, Client
from fedshift.methods.shared.head import has_linear_head, head_keys
from fedshift.methods.shared.norms import norm_keys
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.optimizer import OptimizerSpec
from fedshift.tasks.losses import takes_soft_targets

Half = Client[Any]

# --- what a method does -------------------------------------------------------------------------------


def _keeps_all(half: Half, net: nn.Module) -> bool:
    return half.personal(net) >= {name for name, _ in net.named_parameters()}


def _keeps_norms(half: Half, net: nn.Module) -> bool:
    return bool(half.keeps(net) & norm_keys(net, "all")) and not _keeps_all(half, net)


TRAITS: Mapping[str, Callable[[Half, nn.Module], bool] | None] = {
    "changes the loss": lambda half, _: type(half).loss is not Client.loss,
    "normalises images": lambda half, _: type(half).inputs is not Client.inputs,
    "fine-tunes the final model": lambda half, _: half.fine_tune() > 0,
    "sends a loss of the received model": lambda half, net: any(s.kind == "loss" for s in half.up(net).values()),
    "keeps a model, or parts of it, at the site": lambda half, net: (
        half.scores_own_model(net) or bool(half.personal(net) | half.withheld(net))
    ),
    "keeps parts of the model at the site": lambda half, net: bool(half.personal(net)),
    "may keep the head at the site": lambda half, net: bool(head_keys(net) & half.keeps(net)),
    "may keep norms, and not the rest, at the site": _keeps_norms,
    "gives a site the model that it trained last": lambda half, net: half.trains_on != "site" or _keeps_all(half, net),
    "clips gradients": None,
    "divides the task's loss": None,
    "mixes images and their targets": None,
    "may show an image twice in a batch": None,
    "replaces normalisation layers": None,
    "trains parts of the network in turn": None,
    "reads what a step's last pass computes": None,
}
"""What a method may do, and how its hooks show it; None if only `Client.traits` can tell."""


def remedy_of(trait: str, half: Half, case: Case) -> str | None:
    """The ``option=value`` that ends a trait of a half, empty if no option does; None without the trait."""
    shown = TRAITS[trait]
    for rule in half.traits:
        if rule.what == trait and rule.holds(case):
            return rule.remedy
    return "" if shown is not None and shown(half, case.net) else None


def check_pair(name: str, other: str, halves: Mapping[str, Half], cases: Mapping[str, Case]) -> None:
    """Refuse method ``other`` if it does what method ``name`` does not bear (`ConfigError`)."""
    for clash in halves[name].clashes:
        remedy = remedy_of(clash.what, halves[other], cases[other]) if clash.holds(cases[name]) else None
        if remedy is not None:
            raise ConfigError(
                "methods-clash",
                f"{name} and {other} cannot be combined: {other} with its present options {clash.what}, and {name} "
                f"{clash.why}: {f'use --set {remedy}, or ' if remedy else ''}leave one of them out",
            )


KEEPING = ("keeps a model, or parts of it, at the site", "keeps parts of the model at the site")
"""Traits that a job's private adapters have too, whatever its methods."""


def check_private_adapters(name: str, half: Half, case: Case) -> None:
    """Refuse method ``name`` if it does not bear that sites keep adapters (`ConfigError`)."""
    for clash in half.clashes:
        if clash.what in KEEPING and clash.holds(case):
            raise ConfigError(
                "methods-clash",
                f"{name} and network.adapters.private cannot be combined: private adapters are parts of the model that "
                f"stay at a site, and {name} {clash.why}: use --set network.adapters.private=0, or another method",
            )


# --- what a method needs ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Need:
    """What a job lacks if ``lacks`` says so, what there is instead, and the remedy."""

    lacks: Callable[[JobSpec, nn.Module], Any]
    instead: str
    remedy: str


def _of_optimizer(lacks: Callable[[OptimizerSpec], Any], option: str, value: str) -> Need:
    """An option of the optimiser that must have another value."""
    instead = f"optimizer.{option} is {{job.task.optimizer.{option}}}"
    return Need(lambda job, _: lacks(job.task.optimizer), instead, f"use --set optimizer.{value}")


NEEDS: Mapping[str, Need] = {
    "SGD": _of_optimizer(lambda o: o.name != "sgd", "name", "name=sgd optimizer.lr=…"),
    "momentum that begins at zero in each round": _of_optimizer(lambda o: o.momentum and o.keep, "keep", "keep=false"),
    "SGD without momentum": _of_optimizer(lambda o: o.momentum, "momentum", "momentum=0"),
    "SGD with plain momentum": _of_optimizer(lambda o: o.nesterov, "nesterov", "nesterov=false"),
    "gradients that nothing clips": _of_optimizer(lambda o: o.clip_norm, "clip_norm", "clip_norm=null"),
    "two sites": Need(
        lambda job, _: len(job.task.sites) < 2,
        "{job.task.sites[0]} is the only one",
        "choose two or more with --sites",
    ),
    "batches of two images": Need(
        lambda job, _: job.task.schedule.batch_size < 2,
        "schedule.batch_size is 1",
        "use --set schedule.batch_size=2 or more",
    ),
    "one label for each image": Need(
        lambda job, _: job.task.kind != "classification",
        "task {job.task.name} is {job.task.kind}",
        "choose a classification task or another method",
    ),
    "one class for each image": Need(
        lambda job, _: job.task.data.get("multi_label"),
        "images of task {job.task.name} have several findings (data.multi_label)",
        "choose another method",
    ),
    "cross-entropy as the task's loss": Need(
        lambda job, _: job.task.kind == "classification" and job.task.loss.name != "ce",
        "loss is {job.task.loss.name}",
        "use --set loss=ce",
    ),
    "each image once in an epoch": Need(
        lambda job, _: job.task.data.get("sampling") == "balanced",
        "data.sampling is balanced",
        "use --set data.sampling=shuffled",
    ),
    "volumes on histogram landmarks": Need(
        lambda job, _: job.task.data.get("normalise") != "landmarks",
        "task {job.task.name} normalises them otherwise, or has none",
        "use --set data.normalise=landmarks, with a task whose data are patches or whole volumes",
    ),
    "a linear head": Need(
        lambda _, net: not has_linear_head(net),
        "network {job.task.network.name} has none",
        "choose a network whose 'head' is linear",
    ),
    "a named head": Need(
        lambda _, net: not head_keys(net),
        "network {job.task.network.name} does not name one that is trained (its attribute 'head')",
        "choose another network",
    ),
    "features before a head": Need(
        lambda _, net: not hasattr(net, "embed"),
        "network {job.task.network.name} has no 'embed'",
        "choose a network with 'embed' and a linear 'head'",
    ),
    "norms that are trained": Need(
        lambda job, net: job.task.network.adapters is not None and not norm_keys(net, "all"),
        "the norms of network {job.task.network.name} are frozen beside its adapters",
        "add norms to network.adapters.trained",
    ),
    "a network that is trained whole": Need(
        lambda job, _: job.task.network.adapters is not None,
        "the job trains adapters beside frozen weights (network.adapters)",
        "use --set network.adapters=null or another method",
    ),
    "a network without layer norms": Need(
        lambda _, net: any(isinstance(module, nn.LayerNorm | nn.RMSNorm) for module in net.modules()),
        "{job.task.network.name} has some",
        "choose a convolutional network",
    ),
    "classes that exclude each other": Need(
        lambda job, _: job.task.regions,
        "task {job.task.name} has regions, which overlap",
        "choose a task without regions or another method",
    ),
    "masks without voxels to ignore": Need(
        lambda job, _: job.task.ignore,
        "task {job.task.name} has some (ignore: true)",
        "choose a task without them or another method",
    ),
    "a loss that takes shares of classes": Need(
        lambda job, _: not takes_soft_targets(job.task.loss.name),
        "loss {job.task.loss.name} takes one class for each voxel",
        "use monai.DiceCELoss or another method",
    ),
}


def check_needs(name: str, half: Half, case: Case) -> None:
    """Refuse a job that lacks what a method needs (`ConfigError`)."""
    for rule in half.needs:
        need = NEEDS[rule.what]
        if rule.holds(case) and need.lacks(case.job, case.net):
            why = f" ({rule.why})" if rule.why else ""
            raise ConfigError(
                "method-needs",
                f"method {name}: needs {rule.what}{why}, and {need.instead.format(job=case.job)}: "
                + (f"use --set {rule.remedy.format(name=name)}" if rule.remedy else need.remedy),
            )


def idle_options(half: Half, case: Case) -> dict[str, str]:
    """The options of a half that change nothing, and why."""
    rules = [rule for rule in half.idle if rule.holds(case)]
    return {option: rule.why.format(case=case) for rule in rules for option in rule.what.split()}
