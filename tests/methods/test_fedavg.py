"""FedAvg: the weighted mean, buffers, and keys that it must not change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Samples, Sent, golden, make_context, server_context

from fedshift.federation.server.spool import ArraysOnDisk, SpooledUpdate
from fedshift.federation.server.update_check import Change
from fedshift.methods import fedavg
from fedshift.methods.shared import aggregation
from fedshift.schema.messages import Update

CTX = server_context()


def test_average_is_the_authors_three_rounds_long() -> None:
    g = golden("aggregation_fedavg_fedavgm_fedbn")
    keys = sorted({name.split(":")[1] for name in g if name.startswith("fedavg_r0_client0:")})
    server = fedavg.Server(fedavg.Config())
    rounds = sorted({name.split("_")[1] for name in g if name.startswith("fedavg_r")})
    assert len(rounds) == 3
    for r in rounds:
        # Weights .5/.3/.2 as sample counts.
        updates = [
            Sent(str(i), {k: np.asarray(g[f"fedavg_{r}_client{i}:{k}"]) for k in keys}, n)
            for i, n in enumerate((50, 30, 20))
        ]
        combined = server.combine(dict(updates[0].weights), updates, CTX)
        for key in keys:
            if not key.endswith("num_batches_tracked"):
                np.testing.assert_allclose(combined[key], g[f"fedavg_{r}_server:{key}"], rtol=1e-6, err_msg=key)


def test_local_buffers_stay_at_the_site() -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 1), torch.nn.BatchNorm2d(2))
    kept = fedavg.Client(fedavg.Config(buffers="local")).personal(net)
    assert kept == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert fedavg.Client(fedavg.Config()).personal(net) == frozenset()


def test_a_site_that_never_trained_measures_its_images_where_statistics_stay_local() -> None:
    net = torch.nn.Sequential(torch.nn.BatchNorm2d(2))
    x = torch.randn(8, 2, 4, 4) * 3 + 5
    fedavg.Client(fedavg.Config()).newcomer(Samples(x), make_context("fedavg", net))
    assert torch.equal(net[0].running_mean, torch.zeros(2))
    fedavg.Client(fedavg.Config(buffers="local")).newcomer(Samples(x), make_context("fedavg", net))
    torch.testing.assert_close(net[0].running_mean, x.mean((0, 2, 3)))


def test_large_tensors_are_summed_in_parts_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of updates on disk no whole tensor is read; those in memory are summed as well."""
    rng = np.random.default_rng(0)
    monkeypatch.setattr(aggregation, "PART", 1000)
    own = [{"w": rng.standard_normal((3, 777), np.float32), "s": np.float32(k)} for k in range(3)]
    old = {"w": rng.standard_normal((3, 777), np.float32), "s": np.array(0, np.float32)}
    counts, rest = (5, 3, 9), -0.25
    coefficients = [0.5, 0.25, 0.5]
    total = np.zeros((3, 777))
    for coefficient, weights in zip(coefficients, own, strict=True):
        total += coefficient * weights["w"].astype(np.float64)
    total += rest * old["w"].astype(np.float64)
    expected = total.astype(np.float32)

    own = [{name: np.asarray(value) for name, value in weights.items()} for weights in own]
    on_disk = [
        SpooledUpdate(Update(str(k), 1, counts[k], 1, weights), tmp_path / str(k), Change())
        for k, weights in enumerate(own)
    ]
    in_memory = [Sent(str(k), weights, counts[k]) for k, weights in enumerate(own)]
    whole = ArraysOnDisk.__getitem__
    read: list[str] = []
    monkeypatch.setattr(ArraysOnDisk, "__getitem__", lambda self, key: read.append(key) or whole(self, key))
    for updates in (on_disk, in_memory):
        moved = aggregation.move(old, updates, coefficients, trainable=frozenset({"w"}))
        np.testing.assert_array_equal(moved["w"], expected)
        assert moved["s"].shape == () and moved["s"].dtype == np.float32
    assert not read
    assert (on_disk[0].weights["w"] == own[0]["w"]).all() and read == ["w"]
