"""FedFA with ``share: sums``: the same numbers, from sums alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from conftest import Sent, first_round, server_context, small_image_job, small_job

from fedshift.federation.in_process import run_in_process
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.methods import fedfa
from fedshift.methods.method_set import MethodSet
from fedshift.tasks.kinds import build_task
from fedshift.tasks.networks.unet import UNet

SITES = ("A", "B", "C", "D")
Variant = Literal["paper", "released"]


def statistics(seed: int, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """One site's m and s, with channels of very different magnitude."""
    rng = np.random.default_rng(seed)
    return {
        name: (rng.normal(3, 1, size) * np.logspace(-3, 3, size)).astype(np.float32) ** (2 if "std" in name else 1)
        for name, size in sizes.items()
    }


def updates_of(share: str, server: fedfa.Server, told: Sequence[dict[str, np.ndarray]]) -> list[Sent]:
    """The same sites' updates with both values of ``share``."""
    if share == "statistics":
        return [Sent(site, {}, arrays={"fedfa": own}) for site, own in zip(SITES, told, strict=True)]
    sent = []
    for site, own in zip(SITES, told, strict=True):
        away = {name: array.astype(np.float64) - server.state[name] for name, array in own.items()}
        squares = {fedfa.squared(name): difference**2 for name, difference in away.items()}
        sent.append(Sent(site, {}, arrays={"fedfa": {**away, **squares}}))
    return sent


def rounds_of(share: Literal["statistics", "sums"], variant: Variant, rounds: int = 3) -> dict[str, np.ndarray]:
    """The server's state after some rounds."""
    net = UNet(features=4)
    server = fedfa.Server(fedfa.Config(variant=variant, share=share))
    server.start(net, server_context())
    sizes = {name: len(array) for name, array in server.state.items() if name.startswith(("mean.", "std."))}
    for round_ in range(1, rounds + 1):
        told = [statistics(100 * round_ + number, sizes) for number in range(len(SITES))]
        server.receive(updates_of(share, server, told), server_context(round=round_))  # type: ignore[arg-type]
    return server.state


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_sums_give_the_gammas_of_single_statistics(variant: Variant) -> None:
    single, sums = rounds_of("statistics", variant), rounds_of("sums", variant)
    assert single.keys() == sums.keys()
    for name, array in single.items():
        np.testing.assert_allclose(sums[name], array, rtol=1e-5, err_msg=name)
    assert max(array.std() for name, array in single.items() if name.startswith("gamma")) > 0.1 or variant == "released"


def test_the_server_half_needs_only_the_sums_over_sites() -> None:
    """One update holds all the sums, the others zeros, as if only the decrypted sums were available."""
    net = UNet(features=4)
    states = []
    for gathered in (False, True):
        server = fedfa.Server(fedfa.Config(share="sums"))
        server.start(net, server_context())
        sizes = {name: len(array) for name, array in server.state.items() if name.startswith(("mean.", "std."))}
        sent = updates_of("sums", server, [statistics(number, sizes) for number in range(len(SITES))])
        if gathered:
            for name in list(sent[0].arrays["fedfa"]):
                total = sum(update.arrays["fedfa"][name] for update in sent)
                for update in sent:
                    update.arrays["fedfa"][name] = np.zeros_like(total)
                sent[-1].arrays["fedfa"][name] = np.asarray(total)
        server.receive(sent, server_context())  # type: ignore[arg-type]
        states.append(server.state)
    for name, array in states[0].items():
        np.testing.assert_allclose(states[1][name], array, rtol=1e-6, err_msg=name)


def test_only_arrays_of_which_the_sum_suffices_say_so() -> None:
    for share in ("statistics", "sums"):
        job = small_job("fedfa+fedrdn", f"fedfa.share={share}")
        task = build_task(job)
        specs = MethodSet(job, task.network()).up
        reduced = {spec.reduce for spec in specs["fedfa"].values()}
        assert reduced == ({"sum"} if share == "sums" else {"stack"})
        assert {spec.reduce for spec in specs["fedrdn"].values()} == {"stack"}, "FedRDN needs every pair"
        assert len(specs["fedfa"]) == (20 if share == "sums" else 10)


def test_a_square_that_is_not_that_of_its_difference_is_refused() -> None:
    net = UNet(features=4)
    server = fedfa.Server(fedfa.Config(share="sums"))
    server.start(net, server_context())
    sizes = {name: len(array) for name, array in server.state.items() if name.startswith(("mean.", "std."))}
    for seed in range(3):
        (sent,) = updates_of("sums", server, [statistics(seed, sizes)] * len(SITES))[:1]
        arrays = sent.arrays["fedfa"]
        assert server.fault(arrays, 8) is None
        name = fedfa.squared("std.2")
        for square in (arrays[name] * 1.01, arrays[name] + 1e6, np.zeros_like(arrays[name])):
            told = server.fault({**arrays, name: square}, 8)
            assert told is not None and told[0] == name
    assert fedfa.Server(fedfa.Config()).fault(arrays, 8) is None


def test_a_difference_far_from_the_other_sites_is_refused_in_a_run(
    three_sites: dict[str, Path], tmp_path: Path
) -> None:
    """The square matches, so only the comparison with other sites detects it."""
    job = small_job("fedfa", "schedule.rounds=1", "fedfa.share=sums")
    coordinator = Coordinator(job, tmp_path / "run")
    sites = {name: Site(job, name, path, SiteOptions(tmp_path / "sites")) for name, path in three_sites.items()}
    broadcast = first_round(coordinator, sites)
    for name, site in sites.items():
        update = site.train(broadcast)
        if name == "HK":
            far = np.full_like(update.arrays["fedfa"]["mean.1"], 9e5)
            arrays = {**update.arrays["fedfa"], "mean.1": far, fedfa.squared("mean.1"): far**2}
            update = replace(update, arrays={**update.arrays, "fedfa": arrays})
        assert coordinator.accept(update)
    coordinator.close()
    assert [(r.site, r.key) for r in coordinator.results.rounds[-1].rejected] == [("HK", "fedfa")]


@pytest.mark.slow
@pytest.mark.parametrize("running", ["average", "reset", "local"])
def test_a_run_with_sums_is_a_run_with_statistics_but_for_rounding(
    running: str, three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    options = (
        "schedule.rounds=3",
        "fedfa.p=0.7",
        f"fedfa.running={running}",
        "optimizer.name=adam",
        "optimizer.lr=1e-3",
    )

    def run(share: str) -> Coordinator:
        job = small_image_job("fedfa", *options, f"fedfa.share={share}")
        return run_in_process(job, three_image_sites, tmp_path / share)

    single, sums = run("statistics"), run("sums")
    assert not [rejected for record in sums.results.rounds for rejected in record.rejected]
    states = [dict(coordinator.model.halves)["fedfa"].state for coordinator in (single, sums)]
    for name, array in states[0].items():
        np.testing.assert_allclose(states[1][name], array, rtol=2e-3, atol=2e-4, err_msg=name)
    for key, value in single.model.weights.items():
        torch.testing.assert_close(
            torch.from_numpy(sums.model.weights[key]), torch.from_numpy(value), rtol=1e-2, atol=1e-3
        )
