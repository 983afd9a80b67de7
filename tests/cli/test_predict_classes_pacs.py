"""What a model says of pictures and volumes of a PACS, as DICOM reports."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import highdicom as hd
import numpy as np
import pydicom
import pytest
from conftest import SHAPE_CLASSES, latest, small_image_job
from dicompictures import write_dicom
from dicomstudies import write_slices
from fakepacs import ADDRESS, Client, archive
from inference.conftest import BALL, save_model
from pydicom.sr.codedict import codes
from pydicom.uid import generate_uid
from scanfiles import volume

from cli.conftest import Refused
from fedshift.cli import main, predict_pacs, serve
from fedshift.federation.resolve import resolve
from fedshift.inference.dicom_classes import FEDSHIFT_SCHEME

WAYS = ("--from", ADDRESS, "--query", "Modality=DX", "--to", ADDRESS)


def write_radiograph(folder: Path, seed: str) -> Path:
    """A radiograph of 12 bits with a window, in a study of its own."""
    pixels = np.random.default_rng(int(seed)).integers(0, 4096, (40, 48), np.uint16)
    folder.mkdir(parents=True, exist_ok=True)
    tags = {"StudyInstanceUID": generate_uid(entropy_srcs=["study", seed]), "StudyDate": "20260102"}
    tags |= {"SeriesInstanceUID": generate_uid(entropy_srcs=["series", seed]), "Modality": "DX"}
    tags |= {"PatientID": f"PID-{seed}", "PatientName": "Doe^Jane", "SeriesDescription": "chest pa"}
    return write_dicom(folder / f"{seed}.dcm", pixels, WindowCenter=2048, WindowWidth=4096, **tags)


def model_of(folder: Path, *options: str) -> Path:
    return save_model(folder / "classes.pt", small_image_job("fedavg", *options))


@pytest.fixture
def pacs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    """With two radiographs, and a scan."""
    for seed in ("1", "2"):
        write_radiograph(tmp_path / "pacs", seed)
    write_slices(tmp_path / "pacs" / "mr", volume(**BALL)[0], seed="3")
    client = Client(tmp_path / "pacs")
    for module in (predict_pacs, serve):
        monkeypatch.setattr(module, "archive_at", lambda url, args, **how: archive(client))
    return client


def reports(pacs: Client) -> list[hd.sr.ComprehensiveSR]:
    return [each for each in pacs.held.values() if each.Modality == "SR"]


@pytest.mark.parametrize("several", [True, False])
def test_each_picture_gets_a_report_which_others_read_and_which_is_stored_once(
    several: bool, pacs: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_of(tmp_path, f"data.multi_label={str(several).lower()}")
    assert main(["predict", str(model), *WAYS, "--out", str(tmp_path / "out")]) == 0, capsys.readouterr().err
    assert len(pacs.stored) == len(reports(pacs)) == 2
    rows = list(csv.DictReader((tmp_path / "out" / "predictions.csv").open(encoding="utf-8")))
    record = json.loads((tmp_path / "out" / "predictions.json").read_text(encoding="utf-8"))
    for row, entry in zip(rows, record["images"], strict=True):
        source = pydicom.dcmread(row["file"])
        report = hd.sr.srread(tmp_path / "out" / entry["written"]["sr"])
        assert report.StudyInstanceUID == source.StudyInstanceUID and report.PatientID == source.PatientID
        assert str(report.SOPInstanceUID) in pacs.stored and "not for diagnosis" in report.SeriesDescription
        groups = report.content.get_image_measurement_groups()
        said = {}
        for group, name in zip(groups, SHAPE_CLASSES, strict=True):
            assert (group.finding_type.meaning, group.finding_type.scheme_designator) == (name, FEDSHIFT_SCHEME)
            (measurement,) = group.get_measurements()
            (image,) = group.source_images
            assert image.referenced_sop_instance_uid == source.SOPInstanceUID
            decisions = [each.value for each in group.get_qualitative_evaluations()]
            said[name] = (measurement.value, decisions)
        if several:
            assert {name: value for name, (value, _) in said.items()} == entry["probabilities"]
            present = {name for name, (_, decisions) in said.items() if decisions == [codes.SCT.Present]}
            assert present == set(entry["findings"]) and all(len(decisions) == 1 for _, decisions in said.values())
        else:
            assert {name for name, (_, decisions) in said.items() if decisions} == {entry["class"]}
            assert said[entry["class"]][0] == entry["probability"]
    assert main(["predict", str(model), *WAYS, "--out", str(tmp_path / "again")]) == 0
    assert len(pacs.stored) == 2 and "1 were there already" in capsys.readouterr().out


def test_a_watcher_reports_on_each_new_study(pacs: Client, tmp_path: Path) -> None:
    model = model_of(tmp_path)
    words = ["serve", str(model), *WAYS, "--work", str(tmp_path / "work"), "--once"]
    assert main(words) == main(words) == 0
    assert len(reports(pacs)) == 2


def test_what_is_no_picture_is_refused_and_a_report_that_is_not_taken_is_an_error(
    pacs: Client, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(tmp_path)
    scans = ("--from", ADDRESS, "--query", "Modality=MR", "--to", ADDRESS)
    refused("predict", model, *scans, "--out", tmp_path / "mr", code="kind-of-data", naming="Modality=DX")
    out = ("--out", tmp_path / "out")
    refused("predict", model, *WAYS, *out, "--format", "seg", code="no-effect", naming="--format")
    work = ("--work", tmp_path / "work")
    refused("serve", model, *WAYS, *work, "--format", "seg", code="no-effect", naming="--format")
    monkeypatch.setattr(pacs, "store_instances", lambda datasets, study_instance_uid: pydicom.Dataset())
    assert main(["predict", str(model), *WAYS, *map(str, out)]) == 1
    assert not list((tmp_path / "out").glob("*_sr.dcm"))


def test_a_volume_gets_a_report_on_all_of_its_slices(pacs: Client, tmp_path: Path) -> None:
    model = save_model(tmp_path / "volumes.pt", resolve("organmnist3d", "fedavg", options=latest()))
    words = ["--from", ADDRESS, "--query", "Modality=MR", "--to", ADDRESS, "--out", str(tmp_path / "out")]
    assert main(["predict", str(model), *words]) == 0
    (report,) = (hd.sr.srread(file) for file in (tmp_path / "out").glob("*_sr.dcm"))
    slices = {str(each.SOPInstanceUID) for each in pacs.held.values() if each.Modality == "MR"}
    (_, *_, last) = report.content.get_image_measurement_groups()
    assert {image.referenced_sop_instance_uid for image in last.source_images} == slices
    assert [str(each.SOPInstanceUID) for each in reports(pacs)] == [str(report.SOPInstanceUID)]


def test_without_a_pacs_a_report_is_written_where_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, picture = model_of(tmp_path), write_radiograph(tmp_path / "in", "1")
    assert main(["predict", str(model), str(picture), "--out", str(tmp_path / "plain")]) == 0
    assert not list((tmp_path / "plain").glob("*.dcm"))
    assert main(["predict", str(model), str(picture), "--out", str(tmp_path / "sr"), "--format", "sr"]) == 0
    assert [file.name for file in (tmp_path / "sr").glob("*.dcm")] == ["1_sr.dcm"]
    nameless = write_dicom(tmp_path / "in" / "2.dcm", np.full((8, 8), 9, np.uint16) * np.arange(8, dtype=np.uint16))
    assert main(["predict", str(model), str(nameless), "--out", str(tmp_path / "no"), "--format", "sr"]) == 1
    assert "StudyInstanceUID" in capsys.readouterr().err
