"""Weights in fewer bytes: what packing keeps, that nothing is lost over the rounds, and that a job stays repeatable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import first_round, make_image_site, make_site, small_image_job, small_job
from modelfiles import assert_same_model
from shallow import WholeUNet, shallow_networks

from fedshift.data.locate import SiteSettings
from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.federation.protocols import cross_site
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.server.run_files import load_state
from fedshift.federation.site import site as site_module
from fedshift.federation.site.privacy import noise
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.federation.site.state import StateStore, fingerprint
from fedshift.flare.dry_run import dry_run
from fedshift.methods.method_set import MethodSet
from fedshift.reporting.transmitted_data import transmitted_data_section
from fedshift.schema.compression import Packed, WeightsAs, feed_back, pack, packed_keys
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Broadcast, Update
from fedshift.schema.policy import Policy
from fedshift.schema.results import BEST, LAST
from fedshift.tasks.kinds import build_task
from fedshift.tasks.networks import unet
from fedshift_testing.serialised import Federation

_shallow = pytest.fixture(autouse=True, scope="module")(shallow_networks)

INT8, BF16 = "federation.weights_as=int8", "federation.weights_as=bf16"
BOTH: tuple[WeightsAs, ...] = ("bf16", "int8")


def kernels(scale: float = 1.0, shape: tuple[int, ...] = (6, 5, 3, 3)) -> np.ndarray:
    """Channels of very different sizes."""
    sizes = 10.0 ** np.arange(-3, shape[0] - 3).reshape(-1, *(1,) * (len(shape) - 1))
    return np.float32(scale * sizes * np.random.default_rng(1).standard_normal(shape))


# --- an array -------------------------------------------------------------------------------------------


def test_bf16_is_what_torch_makes_of_it() -> None:
    awkward = np.float32([[0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, 1e-40, -1e-45, 3.3e38, -1.17e-38]])
    for array in (kernels(), awkward):
        wanted = torch.from_numpy(array).to(torch.bfloat16).float().numpy()
        packed = pack(array, "bf16")
        assert packed.unpack().tobytes() == wanted.tobytes()
        assert (packed.nbytes, packed.shape, packed.scale) == (array.nbytes // 2, array.shape, None)


def test_int8_is_within_half_a_step_of_each_channels_largest() -> None:
    array = kernels()
    packed = pack(array, "int8")
    assert packed.scale is not None
    largest = np.abs(array).max(axis=(1, 2, 3))
    error = np.abs(packed.unpack() - array).max(axis=(1, 2, 3))
    assert (error <= largest / 127 * 0.5001).all() and (error > largest / 127 * 0.3).all()
    assert (np.abs(packed.codes).max(axis=(1, 2, 3)) == 127).all(), "all codes are used in each"
    assert packed.nbytes == array.size + 4 * len(array)


def test_halves_are_rounded_to_even() -> None:
    packed = pack(np.float32([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5]]), "int8")
    assert packed.codes.tolist() == [[127, 0, 2, 2, 0, -2]]


def test_zeros_stay_zeros_and_so_does_what_is_next_to_nothing() -> None:
    array = kernels()
    array[1], array[2] = 0, 1e-39
    for weights_as in BOTH:
        assert not pack(array, weights_as).unpack()[1].any()
        assert not pack(np.zeros((0, 3), np.float32), weights_as).unpack().size
    assert not pack(array, "int8").unpack()[2].any()


@pytest.mark.parametrize("weights_as", BOTH)
@pytest.mark.parametrize("scale", [1e-33, 1e-6, 0.1, 7.0, 1e30])
def test_what_was_unpacked_packs_to_the_same_codes_and_products_are_exact(scale: float, weights_as: WeightsAs) -> None:
    packed = pack(kernels(scale), weights_as)
    again = pack(packed.unpack(), weights_as)
    np.testing.assert_array_equal(again.codes, packed.codes)
    np.testing.assert_array_equal(again.unpack(), packed.unpack())
    if packed.scale is not None:
        np.testing.assert_array_equal(again.scale, packed.scale)
        exact = packed.codes.astype(np.float64) * packed.scale.astype(np.float64)[:, None, None, None]
        np.testing.assert_array_equal(packed.unpack().astype(np.float64), exact)


@pytest.mark.parametrize("weights_as", BOTH)
def test_the_order_in_memory_does_not_matter_and_nothing_is_changed(weights_as: WeightsAs) -> None:
    array = kernels()
    before = array.copy()
    one, other = pack(array, weights_as), pack(np.asfortranarray(array), weights_as)
    np.testing.assert_array_equal(array, before)
    assert one.codes.tobytes() == other.codes.tobytes()
    np.testing.assert_array_equal(one.unpack(), other.unpack(), strict=True)


@pytest.mark.parametrize("weights_as", BOTH)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_not_packed(value: float, weights_as: WeightsAs) -> None:
    array = kernels()
    array[0, 0, 0, 0] = value
    with pytest.raises(ValueError, match="cannot be packed"):
        pack(array, weights_as)


CODES8, SCALE = np.ones((2, 3), np.int8), np.ones(2, np.float32)


@pytest.mark.parametrize(
    ("codes", "scale", "reason"),
    [
        (None, SCALE, "is a NoneType, not codes"),
        (np.ones((2, 3), np.float32), SCALE, "is an array of float32, not codes"),
        (np.ma.masked_array(CODES8), SCALE, "is a MaskedArray"),
        (np.ones(2, np.int8), SCALE, "shape .2,., and only two"),
        (CODES8, None, "has a NoneType for a scale"),
        (CODES8, SCALE.astype(np.float64), "an array of float64 for a scale"),
        (CODES8, np.ones(3, np.float32), "a scale of shape .3,., expected .2,."),
        (CODES8, np.ones((2, 1), np.float32), "a scale of shape .2, 1., expected"),
        (CODES8, np.float32([1, -1]), "negative, NaN or infinity"),
        (CODES8, np.float32([1, np.nan]), "negative, NaN or infinity"),
        (CODES8, np.float32([1, np.inf]), "negative, NaN or infinity"),
        (np.ones((2, 3), np.uint16), SCALE, "bf16 has none"),
    ],
)
def test_there_is_nothing_packed_that_cannot_be_unpacked(codes: Any, scale: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Packed(codes, scale)


def test_only_parameters_of_two_or_more_dimensions_are_packed() -> None:
    weights = {
        "conv.weight": kernels(),
        "linear.weight": np.ones((2, 3), np.float32),
        "conv.bias": np.ones(6, np.float32),
        "running_table": np.ones((2, 2), np.float32),
        "double.weight": np.ones((2, 2)),
        "count": np.array(3),
    }
    trainable = ["conv.weight", "linear.weight", "conv.bias", "double.weight", "personal.weight"]
    assert packed_keys(weights, trainable, "int8") == {"conv.weight", "linear.weight"}
    assert packed_keys(weights, trainable, "fp32") == frozenset()


# --- error feedback -------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights_as", BOTH)
def test_the_sum_of_what_was_sent_is_the_sum_of_the_changes(weights_as: WeightsAs) -> None:
    rng = np.random.default_rng(2)
    residual: dict[str, np.ndarray] = {}
    changes, sent = np.zeros((4, 50)), np.zeros((4, 50))
    for _ in range(100):
        change = np.float32(rng.standard_normal((4, 50)))
        packed, residual = feed_back({"w": change}, residual, weights_as)
        changes += change
        sent += packed["w"].unpack()
    np.testing.assert_allclose(sent + residual["w"], changes, atol=1e-4)
    steps = {"bf16": 2.0**-8, "int8": 1 / 127}[weights_as]
    assert np.abs(sent - changes).max() < 6 * steps, "no more than a round's rounding, after a hundred rounds"


def test_a_change_too_small_for_a_step_arrives_in_the_end() -> None:
    change = np.float32([[1.0, 0.001]])
    assert pack(change, "int8").unpack()[0, 1] == 0
    residual: dict[str, np.ndarray] = {}
    sent = np.zeros((1, 2))
    for _ in range(1000):
        packed, residual = feed_back({"w": change}, residual, "int8")
        sent += packed["w"].unpack()
    np.testing.assert_allclose(sent, 1000 * change, atol=0.006)


# --- a job ----------------------------------------------------------------------------------------------


def test_a_job_that_does_not_ask_for_it_is_as_it_was(three_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_job("fedavg")
    assert "weights_as" not in job.dump()["federation"]
    assert small_job("fedavg", INT8).dump()["federation"]["weights_as"] == "int8"
    server = Coordinator(job, tmp_path / "server")
    site = Site(job, "HK", three_sites["HK"], SiteOptions(tmp_path, keep_answers=True))
    update = site.train(Broadcast(round=1, best_round=0, weights=server.open(1).weights))
    assert not update.packed and update.weights["conv.weight"].dtype == np.float32
    for name, keys in (("round_000001.pt", "residual"), ("answer.pt", "packed")):
        assert keys not in torch.load(tmp_path / "HK" / name, weights_only=True)


@pytest.mark.parametrize(
    ("methods", "options", "reason"),
    [
        ("fedavg", (INT8, "federation.encryption=ckks"), "ciphertexts, which cannot be made smaller: leave one out"),
        ("groupdro", (BF16,), "groupdro trains where all images are"),
        ("fedavg", ("federation.weights_as=int4",), "weights_as"),
    ],
)
def test_what_cannot_be_packed_is_refused_when_the_job_is_made(
    methods: str, options: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        small_job(methods, *options)


def test_a_server_refuses_it_too(tmp_path: Path) -> None:
    raw = small_job("groupdro").dump()
    raw["federation"]["weights_as"] = "int8"
    with pytest.raises(ConfigError, match="nothing is sent"):
        Coordinator(JobSpec.parse(raw, where="by hand"), tmp_path)


@pytest.mark.slow
def test_bytes_of_a_unet_in_both_directions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unet, "UNet", WholeUNet)
    data = {"HK": make_site(tmp_path / "data", "HK", cases=3)}
    options = ("network.options.features=32", "schedule.local_steps=1", "schedule.rounds=1")
    told = {}
    for name in ("fp32", *BOTH):
        job = small_job("fedavg", *options, f"federation.weights_as={name}", sites=("HK",))
        told[name] = run_in_process(job, data, tmp_path / name).results.rounds[0].sites["HK"]
    assert told["fp32"].bytes_up == told["fp32"].bytes_down > 1e7
    assert told["bf16"].bytes_up == told["bf16"].bytes_down <= 0.51 * told["fp32"].bytes_up
    assert told["int8"].bytes_up == told["int8"].bytes_down <= 0.27 * told["fp32"].bytes_up


def scores_and_bytes(server: Coordinator) -> object:
    """All of a run's results that does not depend on the clock."""
    rounds = [
        {site: told.model_dump(exclude={"seconds"}) for site, told in sorted(record.sites.items())}
        for record in server.results.rounds
    ]
    return rounds, server.results.selected, server.results.final


