"""Later scans against those of training: of the same scanner nothing is said, a new one is found, named and dated."""

from __future__ import annotations

import csv
import json
import os
import re
import tracemalloc
from collections.abc import Sequence
from math import exp, sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import small_image_job
from inference.conftest import brightness_model, save_model
from volumesites import blob_job, ellipsoids, make_volume_site, write

from fedshift.cli import main
from fedshift.data.fingerprint import fingerprint
from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import header_of, read_model_file
from fedshift.inference.model import open_model
from fedshift.inference.ready import Choice, make_ready
from fedshift.schema.errors import DataError
from fedshift.schema.fingerprint import DOUBT, Fingerprint, LogSums, Reference
from fedshift.schema.results import BEST, LAST
from fedshift.tasks.evaluation.confidence import confidence
from fedshift_survey.drift.compare import FALSE_ALARMS, Compared, folder_reference, limits
from fedshift_survey.drift.conclusion import CHANCE, Month, sentence, since
from fedshift_survey.drift.months import scans_by_month

SHAPE, SPACING = (12, 20, 24), (2.0, 1.0, 1.0)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("sites")
    return {site: make_volume_site(root, site, cases=12, val=4, gain=g) for site, g in (("A", 1.0), ("B", 1.3))}


@pytest.fixture(scope="module")
def run(sites: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    run_in_process(blob_job(folder, "evaluation.reference=true"), sites, folder)
    return folder


def write_scans(folder: Path, names: Sequence[str], *, seed: int, noise: float = 8.0, mm: float = 1.0) -> None:
    """Scans as site A makes them, or with more noise or larger voxels."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    for name in names:
        labels = ellipsoids(SHAPE, rng)
        image = 50 + np.array([0.0, 60.0, 100.0])[labels] + rng.normal(0, noise, SHAPE)
        write(folder / name, image.astype(np.float32), tuple(mm * length for length in SPACING))


@pytest.mark.slow
def test_the_model_file_has_the_sums_and_nothing_else_has_changed(
    run: Path, sites: dict[str, Path], tmp_path: Path
) -> None:
    coordinator = run_in_process(blob_job(tmp_path), sites, tmp_path / "without")
    for name in (BEST, LAST):
        file, plain = read_model_file(run / name), read_model_file(tmp_path / "without" / name)
        assert all(torch.equal(file["weights"][key], plain["weights"][key]) for key in plain["weights"])
        assert "references" not in plain and file.keys() - plain.keys() == {"references"}
        told = header_of(file, where="here").references
        assert {site: one.fingerprint for site, one in told.items()} == {s: fingerprint(f) for s, f in sites.items()}
    scores = json.loads((run / "results.json").read_text(encoding="utf-8"))["final"]["best"]
    assert scores == json.loads(coordinator.results.model_dump_json())["final"]["best"]
    model = open_model(run / BEST)
    reference = folder_reference(model, make_ready(model, Choice()), sites["A"])
    there = model.header.references["A"]
    assert reference.fingerprint == there.fingerprint and reference.empty == there.empty
    assert reference.apart[DOUBT].mean == pytest.approx(there.apart[DOUBT].mean, abs=0.02)
    assert {k: v for k, v in reference.apart.items() if k != DOUBT} == {
        k: v for k, v in there.apart.items() if k != DOUBT
    }


def test_a_new_scanner_is_found_named_and_dated(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scans = tmp_path / "scans"
    write_scans(scans / "2026-01", [f"a{n}.nii.gz" for n in range(6)], seed=5)
    write_scans(scans / "2026-02", [f"b{n}.nii.gz" for n in range(6)], seed=6)
    quiet = ["drift", str(run / BEST), str(scans)]
    assert main(quiet) == 0
    assert "No change" in capsys.readouterr().out

    (scans / "2026-04" / "CT").mkdir(parents=True)
    write_scans(scans / "2026-03 new scanner", [f"c{n}.nii.gz" for n in range(5)], seed=7, noise=45.0, mm=1.6)
    (scans / "2026-03 new scanner" / "=broken.nii.gz").write_bytes(b"")
    (scans / "2026-03 new scanner" / "d.mgz").write_bytes(b"")
    assert main([*quiet, "--out", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr().out
    assert all(part in printed for part in ("Since 2026-03", "5 of 5", "about 0.25", "first at c", "left out: 2026-04"))
    assert all(part in printed for part in ("d.mgz", "`nib-convert IN OUT.nii.gz`\n", "(phantom)", "medical device"))
    with (tmp_path / "out" / "drift.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["month"] for row in rows] == ["2026-01"] * 6 + ["2026-02"] * 6 + ["2026-03"] * 6
    for row in rows[-5:]:
        assert {"spacing", "extent", "normalised"} <= set(row["differs"].split("; "))
        assert float(row["spacing"]) == pytest.approx(np.log2(1.6), abs=0.05)
    assert rows[12]["error"] and not rows[12]["distance"]
    record = json.loads((tmp_path / "out" / "drift.json").read_text(encoding="utf-8"))
    assert [month["changed"] for month in record["months"]] == [False, False, True]
    assert record["since"] == "2026-03" and record["conclusion"] in printed and record["compared_with"] == ["A", "B"]
    assert main([*quiet, "--out", str(tmp_path / "out")]) == 2
    assert "[file-exists]" in capsys.readouterr().err


def test_a_model_that_tells_nothing_needs_a_prepared_site(
    sites: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_scans(tmp_path / "scans", ["a.nii.gz"], seed=5)
    old = brightness_model(tmp_path / "model.pt")
    assert main(["drift", str(old), str(tmp_path / "scans")]) == 2
    assert "[no-reference]" in capsys.readouterr().err
    assert main(["drift", str(old), str(tmp_path / "scans"), "--reference", str(sites["A"])]) == 2
    assert "[other-data]" in capsys.readouterr().err
    pictures = save_model(tmp_path / "pictures.pt", small_image_job("fedavg"))
    assert main(["drift", str(pictures), str(tmp_path / "scans")]) == 2
    assert "[wrong-kind-of-model]" in capsys.readouterr().err


def test_too_few_cases_to_compare_with_are_not_taken_for_no_change(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = make_volume_site(tmp_path, "C", cases=3, val=1)
    write_scans(tmp_path / "scans", ["a.nii.gz"], seed=5)
    words = ["drift", str(run / BEST), str(tmp_path / "scans"), "--reference", str(few)]
    assert main(words) == 2
    assert "[too-few-cases]" in capsys.readouterr().err
    assert main([*words, "--reference", str(make_volume_site(tmp_path, "D", cases=3))]) == 0


def test_scans_are_of_the_month_of_their_folder_or_else_of_their_file(tmp_path: Path) -> None:
    write_scans(tmp_path / "202602", ["late.nii.gz"], seed=1)
    write_scans(tmp_path / "2026-01-15", ["early.nii.gz"], seed=1)
    write(tmp_path / "loose.nii.gz", np.ones(SHAPE, np.float32), SPACING)
    os.utime(tmp_path / "loose.nii.gz", (1_767_571_200, 1_767_571_200))  # 2026-01-05
    found = {month: [scan.name for scan in scans] for month, scans in scans_by_month(tmp_path).items()}
    assert found == {"2026-01": ["early.nii.gz", "loose.nii.gz"], "2026-02": ["late.nii.gz"]}
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty"):
        scans_by_month(tmp_path / "empty")


def test_a_month_whose_folder_is_still_empty_has_no_scans(tmp_path: Path) -> None:
    write_scans(tmp_path / "2026-01", ["a.nii.gz"], seed=1)
    (tmp_path / "2026-02" / "CT").mkdir(parents=True)
    (tmp_path / "2026-02" / ".DS_Store").write_text("", encoding="utf-8")
    assert {month: len(found) for month, found in scans_by_month(tmp_path).items()} == {"2026-01": 1, "2026-02": 0}
    (tmp_path / "2026-02" / "CT" / "notes.txt").write_text("", encoding="utf-8")
    with pytest.raises(DataError, match="2026-02"):
        scans_by_month(tmp_path)
    (tmp_path / "new" / "2026-03").mkdir(parents=True)
    with pytest.raises(DataError, match="new"):
        scans_by_month(tmp_path / "new")


@pytest.mark.parametrize("name", ["100512", "20451234", "1989-12", "2026-13", "2026-02-30", "20260312345", "2999-01"])
def test_a_patients_number_is_no_month(name: str, tmp_path: Path) -> None:
    for folder in (name, "2026-01-15 CT"):
        write_scans(tmp_path / folder, ["a.nii.gz"], seed=1)
    assert list(scans_by_month(tmp_path)) == ["2026-01"]


def test_limits_are_the_upper_ends_for_the_next_case() -> None:
    site = Fingerprint(site="A", dataset="d", kind="images", cases={}, classes=("background", "organ"))
    doubts = LogSums.from_values([0.1, 0.2, 0.4], floor=0.001)
    found = limits([Reference(fingerprint=site, apart={DOUBT: doubts}, empty=0)])
    # Student's t at 0.95 with two degrees of freedom is 2.920; ln 0.2 ± ln 2
    assert found.by_aspect[DOUBT] == pytest.approx(0.2 * exp(2.91999 * np.log(2) * sqrt(4 / 3)), rel=1e-4)
    assert found.flags_nothing
    even = LogSums.from_values([0.01] * 5, floor=0.015)
    twice = Reference(fingerprint=site, apart={"spacing": even, DOUBT: doubts}, empty=1)
    assert limits([twice, twice]).by_aspect["spacing"] == 0.15, "no limit is below what is worth a look"
    assert not limits([twice, twice]).flags_nothing
    assert limits([Reference(fingerprint=site, apart={})]).by_aspect == {}


def scans(*flagged: bool) -> list[Compared]:
    return [
        Compared(Path(f"s{n}"), differs=("contrast",) if odd else (), distance=2.0 + n) for n, odd in enumerate(flagged)
    ]


@pytest.mark.parametrize(
    ("months", "said"),
    [
        ({"2026-01": scans(False, False), "2026-02": scans(False)}, "No change: none of 3"),
        ({"2026-01": scans(True), "2026-02": scans(False)}, "about 0.1"),
        ({"2026-01": scans(False, False), "2026-02": scans(True, True, False)}, "Since 2026-02 the scans differ"),
        ({"2026-01": scans(True, True), "2026-02": scans(True, True)}, "Since 2026-01 the scans differ"),
        ({"2026-01": scans(True, True)}, "In 2026-01 the scans differ"),
        ({"2026-01": scans(True, True), "2026-02": scans(False)}, "The scans of 2026-01 differ"),
        ({"2026-01": scans(True, True), "2026-02": scans(True, True)}, "look first at s1, s1 and s0"),
        ({"2026-01": [Compared(Path("s"), error="cannot be read")]}, "None of the scans could be read"),
    ],
)
def test_the_sentence_says_what_since_when_and_which(months: dict[str, list[Compared]], said: str) -> None:
    assert said in sentence([Month(name, found) for name, found in months.items()])


def by_month(text: str) -> list[Month]:
    """Months with so many flagged scans of so many: ``1/1 0/6``."""
    counts = [[int(number) for number in part.split("/")] for part in text.split()]
    return [
        Month(f"2026-{number:02}", scans(*[True] * flagged, *[False] * (read - flagged)))
        for number, (flagged, read) in enumerate(counts, 1)
    ]


@pytest.mark.parametrize(
    ("months", "said"),
    [
        ("1/1 1/1 1/1 1/1 1/1 1/1", "Since 2026-01 .*: 6 of 6 are flagged, where about 0.3 would be by chance; look"),
        ("0/3 0/3 1/3 1/3 1/3 1/3 1/3 1/3", "Since 2026-03 .*: 6 of 18 are flagged, where"),
        ("0/3 1/3 0/3 1/3 0/3 1/3", "No change beyond chance: 3 of 18 scans are flagged"),
        ("1/1 0/1 0/1 0/1 0/1 1/1", "No change beyond chance: 2 of 6 scans are flagged"),
        ("1/1 1/1 1/1 1/1 0/1 0/1", r"Since 2026-01 .*: 4 of 6 are flagged \(the last in 2026-04\), where"),
        ("6/6 1/1 1/1 1/1", "Since 2026-01 .*: 9 of 9 are flagged"),
        ("1/1 1/1 1/1 6/6", "Since 2026-01 .*: 9 of 9 are flagged"),
        ("6/6 1/1 6/6", "Since 2026-01 .*: 13 of 13 are flagged"),
        ("6/6 0/1 0/1 6/6", "Since 2026-04 .*: 6 of 6 are flagged, .*; those of 2026-01 differ too; look first at"),
        ("0/6 6/6 1/6 6/6", "Since 2026-04 .*: 6 of 6 are flagged, .*; those of 2026-02 differ too; look first at"),
        ("0/6 6/6 1/1", "The scans of 2026-02 differ .*; later: 1 of 1 flagged, too few to tell; look first at"),
        ("0/6 6/6 0/6", "The scans of 2026-02 differ .* in .*, and later ones do not; look first at"),
        ("0/6 6/6 1/6", "The scans of 2026-02 differ .*; of later ones 1 of 6 is flagged, which may be chance; look"),
    ],
)
def test_months_that_tell_too_little_are_taken_together(months: str, said: str) -> None:
    assert re.search(said, sentence(by_month(months)))


def test_one_flagged_scan_in_every_month_is_a_change_for_the_monthly_job(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for month in (1, 2, 3):
        write_scans(tmp_path / "scans" / f"2026-{month:02}", ["a.nii.gz"], seed=month, noise=45.0, mm=1.6)
    assert main(["drift", str(run / BEST), str(tmp_path / "scans"), "--out", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr().out
    assert "Since 2026-01" in printed and printed.count("with others") == 3
    record = json.loads((tmp_path / "out" / "drift.json").read_text(encoding="utf-8"))
    assert record["since"] == "2026-01" and not any(month["changed"] for month in record["months"])


@pytest.mark.slow
@pytest.mark.parametrize(("months", "each"), [(2, 1), (12, 1), (12, 6), (24, 12)])
def test_runs_of_months_are_seldom_false_alarms(months: int, each: int) -> None:
    drawn = np.random.default_rng(0).binomial(each, FALSE_ALARMS, (1000, months))
    folders = [by_month(" ".join(f"{flagged}/{each}" for flagged in folder)) for folder in drawn]
    quiet = [folder for folder in folders if not any(month.changed for month in folder)]
    assert sum(bool(since(folder)) for folder in quiet) <= CHANCE * len(folders)


def test_confidence_is_that_of_what_is_found() -> None:
    probability = np.array([[[[0.9, 0.3, 0.2]]], [[[0.1, 0.7, 0.8]]]], np.float32)
    assert confidence(probability) == pytest.approx(0.75)
    assert confidence(probability[::-1, ..., 1:]) is None


def test_confidence_is_that_of_the_most_probable_class_and_copies_no_volume() -> None:
    probability = np.random.default_rng(0).dirichlet(np.ones(14), (8, 24, 24)).transpose(3, 0, 1, 2).astype(np.float32)
    probability = np.ascontiguousarray(probability)
    found = probability.argmax(0) > 0
    tracemalloc.start()
    assert confidence(probability) == probability.max(0)[found].mean(dtype=np.float64)
    assert tracemalloc.get_traced_memory()[1] < probability.nbytes / 2
    tracemalloc.stop()
