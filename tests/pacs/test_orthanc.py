"""A real PACS, Orthanc: what is fetched from it and stored in it, read by others."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import highdicom as hd
import numpy as np
import pydicom
import pytest
import SimpleITK as sitk
from certificates import own_certificate
from dicomstudies import write_slices
from errors import raises
from fakepacs import write_study
from inference.conftest import BALL, brightness_model
from orthanc import PASSWORD, TITLE, USER, Orthanc, needs_orthanc, running_orthanc
from scanfiles import volume

from fedshift.cli import main
from fedshift.data.layouts.studies import pair_studies
from fedshift.pacs import credentials
from fedshift.pacs.access import Access, open_archive
from fedshift.pacs.archive import Archive
from fedshift.pacs.credentials import Credentials
from fedshift.pacs.dimse.node import Node
from fedshift.pacs.query import parse_query
from fedshift.pacs.record import FILE, read_record
from fedshift.pacs.web.connection import connect

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
    printed = capsys.readouterr().out
    assert "4 series of 2 studies" in printed and "left out" in printed and PASSWORD not in printed
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
    printed = capsys.readouterr().err
    assert "[pacs-credentials]" in printed and "another" not in printed.replace("another password", "")
    assert main(["data", "fetch", "http://127.0.0.1:9/dicom-web", *query]) == 2
    assert "[pacs-unreachable]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_is_stored_is_there_and_a_wrong_study_is_refused(pacs: Orthanc, tmp_path: Path) -> None:
    study, _ = write_study(tmp_path, "9")
    archive = Archive(connect(pacs.dicomweb, Credentials(user=USER, password=PASSWORD)))
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


def test_a_prediction_and_a_watcher_store_what_others_read_and_store_it_once(
    pacs: Orthanc, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, image = brightness_model(tmp_path / "model.pt"), volume(**BALL)[0]
    for seed in ("21", "22"):
        write_slices(tmp_path / "new" / seed, image, seed=seed, change=of_body_part)
    pacs.add(tmp_path / "new")
    before = len(pacs.files("SEG"))
    ways = ["--from", pacs.dicomweb, "--query", "Modality=MR", "BodyPartExamined=PELVIS", "--to", pacs.dicomweb]
    formats = ["--format", "seg", "--format", "rtstruct", "--format", "sr"]
    assert main(["predict", str(model), *ways, *formats, "--out", str(tmp_path / "out")]) == 0, capsys.readouterr().err
    stored = {kind: pacs.files(kind) for kind in ("SEG", "RTSTRUCT", "SR")}
    assert len(stored["SEG"]) == before + 2 and len(stored["RTSTRUCT"]) == len(stored["SR"]) == 2
    drawn = {str(pydicom.dcmread(file).SOPInstanceUID): file for file in (tmp_path / "out").glob("*_seg.dcm")}
    for content in stored["SEG"]:
        seg = hd.seg.segread(io.BytesIO(content))
        if (file := drawn.pop(str(seg.SOPInstanceUID), None)) is not None:
            back, own = (each.get_volume(combine_segments=True) for each in (seg, hd.seg.segread(file)))
            assert (
                np.array_equal(back.array, own.array) and back.array.any() and np.array_equal(back.affine, own.affine)
            )
    assert not drawn
    for content in stored["SR"]:
        (group,) = hd.sr.srread(io.BytesIO(content)).content.get_volumetric_roi_measurement_groups()
        assert group.get_measurements()[0].value > 1
    serve = ["serve", str(model), *ways, *formats, "--work", str(tmp_path / "work"), "--once"]
    assert main(serve) == 0 and main(serve) == 0, capsys.readouterr().err
    assert "2 done" in capsys.readouterr().out
    assert {kind: len(pacs.files(kind)) for kind in stored} == {kind: len(files) for kind, files in stored.items()}


def test_by_dimse_the_same_comes_and_goes(pacs: Orthanc, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """C-FIND with C-GET, and with C-MOVE; C-STORE of results; and what a PACS that does not know us says."""
    query = ["--query", "StudyDate=20260301", "Modality=MR", "SeriesDescription=t2*"]
    fetched = {}
    for way, words in {
        "web": [pacs.dicomweb],
        "get": [pacs.dimse],
        "move": [pacs.dimse, "--receive-port", str(pacs.receive_port)],
    }.items():
        assert main(["data", "fetch", *words, *query, "--out", str(tmp_path / way)]) == 0, capsys.readouterr().err
        images = [(file.parent.name, pydicom.dcmread(file)) for file in (tmp_path / way).rglob("*.dcm")]
        fetched[way] = {(name, str(image.SOPInstanceUID)): image.to_json_dict() for name, image in images}
    assert fetched["web"] == fetched["get"] == fetched["move"] and len(fetched["get"]) == 5
    model, image = brightness_model(tmp_path / "model.pt"), volume(**BALL)[0]
    write_slices(tmp_path / "new", image, seed="31", change=of_shoulder)
    pacs.add(tmp_path / "new")
    before = len(pacs.files("SEG"))
    ways = ["--from", pacs.dimse, "--query", "BodyPartExamined=SHOULDER", "--to", pacs.dimse]
    for out in ("first", "again"):
        words = ["predict", str(model), *ways, "--format", "seg", "--format", "sr", "--out", str(tmp_path / out)]
        assert main(words) == 0, capsys.readouterr().err
    assert len(pacs.files("SEG")) == before + 1 and "2 were there already" in capsys.readouterr().out
    assert main(["data", "fetch", pacs.dimse, *query, "--ae-title", "NOBODY", "--out", str(tmp_path / "no")]) == 2
    assert "NOBODY" in (printed := capsys.readouterr().err) and "[pacs-rejected]" in printed


def test_by_dimse_over_tls_both_sides_show_a_certificate(tmp_path: Path) -> None:
    with_key, authority = own_certificate(tmp_path)
    tls = {
        "DicomTlsCertificate": str(authority),
        "DicomTlsPrivateKey": str(with_key),
        "DicomTlsTrustedCertificates": str(authority),
        "DicomTlsRemoteCertificateRequired": True,
    }
    write_study(tmp_path / "images", "1")
    with running_orthanc(tmp_path / "server", encrypted=tls) as server:
        server.add(tmp_path / "images")
        address = server.dimse.replace("dimse:", "dimse+tls:")
        words = ["data", "fetch", address, "--query", "Modality=MR", "--masks", "none", "--ca-file", str(authority)]
        ours = ["--certificate", str(with_key)]
        assert main([*words, *ours, "--out", str(tmp_path / "get")]) == 0
        there = ["--receive-port", str(server.receive_port)]
        assert main([*words, *ours, *there, "--out", str(tmp_path / "move")]) == 0
        assert len(list(tmp_path.glob("get/*/*/*.dcm"))) == len(list(tmp_path.glob("move/*/*/*.dcm"))) == 8
        with raises("pacs-unreachable", naming="--certificate"):
            open_archive(address, Access(ca_file=authority)).studies(parse_query(["Modality=MR"]))
        with raises("pacs-unreachable", naming="--ca-file"):
            open_archive(address, Access(node=Node(certificate=with_key))).studies(parse_query(["Modality=MR"]))


def test_a_node_that_serves_takes_what_a_pacs_sends_and_stores_the_results_there(pacs: Orthanc, tmp_path: Path) -> None:
    model, image = brightness_model(tmp_path / "model.pt"), volume(**BALL)[0]
    write_slices(tmp_path / "new", image, seed="41", change=of_shoulder)
    pacs.add(tmp_path / "new")
    study = str(pydicom.dcmread(tmp_path / "new" / "IM0001.dcm").StudyInstanceUID)
    before = len(pacs.files("SEG"))
    words = ["serve", str(model), "--listen", f"127.0.0.1:{pacs.receive_port}", "--accept", TITLE, "--to", pacs.dimse]
    words += ["--work", str(tmp_path / "work"), "--every", "1", "--format", "seg"]
    with (tmp_path / "log").open("w", encoding="utf-8") as log:
        serving = subprocess.Popen([sys.executable, "-m", "fedshift.cli", *words], stdout=log, stderr=log)
        try:
            wait_for(lambda: "listens at" in (tmp_path / "log").read_text("utf-8"), serving)
            pacs.send(study)
            wait_for(lambda: len(pacs.files("SEG")) == before + 1, serving)
            wait_for(lambda: "1 done" in (tmp_path / "log").read_text("utf-8"), serving)
        finally:
            serving.send_signal(signal.SIGTERM)
            assert serving.wait(20) == 130, (tmp_path / "log").read_text("utf-8")
    seg = next(
        each for file in pacs.files("SEG") if (each := pydicom.dcmread(io.BytesIO(file))).StudyInstanceUID == study
    )
    assert seg.Manufacturer == "fedshift"


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 90
    while not condition():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.2)


def of_shoulder(image: pydicom.Dataset, number: int) -> None:
    image.BodyPartExamined = "SHOULDER"


def of_body_part(image: pydicom.Dataset, number: int) -> None:
    image.BodyPartExamined = "PELVIS"
