"""Cells as processes: shared, interrupted, failing, and more than one command at a time."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from errors import raises

from fedshift import cli
from fedshift.federation.server.coordinator import Coordinator
from fedshift.schema.results import read_results
from fedshift_bench import collect, runner
from fedshift_bench.cell_run import EXIT_FAILED, run_cell
from fedshift_bench.cells import Cell, make_cells
from fedshift_bench.collect import Collector
from fedshift_bench.compare import describe
from fedshift_bench.estimate import Estimate
from fedshift_bench.record import read_comparison, write_comparison
from fedshift_bench.spec import read_spec
from fedshift_bench.store import (
    DONE_FILE,
    LOG_FILE,
    RUN_FOLDER,
    STATUS_FILE,
    Status,
    Store,
    is_locked,
    lock_cell,
    read_outcome,
    read_status,
)
from fedshift_bench.tables import make_tables

from .conftest import Ended, run_here
from .made import cells_of, made, work_of, write_spec

ONE = {"method": {"FedAvg": {"methods": "fedavg"}}}


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes of a test, ended whatever happens."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()
        if process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.close()


def start_cell(folder: Path, started: list[subprocess.Popen[bytes]], *, share: float) -> subprocess.Popen[bytes]:
    """A child that runs the cell in ``folder``, once it has come so far."""
    command = [sys.executable, "-m", "fedshift_bench.cell_run", str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    started.append(process)
    until = time.monotonic() + 60
    while read_status(folder).share < share:
        assert process.poll() is None and time.monotonic() < until, "the cell has ended too early"
        time.sleep(0.05)
    return process


def flat(_: Cell) -> Estimate:
    """Every cell takes as long."""
    return Estimate(1.0, 2**20)


@pytest.mark.slow
def test_a_command_from_the_spec_to_the_tables(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    axes = {
        "method": {
            "FedAvg": {"methods": "fedavg"},
            "by another name": {"methods": "fedavg"},
            "too fast": {"methods": "fedavg", "options": {"optimizer.lr": 1.0e38}},
        }
    }
    spec = write_spec(home, axes=axes, tests=[["FedAvg", "by another name"]])
    assert cli.main(["compare", str(spec), "--jobs", "2"]) == 1
    shown = capsys.readouterr().out
    assert all(part in shown for part in ("3 of 3 cells, 1 of", "; 0 are", "too fast, seed 0: ", "loss is nan"))
    assert "1 of 3 cells failed" in shown
    cells = home / "runs" / "cells"
    assert len(list(cells.glob("*/cell.json"))) == 2 and len(list(cells.glob(f"*/{DONE_FILE}"))) == 1
    comparison = read_comparison(home / "runs" / "small")
    first, same, failed = comparison.cells
    assert first.key == same.key and first.scores == same.scores and failed.state == "failed"
    assert "loss is nan" in failed.reason
    results = read_results(next(cells.glob(f"*/{DONE_FILE}")).parent / RUN_FOLDER)
    assert results.final is not None and results.selected is not None
    assert first.selected == {"": results.selected.round}
    for site, splits in results.final.best.sites.items():
        scores = first.scores["best"]["test"][site]
        assert {key: scores[key] for key in splits["test"]} == splits["test"]
    assert len(first.curve) == 2 and first.curve[-1] is not None
    with (home / "runs" / "small" / "table.csv").open(encoding="utf-8") as file:
        lines = {(line["method"], line["column"]): line["value"] for line in csv.DictReader(file)}
    with (home / "runs" / "small" / "curves.csv").open(encoding="utf-8") as file:
        curves = [float(line["score"]) for line in csv.DictReader(file) if line["method"] == "by another name"]
    assert curves == pytest.approx([100 * value for value in same.curve if value is not None], rel=1e-5)
    mean = sum(scores["accuracy"] for scores in first.scores["best"]["test"].values()) / 3
    assert float(lines["by another name", "average"]) == pytest.approx(100 * mean, rel=1e-5)
    assert lines["too fast", "average"] == ""
    assert (
        not list(cells.glob(f"*/{RUN_FOLDER}/site_state/*/*"))
        or (cells / failed.key / RUN_FOLDER / "site_state").exists()
    )
    before = {path: path.stat().st_mtime_ns for path in cells.glob(f"*/{DONE_FILE}")}
    axes["method"]["too fast"]["options"] = {"optimizer.lr": 0.01}
    monkeypatch.setattr(runner, "start_child", run_here)
    assert cli.main(["compare", str(write_spec(home, axes=axes)), "--only", "too fast"]) == 0
    assert "1 of 3 cells" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len(list(cells.glob(f"*/{DONE_FILE}"))) == 2
    told = read_comparison(home / "runs" / "small")
    assert [cell.state for cell in told.cells] == ["done"] * 3
    for path in cells.glob("*/cell.json"):
        path.unlink()
    assert cli.main(["compare", str(spec), "--tables-only"]) == 0
    assert cli.main(["compare", str(home / "runs" / "small"), "--tables-only", "--out", str(home / "new")]) == 0
    assert (home / "new" / "table.md").read_text() == (home / "runs" / "small" / "table.md").read_text()
    assert "Two methods: accuracy" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("cells_run_here")
def test_settings_are_trained_side_by_side_and_the_best_on_validation_is_shown(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"schedule.rounds": 6, "schedule.local_epochs": 3, "optimizer.lr": 0.0001}
    tuning = {"draws": 2, "options": {"optimizer.lr": {"kind": "choice", "values": [0.05]}}}
    spec = write_spec(home, axes={"method": {"FedBN": {"methods": "fedbn"}}}, tuning=tuning, options=options)
    assert cli.main(["compare", str(spec), "--dry-run"]) == 0
    assert "2 of 2 cells" in capsys.readouterr().out
    assert cli.main(["compare", str(spec), "--jobs", "2"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 of 2 (optimizer.lr=0.05); averages" in shown
    first, other = read_comparison(home / "runs" / "small").cells
    assert (first.draw, other.draw, other.drawn) == (0, 1, {"optimizer.lr": 0.05})
    assert first.validation is not None and other.validation is not None and first.validation < other.validation
    best = [values["accuracy"] for values in read_results_of(home, other.key)]
    assert other.validation == pytest.approx(sum(best) / 3)


def read_results_of(home: Path, key: str) -> list[dict[str, float]]:
    """The validation scores of a cell's best round, by site."""
    final = read_results(home / "runs" / "cells" / key / RUN_FOLDER).final
    assert final is not None
    return [splits["val"] for splits in final.best.sites.values()]


