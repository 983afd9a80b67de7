"""Weights travel to and from a device as one tensor of each type, and arrive as they were."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedshift.federation import tensors
from fedshift.federation.tensors import fetched, load_tensors, load_weights, read_weights, sent, to_tensors

CPU = torch.device("cpu")


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    net.register_buffer("mask", torch.rand(5, 2) > 0.5)
    net.register_buffer("counts", torch.randint(9, (2, 3), dtype=torch.int32))
    net.register_buffer("precise", torch.rand(3, 2, dtype=torch.float64).T)
    net.register_buffer("rounded", torch.rand(4, 1).half())
    net.register_buffer("nothing", torch.empty(0, 3))
    return net.to(memory_format=torch.channels_last) if seed else net


def test_what_is_fetched_at_once_is_what_is_read_one_by_one() -> None:
    net = network(1)
    layers = net.state_dict()
    assert not layers["0.weight"].is_contiguous() and layers["1.num_batches_tracked"].dim() == 0
    one_by_one, at_once = read_weights(net), fetched(layers)
    assert list(at_once) == list(one_by_one) == list(layers)
    for key, value in one_by_one.items():
        other = at_once[key]
        assert (other.dtype, other.shape) == (value.dtype, value.shape), key
        np.testing.assert_array_equal(other, value)
        assert other.flags.c_contiguous and other.flags.writeable
        assert other.base is None or other.base.nbytes == other.nbytes, "of its own: it may outlive the others"


def test_what_is_sent_at_once_is_loaded_as_if_one_by_one() -> None:
    weights = read_weights(network(1))
    for value in weights.values():
        value.flags.writeable = False  # as in a message
    placed = sent(to_tensors(weights), CPU)
    assert len({value.untyped_storage().data_ptr() for value in placed.values() if value.numel()}) == 6, "types"
    for seed in (0, 2):  # contiguous, and channels last
        net, other = network(seed), network(seed)
        load_weights(net, weights)
        load_tensors(other, placed)
        for (key, value), same in zip(net.state_dict().items(), other.state_dict().values(), strict=True):
            assert torch.equal(value, same) and np.array_equal(value.numpy(), weights[key]), key
            assert value.stride() == same.stride()


def test_parts_are_loaded_only_where_that_is_asked_for() -> None:
    net, part = network(0), {"0.weight": torch.ones(4, 3, 3, 3)}
    with pytest.raises(RuntimeError):
        load_tensors(net, part)
    load_tensors(net, part, strict=False)
    assert (net.state_dict()["0.weight"] == 1).all()


def test_on_another_device_nothing_travels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: the network is said to be there, and only what goes at once is allowed."""
    net, weights = network(0), read_weights(network(2))
    monkeypatch.setattr(tensors, "_device_of", lambda net: torch.device("cuda"))
    copies: list[int] = []
    monkeypatch.setattr(tensors, "fetched", lambda state: copies.append(len(state)) or fetched(state))
    monkeypatch.setattr(tensors, "sent", lambda state, device: copies.append(len(state)) or sent(state, CPU))
    load_weights(net, weights)
    for key, value in read_weights(net).items():
        np.testing.assert_array_equal(value, weights[key])
    assert copies == [len(weights)] * 2
