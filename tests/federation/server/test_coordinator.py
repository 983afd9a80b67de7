"""The sequence of a run: which requests the coordinator makes, when it ends, and what each round costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import small_image_job, small_job
from errors import raises

from fedshift.federation.model_files import read_model_file
from fedshift.federation.server.coordinator import Coordinator, Request
from fedshift.federation.server.global_model import GlobalModel
from fedshift.federation.server.update_check import Rejected
from fedshift.methods import fedavg
from fedshift.methods.base import ServerContext
from fedshift.schema import compression
from fedshift.schema.compression import feed_back
from fedshift.schema.errors import QuorumError
from fedshift.schema.messages import MethodArrays, Scores, SiteInfo, Update
from fedshift.schema.results import BEST, LAST, read_results
from fedshift.tasks.kinds import build_task

ROUNDS = 3
BEST_FIRST, BEST_LAST = (0.9, 0.5, 0.4), (0.1, 0.2, 0.3)
"""Validation scores of the models of rounds 1 to 3."""


def coordinator(folder: Path, *options: str, methods: str = "fedavg") -> Coordinator:
    return Coordinator(small_image_job(methods, f"schedule.rounds={ROUNDS}", *options), folder)


def answer(
    server: Coordinator, request: Request, scores: Sequence[float] = BEST_FIRST, sites: Iterable[str] = "ABC"
) -> None:
    """What sites send that move all weights by a thousandth."""
    received = request.broadcast.unpacked().weights
    round_ = request.broadcast.round
    weights_as, names = server.job.federation.weights_as, build_task(server.job).metrics
    for site in sites:
        metrics = dict.fromkeys(names, scores[round_ - 2]) if round_ > 1 else {}
        if request.task == "statistics":
            server.register(SiteInfo(site, "images", 8, 2, 2, "0" * 64, "by hand"))
            assert server.accept(Update(site, 0, 8, 0))
        elif request.task == "train":
            moved = {k: v + np.float32(1e-3) if v.dtype.kind == "f" else v for k, v in received.items()}
            change = {key: moved.pop(key) - received[key] for key in request.broadcast.packed}
            packed, _ = feed_back(change, {}, weights_as) if change else ({}, {})
            arrays = {
                method: {name: np.full(spec.shape, 1e-3, np.float32) for name, spec in named.items()}  # type: ignore[arg-type]
                for method, named in server.update_check.specs.items()
                if named
            }
            assert server.accept(Update(site, round_, 8, 1, moved, {"train_loss": 1.0, **metrics}, arrays, packed))
        else:
            assert server.add_scores(Scores(site, round_ - 1, {"val": metrics, "test": metrics}))


def run(server: Coordinator, scores: Sequence[float] = BEST_FIRST) -> list[tuple[str, int]]:
    asked = []
    for request in server.requests():
        asked.append((request.task, request.broadcast.round))
        answer(server, request, scores)
    return asked


TRAINING = [("statistics", 0), *(("train", round_) for round_ in range(1, ROUNDS + 1))]


def test_the_best_model_is_evaluated_after_the_last_unless_it_is_the_last(tmp_path: Path) -> None:
    first, last = coordinator(tmp_path / "first"), coordinator(tmp_path / "last")
    assert run(first, BEST_FIRST) == [*TRAINING, ("validate", ROUNDS + 1), ("validate", 2)]
    assert run(last, BEST_LAST) == [*TRAINING, ("validate", ROUNDS + 1)]
    for server, best in ((first, 1), (last, ROUNDS)):
        final = server.results.final
        assert final is not None and (final.best.round, final.last.round) == (best, ROUNDS)
        assert read_model_file(server.folder / BEST)["round"] == best
        assert read_model_file(server.folder / LAST)["round"] == ROUNDS


def test_what_a_method_estimates_of_the_sites_parts_is_recorded_each_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the round that was combined, by method; no key beside methods that estimate nothing."""

    def by_round(half: object, ctx: ServerContext) -> dict[str, float]:
        return {"A": 0.5 + ctx.round / 10, "B": 0.5 - ctx.round / 10}

    monkeypatch.setattr(fedavg.Server, "contributions", by_round)
    server = coordinator(tmp_path / "run", methods="fedavg+fedprox")
    run(server)
    recorded = read_results(tmp_path / "run").rounds
    assert [round_.contributions for round_ in recorded] == [
        {"fedavg": {"A": 0.5 + n / 10, "B": 0.5 - n / 10}} for n in (1, 2, 3)
    ]
    monkeypatch.undo()
    plain = coordinator(tmp_path / "plain")
    run(plain)
    assert all(round_.contributions == {} for round_ in plain.results.rounds)