@pytest.mark.slow
def test_a_killed_cell_goes_on_where_it_was(
    home: Path, monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[bytes]]
) -> None:
    options = {"schedule.rounds": 24}
    (cell,) = cells_of(home, axes=ONE, options=options)
    folder, whole = Store(home / "cut").prepare(work_of(cell)), Store(home / "whole").prepare(work_of(cell))
    start_cell(folder, started, share=0.1).kill()
    started[0].wait()
    assert not is_locked(folder) and not (folder / DONE_FILE).exists()
    opened: list[int] = []
    original = Coordinator.open
    monkeypatch.setattr(Coordinator, "open", lambda self, r: (opened.append(r), original(self, r))[1])
    run_cell(folder)
    assert opened[0] > 1 and opened[-1] == 25
    run_cell(whole)
    assert read_results(folder / RUN_FOLDER).final == read_results(whole / RUN_FOLDER).final
    opened.clear()
    run_cell(folder)
    assert opened == []


@pytest.mark.slow
def test_a_cell_that_another_process_runs_is_waited_for(home: Path, started: list[subprocess.Popen[bytes]]) -> None:
    (cell,) = cells_of(home, axes=ONE, options={"schedule.rounds": 16})
    store = Store(home / "cells")
    folder = store.prepare(work_of(cell))
    other = start_cell(folder, started, share=0.05)
    with raises("cell-busy", naming=str(other.pid)):
        run_cell(folder)
    states = set()
    jobs = runner.make_queue([cell], store, flat)
    runner.run(
        jobs,
        store,
        max_parallel=1,
        on_poll=lambda progress: states.add(progress.entries[0].state),
        on_end=lambda job: None,
    )
    assert jobs[0].state == "done" and states == {"elsewhere", "done"}
    assert not (folder / LOG_FILE).exists()  # no child of this process has run it