def assert_same_models(one: Path, other: Path) -> None:
    for file in (BEST, LAST):
        assert read_model_file(one / file)["round"] == read_model_file(other / file)["round"]
        assert_same_model(one / file, other / file)
    exact = [load_state(folder) for folder in (one, other)]
    assert exact[0] is not None and exact[1] is not None
    for key, array in exact[0].weights.items():
        np.testing.assert_array_equal(array, exact[1].weights[key], err_msg=key, strict=True)


@pytest.mark.slow
@pytest.mark.parametrize(("methods", "options"), [("fedfa+fedrdn", (INT8,)), ("fedbn", (BF16,))])
def test_over_the_wire_all_is_as_in_one_process(
    methods: str, options: tuple[str, ...], three_sites: dict[str, Path], tmp_path: Path
) -> None:
    job = small_job(methods, "schedule.rounds=2", *options)
    ours = run_in_process(job, three_sites, tmp_path / "one")
    federation = Federation(job, three_sites, tmp_path / "wire")
    theirs = federation.run()
    assert_same_models(tmp_path / "one", tmp_path / "wire" / "server")
    assert scores_and_bytes(ours) == scores_and_bytes(theirs)
    for message in federation.messages:
        if message.task == "train":
            codes = message.arrays("packed")
            dtype = {"int8": np.int8, "bf16": np.uint16}[job.federation.weights_as]
            assert any(path[0] == "codes" and value.dtype == dtype for path, value in codes.items())
            floats = [v for v in message.arrays("weights").values() if v.dtype == np.float32]
            assert all(value.ndim < 2 for value in floats), "nothing of it travels in full"
            told = ours.results.rounds[message.round - 1].sites[message.site]
            arrays = [v for part in ("weights", "packed", "arrays") for v in message.arrays(part).values()]
            assert sum(v.nbytes for v in arrays) == (told.bytes_up if message.up else told.bytes_down)