@pytest.mark.parametrize(("metric", "best"), [(None, 1), ("dice_papers", ROUNDS)])
def test_the_job_says_which_score_selects_the_round(metric: str | None, best: int, tmp_path: Path) -> None:
    """The foreground Dice falls from round to round, the papers' Dice rises."""
    options = [f"schedule.rounds={ROUNDS}", *([f"evaluation.metric={metric}"] if metric else [])]
    server = Coordinator(small_job("fedavg", *options), tmp_path)
    for request in server.requests():
        for site in server.invited:
            round_ = request.broadcast.round
            metrics = {"dice": BEST_FIRST[round_ - 2], "dice_papers": BEST_LAST[round_ - 2]} if round_ > 1 else {}
            if request.task == "statistics":
                server.register(SiteInfo(site, "images", 8, 2, 2, "0" * 64, "by hand"))
                assert server.accept(Update(site, 0, 8, 0))
            elif request.task == "train":
                weights = request.broadcast.weights
                assert server.accept(Update(site, round_, 8, 1, weights, {"train_loss": 1.0, **metrics}))
            else:
                assert server.add_scores(Scores(site, round_ - 1, {"val": metrics, "test": metrics}))
    assert server.results.selected is not None and server.results.selected.round == best
    name = metric or "dice"
    assert server.results.job.metric == name and f"validation {name};" in server.results.selected.rule


def test_the_job_says_whether_the_worst_site_selects(tmp_path: Path) -> None:
    server = coordinator(tmp_path, "evaluation.select=worst")
    for round_, (first, second) in enumerate([(0.9, 0.3), (0.5, 0.5)], start=1):
        for site, value in zip(server.job.task.sites, (first, second), strict=False):
            server.record.selection.note(Scores(site, round_, {"val": {server.metric: value}}))
        server.record.selection.consider(round_)
    server.record.select()
    assert server.results.selected is not None and server.results.selected.round == 2
    assert "worst site" in server.results.selected.rule


@pytest.mark.parametrize("asked", [False, True])
def test_test_scores_of_a_round_are_taken_only_if_the_job_asks_for_them(asked: bool, tmp_path: Path) -> None:
    server = coordinator(tmp_path, *(["evaluation.every=2"] if asked else []))
    requests = server.requests()
    for _ in range(2):
        answer(server, next(requests))
    weights = next(requests).broadcast.weights
    metrics = {"train_loss": 1.0, "accuracy": 0.5, "test_accuracy": 0.25}
    assert server.accept(Update("A", 2, 8, 1, weights, metrics)) is asked
    assert server.rejected == ({} if asked else {"A": "metrics.test_accuracy: is not expected"})
    assert not server.accept(Update("B", 2, 8, 1, weights, {**metrics, "test_accuracy": 1.5}))


def test_a_round_is_closed_when_the_next_request_is_taken(tmp_path: Path) -> None:
    server = coordinator(tmp_path)
    requests = server.requests()
    for round_ in range(ROUNDS + 1):
        request = next(requests)
        assert (server.round, server.next_round) == (round_, round_)
        answer(server, request)
        assert len(server.results.rounds) == max(round_ - 1, 0) and list(tmp_path.rglob("*.arrays"))
    next(requests)
    assert len(server.results.rounds) == ROUNDS and not list(tmp_path.rglob("*.arrays"))


@pytest.mark.parametrize(
    ("at", "what"),
    [(0, "the statistics round"), (2, "round 2"), (ROUNDS + 1, "the evaluation of the last model")],
)
def test_too_few_answers_end_the_run_at_the_next_request(at: int, what: str, tmp_path: Path) -> None:
    server = coordinator(tmp_path, "federation.min_sites=3")
    requests = server.requests()
    for round_ in range(at):
        answer(server, next(requests))
        assert server.usable == server.needed == 3, round_
    answer(server, next(requests), sites="A")
    server.reject("B", "train", "the disk is full")
    before = {key: value.copy() for key, value in server.model.weights.items()}
    with pytest.raises(QuorumError) as raised:
        next(requests)
    message = str(raised.value)
    assert message.startswith(f"{what}: 1 usable answers, 3 needed")
    assert "B (train:" in message and "C (no answer yet)" in message
    assert all(np.array_equal(value, before[key]) for key, value in server.model.weights.items())


def test_a_round_is_hopeless_once_too_many_sites_are_rejected(tmp_path: Path) -> None:
    server = coordinator(tmp_path, "federation.min_sites=2")
    next(server.requests())
    server.reject("A", "statistics", "the disk is full")
    assert not server.hopeless
    server.reject("B", "statistics", "the disk is full")
    assert server.hopeless


