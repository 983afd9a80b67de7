"""Which sites a round asks and how many of them may fail."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from conftest import SHAPES

from fedshift.federation.resolve import resolve
from fedshift.federation.server.quorum import Quorum
from fedshift.schema.errors import QuorumError
from fedshift.schema.job import JobSpec

ROUNDS = 20
EVALUATION = ROUNDS + 1


def job(*options: str, seed: int = 0, held_out: Sequence[str] = ()) -> JobSpec:
    return resolve(str(SHAPES), "fedavg", held_out=held_out, options=[f"schedule.rounds={ROUNDS}", *options], seed=seed)


def drawn(job: JobSpec) -> list[tuple[str, ...]]:
    return [Quorum(job).invited(round_) for round_ in range(1, ROUNDS + 1)]


def test_sites_are_drawn_for_training_rounds_only() -> None:
    quorum = Quorum(job("federation.sites_per_round=2"))
    assert quorum.samples_sites
    assert quorum.invited(0) == quorum.invited(EVALUATION) == ("A", "B", "C")
    assert {*drawn(job("federation.sites_per_round=2"))} == {("A", "B"), ("A", "C"), ("B", "C")}


def test_the_draw_depends_on_the_jobs_seed_and_the_round_alone() -> None:
    option = "federation.sites_per_round=2"
    assert drawn(job(option)) == drawn(job(option))
    assert drawn(job(option)) != drawn(job(option, seed=1))


def test_a_draw_of_all_sites_is_none() -> None:
    quorum = Quorum(job("federation.sites_per_round=3"))
    assert not quorum.samples_sites and quorum.invited(1) == ("A", "B", "C")


def test_as_many_sites_may_fail_where_all_are_asked_as_in_a_drawn_round() -> None:
    quorum = Quorum(job("federation.sites_per_round=2", "federation.min_sites=1"))
    assert [quorum.needed(round_) for round_ in (0, 1, EVALUATION)] == [2, 1, 2]


def test_held_out_sites_are_asked_in_the_evaluation_and_do_not_count() -> None:
    quorum = Quorum(job("federation.min_sites=2", held_out=["C"]))
    assert quorum.invited(1) == ("A", "B") and quorum.invited(EVALUATION) == ("A", "B", "C")
    assert quorum.needed(EVALUATION) == 2 and quorum.usable(["A", "C"]) == 1
    with pytest.raises(QuorumError, match=r"1 usable answers, 2 needed; without B \(no answer yet\);"):
        quorum.require(EVALUATION, 1, answered=["A", "C"], rejected={}, what="the evaluation")


def test_a_site_that_answered_after_a_rejected_try_is_not_lost() -> None:
    quorum = Quorum(job("federation.min_sites=3"))
    assert quorum.is_out_of_reach(1, answered=[], rejected=["A"])
    assert not quorum.is_out_of_reach(1, answered=["A"], rejected=["A"])
