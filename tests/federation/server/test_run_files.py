"""A server that dies at the worst moments and goes on from its files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from conftest import small_image_job

from fedshift.federation.model_files import read_model_file
from fedshift.federation.server import run_files
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.server.run_files import NEXT_BEST
from fedshift.federation.server.state_files import FORMER_STATE_FILE, STATE_FILE
from fedshift.schema.messages import Scores, SiteInfo, Update
from fedshift.schema.results import BEST, LAST
from fedshift.tasks.kinds import build_task

ROUNDS = 4
SCORES = {1: (0.6, 0.6, 0.6), 2: (0.5, 0.5, 0.95), 3: (0.4, 0.4, 0.4)}
"""Of the sites A, B and C; over A and B the first round is better than the second, over all three the second."""


class Died(BaseException):
    """In place of a SIGKILL."""


def coordinator(folder: Path) -> Coordinator:
    return Coordinator(small_image_job("fedavg", f"schedule.rounds={ROUNDS}", "federation.min_sites=1"), folder)


def run_round(server: Coordinator, round_: int, sites: Iterable[str] = "ABC") -> None:
    """Sites that move all weights by a thousandth."""
    received = server.open(round_).weights
    metrics = build_task(server.job).metrics
    for number, site in enumerate(sites):
        if round_ == 0:
            server.register(SiteInfo(site, "images", 8, 2, 2, "0" * 64, "by hand"))
            assert server.accept(Update(site=site, round=0, n_samples=8, n_steps=0))
            continue
        weights = {k: v + np.float32(1e-3) if v.dtype.kind == "f" else v for k, v in received.items()}
        scores = dict.fromkeys(metrics, SCORES[round_ - 1][number]) if round_ > 1 else {}
        update = Update(site, round_, 8, 1, weights, {"train_loss": 1.0, **scores})
        assert server.accept(update)
    server.close()


def evaluate(server: Coordinator) -> None:
    metrics = build_task(server.job).metrics

    def answer(round_: int) -> None:
        for site in "ABC":
            values = dict.fromkeys(metrics, 0.3)
            assert server.add_scores(Scores(site, round_, {"val": values, "test": values}))

    server.open(ROUNDS + 1)
    answer(ROUNDS)
    server.close_last()
    best = server.open_best()
    if best is not None:
        answer(best.round - 1)
    server.finish()


def test_a_candidate_of_a_round_that_was_not_closed_is_not_taken_for_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = coordinator(tmp_path)
    for round_ in (0, 1, 2):
        run_round(server, round_)

    def die(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(run_files, "save_state", die)
        with pytest.raises(Died):
            run_round(server, 3)
    assert read_model_file(tmp_path / NEXT_BEST)["round"] == 2

    server = coordinator(tmp_path)
    assert server.resume() == 2
    run_round(server, 3, "AB")
    run_round(server, 4)
    evaluate(server)
    assert server.results.selected is not None
    assert read_model_file(tmp_path / BEST)["round"] == server.results.selected.round == 1


@pytest.mark.parametrize("left", [0, 100, 1000])
def test_a_damaged_state_gives_way_to_the_one_before(
    left: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = coordinator(tmp_path)
    for round_ in (0, 1, 2):
        run_round(server, round_)
    path = tmp_path / STATE_FILE
    path.write_bytes(path.read_bytes()[:left])
    server = coordinator(tmp_path)
    assert server.resume() == 1
    assert f"{STATE_FILE} cannot be read" in caplog.text


def test_a_state_that_was_being_written_gives_way_to_the_one_before(tmp_path: Path) -> None:
    server = coordinator(tmp_path)
    for round_ in (0, 1, 2):
        run_round(server, round_)
    (tmp_path / STATE_FILE).unlink()
    assert (tmp_path / FORMER_STATE_FILE).is_file()
    assert coordinator(tmp_path).resume() == 1


def test_a_lost_best_model_costs_the_best_and_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = coordinator(tmp_path)
    for round_ in (0, 1, 2):
        run_round(server, round_)
    (tmp_path / BEST).write_bytes(b"")
    server = coordinator(tmp_path)
    assert server.resume() == 2
    assert "the model of round 1, the best so far, is lost" in caplog.text
    run_round(server, 3)
    run_round(server, 4)
    evaluate(server)
    assert server.results.selected is not None and server.results.selected.round > 1
    assert read_model_file(tmp_path / LAST)["round"] == ROUNDS


def test_a_best_model_that_is_lost_at_the_end_gives_way_to_the_last(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = coordinator(tmp_path)
    for round_ in range(ROUNDS + 1):
        run_round(server, round_)
    assert 1 <= server.best_round < ROUNDS
    (tmp_path / BEST).unlink()
    evaluate(server)
    assert f"the best model is lost, that of round {ROUNDS} is taken" in caplog.text and BEST in caplog.text
    assert server.results.selected is not None and server.results.selected.round == ROUNDS
    assert read_model_file(tmp_path / BEST)["round"] == ROUNDS
    assert server.results.final is not None and server.results.final.best == server.results.final.last


def test_a_run_that_was_finished_is_known_to_be(tmp_path: Path) -> None:
    server = coordinator(tmp_path)
    for round_ in range(ROUNDS + 1):
        run_round(server, round_)
    evaluate(server)
    again = coordinator(tmp_path)
    again.resume()
    assert again.results.final == server.results.final


def test_no_answer_of_a_single_site_is_left_once_it_is_discarded(tmp_path: Path) -> None:
    server = coordinator(tmp_path)
    run_round(server, 0)
    weights = server.open(1).weights
    assert server.accept(Update("A", 1, 8, 1, weights, {"train_loss": 1.0}))
    assert list(tmp_path.rglob("*.arrays"))
    server.discard_waiting()
    assert not list(tmp_path.rglob("*.arrays"))
