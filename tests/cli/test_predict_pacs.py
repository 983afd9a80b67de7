"""``fedshift predict`` from a PACS and to one, with a client of DICOMweb in memory."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import highdicom as hd
import pydicom
import pytest
import SimpleITK as sitk
from dicomstudies import write_slices
from fakepacs import ADDRESS, Client, archive, write_study
from inference.conftest import BALL, brightness_model, write_ball
from pydicom.dataset import Dataset
from scanfiles import volume

from cli.conftest import Refused
from fedshift.cli import main, predict_pacs
from fedshift.data.scan_folders import scans_in
from fedshift.inference.masks import mask_path
from fedshift.inference.sequences import find_cases, in_case_folders
from fedshift.schema.errors import DataError

QUERY = ("--query", "Modality=MR", "SeriesDescription=t2*")


@pytest.fixture
def pacs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    """With two studies, both with a series of the same name."""
    image, _ = volume(**BALL)
    for seed in ("1", "2"):
        write_slices(tmp_path / "pacs" / seed, image, seed=seed)
    client = Client(tmp_path / "pacs")
    monkeypatch.setattr(predict_pacs, "archive_at", lambda url, args, **how: archive(client))
    return client


def predict(*words: object) -> int:
    return main(["predict", *map(str, words)])


def test_series_are_fetched_segmented_and_their_results_stored_once(
    pacs: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = brightness_model(tmp_path / "model.pt")
    ways = ("--from", ADDRESS, *QUERY, "--to", ADDRESS)
    every = ("--format", "mask", "--format", "seg", "--format", "rtstruct", "--format", "sr")
    assert predict(model, *ways, "--out", tmp_path / "out", *every) == 0, capsys.readouterr().err
    stored = list(pacs.stored)
    assert len(stored) == len(set(stored)) == 6
    kinds = sorted(str(pacs.held[uid].Modality) for uid in stored)
    assert kinds == ["RTSTRUCT", "RTSTRUCT", "SEG", "SEG", "SR", "SR"]
    for file in (tmp_path / "out").glob("*_seg.dcm"):
        seg = hd.seg.segread(file)
        slices = [image for image in pacs.held.values() if image.Modality == "MR"]
        (study,) = {
            str(each.StudyInstanceUID)
            for each in slices
            if each.SeriesInstanceUID == seg.ReferencedSeriesSequence[0].SeriesInstanceUID
        }
        assert str(pacs.held[str(seg.SOPInstanceUID)].StudyInstanceUID) == study
    record = json.loads((tmp_path / "out" / "predictions.json").read_text(encoding="utf-8"))
    assert len(record["images"]) == 2 and all("sub-" in image["written"]["mask"] for image in record["images"])
    capsys.readouterr()
    assert predict(model, *ways, "--out", tmp_path / "again", *every) == 0
    assert pacs.stored == stored and "were there already" in capsys.readouterr().out
    assert predict(model, *ways, "--out", tmp_path / "out", *every, "--force") == 0
    assert pacs.stored == stored


def test_a_pacs_that_does_not_take_a_result_makes_it_an_error_of_that_study(
    pacs: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out, calls = brightness_model(tmp_path / "model.pt"), tmp_path / "out", []
    taking = pacs.store_instances

    def refusing(datasets: list[Dataset], study_instance_uid: str) -> Dataset:
        calls.append(study_instance_uid)
        if len(calls) > 1:
            return taking(datasets, study_instance_uid)
        answer, item = Dataset(), Dataset()
        item.ReferencedSOPInstanceUID, item.FailureReason = datasets[0].SOPInstanceUID, 0xA700
        answer.FailedSOPSequence = [item]
        return answer

    monkeypatch.setattr(pacs, "store_instances", refusing)
    words = (model, "--from", ADDRESS, *QUERY, "--to", ADDRESS, "--out", out)
    assert predict(*words) == 1
    printed = capsys.readouterr().err
    assert calls[0] in printed and "A700" in printed
    assert len(pacs.stored) == 1 and len(list(out.glob("*_seg.dcm"))) == len(list(out.glob("*_mask.nii.gz"))) == 1
    assert predict(*words) == 0
    assert len(pacs.stored) == 2 and (out / "predictions.csv").is_file()


def test_an_answer_that_names_nothing_counts_only_if_the_results_are_there(
    pacs: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, taking = brightness_model(tmp_path / "model.pt"), pacs.store_instances
    monkeypatch.setattr(pacs, "store_instances", lambda datasets, study_instance_uid: Dataset())
    words = (model, "--from", ADDRESS, *QUERY, "--to", ADDRESS)
    assert predict(*words, "--out", tmp_path / "lost") == 1

    def silent(datasets: list[Dataset], study_instance_uid: str) -> Dataset:
        taking(datasets, study_instance_uid)
        return Dataset()

    monkeypatch.setattr(pacs, "store_instances", silent)
    assert predict(*words, "--out", tmp_path / "kept") == 0


def test_a_series_that_cannot_be_fetched_is_named_and_the_others_are_segmented(
    pacs: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = pydicom.dcmread(tmp_path / "pacs" / "2" / "IM0001.dcm").StudyInstanceUID
    pacs.change = lambda image, number: None if image.StudyInstanceUID == wrong and number else image
    model, out = brightness_model(tmp_path / "model.pt"), tmp_path / "out"
    assert predict(model, "--from", ADDRESS, *QUERY, "--out", out) == 1
    assert wrong in capsys.readouterr().err and len(list(out.glob("*_seg.dcm"))) == 1


def test_a_case_of_several_sequences_is_called_as_its_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in ("1", "2"):
        write_study(tmp_path / "pacs" / seed, seed)
    client = Client(tmp_path / "pacs")
    monkeypatch.setattr(predict_pacs, "archive_at", lambda url, args, **how: archive(client))
    asked = {"query": ["Modality=MR"], "sequence": ["T2=t2*", "ADC=adc"], "source": ADDRESS, "out": tmp_path / "out"}
    args = argparse.Namespace(**asked)
    images = predict_pacs.source(args)
    assert images is not None
    folders, code = predict_pacs.fetched(images, args)
    names = ("T2", "ADC")
    cases = predict_pacs.named_by_study(find_cases(scans_in(in_case_folders(folders, names)), names), args)
    assert code == 0 and len(cases) == 2
    for case in cases:
        assert [file.name for file in case.files] == ["T2", "ADC"] and case.is_dicom
        assert mask_path(case.named, tmp_path) == tmp_path / f"{case.image.parent.name}_mask.nii.gz"


def test_what_does_not_go_together_is_refused(
    tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = brightness_model(tmp_path / "model.pt"), ("--out", tmp_path / "out")
    write_ball(tmp_path / "scan.nii.gz")
    for words, code in (
        ((), "images-missing"),
        (("--from", ADDRESS), "options-clash"),
        ((tmp_path / "scan.nii.gz", "--from", ADDRESS, *QUERY), "options-clash"),
        ((tmp_path / "scan.nii.gz", *QUERY), "options-clash"),
        ((tmp_path / "scan.nii.gz", "--ca-file", "x.pem"), "no-effect"),
        ((tmp_path / "scan.nii.gz", "--to", ADDRESS), "no-effect"),
        (("--from", "http://pacs.example", *QUERY), "pacs-unencrypted"),
    ):
        refused("predict", model, *words, *out, code=code)
    assert not (tmp_path / "out").exists()


def test_credentials_of_one_server_are_not_sent_to_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, object]] = []

    def noted(url: str, known: object, **how: object) -> None:
        asked.append((url, known))
        raise DataError("pacs-unreachable", url)

    monkeypatch.setattr("fedshift.pacs.web.connection.connect", noted)
    monkeypatch.setenv("FEDSHIFT_PACS_TOKEN", "secret")
    model = brightness_model(tmp_path / "model.pt")
    image, _ = volume(**BALL)
    sitk.WriteImage(image, str(tmp_path / "scan.nii.gz"))
    words = ("--from", "https://one.example", *QUERY, "--out", tmp_path / "out")
    assert predict(model, *words, "--to", "https://two.example/x") == 2
    assert predict(model, *words, "--to", "https://one.example/x") == 2
    assert [(url, known.token) for url, known in asked] == [  # type: ignore[attr-defined]
        ("https://two.example/x", None),
        ("https://one.example/x", "secret"),
    ]
