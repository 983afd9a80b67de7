"""``fedshift leave-one-out --flare``: the same scores as in one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import SHAPES, make_image_site

from fedshift import cli
from fedshift.schema.protocol_results import LeaveOneOut

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_every_site_held_out_in_flare_gives_the_scores_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)
    for site, gain in (("A", 1.0), ("B", 0.5)):
        make_image_site(tmp_path / "fedshift" / "phantom", site, gain=gain)
    words = ("leave-one-out", "fedavg", str(SHAPES), "--sites", "A,B", "--set", "schedule.rounds=1")
    found = {}
    for name, more in (("process", ()), ("flare", ("--flare", "-p", "1"))):
        folder = tmp_path / name
        assert cli.main([*words, *more, "-w", str(folder)]) == 0
        found[name] = LeaveOneOut.read(folder)
    assert (tmp_path / "flare" / "A" / "flare").is_dir(), "FLARE's workspace"
    assert list(found["flare"].sites) == ["A", "B"]
    assert found["flare"].sites == found["process"].sites and found["flare"].mean == found["process"].mean