@pytest.mark.parametrize("answered", [True, False])
def test_a_site_that_may_not_take_part_is_taken_out_with_what_it_has_sent(answered: bool, tmp_path: Path) -> None:
    server, without = (coordinator(tmp_path / name, "federation.min_sites=2") for name in ("with", "without"))
    for one in (server, without):
        requests = one.requests()
        answer(one, next(requests))
        request = next(requests)
        answer(one, request, sites="ABC" if answered and one is server else "AB")
        one.take_out("C", "disabled", "by admin")
        one.take_out("C", "disabled", "by admin")
        assert one.answered == ["A", "B"] and one.rejected == {"C": "disabled: by admin"}
        next(requests)
        assert set(one.results.rounds[0].sites) == {"A", "B"} and one.results.rounds[0].absent == ["C"]
    assert all(np.array_equal(value, without.model.weights[key]) for key, value in server.model.weights.items())


def test_no_validation_data_are_found_missing_before_the_first_training_round(tmp_path: Path) -> None:
    server = coordinator(tmp_path)
    requests = server.requests()
    next(requests)
    for site in "ABC":
        server.register(SiteInfo(site, "images", 8, 0, 2, "0" * 64, "by hand"))
        assert server.accept(Update(site, 0, 8, 0))
    with raises("no-validation-data"):
        next(requests)


def test_a_site_whose_data_are_of_another_kind_is_left_out(tmp_path: Path) -> None:
    """Whatever the order of the answers: the smaller part is left out, and the run goes on."""
    server = coordinator(tmp_path, "federation.min_sites=2")
    requests = server.requests()
    next(requests)
    for site, kind in (("A", "phantom"), ("B", "patients"), ("C", "patients")):
        server.register(SiteInfo(site, kind, 8, 2, 2, "0" * 64, "by hand"))
        assert server.accept(Update(site, 0, 8, 0))
    request = next(requests)
    (rejection,) = server.results.statistics.rejected
    assert (rejection.site, rejection.key) == ("A", "info") and "kind phantom" in rejection.reason
    assert sorted(server.results.data) == sorted(server.results.machines) == ["B", "C"]
    with pytest.raises(Rejected) as caught:
        server.register(SiteInfo("A", "phantom", 8, 2, 2, "0" * 64, "by hand"))
    assert caught.value.key == "info"
    answer(server, request, sites="BC")
    next(requests)
    assert list(server.results.rounds[0].sites) == ["B", "C"]


def test_of_as_many_simulated_as_real_sites_the_real_ones_stay(tmp_path: Path) -> None:
    server = coordinator(tmp_path, "federation.min_sites=1")
    requests = server.requests()
    next(requests)
    for site, kind in (("A", "phantom"), ("B", "images")):
        server.register(SiteInfo(site, kind, 8, 2, 2, "0" * 64, "by hand"))
    assert server.accept(Update("B", 0, 8, 0)) and not server.accept(Update("A", 0, 7, 0))
    next(requests)
    assert list(server.results.data) == ["B"]


@pytest.mark.parametrize("interrupted", [*range(ROUNDS + 1), ROUNDS + 1, ROUNDS + 2])
def test_a_resumed_run_repeats_the_interrupted_request_and_ends_with_the_same_files(
    interrupted: int, tmp_path: Path
) -> None:
    options = ("federation.weights_as=int8",)
    expected = coordinator(tmp_path / "whole", *options, methods="scaffold")
    asked = run(expected)
    cut = coordinator(tmp_path / "cut", *options, methods="scaffold")
    requests = cut.requests()
    for _ in range(interrupted):
        answer(cut, next(requests))
    answer(cut, next(requests), sites="A")

    again = coordinator(tmp_path / "cut", *options, methods="scaffold")
    assert again.resume() == min(interrupted - 1, ROUNDS)
    # The final evaluation is repeated as a whole: its scores are not part of the state.
    assert run(again) == asked[min(interrupted, ROUNDS + 1) :]
    assert again.results.final == expected.results.final
    for file in (BEST, LAST):
        one, other = (read_model_file(tmp_path / folder / file) for folder in ("whole", "cut"))
        assert one["round"] == other["round"]
        for key, value in one["weights"].items():
            assert value.equal(other["weights"][key])


FALLING = (0.9, 0.5, 0.4, 0.3, 0.2, 0.1)
PATIENT = ("schedule.rounds=6", "schedule.patience=1", "federation.model_average=0.5")


def test_a_run_ends_when_the_score_has_not_risen_for_as_long_as_the_job_is_patient(tmp_path: Path) -> None:
    server, short = coordinator(tmp_path / "early", *PATIENT), coordinator(tmp_path / "short", PATIENT[-1])
    assert run(server, FALLING) == [*TRAINING, ("validate", 4), ("validate", 2)] == run(short, FALLING)
    final = server.results.final
    assert final is not None and (final.best.round, final.last.round) == (1, 3)
    early, planned = (read_model_file(tmp_path / folder / LAST)["weights"] for folder in ("early", "short"))
    assert all(value.equal(early[key]) for key, value in planned.items()), "the last model is the average here too"
    rising = coordinator(tmp_path / "rising", *PATIENT)
    assert len(run(rising, FALLING[::-1])) == 1 + 6 + 1


