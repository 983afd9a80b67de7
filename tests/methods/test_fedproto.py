"""FedProto against the authors' prototypes and loss, what leaves a site, and how close the sites' classes get."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Samples, Sent, golden, make_context, server_context, small_image_job
from torch import Tensor, nn

from fedshift.federation.in_process import run_in_process
from fedshift.federation.site import local_training
from fedshift.methods import base, fedproto
from fedshift.methods.shared.passes import Replayed
from fedshift.schema.job import JobSpec
from fedshift.schema.results import BEST
from fedshift.schema.task import ScheduleSpec
from fedshift.tasks.kinds import build_task

from .made import NO_NORM, Embedded, InMemory, last_weights


def site(config: fedproto.Config, *, size: int = 5, n_classes: int = 5) -> tuple[fedproto.Client, base.Context]:
    """A site in round 1, before any class has a prototype."""
    net = Embedded(size, n_classes).train()
    client, ctx = fedproto.Client(config), make_context("fedproto", net, n_classes=n_classes)
    client.attach(net, ctx)
    client.receive({"prototypes": np.zeros((n_classes, size), np.float32), "known": np.zeros(n_classes)}, ctx)
    return client, ctx


def sent_by(client_number: int, config: fedproto.Config) -> dict[str, np.ndarray]:
    """What a site of the golden file sends after one epoch of one batch."""
    g = golden("fedproto")
    u = torch.from_numpy(g[f"client{client_number}_features"]).float()
    y = torch.from_numpy(g[f"client{client_number}_labels"])
    client, ctx = site(config.model_copy(update={"min_samples": 1}))  # the authors' value
    data = Samples(u[:, :, None, None], y)
    client.begin(data, ctx)
    zero = torch.zeros(())
    assert client.loss(base.Batch(u, y), ctx.run.net(u), zero, ctx) is zero, "no term before there are prototypes"
    return client.end(data, ctx)


def updates_of(config: fedproto.Config) -> list[Sent]:
    return [Sent(str(c), {}, arrays={"fedproto": sent_by(c, config)}) for c in range(3)]


@pytest.mark.parametrize("prototypes", ["last_epoch", "trained"])
def test_prototypes_of_sites_and_server_are_the_authors(prototypes: str) -> None:
    g = golden("fedproto")
    config = fedproto.Config(prototypes=prototypes)
    updates = updates_of(config)
    for c, update in enumerate(updates):
        sent = update.arrays["fedproto"]
        for k in range(5):
            name = f"client{c}_proto{k}"
            assert sent["counts"][k] == (name in g), "1 or 0, not how many"
            expected = g[name] if name in g else np.zeros(5)
            np.testing.assert_allclose(sent["prototypes"][k], expected, rtol=1e-5, atol=1e-7)
    server = fedproto.Server(config)
    server.start(Embedded(5, 5), server_context())
    server.receive(updates, server_context())
    down = server.broadcast(server_context(round=2))
    np.testing.assert_array_equal(down["known"], [1, 1, 1, 1, 0])
    for k in range(4):
        np.testing.assert_allclose(down["prototypes"][k], g[f"global_proto{k}"], rtol=1e-5, atol=1e-6)


def test_loss_is_the_mean_over_all_elements_with_nothing_for_an_unknown_class() -> None:
    g = golden("fedproto")
    prototypes = torch.zeros(5, 5, dtype=torch.float64)
    for k in range(4):
        prototypes[k] = torch.from_numpy(g[f"global_proto{k}"])
    u = torch.from_numpy(g["batch_features"]).requires_grad_()
    y, known = torch.from_numpy(g["batch_labels"]), torch.tensor([True] * 4 + [False])
    loss = fedproto.prototype_loss(u, y, prototypes, known)
    np.testing.assert_allclose(loss.item(), g["proto_loss_mse_all_elements"], rtol=1e-12)
    loss.backward()
    assert u.grad is not None and torch.equal(u.grad.abs().sum(1) == 0, y == 4)


def test_class_counts_leave_only_where_they_are_weights() -> None:
    config = fedproto.Config(weights="samples")
    updates = updates_of(config)
    g = golden("fedproto")
    n = np.stack([np.bincount(g[f"client{c}_labels"], minlength=5) for c in range(3)])
    np.testing.assert_array_equal([u.arrays["fedproto"]["counts"] for u in updates], n)
    server = fedproto.Server(config)
    server.start(Embedded(5, 5), server_context())
    server.receive(updates, server_context())
    pooled = np.concatenate([g[f"client{c}_features"][g[f"client{c}_labels"] == 0] for c in range(3)])
    np.testing.assert_allclose(server.state["prototypes"][0], pooled.mean(0), rtol=1e-5)
    told, plain = (fedproto.Client(c).up(Embedded(5, 5))["counts"].reveals for c in (config, fedproto.Config()))
    assert "number of" in told and "number of" not in plain


def test_a_class_that_is_absent_keeps_its_last_prototype_and_a_new_server_half_goes_on() -> None:
    first = fedproto.Server(fedproto.Config())
    first.start(Embedded(5, 5), server_context())
    updates = updates_of(fedproto.Config())
    first.receive(updates, server_context())
    old = {k: v.copy() for k, v in first.state.items()}
    again = fedproto.Server(fedproto.Config())
    again.state = first.state
    again.receive([updates[1]], server_context(round=2))  # has classes 0 and 1 only
    np.testing.assert_array_equal(again.state["prototypes"][2:], old["prototypes"][2:])
    np.testing.assert_array_equal(again.state["prototypes"][1], updates[1].arrays["fedproto"]["prototypes"][1])
    np.testing.assert_array_equal(again.state["known"], old["known"])


@pytest.mark.parametrize(
    ("batches", "count", "mean"),
    [
        ((100, 200, 1, 3), 2, 2.0),  # the second of two epochs
        ((100, 200, 1, 3, 5), 2, 3.0),  # an unfinished epoch, merged with the one before it: certainly of two images
        ((7,), 1, 7.0),
    ],
)
def test_prototypes_come_from_the_last_epoch_and_a_replayed_pass_counts_once(
    batches: tuple[int, ...], count: int, mean: float
) -> None:
    client, ctx = site(fedproto.Config(weights="samples", min_samples=1), size=2, n_classes=3)
    data = Samples(np.zeros((5, 2, 1, 1), np.float32))  # an epoch has two batches of two; one sample is left out
    client.begin(data, ctx)
    y = torch.tensor([0, 2])
    for number, value in enumerate(batches):
        ctx.run.epoch = number // 2
        u = torch.full((2, 2), float(value))

        def compute(u: Tensor = u) -> Tensor:
            return client.loss(base.Batch(u, y), ctx.run.net(u), torch.zeros(()), ctx)

        closure = Replayed(ctx.run, compute)
        closure(), closure()
        ctx.run.step += 1
    sent = client.end(data, ctx)
    np.testing.assert_array_equal(sent["counts"], [count, 0, count])
    np.testing.assert_array_equal(sent["prototypes"], [[mean] * 2, [0, 0], [mean] * 2])


def test_the_pass_with_the_trained_model_leaves_the_mode_and_statistics_alone() -> None:
    net = nn.Sequential()
    net.add_module("norm", nn.BatchNorm2d(3))
    net.add_module("flat", nn.Flatten())
    net.add_module("head", nn.Linear(12, 2))
    net.train()
    client, ctx = fedproto.Client(fedproto.Config(prototypes="trained")), make_context("fedproto", net, n_classes=2)
    client.attach(net, ctx)
    client.receive({"prototypes": np.zeros((2, 12), np.float32), "known": np.zeros(2)}, ctx)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    x, y = torch.rand(6, 3, 2, 2), torch.tensor([0, 1] * 3)
    client.begin(Samples(x, y), ctx)
    sent = client.end(Samples(x, y), ctx)
    in_evaluation = (x.flatten(1) / np.sqrt(1 + 1e-5)).numpy()
    np.testing.assert_allclose(sent["prototypes"][1], in_evaluation[1::2].mean(0), rtol=1e-5)
    assert net.training and all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


@pytest.mark.slow
def test_nothing_but_prototypes_leaves_a_site_and_every_site_scores_its_own_model(
    three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    job = small_image_job("fedproto")
    net = build_task(job).network()
    first = net.state_dict()
    coordinator = run_in_process(job, three_image_sites, tmp_path / "a")
    last = last_weights(tmp_path / "a")
    assert all(torch.equal(last[key], first[key]) for key in first), "the server's model is the initial one"
    sizes = [int(np.prod(spec.shape)) for spec in fedproto.Client(fedproto.Config()).up(net).values()]
    for record in coordinator.results.rounds:
        assert {told.bytes_up for told in record.sites.values()} == {4 * sum(sizes)}
    assert coordinator.results.final is not None and set(coordinator.results.final.personal) == {"A", "B", "C"}
    assert (tmp_path / "a" / BEST).is_file()


def spread(job: JobSpec, data: Mapping[str, Path], folder: Path, monkeypatch: pytest.MonkeyPatch) -> float:
    """Distance of the sites' class means from their mean over sites, relative to the distance between classes."""
    sent: list[np.ndarray] = []
    receive = fedproto.Server.receive

    def record(self: fedproto.Server, updates: list[base.SiteUpdate], ctx: base.ServerContext) -> None:
        if ctx.round:
            sent.append(np.stack([u.arrays["fedproto"]["prototypes"] for u in updates]).astype(np.float64))
        receive(self, updates, ctx)

    with monkeypatch.context() as patch:
        patch.setattr(fedproto.Server, "receive", record)
        run_in_process(job, data, folder)
    of_sites = sent[-1]  # (sites, classes, d)
    of_classes = of_sites.mean(0)
    between_sites = np.sqrt(np.square(of_sites - of_classes).sum(-1)).mean()
    return float(between_sites / np.sqrt(np.square(of_classes - of_classes.mean(0)).sum(-1)).mean())


