from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pydicom
import pytest
import requests
from errors import raises
from fakepacs import ADDRESS, Client, another_study, archive, one_less, the_first_twice, write_study
from pydicom.dataset import Dataset
from pydicom.uid import generate_uid

from fedshift.data.layouts.studies import pair_studies
from fedshift.pacs.fetch import fetch
from fedshift.pacs.query import parse_query
from fedshift.pacs.record import FILE, read_record

T2 = parse_query(["Modality=MR", "SeriesDescription=t2*"])


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two studies of the same patient's, and one of another's without a mask."""
    folder = tmp_path_factory.mktemp("pacs")
    write_study(folder / "1", "1")
    write_study(folder / "2", "2", date="20260301")
    write_study(folder / "3", "3", mask=False)
    for file in (folder / "2").rglob("*.dcm"):
        image = pydicom.dcmread(file)
        image.PatientID = "PID-1"
        image.save_as(file)
    return folder


def scans(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.glob("*/*"))


def test_what_is_fetched_is_what_the_reader_of_studies_takes(held: Path, tmp_path: Path) -> None:
    client, out = Client(held), tmp_path / "out"
    record = fetch(archive(client), T2, out)
    assert record == read_record(out) and not record.failed and not record.left_out
    assert [each.description for each in record.fetched].count("t2_tse_tra") == 3 and len(record.fetched) == 5
    for each in record.fetched:
        files = sorted((out / each.folder).iterdir())
        assert len(files) == each.files
        for file in files:
            image = pydicom.dcmread(file)
            assert image.to_json_dict() == client.held[image.SOPInstanceUID].to_json_dict()
    table = pair_studies(out)
    assert [finding.code for finding in table.findings] == ["mask-missing"]
    subjects = [case.id.partition("_ses")[0] for case in table.cases]
    assert len(table.cases) == 2 and len(set(subjects)) == 1
    assert "PID-1" not in (out / FILE).read_text(encoding="utf-8") + str(scans(out))


def test_studies_without_masks_can_be_left_out_and_masks_too(held: Path, tmp_path: Path) -> None:
    record = fetch(archive(Client(held)), T2, tmp_path / "required", masks="required")
    assert len(record.fetched) == 4 and len(record.left_out) == 1
    assert not pair_studies(tmp_path / "required").findings
    assert len(fetch(archive(Client(held)), T2, tmp_path / "none", masks="none").fetched) == 3


def test_a_repeated_call_fetches_what_is_missing_or_has_changed_alone(held: Path, tmp_path: Path) -> None:
    client, out = Client(held), tmp_path / "out"
    first = fetch(archive(client), T2, out)
    former, client.sent[:] = list(client.sent), []
    assert fetch(archive(client), T2, out).fetched == first.fetched and not client.sent
    shutil.rmtree(out / first.fetched[0].folder)
    next((out / first.fetched[1].folder).iterdir()).unlink()
    (out / first.fetched[2].folder).with_name(".t2.partial-1234").mkdir()
    assert fetch(archive(client), T2, out).fetched == first.fetched
    assert client.sent == [first.fetched[0].series, first.fetched[1].series] and set(client.sent) < set(former)
    assert not list(out.glob("*/.*"))
    more = pydicom.dcmread(held / "1" / "t2" / "IM0001.dcm")
    more.SOPInstanceUID = more.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    (tmp_path / "more").mkdir()
    more.save_as(tmp_path / "more" / "more.dcm")
    client.add(tmp_path / "more")
    grown, client.sent[:] = fetch(archive(client), T2, out).fetched, []
    assert sum(each.files for each in grown) == sum(each.files for each in first.fetched) + 1
    assert fetch(archive(client), T2, out).fetched == grown and not client.sent


def test_another_query_adds_to_the_folder_and_names_stay_apart(held: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fetch(archive(Client(held)), T2, out, masks="none")
    client = Client(held)
    for image in client.held.values():
        image.SeriesDescription = "t2_tse_tra"

    def renamed(image: Dataset, number: int) -> Dataset:
        image.SeriesDescription = "t2_tse_tra"
        return image

    client.change = renamed
    record = fetch(archive(client), T2, out, masks="none")
    assert len(record.fetched) == len({each.folder for each in record.fetched}) == len(scans(out)) == 6


def test_masks_of_other_series_and_those_of_fedshift_are_left_out(held: Path, tmp_path: Path) -> None:
    record = fetch(archive(Client(held)), parse_query(["SeriesDescription=adc"]), tmp_path / "adc")
    assert (
        len(record.fetched) == 3
        and [each.reason for each in record.left_out] == ["it is of images that were not asked for"] * 2
    )
    client = Client(held)

    def ours(image: Dataset, number: int) -> Dataset:
        if image.Modality == "SEG":
            image.Manufacturer = "fedshift"
        return image

    client.change = ours
    record = fetch(archive(client), T2, tmp_path / "t2")
    assert len(record.fetched) == 3 and all("fedshift" in each.reason for each in record.left_out)


def test_a_server_that_passes_over_a_key_does_not_widen_the_query(held: Path, tmp_path: Path) -> None:
    client = Client(held, ignores=["SeriesDescription", "StudyDate", "ModalitiesInStudy"])
    query = parse_query(["SeriesDescription=t2*", "StudyDate=20260101-20260131"])
    record = fetch(archive(client), query, tmp_path / "said", masks="none")
    assert [each.description for each in record.fetched] == ["t2_tse_tra"] * 2
    client = Client(held, ignores=["BodyPartExamined"])  # of which its answers say nothing
    with raises("pacs-empty", naming="BodyPartExamined"):
        fetch(archive(client), parse_query(["BodyPartExamined=LIVER"]), tmp_path / "silent", masks="none")
    assert not scans(tmp_path / "silent")


def test_of_several_sequences_a_study_has_one_each(held: Path, tmp_path: Path) -> None:
    out, asked = tmp_path / "out", ["T2=t2*", "ADC=adc"]
    client = Client(held)
    wanted = parse_query(["Modality=MR"], asked)
    record = fetch(archive(client), wanted, out, masks="none")
    assert {Path(each.folder).name for each in record.fetched} == {"T2", "ADC"} and len(scans(out)) == 6
    third = pydicom.dcmread(held / "3" / "t2" / "IM0001.dcm").StudyInstanceUID
    client.held = {
        k: v for k, v in client.held.items() if (v.StudyInstanceUID, v.get("SeriesDescription")) != (third, "adc")
    }
    record = fetch(archive(client), wanted, tmp_path / "lacking", masks="none")
    assert len(scans(tmp_path / "lacking")) == 4
    assert [(each.study, "ADC" in each.reason) for each in record.left_out] == [(third, True)]
    with raises("pacs-empty", naming="2 series for ANY"):
        fetch(archive(Client(held)), parse_query(["Modality=MR"], ["ANY=*"]), tmp_path / "two", masks="none")


def test_nothing_found_is_an_error(held: Path, tmp_path: Path) -> None:
    with raises("pacs-empty", naming=(ADDRESS, "Modality=CT")):
        fetch(archive(Client(held)), parse_query(["Modality=CT"]), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with raises("pacs-empty"):
        fetch(archive(Client(held)), parse_query(["Modality=SEG"]), tmp_path / "out")


def another_class(image: Dataset, number: int) -> Dataset:
    image.SOPClassUID = "1.2.840.10008.5.1.4.1.1.7"
    return image


def nameless(image: Dataset, number: int) -> Dataset:
    del image.SOPInstanceUID
    return image


def cut_off(image: Dataset, number: int) -> Dataset:
    if number == 1:
        raise requests.exceptions.ChunkedEncodingError("https://user:secret@pacs.example")
    return image


def no_dicom(image: Dataset, number: int) -> Dataset:
    raise pydicom.errors.InvalidDicomError("<html>secret</html>")


@pytest.mark.parametrize("change", [another_study, another_class, the_first_twice, one_less, nameless, no_dicom])
def test_something_else_than_was_asked_is_not_written_and_does_not_stop_other_studies(
    change: Callable[[Dataset, int], Dataset | None], held: Path, tmp_path: Path
) -> None:
    client, out = Client(held), tmp_path / "out"
    wrong = pydicom.dcmread(next((held / "2" / "t2").iterdir())).StudyInstanceUID
    client.change = lambda image, number: change(image, number) if image.StudyInstanceUID == wrong else image
    record = fetch(archive(client), T2, out, masks="none")
    (failed,) = record.failed
    assert (
        failed.study == wrong and wrong in failed.reason and ADDRESS in failed.reason and "secret" not in failed.reason
    )
    assert len(record.fetched) == len(scans(out)) == 2
    client.change = lambda image, number: image
    record = fetch(archive(client), T2, out, masks="none")
    assert not record.failed and len(record.fetched) == len(scans(out)) == 3


def test_a_line_that_is_cut_ends_the_call_and_leaves_nothing_half_written(held: Path, tmp_path: Path) -> None:
    client, out = Client(held), tmp_path / "out"
    second = pydicom.dcmread(next((held / "2" / "t2").iterdir())).StudyInstanceUID
    client.change = lambda image, number: cut_off(image, number) if image.StudyInstanceUID == second else image
    with raises("pacs-unreachable", naming=second) as raised:
        fetch(archive(client), T2, out, masks="none")
    assert "secret" not in str(raised.value)
    record = read_record(out)
    assert record is not None and len(record.fetched) == len(scans(out)) == 1
    assert not list(out.glob("*/.*"))


def test_a_folder_of_something_else_is_left_alone(held: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with raises("folder-taken", naming=str(tmp_path)):
        fetch(archive(Client(held)), T2, tmp_path)
    out = tmp_path / "out"
    fetch(archive(Client(held)), T2, out, masks="none")
    (out / FILE).write_text((out / FILE).read_text().replace(ADDRESS, "https://other.example"))
    with raises("folder-taken", naming="other.example"):
        fetch(archive(Client(held)), T2, out)
    (out / FILE).write_text("{")
    with raises("record-damaged", naming=FILE):
        fetch(archive(Client(held)), T2, out)
