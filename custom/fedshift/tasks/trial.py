"""What a network does to the shape of a volume, seen in a trial on the meta device: no values, no memory, any size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedshift.schema.errors import ConfigError
from fedshift.tasks.stages import Stage, StagedNetwork

DEPTH = 128
"""Largest factor between the finest and the coarsest features that a trial follows."""
SIDES = (2, 3, 5)
"""Sides of the trial's volume, in units of `DEPTH`: all different, so that no other axis passes for a spatial one."""
BATCH = 2
UNFIT = (RuntimeError, ValueError, IndexError, AssertionError, TypeError, ZeroDivisionError)
"""What networks raise on sizes that are not theirs."""

Level = tuple[int, ...]
"""By how much features are coarser than the input, on each axis."""


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a module: its first argument and its result where these are tensors, and when."""

    name: str
    module: nn.Module
    input: Tensor | None
    output: Tensor | None
    began: int
    ended: int

    @property
    def is_place(self) -> bool:
        """Whether features may be changed here.

        Not where they pass unchanged (others may read them around the module), and not at a module that only holds one
        other, as MONAI's skip connections do: that one is looked at instead.
        """
        holds_one = len(list(self.module.children())) == 1 and not list(self.module.parameters(recurse=False))
        return not holds_one and self.output is not self.input

    def inside(self, other: Call) -> bool:
        """Whether the call happened within another."""
        return other.began < self.began and self.ended < other.ended


@contextmanager
def _without_values(net: nn.Module, *, training: bool) -> Iterator[None]:
    """The network on the meta device and in a mode, until the end.

    `torch.func.functional_call` does not do: it leaves modules that have two names on that device.
    """
    before = [(module, module.training, dict(module._parameters), dict(module._buffers)) for module in net.modules()]
    try:
        for module, _, parameters, buffers in before:
            for held, registered in ((parameters, module._parameters), (buffers, module._buffers)):
                registered.update({key: None if value is None else value.to("meta") for key, value in held.items()})  # type: ignore[misc]
        net.train(training)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            yield
    finally:
        for module, was, parameters, buffers in before:
            module.training = was
            module._parameters.update(parameters)
            module._buffers.update(buffers)


def run(net: nn.Module, size: Sequence[int], *, training: bool = False) -> Any:
    """What the network gives for a batch of ``size``, as tensors without values. The network is left as it was."""
    x = torch.empty((BATCH, cast(StagedNetwork, net).in_channels, *size), device="meta")
    with _without_values(net, training=training):
        return net(x)


def calls(net: nn.Module, size: Sequence[int]) -> list[Call]:
    """The calls of all modules but the network itself, in the order in which they began."""
    clock, opened, finished, handles = [0], [], [], []

    def enter(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        clock[0] += 1
        opened.append((clock[0], inputs[0] if inputs and isinstance(inputs[0], Tensor) else None))

    def leave(name: str, module: nn.Module, output: Any) -> None:
        clock[0] += 1
        entered, argument = opened.pop()
        finished.append(Call(name, module, argument, output if isinstance(output, Tensor) else None, entered, clock[0]))

    for name, module in net.named_modules():
        if module is not net:
            handles.append(module.register_forward_pre_hook(enter))
            handles.append(module.register_forward_hook(lambda m, _i, o, name=name: leave(name, m, o)))
    try:
        run(net, size)
    finally:
        for handle in handles:
            handle.remove()
    return sorted(finished, key=lambda call: call.began)


def level(tensor: Tensor | None, size: Sequence[int]) -> Level | None:
    """How much coarser features (B, C, *spatial) are than the input; None for all other tensors."""
    if tensor is None or tensor.dim() != 2 + len(size) or len(tensor) != BATCH:
        return None
    sides = tensor.shape[2:]
    if any(side == 0 or whole % side for whole, side in zip(size, sides, strict=True)) or max(sides) == 1:
        return None  # not spatial, or pooled over the whole volume
    return tuple(whole // side for whole, side in zip(size, sides, strict=True))


@dataclass(frozen=True)
class StagePlace:
    """A stage by its module's name, as `Stage` has it by the module."""

    name: str
    channels: int
    where: str
    level: Level

    def in_net(self, net: nn.Module) -> Stage:
        """The stage in a network."""
        return Stage(net.get_submodule(self.name), self.channels, "input" if self.where == "input" else "output")


def trial_size(dims: int) -> tuple[int, ...]:
    """The volume of a trial of a network that takes any size."""
    return tuple(side * DEPTH for side in SIDES[:dims])


