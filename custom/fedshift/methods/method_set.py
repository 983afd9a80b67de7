"""Load a job's methods, and answer every question that is a union over them.

`MethodSet` is built once per job wherever the job and its network are known: at the server, at a site, in the privacy
gate, for predictions and for the page of what leaves a site.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from types import MappingProxyType, ModuleType
from typing import Any

from torch import nn

from fedshift import methods as package
from fedshift.methods import traits
from fedshift.methods.base import ArraySpec, Case, Client, Owned, Server
from fedshift.methods.listing import available as available
from fedshift.schema import components
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import MethodArrays
from fedshift.schema.strict import Strict, nearest
from fedshift.tasks.adapters import private_keys
from fedshift.tasks.kinds import build_task

DEFAULT_COMBINE = "fedavg"
OWNED: Mapping[Owned, str] = MappingProxyType(
    {"combine": "decide how updates are combined", "step": "take the local optimiser step"}
)


@dataclass(frozen=True)
class Method:
    """A method of a job: its module and its checked options."""

    name: str
    module: ModuleType
    config: Strict

    def client(self) -> Client[Any]:
        """Make a new client half; the base class if the module defines none."""
        half: Client[Any] = getattr(self.module, "Client", Client)(self.config)
        return half

    def server(self) -> Server[Any]:
        """Make a new server half; the base class if the module defines none."""
        half: Server[Any] = getattr(self.module, "Server", Server)(self.config)
        return half

    @property
    def is_pooled(self) -> bool:
        """Whether it is a centralised reference, which trains on all sites' images in one place."""
        return self.client().trains_on != "site"

    @property
    def owns(self) -> frozenset[Owned]:
        """What only this method of a job may do, in either half."""
        return self.client().owns | self.server().owns


def is_method(name: str) -> bool:
    """Whether a name is that of one of fedshift's methods, or has the form of an installed package's."""
    return name in available() or components.package_of(name) is not None


def find(name: str) -> ModuleType:
    """Import the module of a method, of fedshift or of an installed package that was admitted.

    Raises:
        ConfigError: there is no method of that name.
    """
    if components.package_of(name) is not None:
        return components.load("method", name)
    if name not in available():
        raise ConfigError("unknown-method", f"there is no method {name!r}{nearest(name, available())}")
    return importlib.import_module(f"{package.__name__}.{name}")


def load(specs: Mapping[str, Mapping[str, Any]]) -> tuple[Method, ...]:
    """Load methods from their names and options, in the order in which their halves are called.

    FedAvg is added if no method combines updates. Order: the owner of "combine", the owner of "step", then by
    alphabet. The order of ``specs`` does not matter.

    Raises:
        ConfigError: an unknown method or option, or two methods that own the same thing.
    """
    methods = []
    for name, options in specs.items():
        module = find(name)
        methods.append(Method(name, module, module.Config.parse(dict(options), where=f"method {name}")))
    if not any("combine" in m.owns for m in methods):
        module = find(DEFAULT_COMBINE)
        methods.append(Method(DEFAULT_COMBINE, module, module.Config()))
    references = [m.name for m in methods if m.is_pooled]
    if len(references) > 1:
        raise ConfigError(
            "methods-clash",
            f"{' and '.join(references)} cannot be combined: each is a whole training; name one of them",
        )
    owners: dict[Owned, str] = {}
    for method in methods:
        for owned in sorted(method.owns):
            if owned in owners:
                raise ConfigError(
                    "methods-clash",
                    f"{owners[owned]} and {method.name} cannot be combined: both {OWNED[owned]}; name one of them",
                )
            owners[owned] = method.name
    return tuple(sorted(methods, key=lambda m: ("combine" not in m.owns, "step" not in m.owns, m.name)))


def pooled_reference(specs: Mapping[str, Mapping[str, Any]]) -> Method | None:
    """The centralised reference among a job's methods, if there is one; errors as `load`."""
    return next((m for m in load(specs) if m.is_pooled), None)


