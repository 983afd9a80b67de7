"""Methods against feature shift, one file each, found by file name.

``load`` turns the names and options of a job into halves; ``ClientChain`` calls the client halves in order.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedshift.methods.base import ArraySpec, Batch, Client, Context, Owned, Run, Server, TrainingSamples
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import MethodArrays
from fedshift.schema.strict import Strict, nearest

DEFAULT_COMBINE = "fedavg"
SHARED = ("base", "shared")
"""What in this package is not a method."""


def available() -> list[str]:
    """Names of all methods: the modules of this package but those that methods share."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in SHARED)


OWNED: Mapping[Owned, str] = MappingProxyType(
    {"combine": "decide how updates are combined", "step": "take the local optimiser step"}
)


@dataclass(frozen=True)
class Method:
    """A method of a job: its module and its checked options."""

    name: str
    module: ModuleType
    config: Strict

    @property
    def is_pooled(self) -> bool:
        """Whether it is a centralised reference."""
        return self.client().trains_on != "site"

    def client(self) -> Client[Any]:
        """A new client half."""
        half: Client[Any] = getattr(self.module, "Client", Client)(self.config)  # a half may be missing
        return half

    def server(self) -> Server[Any]:
        """A new server half."""
        half: Server[Any] = getattr(self.module, "Server", Server)(self.config)
        return half

    @property
    def owns(self) -> frozenset[Owned]:
        """What this method alone may do, in either half."""
        return self.client().owns | self.server().owns


def find(name: str) -> ModuleType:
    """The module of a method.

    Raises:
        ConfigError: no method of that name.
    """
    if name not in available():
        raise ConfigError(f"there is no method {name!r}{nearest(name, available())}")
    return importlib.import_module(f"fedshift.methods.{name}")


def load(specs: Mapping[str, Mapping[str, Any]]) -> tuple[Method, ...]:
    """Methods of a job in the order in which their halves are called.

    A job that names no way to combine updates gets FedAvg's. Order: the owner of "combine", the
    owner of "step", then by alphabet, whatever the order in which they were named.

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
        raise ConfigError(f"{' and '.join(references)} cannot be combined: each is a whole training; name one of them")
    owners: dict[Owned, str] = {}
    for method in methods:
        for owned in sorted(method.owns):
            if owned in owners:
                raise ConfigError(
                    f"{owners[owned]} and {method.name} cannot be combined: both {OWNED[owned]}; name one of them"
                )
            owners[owned] = method.name
    return tuple(sorted(methods, key=lambda m: ("combine" not in m.owns, "step" not in m.owns, m.name)))


class ClientChain:
    """The client halves of a job at one site in one round, called in the job's order."""

    def __init__(self, methods: Sequence[Method], run: Run, state: dict[str, dict[str, Tensor]]) -> None:
        """``state`` is the ``methods`` part of the site's state tree; halves change it in place."""
        self._halves = [(m.client(), Context(run, m.name, state.setdefault(m.name, {}))) for m in methods]
        self._owner = next((pair for pair in self._halves if "step" in pair[0].owns), None)
        run.normalise = self.inputs

    def personal(self, net: nn.Module) -> frozenset[str]:
        """Union of the keys that methods keep at the site."""
        return frozenset().union(*(half.personal(net) for half, _ in self._halves))

    def withheld(self, net: nn.Module) -> frozenset[str]:
        """Union of the keys that never leave the site."""
        return frozenset().union(*(half.withheld(net) for half, _ in self._halves))

    def attach(self, net: nn.Module) -> list[RemovableHandle]:
        """Insert every method's layers; the caller removes the handles."""
        handles: list[RemovableHandle] = []
        try:
            for half, ctx in self._halves:
                handles += half.attach(net, ctx)
        except BaseException:
            # The network may be another site's next: nothing of this one stays in it.
            for handle in handles:
                handle.remove()
            raise
        return handles

    def statistics(self, data: TrainingSamples) -> MethodArrays:
        """Arrays of the statistics round by method."""
        return _non_empty({ctx.method: half.statistics(data, ctx) for half, ctx in self._halves})

    def receive(self, arrays: MethodArrays) -> None:
        """Hand every method its part of the broadcast."""
        for half, ctx in self._halves:
            half.receive(arrays.get(ctx.method, {}), ctx)

    def newcomer(self, data: TrainingSamples) -> None:
        """At a site that has never trained."""
        for half, ctx in self._halves:
            half.newcomer(data, ctx)

    def begin(self, data: TrainingSamples) -> None:
        """Before the first step."""
        for half, ctx in self._halves:
            half.begin(data, ctx)

    def inputs(self, x: Tensor, *, training: bool) -> Tensor:
        """Images through every method."""
        for half, ctx in self._halves:
            x = half.inputs(x, ctx, training=training)
        return x

    def batch(self, batch: Batch) -> Batch:
        """A training batch through every method."""
        for half, ctx in self._halves:
            batch = half.augment(batch, ctx)
        batch = Batch(self.inputs(batch.x, training=True), batch.y)
        for half, ctx in self._halves:
            batch = half.batch(batch, ctx)
        return batch

    def loss(self, batch: Batch, logits: Tensor, loss: Tensor) -> Tensor:
        """The task's loss with every method's additions."""
        for half, ctx in self._halves:
            loss = half.loss(batch, logits, loss, ctx)
        return loss

    def step(self, closure: Callable[[], Tensor], optimizer_step: Callable[[], None]) -> Tensor:
        """One optimiser step, by the owner of "step" if the job has one. Returns the loss."""
        if self._owner is not None:
            half, ctx = self._owner
            return half.step(closure, ctx)
        loss = closure()
        optimizer_step()
        return loss

    def gradients(self) -> None:
        """After the backward pass."""
        for half, ctx in self._halves:
            half.gradients(ctx)

    def end(self, data: TrainingSamples) -> MethodArrays:
        """Arrays of the round by method."""
        return _non_empty({ctx.method: half.end(data, ctx) for half, ctx in self._halves})

    def fine_tune(self) -> int:
        """The most local epochs that a method asks for after the last round."""
        return max(half.fine_tune() for half, _ in self._halves)