@pytest.mark.parametrize("interrupted", range(6))
def test_a_resumed_run_ends_early_too(interrupted: int, tmp_path: Path) -> None:
    asked = run(coordinator(tmp_path / "whole", *PATIENT), FALLING)
    cut = coordinator(tmp_path / "cut", *PATIENT)
    requests = cut.requests()
    for _ in range(interrupted):
        answer(cut, next(requests), FALLING)
    next(requests)
    again = coordinator(tmp_path / "cut", *PATIENT)
    again.resume()
    assert run(again, FALLING) == asked[min(interrupted, 4) :]


def test_a_run_that_ended_early_has_ended_when_it_is_resumed_though_its_last_round_is_the_best(tmp_path: Path) -> None:
    at_the_end = (0.8, 0.5, 0.9, 0.3, 0.2, 0.1)
    asked = run(coordinator(tmp_path, *PATIENT), at_the_end)
    again = coordinator(tmp_path, *PATIENT)
    assert (again.resume(), again.rounds, again.best_round) == (3, 3, 3)
    assert run(again, at_the_end) == asked[len(TRAINING) :], "nothing is trained"


def test_a_resumed_run_says_with_which_versions_it_was_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def go_on(torch: str | None) -> dict[str, str]:
        """The versions after one more round by a process with this version of torch."""
        server = coordinator(tmp_path, "schedule.rounds=6")
        if torch is not None:
            server.results.versions["torch"] = torch
        server.resume()
        requests = server.requests()
        answer(server, next(requests), FALLING)
        next(requests)
        return read_results(tmp_path).versions

    first = go_on(None)
    assert go_on(None) == first and not caplog.text
    present = first["torch"]
    assert go_on("9.9.9") == go_on("9.9.9") == first | {"torch": f"{present}, then 9.9.9"}
    assert caplog.text.count("other versions") == 1
    assert f"torch 9.9.9 (before: {present})" in caplog.text
    assert go_on(None)["torch"] == f"{present}, then 9.9.9, then {present}"


def test_another_jobs_state_is_not_resumed(tmp_path: Path) -> None:
    run(coordinator(tmp_path))
    with raises("other-job"):
        coordinator(tmp_path, "federation.min_sites=1").resume()


def test_a_run_that_starts_anew_leaves_nothing_to_resume(tmp_path: Path) -> None:
    run(coordinator(tmp_path))
    server = coordinator(tmp_path)
    server.start_anew()
    assert server.resume() == -1 and not list(tmp_path.glob("*.pt")) and not list(tmp_path.glob("*.json"))


def test_the_statistics_round_sends_no_model(tmp_path: Path) -> None:
    broadcast = next(coordinator(tmp_path, "federation.weights_as=int8").requests()).broadcast
    assert (broadcast.weights, broadcast.packed, broadcast.arrays) == ({}, {}, {})
    assert broadcast.sites == ("A", "B", "C")


@pytest.mark.parametrize("scores", [BEST_FIRST, BEST_LAST], ids=["best first", "best last"])
@pytest.mark.parametrize("weights_as", ["int8", "bf16"])
def test_what_a_round_sends_is_packed_and_made_once(
    weights_as: str, scores: tuple[float, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes to the sites, into the last model's file and, where it is the best, into that one's too."""
    packings: Counter[int] = Counter()
    counts: Counter[int] = Counter()
    pack, arrays = compression.pack, GlobalModel._arrays
    server = coordinator(tmp_path, f"federation.weights_as={weights_as}", methods="scaffold")

    def counted_pack(array: np.ndarray, *args: Any) -> compression.Packed:
        packings[server.round] += 1
        return pack(array, *args)

    def counted_arrays(model: GlobalModel, round_: int) -> MethodArrays:
        counts[round_] += 1
        return arrays(model, round_)

    monkeypatch.setattr(GlobalModel, "_arrays", counted_arrays)
    for request in server.requests():
        with monkeypatch.context() as patch:  # the sites pack their answers
            patch.setattr("fedshift.schema.compression.pack", pack)
            answer(server, request, scores)
        monkeypatch.setattr("fedshift.schema.compression.pack", counted_pack)
    n_packed = len(server.model.packed_keys)
    assert n_packed > 0
    assert counts == {round_: 1 for round_ in range(1, ROUNDS + 2)}
    # A model is packed when its round closes; round 1 sends what is packed as it opens.
    evaluated_again = n_packed if scores == BEST_FIRST else 0
    assert sum(packings.values()) == n_packed * (ROUNDS + 1) + evaluated_again
