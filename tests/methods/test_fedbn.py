"""FedBN: which keys stay, the authors' numbers, what new sites use, and its benefit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Samples, Sent, golden, make_context, server_context, small_image_job
from torch import Tensor, nn

from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.methods import fedavg, fedbn
from fedshift.methods.shared import norms
from fedshift.schema.seeding import generator
from fedshift.tasks import networks

from .made import InMemory, OneByOne, final_weights, site_state


class Frozen(nn.Module):
    """Batch norm with buffers only, like torchvision's FrozenBatchNorm2d."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.ones(2))


class Parts(nn.Module):
    """One layer of each kind, and layers that resemble one by name."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.Conv2d(3, 2, 1)
        self.plain = nn.Sequential(nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1), nn.InstanceNorm2d(2, affine=True))
        self.tracked = nn.InstanceNorm2d(2, track_running_stats=True)
        self.frozen = Frozen()
        self.sync, self.untracked = nn.SyncBatchNorm(2), nn.BatchNorm2d(2, track_running_stats=False)
        self.group, self.layer = nn.GroupNorm(1, 2), nn.LayerNorm(2)


def parts(kind: str) -> frozenset[str]:
    return norms.norm_keys(Parts(), kind)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("unet", {"features": 4}, 18),
        ("monai.UNet", {"channels": [4, 8, 8], "norm": "batch"}, None),
        ("monai.BasicUNet", {"features": [4, 4, 8, 8, 8, 4], "norm": "batch"}, 18),
        ("digits_cnn", {"size": 16, "width": 4}, 5),
        ("mnist_cnn", {"size": 16}, 0),
    ],
)
def test_every_batch_norm_is_found_and_nothing_else(name: str, options: dict[str, Any], count: int | None) -> None:
    net = networks.build(name, options, in_channels=3, n_classes=2, seed=0)
    owners = {key.rpartition(".")[0] for key in net.state_dict() if key.endswith("running_mean")}
    assert len(owners) == (count if count is not None else len(owners)) and (owners or count == 0)
    expected = {key for key in net.state_dict() if key.rpartition(".")[0] in owners}
    assert fedbn.Client(fedbn.Config()).personal(net) == expected
    assert fedbn.Client(fedbn.Config(norms="all")).personal(net) == expected


def test_the_type_decides_and_not_the_name() -> None:
    names = {key.rpartition(".")[0] for key in parts("batch")}
    assert names == {"plain.0", "tracked", "frozen", "sync", "untracked"}, (
        "neither bn.weight, a convolution's, nor plain.1"
    )
    assert {key.rpartition(".")[0] for key in parts("all")} == names | {"plain.2", "group", "layer"}
    expected = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    assert {key.removeprefix("plain.0.") for key in parts("batch") if key.startswith("plain.0.")} == expected
    shared = nn.BatchNorm2d(2)
    twice = nn.Sequential(shared, shared)
    assert norms.norm_keys(twice, "batch") == set(twice.state_dict())


class Golden(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.fc = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(3, 2)


def test_the_server_does_what_the_authors_does() -> None:
    g = golden("aggregation_fedavg_fedavgm_fedbn")
    net, client = Golden(), fedbn.Client(fedbn.Config())
    current = {key: np.asarray(g[f"fedbn_server_init:{key}"]) for key in net.state_dict()}
    sent = [key for key in current if key not in client.withheld(net)]
    assert sorted(sent) == ["conv1.bias", "conv1.weight", "fc.bias", "fc.weight"]
    for r in range(3):
        updates = [
            Sent(str(i), {key: np.asarray(g[f"fedbn_r{r}_client{i}:{key}"]) for key in sent}, n)
            for i, n in enumerate((50, 30, 20))
        ]
        current = fedavg.Server(fedavg.Config()).combine(current, updates, server_context())
        for key, value in current.items():
            np.testing.assert_allclose(value, g[f"fedbn_r{r}_server:{key}"], rtol=1e-6, err_msg=key)
    for key in set(current) - set(sent):
        np.testing.assert_array_equal(current[key], g[f"fedbn_server_init:{key}"])


@pytest.mark.slow
def test_the_average_is_sent_but_no_trained_site_loads_it(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    withheld, averaged = (
        final_weights(
            small_image_job("fedbn", f"fedbn.unseen={u}", "schedule.rounds=3"), three_image_sites, tmp_path / u
        )
        for u in ("re-estimated", "averaged")
    )
    norms = {key for key in withheld if key.startswith(("block1.1", "block2.1", "block3.1", "fc1.1", "fc2.1"))}
    assert all(torch.equal(withheld[key], averaged[key]) for key in withheld.keys() - norms)
    assert torch.equal(withheld["fc1.1.running_mean"], torch.zeros(128)), "as initialised"
    kept = [site_state(tmp_path / "averaged", site, 3)["personal"] for site in "ABC"]
    assert kept[0].keys() == {key for key in norms if not key.endswith("num_batches_tracked")}
    mean = torch.stack([site["fc1.1.running_mean"] for site in kept]).mean(0)
    torch.testing.assert_close(averaged["fc1.1.running_mean"], mean)


def test_running_statistics_are_those_of_the_sites_own_images() -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(7, 3, 4, 4, generator=rng) * 3 + 5
    net = nn.Sequential(nn.Dropout(0.9), nn.BatchNorm2d(3, momentum=0.3))
    with torch.no_grad():
        net[1].weight.fill_(2)
    ctx = make_context("fedbn", net, normalise=lambda images, *, training: images / 2)
    net.eval()
    fedbn.Client(fedbn.Config(unseen="averaged")).newcomer(Samples(x), ctx)
    assert torch.equal(net[1].running_mean, torch.zeros(3)), "it uses the received average"
    fedbn.Client(fedbn.Config()).newcomer(Samples(x), ctx)
    assert isinstance(net[1].running_mean, Tensor) and isinstance(net[1].running_var, Tensor)
    order = torch.randperm(7, generator=generator(ctx.run.seed, ctx.run.site, ctx.run.round, "running statistics"))
    used = x[order[:6]] / 2  # chunks of two: the last has one image
    torch.testing.assert_close(net[1].running_mean, used.mean((0, 2, 3)))
    within = torch.stack([part.var((0, 2, 3)) for part in used.split(2)]).mean(0)
    torch.testing.assert_close(net[1].running_var, within)
    assert net[1].momentum == 0.3 and not net.training and torch.equal(net[1].weight, torch.full((3,), 2.0))
    fedbn.Client(fedbn.Config()).newcomer(Samples(x), make_context("fedbn", nn.Conv2d(3, 1, 1)))


def test_running_statistics_are_those_of_all_images_where_each_is_a_chunk() -> None:
    x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0)) + 10 * torch.arange(4)[:, None, None, None]
    net = nn.Sequential(nn.BatchNorm2d(3))
    norms.re_estimate(net, OneByOne(x), make_context("fedbn", net).run)
    assert isinstance(net[0].running_mean, Tensor) and isinstance(net[0].running_var, Tensor)
    torch.testing.assert_close(net[0].running_mean, x.mean((0, 2, 3)))
    torch.testing.assert_close(net[0].running_var, x.var((2, 3)).mean(0))


def test_running_statistics_do_not_depend_on_how_a_site_is_sorted() -> None:
    """Sorted by class, batches in order would be of one class each, and lose the variance between classes."""

    y = torch.arange(256) // 64  # four classes, far from each other
    noise = torch.randn(256, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    data, net = InMemory(noise + 10 * y[:, None, None, None], y), nn.Sequential(nn.BatchNorm2d(1))
    every = torch.cat([x for x, _ in data.chunks()])
    within = torch.stack([x.var() for x, _ in data.chunks()]).mean()
    norms.re_estimate(net, data, make_context("fedbn", net).run)
    estimated = net[0].running_var
    assert isinstance(estimated, torch.Tensor) and within < 2
    torch.testing.assert_close(estimated, every.var().reshape(1), rtol=0.05, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("unseen", ["re-estimated", "averaged"])
def test_a_site_that_never_trained_is_scored_and_named(
    unseen: str, three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    job = small_image_job("fedbn", f"fedbn.unseen={unseen}", "schedule.rounds=5", "schedule.local_epochs=4")
    coordinator = Coordinator(job, tmp_path / "server")
    sites = {n: Site(job, n, p, SiteOptions(tmp_path / "state")) for n, p in three_image_sites.items()}
    coordinator.open(0)
    for site in sites.values():
        coordinator.register(site.info())
        coordinator.accept(site.statistics())
    coordinator.close()
    for round_ in range(1, 6):
        broadcast = coordinator.open(round_)
        for name in "BC":
            assert coordinator.accept(sites[name].train(broadcast))
        coordinator.close()
    last = coordinator.open(6)
    told = {name: site.validate(last) for name, site in sites.items()}
    assert all(coordinator.add_scores(scores) for scores in told.values())
    coordinator.close_last()
    best = coordinator.open_best()
    if best is not None:
        for site in sites.values():
            coordinator.add_scores(site.validate(best))
    coordinator.finish()
    assert coordinator.results.final is not None and coordinator.results.final.newcomers == ["A"]
    # The new site's score with the initial layers, which it would have without re-estimation.
    plain = Site(
        small_image_job("fedavg", "schedule.rounds=5"), "A", three_image_sites["A"], SiteOptions(tmp_path / "plain")
    )
    without = plain.validate(last).values["val"]["accuracy"]
    if unseen == "averaged":
        assert told["A"].values["val"]["accuracy"] == without, "the average came with the broadcast"
    else:
        assert told["A"].values["val"]["accuracy"] > without


def test_a_network_without_norms_is_said_to_make_it_fedavg(caplog: pytest.LogCaptureFixture) -> None:
    small_image_job("fedbn", "network.name=mnist_cnn", "network.options={size: 16}")
    assert "mnist_cnn" in caplog.text and "FedAvg" in caplog.text


def test_a_site_whose_images_cannot_be_read_leaves_the_network_as_it_was() -> None:
    class Broken(Samples):
        def chunks(self, order: torch.Generator | None = None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            yield from super().chunks(order)
            raise OSError("the disk is gone")

    net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 1), torch.nn.BatchNorm2d(2)).train()
    with pytest.raises(OSError, match="disk"):
        norms.re_estimate(net, Broken(torch.rand(4, 1, 3, 3)), make_context("fedbn", net).run)
    assert net.training and net[1].training and net[1].momentum == 0.1