def require_federation(job: JobSpec) -> None:
    """Refuse a job that sites cannot run.

    Raises:
        ConfigError: the job is a centralised reference.
    """
    reference = reference_in(load(job.methods))
    if reference is not None:
        raise ConfigError(
            f"{reference.name} trains where all sites' images are, which no federation has, so there is no FLARE job "
            "for it: give the same arguments to 'fedshift pooled', which runs it in one process"
        )


def check(methods: Sequence[Method], job: JobSpec, net: nn.Module) -> None:
    """Tell what does not fit before anything runs.

    Raises:
        ConfigError: a method that cannot take the job's task, network, optimiser or other methods.
    """
    for method in methods:
        method.client().check(job, net)
    withheld = frozenset().union(*(method.client().withheld(net) for method in methods))
    if job.task.held_out and withheld >= {name for name, _ in net.named_parameters()}:
        keeping = [method.name for method in methods if method.client().withheld(net)]
        raise ConfigError(
            f"method {' and '.join(keeping)}: every site keeps its whole network, so there is no model for "
            f"{', '.join(job.task.held_out)} to score, held out as it is: leave held_out empty"
        )
    pooled = reference_in(methods)
    if pooled is None:
        return
    if job.federation.sites_per_round is not None:
        raise ConfigError(
            f"method {pooled.name}: trains on all sites' images at once: --set federation.sites_per_round=null"
        )
    for method in methods:
        client = method.client()
        apart = client.up(net) or client.withheld(net) or client.scores_own_model(net)
        owns = method.owns if method.name != DEFAULT_COMBINE else ()
        if method.name != pooled.name and (apart or owns):
            raise ConfigError(
                f"{pooled.name} and {method.name} cannot be combined: {pooled.name} trains where all images are, "
                f"and {method.name} needs sites that train apart"
            )


def reference_in(methods: Sequence[Method]) -> Method | None:
    """The centralised reference among a job's methods, if there is one."""
    return next((m for m in methods if m.is_pooled), None)


def array_specs(methods: Sequence[Method], net: nn.Module, sizes: Mapping[str, int]) -> dict[str, dict[str, ArraySpec]]:
    """What each method may send from a site: method -> array name -> spec. ``sizes`` are the task's."""
    return {m.name: {name: s.sized(sizes) for name, s in m.client().up(net).items()} for m in methods}


def _non_empty(arrays: MethodArrays) -> MethodArrays:
    return {name: named for name, named in arrays.items() if named}
