"""What ``show_stats`` says at the server and at a site, moment by moment."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import small_image_job
from nvflare.apis.fl_context import FLContext
from nvflare.widgets.info_collector import GroupInfoCollector, InfoCollector

from fedshift.federation.server.coordinator import Coordinator
from fedshift.flare import codec
from fedshift.flare.stats import GROUP, WATCHED, SiteWork, add_stats, server_stats
from fedshift.flare.workflow import FedshiftWorkflow
from fedshift.reporting.progress import FILE_NAME, Progress, ProgressFile, read_progress
from fedshift.schema.messages import Answer, Failure, Update

MOMENT = Progress(
    step="training",
    round=5,
    rounds=40,
    sites=["A", "B", "C"],
    sites_in=["C"],
    rejected={"B": "weights.conv1.weight: holds NaN"},
    metric="dice",
    score_round=3,
    score=0.81249,
    best_round=2,
    best_score=0.83333,
    seconds_per_round=12.0,
    seconds_left=200.0,
)


def test_a_round_in_progress() -> None:
    assert server_stats(MOMENT) == {
        "round": "5 of 40",
        "sites in": "C",
        "sites awaited": "A",
        "sites left out of this round": "B (weights.conv1.weight: holds NaN)",
        "mean validation dice": "0.8125 (round 3)",
        "best so far": "0.8333 (round 2)",
        "time left": "about 3 min 20 s",
    }


@pytest.mark.parametrize(
    ("changes", "key", "text"),
    [
        ({"step": "statistics"}, "round", "statistics, before round 1 of 40"),
        ({"step": "evaluation"}, "round", "last evaluation, after round 40 of 40"),
        ({"sites_in": []}, "sites in", "none"),
        ({"sites_in": ["A", "C"]}, "sites awaited", "none"),
        ({"rejected": {}}, "sites left out of this round", "none"),
        ({"score": None, "score_round": None}, "mean validation dice", "no round scored yet"),
        ({"best_score": None}, "best so far", "no round scored yet"),
        ({"seconds_left": None}, "time left", "not known before round 1 is over"),
        ({"phantom": True}, "data", "the phantom: simulated scans, not patients"),
        ({"state": "failed", "reason": "the disk is full"}, "state", "failed the disk is full"),
    ],
)
def test_other_moments(changes: dict[str, object], key: str, text: str) -> None:
    assert server_stats(MOMENT.model_copy(update=changes))[key] == text


def test_progress_names_who_was_left_out_of_the_open_round_only(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path)
    coordinator = Coordinator(small_image_job("fedavg"), tmp_path, on_progress=file.update)
    coordinator.open(1)
    coordinator.reject("B", "round", "is 7, not 1")
    progress = read_progress(tmp_path)
    assert progress is not None and progress.rejected == {"B": "round: is 7, not 1"}
    coordinator.open(2)
    progress = read_progress(tmp_path)
    assert progress is not None and progress.rejected == {}


def write(file: ProgressFile) -> None:
    """This moment of a run, which it would take a run to get to."""
    file._write(MOMENT)


def test_the_time_left_goes_on_between_two_notes(tmp_path: Path) -> None:
    now = [50.0]
    file = ProgressFile(tmp_path, clock=lambda: now[0])
    assert file.latest() is None
    write(file)
    now[0] += 30
    latest = file.latest()
    assert latest is not None and latest.seconds_left == 170
    now[0] += 1000
    latest = file.latest()
    assert latest is not None and latest.seconds_left == 0


def collected(component: FedshiftWorkflow, event_type: str) -> dict[str, dict[str, str]]:
    fl_ctx, collector = FLContext(), GroupInfoCollector()
    fl_ctx.set_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR, collector, sticky=False, private=True)
    component.handle_event(event_type, fl_ctx)
    info: dict[str, dict[str, str]] = collector.info
    return info


def test_the_workflow_answers_the_console_and_nothing_else(tmp_path: Path) -> None:
    workflow = FedshiftWorkflow()
    assert collected(workflow, InfoCollector.EVENT_TYPE_GET_STATS) == {
        GROUP: {"round": "not begun"},
        WATCHED: {FILE_NAME: ""},
    }
    workflow.progress = progress = ProgressFile(tmp_path)
    write(progress)
    told = collected(workflow, InfoCollector.EVENT_TYPE_GET_STATS)
    assert told[GROUP]["round"] == "5 of 40"
    assert json.loads(told[WATCHED][FILE_NAME])["sites_in"] == ["C"]
    assert collected(workflow, "another event") == {}


def update(metrics: dict[str, float]) -> Answer:
    return Answer(Update("A", 3, 7, 2, {"w": np.zeros(1)}, metrics))


def test_a_site_says_what_it_works_on_and_repeats_its_last_answer() -> None:
    now = [0.0]
    work = SiteWork(clock=lambda: now[0])

    def shown() -> tuple[str, str]:
        stats = work.stats()
        assert list(stats) == ["at work on", "last answer"]
        return stats["at work on"], stats["last answer"]

    waiting, none = shown()
    assert "waiting" in waiting and none == "none"
    work.begin(codec.TRAIN, 3)
    now[0] += 75
    assert shown() == ("round 3, for 1 min 15 s", none)
    work.end([update({"train_loss": 0.25, "seconds": 74.0})])
    assert shown() == (waiting, "round 3 in 1 min 15 s, loss 0.2500")
    work.begin(codec.UNMASK, 3)
    assert "sum of round 3" in shown()[0]
    work.end([update({"accuracy": 0.987})])
    assert not any(word in shown()[1] for word in ("0.98", "loss")), "what the gate took out is not repeated"
    work.begin(codec.VALIDATE, 4)
    work.end([Answer(Failure("A", 4, "DataError (x)"))])
    assert shown()[1] == "evaluation in 0 s, failed: DataError (x)"


def test_add_stats_asks_for_nothing_at_other_events() -> None:
    add_stats("another event", FLContext(), lambda: pytest.fail("asked"))
