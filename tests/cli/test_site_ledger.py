"""``fedshift site ledger``: what the owner of a kit reads of what has left."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from federation.site.privacy.test_ledger import filled, lines
from kits import SERVER

from cli.conftest import Refused
from fedshift import cli
from fedshift.federation.ledger_heads import LedgerHeads
from fedshift.schema.policy import LEDGER_FILE


@pytest.fixture
def kit(kits_of: Callable[[str], Path], tmp_path: Path) -> Path:
    kit = Path(shutil.copytree(kits_of("office_caltech") / "amazon", tmp_path / "amazon"))
    settings = "privacy: {statistics: {epsilon: 3}, budget: {epsilon: 8, delta: 1.0e-5}}\n"
    (kit / "local" / "fedshift.yaml").write_text(settings, encoding="utf-8")
    return kit


def ledger(*arguments: str | Path) -> int:
    return cli.main(["site", "ledger", *map(str, arguments)])


def test_it_shows_every_release_the_sum_and_that_the_chain_holds(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ledger(kit) == 0
    assert "epsilon 8" in (empty := capsys.readouterr().out) and "releases" not in empty
    last = filled(kit / "local").read().last
    assert ledger(kit) == 0
    told = capsys.readouterr().out
    assert told.count("2026-01-02") == 4
    for text in (
        "job fedrdn_prostate: 4 releases in 1 runs",
        "all 4 together: epsilon 4.377 at delta 1e-05",
        "budget: epsilon 8 at delta 1e-05",
        f"the chain of {LEDGER_FILE} holds up to {last}",
    ):
        assert text in told


def test_as_json_for_other_programs(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(kit / "local")
    assert ledger(kit, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["site"] == "amazon" and told["broken"] is None and len(told["releases"]) == 4
    assert told["spent"]["epsilon"] == pytest.approx(4.37717809568)
    assert told["budget"] == {"epsilon": 8.0, "delta": 1e-5}


def test_a_broken_chain_is_said_with_its_place_also_by_the_check_of_the_kit(
    kit: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(kit / "local")
    text = "".join(lines(kit / "local")).replace('"round":3', '"round":2')
    (kit / "local" / LEDGER_FILE).write_text(text, encoding="utf-8")
    assert ledger(kit) == 1
    assert "BROKEN at release 3" in capsys.readouterr().out
    assert ledger(kit, "--json") == 1
    assert json.loads(capsys.readouterr().out)["broken"]["number"] == 3
    assert cli.main(["site", "check", str(kit)]) == 1
    assert "broken at release 3" in capsys.readouterr().out


def test_a_servers_kit_shows_what_it_has_seen_and_forgets_it_when_told(
    kit: Path,
    kits_of: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    refused: Refused,
) -> None:
    server = Path(shutil.copytree(kits_of("office_caltech") / SERVER, tmp_path / SERVER))
    assert ledger(server) == 0
    assert "releases" not in capsys.readouterr().out
    head = filled(kit / "local").read().head
    assert head is not None
    LedgerHeads(server / "local").keep("amazon", head)
    assert ledger(server) == 0
    assert {"amazon:", "4", head.hash} <= set(capsys.readouterr().out.split())
    assert ledger(server, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"amazon": {"number": 4, "hash": head.hash}}
    refused("site", "ledger", server, "--forget", "webcam", code="unknown-site", naming=("'webcam'", "amazon"))
    assert ledger(server, "--forget", "amazon") == 0
    assert head.hash in capsys.readouterr().out
    assert LedgerHeads(server / "local").all() == {}
    refused("site", "ledger", kit, "--forget", "amazon", code="wrong-kit", naming=str(kit))
