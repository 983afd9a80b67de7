"""Runs in one process from the command line, and that none overwrites another unless it is asked to."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from conftest import SHAPES

from cli.conftest import Refused
from fedshift import cli
from fedshift.cli.run import require_free
from fedshift.federation.server.coordinator import Coordinator
from fedshift.flare.workspaces import RunFolders
from fedshift.methods import method_set
from fedshift.schema.results import LAST, read_results


def test_it_trains_and_shows_the_scores(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pooled", "groupdro", str(SHAPES), "--set", "schedule.rounds=3", "-w", "run"]) == 0
    shown = capsys.readouterr().out
    assert "round 3/3" in shown and "simulated scans" in shown and "on shapes" in shown
    results = read_results(home / "run")
    assert results.final is not None and set(results.final.best.sites) == {"A", "B", "C"}
    assert [record.sites["A"].train_loss for record in results.rounds] == [
        record.sites["B"].train_loss for record in results.rounds
    ], "one model, trained once"
    assert cli.main(["pooled", "groupdro", str(SHAPES), "--set", "schedule.rounds=3", "-w", "run", "--resume"]) == 0
    assert read_results(home / "run").final == results.final


def test_a_federated_method_and_a_flare_job_of_a_reference_are_refused(home: Path, refused: Refused) -> None:
    refused("pooled", "fedavg", SHAPES, code="not-a-reference", naming=("fedavg", "all, groupdro, irm, mmrex, vrex"))
    refused("job", "all", SHAPES, code="centralised-only", naming="fedshift pooled")
    assert not (home / "jobs").exists()


def test_a_methods_text_has_its_options_and_what_leaves(capsys: pytest.CaptureFixture[str], refused: Refused) -> None:
    assert cli.main(["methods", "scaffold"]) == 0
    shown = capsys.readouterr().out
    assert "Karimireddy" in shown and "scaffold.option = II" in shown
    assert shown.index("scaffold.option") < shown.index("What leaves a site")
    assert cli.main(["methods"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == method_set.available()
    assert cli.main(["methods", "FedFA"]) == 0, "in any case"
    assert "fedfa.p = " in capsys.readouterr().out
    refused("methods", "FedFAA", code="unknown-method", naming="'fedfa'")


def test_a_job_runs_in_one_process_and_goes_on(
    home: Path, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    assert cli.main(["job", "fedbn", str(SHAPES), "--name", "j"]) == 0
    assert cli.main(["run", "jobs/j", "--in-process", "-w", "run"]) == 0
    assert any(Path("run/tb_events").iterdir()), "curves, as under FLARE"
    shown = capsys.readouterr().out
    assert "on shapes" in shown and str(home / "run" / "results.json") in shown
    final = read_results(home / "run").final
    assert cli.main(["run", "jobs/j", "--in-process", "--resume", "-w", "run"]) == 0
    assert read_results(home / "run").final == final
    refused("run", "jobs/j", "--resume", "-w", "run", code="run-exists", naming="add --in-process")


@pytest.mark.parametrize(
    "command",
    [
        ["pooled", "all", str(SHAPES)],
        ["leave-one-out", "fedavg", str(SHAPES)],
        ["cross-site", str(SHAPES)],
    ],
)
def test_the_environment_says_where_to_train(
    command: list[str], home: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.setenv("FEDSHIFT_DEVICE", "abacus")
    refused(*command, "-w", "run", code="device-unusable", naming="'abacus'")
    assert not (home / "run" / "results.json").exists()


def test_the_protocols_say_at_once_what_no_federation_can_do(home: Path, refused: Refused) -> None:
    refused("leave-one-out", "all", SHAPES, "--flare", "-w", "run", code="no-federation", naming="--flare")
    refused("cross-site", SHAPES, "--methods", "all", "-w", "run", code="centralised-only")
    assert not (home / "run").exists(), "the next command may use it"


# --- a run that is there already ----------------------------------------------------------------------------

RUN = ("run", "jobs/mine", "--in-process", "-w", "out")


@pytest.fixture
def mine(home: Path) -> Path:
    """`home`, with a job of three rounds."""
    assert cli.main(["job", "fedavg", str(SHAPES), "--name", "mine", "--set", "schedule.rounds=3"]) == 0
    return home


def fingerprint(folder: Path) -> str:
    return hashlib.sha256((folder / LAST).read_bytes()).hexdigest()


def test_a_finished_run_is_named_and_kept(mine: Path, refused: Refused) -> None:
    assert cli.main([*RUN]) == 0
    before = (mine / "out" / "results.json").read_bytes()
    for words in (RUN, RUN[:2] + RUN[3:], ("pooled", "all", SHAPES, "-w", "out")):
        refused(*words, code="run-exists", naming=("out", "fedavg on shapes", "--resume", "--force", "--workspace"))
        assert (mine / "out" / "results.json").read_bytes() == before
    assert cli.main([*RUN, "--force"]) == 0
    assert (mine / "out" / "results.json").read_bytes() != before


def test_an_interrupted_run_goes_on_only_when_asked_to(
    mine: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main([*RUN[:-1], "whole"]) == 0
    original = Coordinator.open

    def stop(coordinator: Coordinator, round_: int) -> object:
        if round_ == 3:
            raise KeyboardInterrupt
        return original(coordinator, round_)

    with monkeypatch.context() as patch:
        patch.setattr(Coordinator, "open", stop)
        assert cli.main([*RUN]) == 130
    refused(*RUN, code="run-exists", naming="round 2 of 3")
    assert len(read_results(mine / "out").rounds) == 2
    assert cli.main([*RUN, "--resume"]) == 0
    assert fingerprint(mine / "out") == fingerprint(mine / "whole")


def test_a_job_folder_with_a_run_inside_is_not_replaced(mine: Path, refused: Refused) -> None:
    assert cli.main([*RUN[:-1], "jobs/mine/run"]) == 0
    job = ["job", "fedavg", str(SHAPES), "--name", "mine"]
    refused(*job, code="run-exists", naming="jobs/mine/run")
    assert (mine / "jobs" / "mine" / "run" / LAST).is_file()
    assert cli.main([*job, "--force"]) == 0
    assert not (mine / "jobs" / "mine" / "run").exists()


def test_force_replaces_a_run_that_was_made_the_other_way(mine: Path, refused: Refused) -> None:
    assert cli.main([*RUN]) == 0
    out = mine / "out"
    require_free(out, resume=False, force=True, in_process=False)
    server = RunFolders(out).server
    server.mkdir(parents=True)
    for path in out.iterdir():  # as the simulator would have left it
        if path.name != "server":
            path.rename(server / path.name)
    refused(*RUN, code="run-exists", naming="fedavg on shapes")
    assert cli.main([*RUN, "--force"]) == 0
    assert (out / LAST).is_file() and not (out / "server").exists()


def test_a_workspace_that_is_a_file_is_a_sentence(mine: Path, refused: Refused) -> None:
    (mine / "out").write_text("", encoding="utf-8")
    refused(*RUN, "--force", code="not-a-folder", naming="out")