def test_a_lock_that_a_dead_process_left_holds_nothing(home: Path) -> None:
    (cell,) = cells_of(home, axes=ONE)
    folder = Store(home / "cells").prepare(work_of(cell))
    (folder / "lock").write_text('{"pid": 1}\n', encoding="utf-8")
    assert not is_locked(folder)
    with lock_cell(folder):
        assert is_locked(folder)
    assert not is_locked(folder)


@pytest.mark.slow
def test_a_child_ends_with_its_parent(home: Path, started: list[subprocess.Popen[bytes]]) -> None:
    (cell,) = cells_of(home, axes=ONE, options={"schedule.rounds": 500})
    folder = Store(home / "cells").prepare(work_of(cell))
    child = start_cell(folder, started, share=0.001)
    assert child.stdin is not None
    child.stdin.close()  # as the system does when the parent has gone
    assert child.wait(timeout=120) == EXIT_FAILED
    assert not is_locked(folder)


@pytest.mark.slow
def test_an_interrupt_leaves_no_process_behind(home: Path) -> None:
    cells = cells_of(home, axes=ONE, options={"schedule.rounds": 500}, seeds=[0, 1])
    store = Store(home / "cells")
    jobs = runner.make_queue(cells, store, flat)
    pids: list[int] = []

    def look(progress: runner.GridProgress) -> None:
        if progress.count("running") == 2 and all(job.share > 0 for job in jobs):
            pids.extend(job.process.pid for job in jobs if job.process is not None)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run(jobs, store, max_parallel=2, on_poll=look, on_end=lambda job: None)
    assert len(pids) == 2 and not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.slow
def test_a_cell_that_starts_again_does_not_show_how_far_it_had_come(home: Path) -> None:
    (cell,) = cells_of(home, axes=ONE)
    store = Store(home / "cells")
    (store.prepare(work_of(cell)) / STATUS_FILE).write_text(Status(share=0.95, seconds=7).model_dump_json())
    entries = runner.make_queue([cell], store, flat)
    shares: list[float] = []
    runner.run(
        entries, store, max_parallel=1, on_poll=lambda _: shares.append(entries[0].share), on_end=lambda job: None
    )
    assert 0.95 not in shares and shares == sorted(shares) and shares[-1] == 1
    assert read_outcome(store.folder_of(work_of(cell))).seconds > 7, "the time of the interrupted run counts"


def test_a_cell_with_a_result_is_whole_while_its_process_still_ends(home: Path) -> None:
    (cell,) = cells_of(home, axes=ONE)
    store = Store(home / "cells")
    (entry,) = runner.make_queue([cell], store, flat)
    run_cell(store.prepare(work_of(cell)))
    entry.process, entry.state, entry.share = Ended(code=None), "running", 0.9  # type: ignore[assignment]
    assert not runner.poll_child(entry, store) and entry.share == 1.0


def test_a_child_that_was_killed_is_a_failed_cell(home: Path) -> None:
    (cell,) = cells_of(home, axes=ONE, options={"schedule.rounds": 500})
    store = Store(home / "cells")
    jobs = runner.make_queue([cell], store, flat)

    def look(progress: runner.GridProgress) -> None:
        process = jobs[0].process
        if process is not None and process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)

    runner.run(jobs, store, max_parallel=1, on_poll=look, on_end=lambda job: None)
    assert jobs[0].state == "failed" and "memory ran out" in jobs[0].reason