@pytest.mark.slow
@pytest.mark.parametrize("network", ["digits_cnn", "mnist_cnn"])
def test_sites_embed_a_class_more_alike_than_without(
    network: str, three_image_sites: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["schedule.rounds=4", "schedule.local_epochs=2"]
    if network == "mnist_cnn":
        options += [*NO_NORM, "fedproto.prototypes=trained"]
    apart, near = (
        spread(
            small_image_job("fedproto", f"fedproto.weight={weight}", *options),
            three_image_sites,
            tmp_path / str(weight),
            monkeypatch,
        )
        for weight in (0, 1)
    )
    assert near < 0.8 * apart


@pytest.mark.parametrize("prototypes", ["last_epoch", "trained"])
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_the_embedding_of_a_single_image_stays_at_the_site(prototypes: str, weights: str) -> None:
    config = fedproto.Config(prototypes=prototypes, weights=weights)
    u, y = torch.arange(1.0, 16).reshape(3, 5), torch.tensor([0, 0, 3])
    client, ctx = site(config)
    data = Samples(u[:, :, None, None], y)
    client.begin(data, ctx)
    client.loss(base.Batch(u, y), ctx.run.net(u), torch.zeros(()), ctx)
    sent = client.end(data, ctx)
    np.testing.assert_array_equal(sent["counts"], [2 if weights == "samples" else 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(sent["prototypes"][0], u[:2].mean(0))
    assert not sent["prototypes"][1:].any()
    assert fedproto.Server(config).fault(sent, 3) is None


def test_an_image_that_two_epochs_show_is_still_one_image() -> None:
    """With local_steps an unfinished epoch is merged with the one before it."""
    client, ctx = site(fedproto.Config(weights="samples"))
    u, y = torch.arange(1.0, 26).reshape(5, 5), torch.tensor([0, 0, 3, 1, 1])
    client.begin(Samples(u[:, :, None, None], y), ctx)
    for epoch, batch in ((0, [0, 1]), (0, [2, 3]), (1, [2, 0])):
        ctx.run.epoch = epoch
        client.loss(base.Batch(u[batch], y[batch]), ctx.run.net(u[batch]), torch.zeros(()), ctx)
        ctx.run.step += 1
    sent = client.end(Samples(u[:, :, None, None], y), ctx)
    np.testing.assert_array_equal(sent["counts"], [2, 0, 0, 0, 0])
    assert not sent["prototypes"][3].any(), "image 2 was used twice and is the only one of its class"


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize(
    "length", [{"local_epochs": 1}, {"local_epochs": 3}, *({"local_steps": n} for n in range(1, 12))]
)
@pytest.mark.parametrize("batch_size", [2, 3, 4])
def test_no_image_counts_twice_whatever_the_schedule(drop_last: bool, length: dict[str, int], batch_size: int) -> None:
    """Seven images, one of which is the only one of its class; whole epochs give the mean over the last one alone."""
    schedule = ScheduleSpec(rounds=1, batch_size=batch_size, drop_last=drop_last, **length)
    y = torch.tensor([0, 0, 0, 1, 1, 1, 2])
    data = InMemory(torch.arange(35.0).reshape(7, 5), y)
    client, ctx = site(fedproto.Config(weights="samples"), n_classes=3)
    client.begin(data, ctx)
    epochs: dict[int, list[Tensor]] = {}
    for x, of in local_training.batches(data, ctx.run, schedule):
        u = x + 1000 * ctx.run.epoch
        epochs.setdefault(ctx.run.epoch, []).append(of)
        client.loss(base.Batch(u, of), ctx.run.net(u), torch.zeros(()), ctx)
        ctx.run.step += 1
    sent = client.end(data, ctx)
    assert (sent["counts"] <= [3, 3, 0]).all() and not sent["prototypes"][2].any()
    assert fedproto.Server(fedproto.Config(weights="samples")).fault(sent, data.n_train) is None
    if "local_epochs" in length:
        shown = torch.cat(epochs[length["local_epochs"] - 1]).bincount(minlength=3)
        np.testing.assert_array_equal(sent["counts"], np.where(shown > 1, shown, 0))
        least = 1000 * (length["local_epochs"] - 1)
        assert (sent["prototypes"][sent["counts"] > 0] >= least).all(), "holds embeddings of an earlier epoch"


@pytest.mark.parametrize(
    ("weights", "counts", "row", "key"),
    [
        ("uniform", [1, 0, 0, 0, 0], 3, "prototypes"),
        ("uniform", [2, 0, 0, 0, 0], 0, "counts"),
        ("uniform", [1, 1, 1, 1, 1], 0, "counts"),
        ("samples", [1, 0, 0, 0, 0], 0, "counts"),
        ("samples", [2.5, 0, 0, 0, 0], 0, "counts"),
        ("samples", [9, 0, 0, 0, 0], 0, "counts"),
    ],
)
def test_prototypes_that_cannot_be_of_two_images_are_refused(
    weights: str, counts: list[float], row: int, key: str
) -> None:
    arrays = {"prototypes": np.zeros((5, 5), np.float32), "counts": np.float32(counts)}
    arrays["prototypes"][row] = 1
    fault = fedproto.Server(fedproto.Config(weights=weights)).fault(arrays, 8)
    assert fault is not None and fault[0] == key


def test_soft_labels_are_pulled_to_their_largest_class() -> None:
    soft = torch.tensor([[0.2, 0.7, 0.1], [0.9, 0.1, 0.0]])
    assert fedproto.classes_of(soft).tolist() == [1, 0]
    assert fedproto.classes_of(torch.tensor([2, 0])).tolist() == [2, 0]
