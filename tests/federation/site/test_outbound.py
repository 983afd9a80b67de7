"""What leaves a site goes through policy, packing and encryption, in this order."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import small_image_job
from errors import raises

from fedshift.federation.site.outbound import Outbound
from fedshift.federation.tensors import read_weights
from fedshift.methods.method_set import MethodSet
from fedshift.schema.compression import WeightsAs, pack, packed_keys
from fedshift.schema.errors import ConfigError, PolicyError
from fedshift.schema.messages import Broadcast, Update
from fedshift.tasks.kinds import build_task


class Gate:
    """Stands in for a policy: adds 1 to all weights, or forbids everything."""

    def __init__(self, *, forbids: bool = False) -> None:
        self.forbids, self.permits = forbids, []

    def admit(self, broadcast: Broadcast) -> str:
        if self.forbids:
            raise PolicyError("policy", "no")
        return f"permit {broadcast.round}"

    def release(self, update: Update, broadcast: Broadcast, permit: str) -> Update:
        self.permits.append(permit)
        assert not update.packed, "noise is on the weights themselves"
        weights = {k: v + 1 if v.dtype == np.float32 else v for k, v in update.weights.items()}
        return replace(update, weights=weights)


class Encryption:
    """Stands in for encryption: notes what it is given."""

    def __init__(self) -> None:
        self.sealed: list[Update] = []

    def open(self, broadcast: Broadcast) -> Broadcast:
        return replace(broadcast, best_round=7)

    def seal(self, update: Update, broadcast: Broadcast) -> Update:
        self.sealed.append(update)
        return replace(update, weights={"ckks.00000": np.zeros(1, np.uint8)}, packed={})


def methods_of(*options: str) -> MethodSet:
    job = small_image_job("fedavg", *options)
    return MethodSet(job, build_task(job).network())


def messages(methods: MethodSet) -> tuple[Broadcast, Update]:
    received = read_weights(methods.net)
    moved = {k: v + np.float32(0.5) if v.dtype == np.float32 else v for k, v in received.items()}
    return Broadcast(1, 0, received), Update("A", 1, 10, 5, moved)


def test_without_steps_the_answer_leaves_as_it_is() -> None:
    methods = methods_of()
    broadcast, update = messages(methods)
    outbound = Outbound(methods)
    assert outbound.open(broadcast) is broadcast
    permit = outbound.admit(broadcast)
    sent, left_out = outbound.send(update, broadcast, permit=permit, residual={})
    assert sent is update and left_out == {}


def test_a_policy_is_asked_before_and_acts_on_what_is_packed() -> None:
    methods = methods_of("federation.weights_as=int8")
    broadcast, update = messages(methods)
    gate = Gate()
    outbound = Outbound(methods, gate=gate)  # type: ignore[arg-type]
    sent, left_out = outbound.send(update, broadcast, permit=outbound.admit(broadcast), residual={})
    assert gate.permits == ["permit 1"]
    assert sent.packed and not sent.packed.keys() & sent.weights.keys() and set(left_out) == set(sent.packed)
    for key, packed in sent.packed.items():
        change = update.weights[key] + 1 - broadcast.weights[key]
        np.testing.assert_allclose(packed.unpack() + left_out[key].numpy(), change, atol=1e-6)
    later, _ = outbound.send(
        update, broadcast, permit="", residual={key: torch.ones_like(v) for key, v in left_out.items()}
    )
    key = next(iter(sent.packed))
    assert (later.packed[key].unpack() > sent.packed[key].unpack() + 0.9).all(), "what was left out goes into the next"


def test_a_policy_that_forbids_ends_the_task_before_any_work() -> None:
    with pytest.raises(PolicyError):
        Outbound(methods_of(), gate=Gate(forbids=True)).admit(Broadcast(1, 0, {}))  # type: ignore[arg-type]


def test_encryption_comes_last_and_opens_what_arrives() -> None:
    methods = methods_of()
    broadcast, update = messages(methods)
    encryption, gate = Encryption(), Gate()
    outbound = Outbound(methods, gate=gate, encryption=encryption)  # type: ignore[arg-type]
    assert outbound.open(broadcast).best_round == 7
    sent, _ = outbound.send(update, broadcast, permit="p", residual={})
    assert list(sent.weights) == ["ckks.00000"]
    key = next(iter(methods.trainable))
    np.testing.assert_array_equal(encryption.sealed[0].weights[key], update.weights[key] + 1)


def packed_as(broadcast: Broadcast, weights_as: WeightsAs, keys: frozenset[str]) -> Broadcast:
    packed = {key: pack(broadcast.weights[key], weights_as) for key in keys}
    return replace(broadcast, weights={k: v for k, v in broadcast.weights.items() if k not in keys}, packed=packed)


def test_packed_broadcasts_are_unpacked() -> None:
    methods = methods_of("federation.weights_as=bf16")
    broadcast, _ = messages(methods)
    keys = packed_keys(broadcast.weights, methods.trainable, "bf16")
    opened = Outbound(methods).open(packed_as(broadcast, "bf16", keys))
    assert keys and opened.weights.keys() == broadcast.weights.keys() and not opened.packed
    for key, value in broadcast.weights.items():
        np.testing.assert_allclose(opened.weights[key], value, atol=0.01)


def test_weights_that_are_packed_in_another_way_than_the_job_says_are_refused() -> None:
    plain, small = methods_of(), methods_of("federation.weights_as=int8")
    broadcast, _ = messages(plain)
    keys = packed_keys(broadcast.weights, plain.trainable, "int8")
    key = min(keys)
    good = packed_as(broadcast, "int8", keys)
    twice = replace(good, weights={**good.weights, key: broadcast.weights[key]})
    for methods, message in (
        (plain, good),
        (small, packed_as(broadcast, "int8", keys - {key})),
        (small, packed_as(broadcast, "bf16", keys)),
        (small, twice),
    ):
        with raises("packing", naming=("round 1", key)):
            Outbound(methods).open(message)
    assert not Outbound(small).open(good).packed
    assert Outbound(small).open(broadcast) is broadcast, "one in full has nothing to unpack"
    with pytest.raises(ConfigError, match=re.escape(key)):
        Outbound(small, encryption=Encryption()).open(good)