def test_no_more_cells_run_than_memory_allows(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = cells_of(home, axes=ONE, seeds=[0, 1, 2])
    store = Store(home / "cells")
    most: list[int] = []

    class Child:
        """Ends well after two looks."""

        stdin = None

        def __init__(self, job: runner.QueueEntry) -> None:
            assert job.cell.work is not None
            self.pid, self._left, self._folder = os.getpid(), 2, store.prepare(job.cell.work)

        def poll(self) -> int | None:
            self._left -= 1
            if self._left:
                return None
            (self._folder / DONE_FILE).touch()
            return 0

    def start(job: runner.QueueEntry, store: Store, max_parallel: int) -> None:
        job.process, job.state = Child(job), "running"  # type: ignore[assignment]

    monkeypatch.setattr(runner, "start_child", start)
    monkeypatch.setattr(runner, "POLL_INTERVAL", 0.0)
    monkeypatch.setattr(runner, "resident_bytes", lambda job: 0)
    for free, expected in ((2.5 * 2**30, 1), (5.0 * 2**30, 2), (50.0 * 2**30, 3), (0, 1)):
        jobs = runner.make_queue(cells, store, lambda cell: Estimate(1.0, 2 * 2**30))
        most.clear()
        runner.run(
            jobs,
            store,
            max_parallel=3,
            on_poll=lambda progress: most.append(progress.count("running")),
            on_end=lambda job: None,
            memory=lambda free=free: int(free),  # type: ignore[misc]
        )
        assert max(most) == expected and all(job.state == "done" for job in jobs)
        for path in store.folder.glob(f"*/{DONE_FILE}"):
            path.unlink()


def test_every_kind_of_run_has_its_scores(home: Path) -> None:
    axes = {
        "how": {
            "held out": {"methods": "fedavg", "held_out": ["C"]},
            "personal": {"methods": "pfedavg"},
            "pooled": {"methods": "all"},
            "each": {"methods": "fedavg", "run": "leave_one_out"},
            "local": {"methods": "fedavg", "run": "cross_site"},
        }
    }
    path = write_spec(home, axes=axes, options={"schedule.rounds": 1}, part=["test", "held_out"], model="personal")
    spec, scale = read_spec(path)
    cells, store = make_cells(spec, folder=home), Store(home / "cells")
    for cell in cells:
        run_cell(store.prepare(work_of(cell)))
    told = Collector(spec, scale, cells, store, folder=home).collect()
    held_out, personal, pooled, each, local = told.cells
    assert held_out.shown == {"test": ["A", "B"], "held_out": ["C"]}
    run = {cell.labels["how"]: store.folder_of(work_of(cell)) / RUN_FOLDER for cell in cells if cell.work is not None}
    final = read_results(run["held out"]).final
    assert final is not None
    assert held_out.site_scores("best", "held_out", "accuracy") == {"C": final.best.held_out["C"]["all"]["accuracy"]}
    final_scores = read_results(run["personal"]).final
    assert final_scores is not None and final_scores.fine_tuned
    assert personal.site_scores("personal", "test", "accuracy") == {
        s: m["accuracy"] for s, m in final_scores.personal.items()
    }
    assert pooled.site_scores("personal", "test", "accuracy") == pooled.site_scores("best", "test", "accuracy") != {}
    assert list(each.site_scores("best", "held_out", "accuracy")) == ["A", "B", "C"] and set(each.selected) == set(
        "ABC"
    )
    table = json.loads((run["local"] / "cross_site.json").read_text(encoding="utf-8"))["scores"]
    assert local.site_scores("best", "test", "accuracy")["A > C"] == table["A"]["C"]["accuracy"]
    assert local.shown["test"] == ["A > B", "A > C", "B > A", "B > C", "C > A", "C > B"]
    assert all(cell.state == "done" and cell.seconds for cell in told.cells)
    assert all(cell.validation is not None for cell in told.cells), "a held-out site has none to give"


def test_columns_may_be_the_domains_that_sites_are_parts_of(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"schedule.rounds": 1, "evaluation.gradient_norm": True, "domains": {"near": ["A", "B"]}}
    changes = {"options": options, "metric": "gradient_norm", "model": "last", "held_out": ["C"]}
    path = write_spec(home, axes=ONE, part=["domains", "held_out"], summaries=["everywhere"], **changes)
    spec, scale = read_spec(path)
    (cell,), store = make_cells(spec, folder=home), Store(home / "cells")
    run_cell(store.prepare(work_of(cell)))
    told = Collector(spec, scale, [cell], store, folder=home).collect()
    (table,) = make_tables(told)
    final = read_results(store.folder_of(work_of(cell)) / RUN_FOLDER).final
    assert final is not None
    near, far = final.last.domain_gradient_norms["near"], final.last.evaluations["C"]["all"].gradient_norm
    assert list(table.columns) == ["near", "C", "everywhere"]
    assert [entry.mean for entry in table.rows["FedAvg"]] == [near, far, (near + (far or 0.0)) / 2]
    assert cli.main(["compare", str(path), "--flare"]) == 2
    assert "[options-together]" in capsys.readouterr().err


def test_a_finished_cell_is_read_once_however_many_end_after_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_spec(home, options={"schedule.rounds": 1})
    spec, scale = read_spec(path)
    cells, store = make_cells(spec, folder=home), Store(home / "cells")
    read: list[Path] = []
    original = collect.read_results
    monkeypatch.setattr(collect, "read_results", lambda run: (read.append(run), original(run))[1])
    collector = Collector(spec, scale, cells, store, folder=home)
    for number, cell in enumerate(cells, 1):
        run_cell(store.prepare(work_of(cell)))
        for _ in range(2):
            states = [record.state for record in collector.collect().cells]
            assert states.count("done") == number == len(read)


def test_progress_counts_cells_and_the_rounds_of_all_of_them(home: Path) -> None:
    cells = cells_of(home, options={"schedule.rounds": 6})
    jobs = [runner.QueueEntry([cell], flat(cell)) for cell in cells]
    jobs[0].state, jobs[1].state, jobs[1].share = "done", "running", 0.5
    line = describe(runner.GridProgress(jobs, 0.0, 1, clock=lambda: 1.0))
    assert [part.split()[0] for part in line.split(", ")] == ["1", "9", "1", "about"] and " 12 rounds" in line


def test_a_dry_run_says_what_there_is_to_do_and_what_is_lacking(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = write_spec(home, seeds=[0, 1])
    (home / "fedshift" / "phantom" / "shapes" / "B" / "manifest.json").unlink()
    assert cli.main(["compare", str(spec), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "4 of 4 cells" in shown and "shapes at B (" in shown
    assert "time: " in shown and "GiB" in shown and "500/200/200 samples" in shown
    assert sorted(path.name for path in (home / "runs").rglob("*") if path.is_file()) == ["calibration.json"]
    assert cli.main(["compare", str(spec)]) == 1
    shown = capsys.readouterr().out
    assert shown.count("failed: ") == 1 and "failed: 4 cells" in shown
    assert "shapes at B" in shown and "time: " not in shown, "what cannot run takes no time"
    told = read_comparison(home / "runs" / "small")
    assert {cell.state for cell in told.cells} == {"failed"}


@pytest.mark.parametrize("content", ["{", '{"schema": 2}', "[]"])
def test_a_broken_record_is_refused(home: Path, content: str) -> None:
    (home / "cells.json").write_text(content, encoding="utf-8")
    with raises("record-invalid", naming=str(home / "cells.json")):
        read_comparison(home)


def test_a_record_that_contradicts_itself_is_refused(home: Path) -> None:
    path = write_comparison(made({("X",): [{"A": 0.5}]}), home / "out")
    assert read_comparison(path) == made({("X",): [{"A": 0.5}]})
    raw = json.loads(path.read_text(encoding="utf-8"))
    raw["cells"][0]["labels"] = {"method": "Z"}
    path.write_text(json.dumps(raw), encoding="utf-8")
    with raises("record-invalid", naming="cell Z, seed 0"):
        read_comparison(path)
    with raises("record-missing", naming=str(home)):
        read_comparison(home)


def test_a_cell_folder_that_was_changed_is_refused(home: Path) -> None:
    (cell,) = cells_of(home, axes=ONE)
    folder = Store(home / "cells").prepare(work_of(cell))
    text = (folder / "cell.json").read_text(encoding="utf-8")
    for other, code in ((text.replace('"seed": 0', '"seed": 1'), "cell-changed"), ("{", "file-read")):
        (folder / "cell.json").write_text(other, encoding="utf-8")
        with raises(code, naming=str(folder / "cell.json")):
            run_cell(folder)


@pytest.mark.parametrize("words", [["--jobs", "0"], ["--flare", "--jobs", "2"], ["--scale", "big"]])
def test_arguments_that_do_not_fit_are_refused(home: Path, words: list[str]) -> None:
    assert cli.main(["compare", str(write_spec(home)), *words]) == 2
    assert not (home / "runs").exists()
