"""Images in the report: only on request, only from the data that the run had, without the names of patients."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import small_image_job, small_job
from errors import raises
from markupsafe import Markup

from fedshift import cli
from fedshift.federation.in_process import run_in_process
from fedshift.federation.protocols import cross_site
from fedshift.reporting import figures
from fedshift.reporting.report.images.models import look
from fedshift.reporting.report.runs import Run, Transfer, own_models, read
from fedshift.schema.job import JobSpec
from fedshift.schema.results import BEST, read_results
from reporting.reports import Page, image_sites, scan_sites

NOTICE = "must not leave the site"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared sites of scans and of pictures, a run at either."""
    root = tmp_path_factory.mktemp("images")
    run_in_process(small_job("fedbn+fedrdn", "schedule.rounds=3"), scan_sites(root / "data"), root / "scans")
    run_in_process(small_image_job("fedavg"), image_sites(root / "data"), root / "pictures")
    return root


@pytest.fixture(autouse=True)
def _own_data(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSHIFT_DATA", str(root / "data"))
    monkeypatch.setenv("XDG_DATA_HOME", str(root / "none"))


def made(run: Path, out: Path, *words: str) -> str:
    assert cli.main(["report", str(run), "--out", str(out), *words]) == 0
    return out.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def with_images(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The report of a run in ``root`` with its images, made once."""
    folder = tmp_path_factory.mktemp("with_images")
    return functools.cache(lambda run: made(root / run, folder / f"{run}.html", "--images"))


@pytest.mark.slow
def test_without_being_asked_for_there_are_none(root: Path, tmp_path: Path) -> None:
    html = made(root / "scans", tmp_path / "r.html")
    page = Page(html)
    assert "data:image" not in html and NOTICE not in page.text
    assert not {"cases", "intensities", "features"} & page.sections.keys()


@pytest.mark.slow
@pytest.mark.parametrize("run", ["scans", "pictures"])
def test_cases_histograms_and_features(run: str, with_images: Callable[[str], str]) -> None:
    html = with_images(run)
    page = Page(html)
    assert NOTICE in page.text and 'CONTAINS IMAGES. "' in html
    pictures = [attrs for tag, attrs in page.tags if tag == "image"]
    shown = sum(attrs.get("xlink:href", "").startswith("data:image/png;base64,") for attrs in pictures)  # type: ignore[union-attr]
    # A scan site has one test case, three slices; a picture site shows three pictures, each with what speaks for it.
    assert shown == len(pictures) == (9 if run == "scans" else 18)
    assert {"cases", "intensities", "features"} <= page.sections.keys()
    assert ("images_unchanged" in page.passages) == (run == "pictures"), "FedRDN normalises"
    assert len(set(page.ids())) == len(page.ids())


def test_a_cross_site_record_shows_each_sites_samples_as_its_own_model_sees_them(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FedRDN, Figure 3: local models in (a) and (b), the aggregated model in (c) and (d)."""
    data = {site: root / "data" / "shapes" / site for site in "AB"}
    record = cross_site(small_image_job("fedrdn", sites=("A", "B")), data, tmp_path / "run", keep_models=True)
    given = read(tmp_path / "run")
    assert isinstance(given, Transfer)
    own = own_models(given)
    sees = look(given.run, folders=data, most_sites=9, progress=print, models=own)
    for site in sees:
        labels = site.data.labels(site.members).numpy()
        scored = record.scores[site.site][site.site]["accuracy"]
        assert (site.predicted.argmax(1) == labels).mean() == pytest.approx(scored), "the model that the table has"
    together = look(given.run, folders=data, most_sites=9, progress=print)
    assert not np.allclose(sees[0].features, together[0].features)
    page = Page(made(tmp_path / "run", tmp_path / "r.html", "--images"))
    assert {"own-features", "features"} <= page.sections.keys() and NOTICE in page.text
    shutil.rmtree(own["A"].path.parent)
    assert cli.main(["report", str(tmp_path / "run"), "--images", "--out", str(tmp_path / "s.html")]) == 2
    assert "--keep-models" in capsys.readouterr().err


def test_the_score_of_a_case_is_the_one_in_the_record(root: Path, with_images: Callable[[str], str]) -> None:
    final = read_results(root / "scans").final
    assert final is not None
    text = Page(with_images("scans")).sections["cases"]
    for told in final.best.evaluations.values():
        (score,) = told["test"].distributions["dice"].cases or ()
        assert f"worst of 1: Dice {100 * score:.1f} % (Case03)" in text


def test_the_model_at_a_site_is_the_one_that_was_scored_there(root: Path) -> None:
    run = read(root / "pictures")
    assert isinstance(run, Run) and run.results.final is not None
    for site in look(run, folders=None, most_sites=3, progress=lambda line: None):
        labels = site.data.labels(site.members).numpy()
        right = float(np.mean(site.predicted.argmax(1) == labels))
        assert right == pytest.approx(run.results.final.best.sites[site.site]["test"]["accuracy"])
        assert site.features.shape == (len(labels), site.features.shape[1]) and site.complete


def test_personal_parts_come_from_the_sites_and_their_absence_is_said(
    root: Path, tmp_path: Path, with_images: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "without_own_parts" not in Page(with_images("scans")).passages
    shutil.copytree(root / "scans", tmp_path / "moved", ignore=shutil.ignore_patterns("site_state"))
    monkeypatch.setattr(figures, "markup", lambda drawn, key, description: Markup("<svg/>"))  # its words count here
    page = Page(made(tmp_path / "moved", tmp_path / "b.html", "--images"))
    assert "BIDMC, HK and UCL" in page.passages["without_own_parts"]


@pytest.mark.slow
def test_patients_have_no_names(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    shutil.copytree(root / "data", data)
    for path in (data / "prostate").glob("*/manifest.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(content | {"kind": "patients"}), encoding="utf-8")
    monkeypatch.setenv("FEDSHIFT_DATA", str(data))
    job: JobSpec = small_job("fedavg", "schedule.rounds=1")
    run_in_process(job, {site: data / "prostate" / site for site in job.task.sites}, run)
    html = made(run, tmp_path / "r.html", "--images")
    assert "worst of 1: Dice" in Page(html).text
    assert "Case0" not in html and str(tmp_path) not in html and "PHANTOM" not in html


def test_a_site_may_show_its_own_alone(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path))
    folder = root / "data" / "prostate" / "HK"
    html = made(root / "scans", tmp_path / "r.html", "--images", "--site-data", f"HK={folder}")
    assert sum(tag == "image" for tag, _ in Page(html).tags) == 3


@pytest.mark.parametrize(
    ("words", "code", "name"),
    [
        ("BIDMC={data}/prostate/HK", "other-data", "BIDMC"),
        ("Nowhere={data}/prostate/HK", "unknown-site", "Nowhere"),
        ("HK={data}/nothing", "not-prepared", "nothing"),
    ],
)
def test_other_data_than_the_run_had_are_refused(
    root: Path, tmp_path: Path, words: str, code: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = words.format(data=root / "data")
    assert (
        cli.main(["report", str(root / "scans"), "--images", "--site-data", given, "--out", str(tmp_path / "r")]) == 2
    )
    error = capsys.readouterr().err
    assert f"[{code}]" in error and name in error
    assert not (tmp_path / "r").exists()


def test_a_model_that_does_not_fit_its_network_is_refused(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "pictures", tmp_path / "run")
    content = torch.load(tmp_path / "run" / BEST, weights_only=True)
    content["weights"].popitem()
    torch.save(content, tmp_path / "run" / BEST)
    run = read(tmp_path / "run")
    assert isinstance(run, Run)
    with raises("file-damaged", naming=BEST):
        look(run, folders=None, most_sites=1, progress=lambda line: None)


def test_looking_changes_nothing_of_the_run(root: Path, tmp_path: Path, with_images: Callable[[str], str]) -> None:
    before = {path: path.read_bytes() for path in (root / "scans").rglob("*") if path.is_file()}
    first = made(root / "scans", tmp_path / "a.html", "--images")
    assert before == {path: path.read_bytes() for path in (root / "scans").rglob("*") if path.is_file()}
    assert first == with_images("scans"), "made another time"
