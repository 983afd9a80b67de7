"""A survey of pictures: told in pixels, and planned in 2D at their own size."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from errors import raises
from segmentpictures import prepare_discs
from volumesites import make_volume_site

from fedshift import cli
from fedshift.data.fingerprint import fingerprint
from fedshift.data.shift import shift_map
from fedshift.data.tallies import merge, row_of_site
from fedshift.federation.resolve import resolve
from fedshift.schema.fingerprint import Fingerprint
from fedshift.tasks.kinds import build_task
from fedshift_survey.planning.plan import make_plan
from fedshift_survey.shift_map import _legend as legend_of
from fedshift_survey.shift_table import map_tables


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Fingerprint]:
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path))
    return [fingerprint(prepare_discs(tmp_path / "raw" / site, tmp_path, site, seed=k)) for k, site in enumerate("AB")]


@pytest.mark.slow
def test_the_plan_is_a_task_for_pictures(
    sites: list[Fingerprint], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["survey", "discs", "--out", str(tmp_path / "survey")]) == 0
    path = tmp_path / "survey" / "discs.yaml"
    planned = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert planned["data"]["pictures"] is True and planned["data"]["sequences"] == ["red", "green", "blue"]
    assert len(planned["data"]["patch"]) == 2 and "spacing" not in planned["data"]
    build_task(resolve(str(path), "fedavg"))
    printed = capsys.readouterr().out + (tmp_path / "survey" / "shift.html").read_text(encoding="utf-8")
    assert "whole picture" in printed and "whole volume" not in printed
    comments = "".join(line for line in path.read_text(encoding="utf-8").splitlines() if line.strip().startswith("#"))
    assert "volume" not in comments and "voxel" not in comments


def test_sizes_are_rows_and_columns_without_millilitres(sites: list[Fingerprint]) -> None:
    assert row_of_site(sites[0]) == ("24 x 32", "not known", "disc")
    assert merge(sites).of_pictures


def test_the_map_of_pictures_has_pixels_and_no_sizes_that_nobody_knows(sites: list[Fingerprint]) -> None:
    shift = shift_map(sites)
    titles = [aspect.title for aspect in shift.aspects]
    assert titles == ["Intensity", "Normalised", "Contrast", "Label presence"]
    assert not any("volume" in aspect.means or "voxel" in aspect.means for aspect in shift.aspects)
    (_, by_aspect) = map_tables(shift)
    assert by_aspect.row_count == len(titles)
    legend = {str(row[0]).partition(" (")[0] for row in legend_of(shift).rows}
    assert legend == set(titles)
    sizes = (((0.2, 4),),) * 3
    known = [
        site.model_copy(
            update={"geometry": site.geometry.model_copy(update={"cases": 4, "spacing": sizes, "extent": sizes})}
        )  # type: ignore[union-attr]
        for site in sites
    ]
    assert "Pixel size" in [aspect.title for aspect in shift_map(known).aspects]


def test_pictures_and_volumes_are_not_planned_together(sites: list[Fingerprint], tmp_path: Path) -> None:
    volumes = fingerprint(make_volume_site(tmp_path, "C"))
    mixed = merge(sites).model_copy(
        update={"geometry": merge([volumes]).geometry.model_copy(update={"voxels": (((1, 2), (12, 2)), (), ())})}  # type: ignore[union-attr]
    )
    with raises("kind-of-data"):
        make_plan(mixed, sites=3)
