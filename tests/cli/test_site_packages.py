"""What installed packages offer is listed without running their code, and the lines that are printed allow them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from conftest import SHAPES, small_image_job
from packagefiles import MARKED, files_of, install, points_of

from fedshift.cli import main
from fedshift.cli.checks.job import about_job
from fedshift.cli.checks.kit import about_listed_packages
from fedshift.cli.site_packages import lines
from fedshift.data.locate import SiteSettings
from fedshift.flare.kit import open_kit
from fedshift.schema.errors import PolicyError
from fedshift.schema.packages import installed

NAME = "acme-listed"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of Python packages with one whose code fails."""
    files = {**files_of("acme_listed"), "acme_listed/__init__.py": MARKED}
    files["acme_listed/tasks/pictures.yaml"] = SHAPES.read_text(encoding="utf-8")
    points = {**points_of("acme_listed"), "fedshift.tasks": {"pictures": "acme_listed.tasks"}}
    folder = install(tmp_path / "packages", NAME, files=files, points=points)
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_the_lines_that_it_prints_are_a_policy_that_lists_the_package(
    packages: Path, kit: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["site", "packages", str(kit)]) == 0
    out = capsys.readouterr().out
    for said in (f"{NAME} 1.0", "does not list", f"method   {NAME}:halved  half of each gradient.", f"{NAME}:pictures"):
        assert said in out
    printed = out[out.index("  privacy:") :]
    settings = SiteSettings.parse(yaml.safe_load(printed), where="the lines")
    assert settings.privacy is not None and settings.privacy.packages == {NAME: installed(NAME).spec}
    (kit / "local" / "fedshift.yaml").write_text(printed, encoding="utf-8")
    assert main(["site", "packages", str(kit)]) == 0
    assert "the policy lists it" in capsys.readouterr().out
    assert [remark.level for remark in about_listed_packages(open_kit(kit))] == ["ok"]
    install(packages, NAME, files={**files_of("acme_listed")})  # without its task
    (wrong,) = about_listed_packages(open_kit(kit))
    assert wrong.level == "error" and NAME in wrong.text


def test_a_package_that_cannot_be_used_is_listed_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    about = json.dumps({"url": "file:///checkout", "dir_info": {"editable": True}})
    monkeypatch.syspath_prepend(str(install(tmp_path, "acme-edited", beside={"direct_url.json": about})))
    assert main(["site", "packages"]) == 1
    assert "editable" in capsys.readouterr().out
    assert main(["methods"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "acme-edited" in line]
    assert "editable" in line


def test_methods_and_tasks_of_packages_are_listed_beside_fedshifts_own(
    packages: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["methods"]) == 0
    assert f"{NAME}:halved" in capsys.readouterr().out
    assert main(["tasks"]) == 0
    assert f"{NAME}:pictures" in capsys.readouterr().out


def test_one_method_of_a_package_is_shown_as_fedshifts_own_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(install(tmp_path, "acme-shown")))
    assert main(["methods", "acme-shown:halved"]) == 0
    out = capsys.readouterr().out
    assert "acme-shown:halved.share = 0.5" in out and "No further arrays" in out


def test_doctor_holds_a_job_against_the_kits_policy(tmp_path: Path, kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(install(tmp_path / "packages", "acme-asked")))
    job = small_image_job("fedavg", "loss=acme-asked:squared")
    opened = replace(open_kit(kit), name="A")
    with pytest.raises(PolicyError, match="acme-asked"):
        list(about_job(opened, job))
    (kit / "local" / "fedshift.yaml").write_text(lines(job.packages), encoding="utf-8")
    assert [remark.level for remark in about_job(opened, job)] == ["ok"]