def find_stages(net: nn.Module, size: Sequence[int]) -> tuple[StagePlace, ...]:
    """The encoder's stages, from the calls of a trial. Empty for a network that has no coarser features.

    A *step down* is the outermost module whose output is the first one at a new, coarser resolution. Every step gives
    a stage, at the place where only the deeper part of the network sees the features:

    - a step that begins with a pooling of its own: the pooling's output (as in the paper of FedFA; skip connections
      have branched off before);
    - else, if the next module down takes the very tensor that the step gave: that module's input (skip connections
      that take the same tensor do not see what is changed there);
    - else the step's output.

    The last stage is the bottleneck: the output of the last module that works at the smallest resolution before the
    first one that leads back up, if that is not the last step itself.

    Modules that hold only one other module are looked through (`Call.is_place`), and a module that is called more than
    once is no stage.
    """
    every = calls(net, size)
    times: dict[str, int] = {}
    for call in every:
        times[call.name] = times.get(call.name, 0) + 1
    steps = _steps_down(every, size)
    places: list[tuple[Call, str]] = []
    for number, (step, pooling) in enumerate(steps):
        lower = steps[number + 1][0] if number + 1 < len(steps) else None
        if pooling is not None:
            places.append((pooling, "output"))
        elif lower is not None:
            places.append((lower, "input") if lower.input is step.output else (step, "output"))
    if steps:
        last, pooling = steps[-1]
        bottleneck = _bottleneck(every, last, size)
        if pooling is None and bottleneck is not last:
            deeper = next((c for c in every if c.began > last.ended and c.input is last.output and c.is_place), None)
            places.append((last, "output") if deeper is None else (deeper, "input"))
        if pooling is not bottleneck:
            places.append((bottleneck, "output"))
    return tuple(
        StagePlace(call.name, cast(Tensor, tensor).shape[1], where, cast(Level, level(tensor, size)))
        for call, where in places
        for tensor in (call.input if where == "input" else call.output,)
        if times[call.name] == 1
    )


def _steps_down(every: list[Call], size: Sequence[int]) -> list[tuple[Call, Call | None]]:
    """Each step down, with the pooling that it begins with, if it does."""
    steps: list[tuple[Call, Call | None]] = []
    reached: Level = (1,) * len(size)
    for call in sorted(every, key=lambda call: call.ended):
        call_level = level(call.output, size)
        if (
            call_level is None
            or prod(call_level) <= prod(reached)
            or any(n < r for n, r in zip(call_level, reached, strict=True))
        ):
            continue
        reached, step = call_level, call
        around = sorted((other for other in every if call.inside(other)), key=lambda other: -other.began)
        for other in around:
            if (
                level(other.output, size) != call_level
                or level(other.input, size) == call_level
                or _goes_below(every, other, call_level, size)
            ):
                break
            if other.is_place:
                step = other
        same = [c for c in every if c.input is step.input and c.inside(step) and c.is_place]
        first = same[0] if len(same) == 1 and level(same[0].output, size) == call_level else step
        steps.append((step, None if list(first.module.parameters()) else first))
    return steps


def _goes_below(every: list[Call], call: Call, limit: Level, size: Sequence[int]) -> bool:
    """Whether anything within a call is coarser than a level: nested U-Nets hold all that is below them."""
    inner = (level(other.output, size) for other in every if other.inside(call))
    return any(prod(reached) > prod(limit) for reached in inner if reached is not None)


def _bottleneck(every: list[Call], last: Call, size: Sequence[int]) -> Call:
    """The last module at the smallest resolution, before the first that leads back up."""
    smallest = level(last.output, size)
    later = [c for c in every if c.began > last.ended and level(c.input, size) == smallest and c.is_place]
    finer = [
        c
        for c in later
        if (call_level := level(c.output, size)) is not None and prod(call_level) < prod(smallest or ())
    ]
    end = finer[0].began if finer else max((c.ended for c in every), default=0)
    stays = [c for c in later if c.ended < end and level(c.output, size) == smallest]
    candidates = sorted((last, *stays), key=lambda c: c.ended)
    leads = [c for c in candidates if finer and c.output is finer[0].input]
    return leads[-1] if leads else candidates[-1]


def fits(net: nn.Module, patch: Sequence[int]) -> bool:
    """Whether a patch can be trained on: its logits have its size, and no normalisation is left a single voxel."""
    try:
        output = run(net, patch, training=True)
    except UNFIT:
        return False
    main = output if isinstance(output, Tensor) else output[0]
    return tuple(main.shape[2:]) == tuple(patch)


def check_patch(net: nn.Module, patch: Sequence[int], *, name: str) -> None:
    """Refuse a patch that the network cannot halve often enough, and name the nearest that fits (`ConfigError`)."""
    if fits(net, patch):
        return
    subject = f"network {name}: a patch of {_by(patch)}"
    try:
        coarsest = [stage.level for stage in find_stages(net, trial_size(len(patch)))]
    except UNFIT:
        coarsest = []
    unit = max(coarsest, key=prod, default=(1,) * len(patch))
    for more in range(4):
        near = [
            max(int(side / u + 0.5), 1) * u + more * u * (side / u < 2 + more)
            for side, u in zip(patch, unit, strict=True)
        ]
        if near != list(patch) and fits(net, near):
            raise ConfigError(
                "patch-size",
                f"{subject} cannot be halved as often as it halves it (by {_by(unit)} in all); nearest that fits: "
                f"{_by(near)}: set data.patch=[{', '.join(map(str, near))}], or take a network of fewer levels",
            )
    raise ConfigError(
        "patch-size", f"{subject} does not go through it, nor does any near it: take another patch or another network"
    )


def _by(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))
