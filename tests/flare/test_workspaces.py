"""What a workspace holds, and what a new run may replace there."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import small_job

from fedshift.cli.run import require_free
from fedshift.flare.run_folders import RunFolders
from fedshift.flare.simulator_state import aside_of
from fedshift.flare.workspaces import find_former, find_run
from fedshift.schema.errors import ConfigError
from fedshift.schema.results import new_results


def test_where_a_run_is_looked_for(tmp_path: Path) -> None:
    workspace = tmp_path / "w"
    require_free(workspace, resume=False, force=False, in_process=False)
    for place in (RunFolders(workspace).server, aside_of(workspace) / "server"):
        place.mkdir(parents=True)
        (place / "results.json").write_text("{}", encoding="utf-8")
        run = find_run(workspace)
        assert run is not None and not run.in_process and not run.has_finished
        with pytest.raises(ConfigError, match=r"results\.json cannot be read"):
            require_free(workspace, resume=False, force=False, in_process=False)
        require_free(workspace, resume=False, force=True, in_process=False)
        (place / "results.json").unlink()


def test_a_run_of_which_no_round_has_ended_is_replaced_by_its_own_kind_or_by_force(tmp_path: Path) -> None:
    alone, simulated = tmp_path / "alone", tmp_path / "simulated"
    alone.mkdir()
    new_results(small_job("fedavg"), metric="dice").write(alone)
    RunFolders(simulated).server.mkdir(parents=True)
    for workspace, in_process, how in ((alone, True, "in one process"), (simulated, False, "under FLARE")):
        assert find_former(workspace, in_process=in_process, force=False).in_process == in_process
        with pytest.raises(ConfigError, match=f"a run that was made {how}: use --force to replace it"):
            find_former(workspace, in_process=not in_process, force=False)
        find_former(workspace, in_process=not in_process, force=True).remove()
        assert not [*workspace.iterdir()]


@pytest.mark.parametrize("in_process", [True, False])
def test_another_programs_results_are_no_run(in_process: bool, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"accuracy": 1}', encoding="utf-8")
    (tmp_path / "progress.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ConfigError, match="holds something other than a run: give another -w"):
        require_free(tmp_path, resume=False, force=True, in_process=in_process)


def test_what_the_simulator_keeps_and_what_a_link_points_to_stay(tmp_path: Path) -> None:
    workspace, elsewhere = tmp_path / "w", tmp_path / "elsewhere"
    for folder in (RunFolders(workspace).server, workspace / "local", elsewhere):
        folder.mkdir(parents=True)
    (workspace / "link").symlink_to(elsewhere)
    find_former(workspace, in_process=False, force=False).remove()
    assert [path.name for path in workspace.iterdir()] == ["local"] and elsewhere.is_dir()