def pooled_references() -> list[str]:
    """Names of all methods that are centralised references."""
    modules = {name: find(name) for name in available()}
    return [name for name, module in modules.items() if Method(name, module, module.Config()).is_pooled]


def without(arrays: MethodArrays, left_out: frozenset[tuple[str, str]]) -> MethodArrays:
    """``arrays`` but those that ``left_out`` names by method and array."""
    kept = {
        method: {name: value for name, value in named.items() if (method, name) not in left_out}
        for method, named in arrays.items()
    }
    return {method: named for method, named in kept.items() if named}


def require_federation(job: JobSpec) -> None:
    """Refuse a centralised reference, a job that sites cannot run (`ConfigError`)."""
    reference = pooled_reference(job.methods)
    if reference is not None:
        raise ConfigError(
            "centralised-only",
            f"{reference.name} trains where all sites' images are, which no federation has, so there is no FLARE job "
            "for it: give the same arguments to 'fedshift pooled', which runs it in one process",
        )


class MethodSet:
    """The methods of a job with the job's network, in the order in which their halves are called."""

    def __init__(self, job: JobSpec, net: nn.Module) -> None:
        """Load the job's methods; of its network only the structure is read. Errors as `load`."""
        self.job, self.net = job, net
        self._methods = load(job.methods)
        self._clients = {method.name: method.client() for method in self._methods}
        self._cases = {
            name: Case(half.config, job, net, {other: o for other, o in self._clients.items() if other != name})
            for name, half in self._clients.items()
        }

    def __getitem__(self, index: int) -> Method:
        return self._methods[index]

    def __len__(self) -> int:
        return len(self._methods)

    def __iter__(self) -> Iterator[Method]:
        return iter(self._methods)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(method.name for method in self)

    @property
    def pooled(self) -> Method | None:
        """The centralised reference, if the job has one."""
        return next((method for method in self if method.is_pooled), None)

    @property
    def combining(self) -> Method:
        """The method that combines the sites' updates."""
        return next(method for method in self if "combine" in method.owns)

    @cached_property
    def trainable(self) -> frozenset[str]:
        """Keys of the network's parameters; its other ``state_dict`` keys are buffers."""
        return frozenset(name for name, _ in self.net.named_parameters())

    @cached_property
    def personal(self) -> frozenset[str]:
        """``state_dict`` keys that every site keeps for itself."""
        return private_keys(self.net).union(*(half.personal(self.net) for half in self._clients.values()))

    @cached_property
    def withheld(self) -> frozenset[str]:
        """``state_dict`` keys that never leave a site."""
        return private_keys(self.net).union(*(half.withheld(self.net) for half in self._clients.values()))

    @property
    def withholding(self) -> tuple[str, ...]:
        return tuple(name for name, half in self._clients.items() if half.withheld(self.net))

    @property
    def sends_parameters(self) -> bool:
        """Whether any parameter of the network leaves a site."""
        return not self.withheld >= self.trainable

    @cached_property
    def scores_own_model(self) -> bool:
        """Whether a site scores a model of its own and not the received one."""
        return bool(private_keys(self.net)) or any(half.scores_own_model(self.net) for half in self._clients.values())

    @cached_property
    def fine_tune_epochs(self) -> int:
        """Local epochs of fine-tuning after the last round; the largest number that a method asks for."""
        return max(half.fine_tune() for half in self._clients.values())

    @property
    def resumable(self) -> bool:
        return all(half.resumable for half in self._clients.values())

    @cached_property
    def up(self) -> dict[str, dict[str, ArraySpec]]:
        """Arrays that methods send from a site: method -> array name -> spec, with the task's sizes filled in."""
        sizes = build_task(self.job).sizes
        return {
            method: {name: spec.sized(sizes) for name, spec in half.up(self.net).items()}
            for method, half in self._clients.items()
        }

    @cached_property
    def down(self) -> dict[str, dict[str, ArraySpec]]:
        """Arrays that methods send from the server to every site, as `up`; ``sites`` is the number of sites."""
        sizes = {**build_task(self.job).sizes, "sites": (len(self.job.task.sites),)}
        return {
            method.name: {name: spec.sized(sizes) for name, spec in method.server().down(self.net).items()}
            for method in self
        }

    @cached_property
    def idle(self) -> dict[tuple[str, str], str]:
        """(method, option) of every option that changes nothing in this job, and why (`Client.idle`)."""
        halves = self._clients.items()
        idle = {(n, key): why for n, half in halves for key, why in traits.idle_options(half, self._cases[n]).items()}
        if not self.sends_parameters and DEFAULT_COMBINE in self._clients:
            why = f"with {' and '.join(self.withholding)} no site sends its model, so none are averaged"
            idle |= {(DEFAULT_COMBINE, key): why for key in type(self[0].config).model_fields}
        return idle

    @property
    def training_only(self) -> frozenset[tuple[str, str]]:
        """(method, array name) of what the server sends with rounds of training, but not with a final model."""
        return frozenset((m, name) for m, named in self.down.items() for name, spec in named.items() if not spec.keep)

    def check(self) -> None:
        """Refuse a job whose methods do not fit its task, network, optimiser or each other.

        Raises:
            ConfigError: the first thing that does not fit.
        """
        for name, half in self._clients.items():
            traits.check_needs(name, half, self._cases[name])
            half.check(self.job, self.net)
            if private_keys(self.net):
                traits.check_private_adapters(name, half, self._cases[name])
        for name, other in permutations(self._clients, 2):
            traits.check_pair(name, other, self._clients, self._cases)
        self._check_batches()
        _ = self.up  # refuses layers that the network does not have
        held_out = self.job.task.held_out
        if held_out and not self.sends_parameters:
            raise ConfigError(
                "method-needs",
                f"method {' and '.join(self.withholding)}: every site keeps its whole network, so there is no model "
                f"for {', '.join(held_out)} to score, held out as it is: leave held_out empty",
            )
        combining = self.combining.name
        if not self.sends_parameters and combining not in (DEFAULT_COMBINE, *self.withholding):
            raise ConfigError(
                "methods-clash",
                f"{combining} and {' and '.join(self.withholding)} cannot be combined: no site sends its model, so "
                f"there is nothing for {combining} to combine; name one of them",
            )
        if self.pooled is not None:
            self._check_pooled(self.pooled.name)

    def _check_batches(self) -> None:
        """Refuse batches of one image where a layer needs several."""
        task = self.job.task
        images = task.schedule.batch_size * (1 if self.pooled is None else len(task.groups))
        without = any(half.removes_norms for half in self._clients.values()) and not self.job.evaluation.local
        if images > 1 or without:
            return
        for name, module in self.net.named_modules():
            if isinstance(module, nn.BatchNorm1d):
                raise ConfigError(
                    "batch-of-one",
                    f"network {task.network.name}: layer {name} is batch norm of one value an image and needs batches "
                    "of two images at least: use --set schedule.batch_size=2 or more",
                )

    def _check_pooled(self, reference: str) -> None:
        """Refuse what makes no sense where all images are in one place."""
        if self.job.federation.sites_per_round is not None:
            raise ConfigError(
                "options-clash",
                f"method {reference}: trains on all sites' images at once: --set federation.sites_per_round=null",
            )
        if private_keys(self.net):
            raise ConfigError(
                "options-clash",
                f"method {reference}: trains where all images are, and private adapters need sites that train apart: "
                "--set network.adapters.private=0",
            )
        for method in self:
            client = self._clients[method.name]
            apart = client.up(self.net) or client.withheld(self.net) or client.scores_own_model(self.net)
            owns = method.owns if method.name != DEFAULT_COMBINE else ()
            if method.name != reference and (apart or owns):
                raise ConfigError(
                    "methods-clash",
                    f"{reference} and {method.name} cannot be combined: {reference} trains where all images are, "
                    f"and {method.name} needs sites that train apart",
                )
