"""The client halves of a job are called in order, each with its own state, and leave nothing in the network."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Samples, make_context, small_image_job
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedshift.federation.in_process import run_in_process
from fedshift.federation.site import local_training
from fedshift.methods import base
from fedshift.methods.chain import ClientChain
from fedshift.schema.messages import Arrays
from fedshift.schema.optimizer import OptimizerSpec


class Recorder(base.Client[Any]):
    """Notes each hook and writes its method's name into what it handles."""

    calls: list[str]

    def __init__(self, name: str, calls: list[str], *, sends: bool = True, owns: bool = False, breaks: bool = False):
        self.name, self.calls, self.sends, self.breaks = name, calls, sends, breaks
        if owns:
            self.owns = frozenset({"step"})

    def attach(self, net: nn.Module, ctx: base.Context) -> list[RemovableHandle]:
        if self.breaks:
            raise RuntimeError("no layer to attach to")
        return [net.register_forward_hook(lambda module, inputs, output: output + 1)]

    def receive(self, arrays: Arrays, ctx: base.Context) -> None:
        self.calls.append(f"{self.name} received {sorted(arrays)}")
        ctx.state["seen"] = torch.tensor(len(arrays))

    def augment(self, batch: base.Batch, ctx: base.Context) -> base.Batch:
        self.calls.append(f"{self.name} augment")
        return batch

    def inputs(self, x: Tensor, ctx: base.Context, *, training: bool) -> Tensor:
        self.calls.append(f"{self.name} inputs {training}")
        return 2 * x + (1 if self.name == "second" else 0)

    def batch(self, batch: base.Batch, ctx: base.Context) -> base.Batch:
        self.calls.append(f"{self.name} batch")
        return batch

    def loss(self, batch: base.Batch, logits: Tensor, loss: Tensor, ctx: base.Context) -> Tensor:
        return 10 * loss + len(self.name)

    def step(self, closure: Any, ctx: base.Context) -> Tensor:
        self.calls.append(f"{self.name} step")
        result: Tensor = closure()
        return result

    def end(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        return {"x": np.ones(1)} if self.sends else {}


class Named:
    """Stands in for `Method`."""

    def __init__(self, half: Recorder) -> None:
        self.name, self._half = half.name, half

    def client(self) -> Recorder:
        return self._half


def chain_of(*halves: Recorder, state: dict[str, dict[str, Tensor]] | None = None) -> tuple[ClientChain, base.Run]:
    run = make_context("any", nn.Identity()).run
    chain = ClientChain([Named(half) for half in halves], run, {} if state is None else state)  # type: ignore[misc]
    return chain, run


def test_a_batch_goes_through_every_method_in_order() -> None:
    calls: list[str] = []
    chain, run = chain_of(Recorder("first", calls), Recorder("second", calls))
    batch = chain.batch(base.Batch(torch.ones(1), torch.zeros(1)))
    assert batch.x.tolist() == [2 * 2 + 1]
    assert calls == [
        "first augment",
        "second augment",
        "first inputs True",
        "second inputs True",
        "first batch",
        "second batch",
    ]
    assert run.normalise(torch.ones(1), training=False).tolist() == [5], "passes beside training see the same"
    assert float(chain.loss(batch, torch.zeros(1), torch.tensor(1.0))) == 10 * (10 + 5) + 6


def test_each_method_gets_its_own_arrays_and_state() -> None:
    calls: list[str] = []
    state: dict[str, dict[str, Tensor]] = {}
    chain, _ = chain_of(Recorder("first", calls), Recorder("second", calls, sends=False), state=state)
    chain.receive({"first": {"a": np.ones(1), "b": np.ones(1)}, "other": {"c": np.ones(1)}})
    assert calls == ["first received ['a', 'b']", "second received []"]
    assert {name: int(own["seen"]) for name, own in state.items()} == {"first": 2, "second": 0}
    assert list(chain.end(Samples(torch.ones(1, 1)))) == ["first"], "a method without arrays is not in the message"


def test_the_owner_of_the_step_takes_it_and_else_the_optimiser_does() -> None:
    calls: list[str] = []
    owned, _ = chain_of(Recorder("first", calls), Recorder("second", calls, owns=True))
    assert float(owned.step(lambda: torch.tensor(3.0), lambda: calls.append("optimiser"))) == 3
    assert calls == ["second step"]
    free, _ = chain_of(Recorder("first", calls))
    free.step(lambda: torch.tensor(3.0), lambda: calls.append("optimiser"))
    assert calls == ["second step", "optimiser"]


def test_a_method_that_cannot_attach_leaves_nothing_of_the_others_in_the_network() -> None:
    net = nn.Identity()
    chain, _ = chain_of(Recorder("first", []), Recorder("second", [], breaks=True))
    with pytest.raises(RuntimeError, match="no layer"):
        chain.attach(net)
    assert net(torch.ones(1)).tolist() == [1]
    handles = chain_of(Recorder("first", []), Recorder("second", []))[0].attach(net)
    assert net(torch.ones(1)).tolist() == [3]
    for handle in handles:
        handle.remove()
    assert net(torch.ones(1)).tolist() == [1]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedfa", "harmofl", "scaffold"])
def test_a_round_leaves_nothing_to_the_search_for_cycles(
    method: str, three_image_sites: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large network's momentum of every site and round stayed in memory until Python looked for cycles."""
    made: list[weakref.ref[torch.optim.Optimizer]] = []
    real = local_training.make_optimizer

    def make(net: nn.Module, spec: OptimizerSpec) -> torch.optim.Optimizer:
        optimizer = real(net, spec)
        made.append(weakref.ref(optimizer))
        return optimizer

    monkeypatch.setattr(local_training, "make_optimizer", make)
    gc.collect()
    gc.disable()
    try:
        run_in_process(small_image_job(method), three_image_sites, tmp_path / "run")
        assert len(made) >= 3 and [optimizer() for optimizer in made] == [None] * len(made)
    finally:
        gc.enable()
