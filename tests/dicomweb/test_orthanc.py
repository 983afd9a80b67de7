"""A real PACS, Orthanc: what is fetched from it and stored in it, read by others."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pydicom
import pytest
import SimpleITK as sitk
from errors import raises
from fakepacs import write_study
from orthanc import PASSWORD, USER, Orthanc, needs_orthanc, running_orthanc

from fedshift.cli import main
from fedshift.data.layouts.studies import pair_studies
from fedshift.dicomweb import credentials
from fedshift.dicomweb.connection import connect
from fedshift.dicomweb.credentials import Credentials
from fedshift.dicomweb.record import FILE, read_record

pytestmark = [pytest.mark.slow, needs_orthanc]


@pytest.fixture(scope="module")
def pacs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orthanc]:
    """With three studies, one of them without a mask."""
    folder = tmp_path_factory.mktemp("pacs")
    with running_orthanc(folder / "server") as server:
        for seed, date in (("1", "20260102"), ("2", "20260301"), ("3", "20260302")):
            write_study(folder / "images" / seed, seed, date=date, mask=seed != "3")
        server.add(folder / "images")
        yield server


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(credentials.USER, USER)
    monkeypatch.setenv(credentials.PASSWORD, PASSWORD)


def test_series_come_with_their_masks_as_the_reader_of_studies_takes_them(
    pacs: Orthanc, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["data", "fetch", pacs.dicomweb, "--out", str(out), "--masks", "required"]
    words += ["--query", "StudyDate=20260101-20260331", "Modality=MR", "SeriesDescription=t2*"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "4 series of 2 studies" in said and "left out" in said and PASSWORD not in said
    table = pair_studies(out)
    assert len(table.cases) == 2 and not table.findings
    for case in table.cases:
        series = sitk.ImageSeriesReader()
        series.SetFileNames(series.GetGDCMSeriesFileNames(str(case.images[0])))
        assert series.Execute().GetSize() == (12, 10, 4)
    assert PASSWORD not in (out / FILE).read_text(encoding="utf-8")
    before = {file: file.stat().st_mtime_ns for file in out.rglob("*.dcm")}
    assert main(words) == 0
    assert before == {file: file.stat().st_mtime_ns for file in out.rglob("*.dcm")}
    assert main(["data", "check", str(out), "--label", "prostate=prostate"]) == 0


def test_what_a_server_says_of_wrong_credentials_addresses_and_queries_is_a_sentence(
    pacs: Orthanc, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    query = ["--query", "Modality=MR", "--out", str(tmp_path / "out")]
    assert main(["data", "fetch", pacs.dicomweb, "--query", "Modality=CT", "--out", str(tmp_path / "out")]) == 2
    assert "[pacs-empty]" in capsys.readouterr().err
    assert main(["data", "fetch", f"{pacs.root}/app", *query]) == 2  # a page of Orthanc's, or none
    assert "[pacs-answer]" in capsys.readouterr().err
    monkeypatch.setenv(credentials.PASSWORD, "another")
    assert main(["data", "fetch", pacs.dicomweb, *query]) == 2
    said = capsys.readouterr().err
    assert "[pacs-credentials]" in said and "another" not in said.replace("another password", "")
    assert main(["data", "fetch", "http://127.0.0.1:9/dicom-web", *query]) == 2
    assert "[pacs-unreachable]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_is_stored_is_there_and_a_wrong_study_is_refused(pacs: Orthanc, tmp_path: Path) -> None:
    study, _ = write_study(tmp_path, "9")
    archive = connect(pacs.dicomweb, Credentials(user=USER, password=PASSWORD))
    mask = pydicom.dcmread(tmp_path / "seg" / "seg.dcm")
    archive.store(study, [mask])
    assert archive.instances(study, None).keys() == {mask.SOPInstanceUID}
    archive.store(study, [mask])
    stored = [pydicom.dcmread(io.BytesIO(file)) for file in pacs.files("SEG")]
    (back,) = (each for each in stored if each.SOPInstanceUID == mask.SOPInstanceUID)
    assert back.PixelData == mask.PixelData
    with raises("pacs-answer", naming="1.2.3"):
        archive.store("1.2.3", [mask])
    assert read_record(tmp_path) is None