@pytest.mark.parametrize("weights_as", BOTH)
def test_a_model_file_holds_what_was_scored(
    weights_as: WeightsAs, three_sites: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: dict[int, dict[str, np.ndarray]] = {}
    validate = Site.validate

    def look(self: Site, broadcast: Broadcast, **options: Any) -> Any:
        assert broadcast.packed
        scored[broadcast.round - 1] = broadcast.unpacked().weights
        return validate(self, broadcast, **options)

    monkeypatch.setattr(Site, "validate", look)
    job = small_job("fedavg", "schedule.rounds=4", f"federation.weights_as={weights_as}", "optimizer.lr=0.3")
    server = run_in_process(job, three_sites, tmp_path)
    assert server.best_round < 4, "so that the best model is sent once more"
    for file, round_ in ((BEST, server.best_round), (LAST, 4)):
        saved = read_model_file(tmp_path / file)["weights"]
        assert saved.keys() == scored[round_].keys()
        for key, value in saved.items():
            np.testing.assert_array_equal(value.numpy(), scored[round_][key], err_msg=key, strict=True)
    state = load_state(tmp_path)
    assert state is not None
    exact, last = state.weights["conv.weight"], read_model_file(tmp_path / LAST)["weights"]["conv.weight"].numpy()
    assert not np.array_equal(exact, last), "the server goes on from what is not rounded"
    np.testing.assert_array_equal(pack(exact, weights_as).unpack(), last)


def begun(job: JobSpec, data: Mapping[str, Path], folder: Path) -> tuple[Coordinator, dict[str, Site], Broadcast]:
    server = Coordinator(job, folder / "server")
    sites = {name: Site(job, name, path, SiteOptions(folder / "state")) for name, path in data.items()}
    return server, sites, first_round(server, sites)


def assert_same_answer(one: Update, other: Update) -> None:
    assert one.weights.keys() == other.weights.keys() and one.packed.keys() == other.packed.keys()
    for key, value in one.weights.items():
        np.testing.assert_array_equal(value, other.weights[key], err_msg=key, strict=True)
    for key, packed in one.packed.items():
        assert packed.codes.tobytes() == other.packed[key].codes.tobytes(), key
        assert packed.scale is None or packed.scale.tobytes() == other.packed[key].scale.tobytes()  # type: ignore[union-attr]


@pytest.mark.parametrize("option", [INT8, BF16])
def test_a_repeated_task_gives_the_same_bytes(option: str, three_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_job("fedavg", option)
    server, sites, broadcast = begun(job, three_sites, tmp_path)
    for round_ in (1, 2):
        answers = {name: site.train(broadcast) for name, site in sites.items()}
        again = sites["HK"].train(broadcast)
        anew = Site(job, "HK", three_sites["HK"], SiteOptions(tmp_path / "state")).train(broadcast)
        for other in (again, anew):
            assert_same_answer(answers["HK"], other)
        if round_ == 1:
            for update in answers.values():
                assert server.accept(update)
            server.close()
            broadcast = server.open(2)
    state = StateStore(tmp_path / "state" / "HK").before(2)
    assert state is not None and all(value.any() for value in state.residual.values())


def test_a_kept_answer_is_sent_again_as_it_was(
    three_sites: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for option in (INT8, BF16):
        job = small_job("fedavg", option)
        _, _, broadcast = begun(job, three_sites, tmp_path / option)
        options = SiteOptions(tmp_path / option / "own", keep_answers=True)
        first = Site(job, "HK", three_sites["HK"], options).train(broadcast)
        with monkeypatch.context() as patch:
            patch.delattr(site_module.local_training, "train")
            assert_same_answer(first, Site(job, "HK", three_sites["HK"], options).train(broadcast))
            turned = pack(-broadcast.packed["conv.weight"].unpack(), job.federation.weights_as)
            other = {**broadcast.packed, "conv.weight": turned}
            assert fingerprint(replace(broadcast, packed=other)) != fingerprint(broadcast)
            assert fingerprint(broadcast.unpacked()) == fingerprint(broadcast)
            with pytest.raises(AttributeError):
                Site(job, "HK", three_sites["HK"], options).train(replace(broadcast, packed=other))


@pytest.mark.parametrize("methods", ["fedavgm", "scaffold"])
def test_a_run_that_goes_on_gives_the_models_of_one_that_was_not_interrupted(
    methods: str, three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    sgd = ("optimizer.name=sgd", "optimizer.lr=0.02", "optimizer.weight_decay=0") if methods == "scaffold" else ()
    job = small_image_job(methods, "schedule.rounds=4", INT8, *sgd)
    whole = run_in_process(job, three_image_sites, tmp_path / "whole")

    def stop(server: Coordinator) -> None:
        if server.round == 3 and len(server.answered) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_in_process(job, three_image_sites, tmp_path / "cut", on_progress=stop)
    again = run_in_process(job, three_image_sites, tmp_path / "cut", resume=True)
    assert_same_models(tmp_path / "whole", tmp_path / "cut")
    assert scores_and_bytes(whole) == scores_and_bytes(again)


@pytest.fixture
def fixed_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise.secrets, "token_bytes", lambda n: bytes(range(n)))


@pytest.mark.usefixtures("fixed_secret")
@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("weights_as", BOTH)
def test_what_is_sent_and_what_is_left_out_are_the_change_that_may_leave(
    weights_as: WeightsAs, noisy: bool, three_sites: dict[str, Path], tmp_path: Path
) -> None:
    """A site's policy acts first: nothing of the change without noise is in the answer or kept for the next."""
    rules = {"weights": {"epsilon": 5, "delta": 1e-3, "clip": 0.1}}
    policy = Policy.parse(rules, where="a site's policy") if noisy else None
    methods = "fedbn" if noisy else "fedavg"
    job, plain = (small_job(methods, f"federation.weights_as={name}") for name in (weights_as, "fp32"))
    _, _, broadcast = begun(job, three_sites, tmp_path)
    received = broadcast.unpacked()
    update, full = (
        Site(j, "HK", three_sites["HK"], SiteOptions(tmp_path / n, policy=policy)).train(b)
        for j, n, b in ((job, "packed", broadcast), (plain, "full", received))
    )
    assert set(update.weights) | set(update.packed) == set(full.weights)
    state = StateStore(tmp_path / "packed" / "HK").before(2)
    assert state is not None and state.residual.keys() == update.packed.keys()
    for key, packed in update.packed.items():
        change = full.weights[key] - received.weights[key]
        np.testing.assert_allclose(packed.unpack() + state.residual[key].numpy(), change, rtol=0, atol=1e-7)
    for key, value in update.weights.items():
        np.testing.assert_array_equal(value, full.weights[key], err_msg=key)


def test_residuals_go_into_the_next_answer(three_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_job("fedavg", INT8, "optimizer.keep=false")
    server, sites, broadcast = begun(job, three_sites, tmp_path)
    for site in sites.values():
        assert server.accept(site.train(broadcast))
    server.close()
    second = server.open(2)
    left = StateStore(tmp_path / "state" / "HK").before(2)
    assert left is not None
    fresh = Site(job, "HK", three_sites["HK"], SiteOptions(tmp_path / "fresh")).train(second)
    after = StateStore(tmp_path / "fresh" / "HK").before(3)
    fed = sites["HK"].train(second)
    rest = StateStore(tmp_path / "state" / "HK").before(3)
    assert after is not None and rest is not None
    for key, packed in fed.packed.items():
        own = fresh.packed[key].unpack() + after.residual[key].numpy()
        total = packed.unpack() + rest.residual[key].numpy()
        np.testing.assert_allclose(total, own + left.residual[key].numpy(), rtol=0, atol=1e-7)


METHODS = ["fedbn", "scaffold", "fednova", "fedsgd", "fraug", "partialfed", "fedavgm", "fedproto+fedrdn", "single"]


@pytest.mark.parametrize("methods", METHODS)
def test_methods_work_with_it(methods: str, three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    sgd = ("optimizer.name=sgd", "optimizer.lr=0.02", "optimizer.weight_decay=0", "optimizer.momentum=0")
    job = small_image_job(methods, "schedule.rounds=3", INT8, *sgd)
    updates: list[Update] = []
    server = run_in_process(job, three_image_sites, tmp_path, on_update=lambda _, update: updates.append(update))
    assert not [fault for record in server.results.rounds for fault in record.rejected]
    net = build_task(job).network()
    loaded = MethodSet(job, net)
    kept = {key for key in loaded.trainable - loaded.withheld if net.state_dict()[key].ndim > 1}
    assert len(updates) == 9
    for update in updates:
        assert update.packed.keys() == kept, "and none of what the method keeps at the site"
        assert not update.weights.keys() & (kept | loaded.withheld)


@pytest.mark.parametrize(
    "options",
    [
        ("federation.robust={rule: median}", "federation.min_sites=3"),
        ("federation.sites_per_round=2", "federation.min_sites=1"),
    ],
)
def test_rules_of_the_federation_work_with_it(
    options: tuple[str, ...], three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    job = small_image_job("fedavg", "schedule.rounds=3", INT8, *options)
    server = run_in_process(job, three_image_sites, tmp_path)
    assert not [fault for record in server.results.rounds for fault in record.rejected]
    assert server.results.final is not None


@pytest.mark.parametrize("option", [INT8, BF16])
def test_it_learns(option: str, three_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_job("fedavg", "schedule.rounds=4", "schedule.local_epochs=3", "optimizer.lr=0.01", option)
    results = run_in_process(job, three_sites, tmp_path).results
    losses = [np.mean([site.train_loss for site in record.sites.values()]) for record in results.rounds]
    assert losses[-1] < 0.6 * losses[0]


def test_sites_own_models_are_what_they_trained_to(three_sites: dict[str, Path], tmp_path: Path) -> None:
    record = cross_site(small_job("fedavg", INT8), three_sites, tmp_path)
    assert {site: set(row) for site, row in record.scores.items()} == {site: set(three_sites) for site in three_sites}


# --- what a server takes --------------------------------------------------------------------------------


def with_packed(update: Update, **changes: Packed | None) -> Update:
    merged: dict[str, Any] = {**update.packed, **{key.replace("__", "."): v for key, v in changes.items()}}
    return replace(update, packed={key: packed for key, packed in merged.items() if packed is not None})


@pytest.mark.parametrize("option", [INT8, BF16])
def test_faulty_packed_updates_are_refused_by_name(option: str, three_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_job("fedavg", option)
    server, sites, broadcast = begun(job, three_sites, tmp_path)
    update = sites["HK"].train(broadcast)
    key = "conv.weight"
    good = update.packed[key]
    value = good.unpack()
    other: WeightsAs = "bf16" if option == INT8 else "int8"
    huge = np.full_like(value, 3e38)
    infinite = Packed(np.full(value.shape, 0x7F80, np.uint16))
    faults: list[tuple[Update, str, str]] = [
        (with_packed(update, conv__weight=None), key, "is missing"),
        (with_packed(update, extra__weight=good), "extra.weight", "is not expected"),
        (with_packed(update, conv__bias=Packed(np.zeros((4, 1), np.uint16))), "conv.bias", "is not expected"),
        (with_packed(update, conv__weight=pack(value, other)), key, "has codes of"),
        (with_packed(update, conv__weight=pack(value[:, :0], job.federation.weights_as)), key, "has shape"),
        (with_packed(update, conv__weight=pack(huge, job.federation.weights_as)), "weights", "moved by"),
        (replace(update, weights={**update.weights, key: value}), key, "came twice"),
        (replace(update, packed={}, weights={**update.weights, key: value}), key, "is missing"),
        (replace(update, round=2), "round", "an answer to round 2"),
    ]
    if option == BF16:
        faults.append((with_packed(update, conv__weight=infinite), key, "NaN or infinity"))
    for number, (faulty, where, reason) in enumerate(faults):
        assert not server.accept(faulty), (number, reason)
        told = server.record.current.rejected[-1]
        assert (told.key == where or number == 7) and reason in told.reason, (number, told)
    assert server.accept(update)


def test_packed_weights_in_a_job_of_full_ones_are_refused(three_sites: dict[str, Path], tmp_path: Path) -> None:
    server, sites, broadcast = begun(small_job("fedavg"), three_sites, tmp_path)
    update = sites["HK"].train(broadcast)
    packed = {"conv.weight": pack(update.weights.pop("conv.weight"), "int8")}
    assert not server.accept(replace(update, packed=packed))
    assert server.rejected["HK"].startswith("conv.weight: ")


def test_the_statistics_round_has_nothing_packed(three_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_job("fedrdn", INT8)
    server = Coordinator(job, tmp_path / "server")
    site = Site(job, "HK", three_sites["HK"], SiteOptions(tmp_path / "state"))
    server.open(0)
    server.register(site.info())
    told = site.statistics()
    assert not server.accept(replace(told, packed={"conv.weight": pack(kernels(), "int8")}))
    assert server.accept(told)


# --- what is told of it ---------------------------------------------------------------------------------


def test_a_dry_run_shows_what_would_leave(tmp_path: Path) -> None:
    data = make_image_site(tmp_path / "data", "A")
    job = small_image_job("fedavg", INT8)
    _, train = dry_run(job, "A", data, tmp_path / "run", settings=SiteSettings())
    items = {item.name.removeprefix("A/"): item for item in train.items}
    codes = [item for name, item in items.items() if name.startswith("packed/codes/")]
    assert codes and all(item.value.dtype == np.int8 for item in codes)
    section = transmitted_data_section("fedavg", job)
    network = [item for name, item in items.items() if name.startswith(("packed/", "weights/"))]
    assert f", {sum(item.bytes for item in network)} bytes" in section
    assert "int8" in section
