"""A PACS that is asked by DIMSE: what comes is what was asked for, or a sentence says why not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pydicom
import pytest
from errors import raises
from fakenode import TITLE, Node, running_node
from fakepacs import Client, another_study, archive, one_less, the_first_twice, write_study
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate
from pydicom.uid import MPEG2MPML

from fedshift.pacs.access import Access, open_archive
from fedshift.pacs.archive import Archive
from fedshift.pacs.dimse import node as nodes
from fedshift.pacs.dimse.carrier import FIND, MOVE
from fedshift.pacs.fetch import fetch
from fedshift.pacs.query import parse_query
from fedshift.pacs.record import read_record
from fedshift.pacs.store import store

ONE = parse_query(["Modality=MR", "SeriesDescription=t2*", "StudyDate=20260101"])
T2 = parse_query(["Modality=MR", "SeriesDescription=t2*"])
MR = "1.2.840.10008.5.1.4.1.1.4"


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two studies, each with two series of images and a mask."""
    folder = tmp_path_factory.mktemp("pacs")
    for seed in ("1", "2"):
        write_study(folder / seed, seed, date=f"2026010{seed}")
    return folder


@pytest.fixture(scope="module")
def running(held: Path) -> Iterator[Node]:
    with running_node(held) as made:
        yield made


@pytest.fixture
def pacs(running: Node) -> Node:
    """Without a fault."""
    running.change = lambda image, number: image
    running.silent, running.find_status, running.store_status = (), 0, 0
    return running


@pytest.fixture(autouse=True)
def nothing_is_left_running(running: Node) -> Iterator[None]:
    """A thread of an association that is left open would keep the program from ending."""
    before, end = threading.active_count(), time.monotonic() + 5
    yield
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before, threading.enumerate()


def asked(pacs: Node, **ours: object) -> Archive:
    return open_archive(pacs.address, Access(node=nodes.Node(**ours)))  # type: ignore[arg-type]


@pytest.mark.parametrize("way", ["get", "move"])
def test_what_comes_by_dimse_is_what_comes_by_the_web(way: str, pacs: Node, held: Path, tmp_path: Path) -> None:
    ours = {"receive_port": pacs.receive_port} if way == "move" else {}
    record = fetch(asked(pacs, **ours), ONE, tmp_path / way, masks="required")
    web = fetch(archive(Client(held)), ONE, tmp_path / "web", masks="required")
    assert record.fetched == web.fetched and len(record.fetched) == 2 and not record.failed
    for each in record.fetched:
        for file in sorted((tmp_path / way / each.folder).iterdir()):
            other = tmp_path / "web" / each.folder / file.name
            assert pydicom.dcmread(file).to_json_dict() == pydicom.dcmread(other).to_json_dict()
    pacs.change = lambda image, number: 0xA702
    assert fetch(asked(pacs, **ours), ONE, tmp_path / way, masks="required").fetched == record.fetched


def test_a_series_keeps_its_compression(held: Path, tmp_path: Path) -> None:
    image = pydicom.dcmread(held / "1" / "t2" / "IM0001.dcm")
    image.compress("1.2.840.10008.1.2.5")  # RLE
    (tmp_path / "pacs").mkdir()
    image.save_as(tmp_path / "pacs" / "1.dcm")
    with running_node(tmp_path / "pacs", syntaxes=["1.2.840.10008.1.2.5"]) as pacs:
        (series,) = fetch(asked(pacs), T2, tmp_path / "out", masks="none").fetched
    (file,) = (tmp_path / "out" / series.folder).iterdir()
    back = pydicom.dcmread(file)
    assert back.file_meta.TransferSyntaxUID == "1.2.840.10008.1.2.5" and back.PixelData == image.PixelData


def test_images_in_a_form_that_is_not_read_are_said(held: Path, tmp_path: Path) -> None:
    image = pydicom.dcmread(held / "1" / "t2" / "IM0001.dcm")
    image.PixelData = encapsulate([image.PixelData])
    image.file_meta.TransferSyntaxUID = MPEG2MPML
    (tmp_path / "pacs").mkdir()
    image.save_as(tmp_path / "pacs" / "1.dcm")
    with running_node(tmp_path / "pacs", syntaxes=["1.2.840.10008.1.2.1", MPEG2MPML]) as pacs:
        (failed,) = fetch(asked(pacs), T2, tmp_path / "out", masks="none").failed
    assert image.StudyInstanceUID in failed.reason and "compression" in failed.reason
    with running_node(tmp_path / "pacs", storage=["1.2.840.10008.5.1.4.1.1.2"]) as pacs:
        (failed,) = fetch(asked(pacs), T2, tmp_path / "other", masks="none").failed
    assert "MR Image Storage" in failed.reason and "--receive-port" in failed.reason


def failing(image: Dataset, number: int) -> Dataset | int:
    return 0xC001 if number == 1 else image


@pytest.mark.parametrize(
    ("change", "way"),
    [(another_study, "get"), (the_first_twice, "get"), (one_less, "get"), (failing, "get"), (failing, "move")],
)
def test_something_else_than_was_asked_is_not_written_and_does_not_stop_other_studies(
    change: Callable[[Dataset, int], Dataset | int | None], way: str, pacs: Node, held: Path, tmp_path: Path
) -> None:
    wrong = pydicom.dcmread(next((held / "2" / "t2").iterdir())).StudyInstanceUID
    pacs.change = lambda image, number: change(image, number) if image.StudyInstanceUID == wrong else image
    ours = {"receive_port": pacs.receive_port} if way == "move" else {}
    record = fetch(asked(pacs, **ours), T2, tmp_path, masks="none")
    (failed,) = record.failed
    assert (way == "move" and change is failing) == (f"port {pacs.receive_port}" in failed.reason)
    assert failed.study == wrong and wrong in failed.reason and pacs.address in failed.reason
    assert len(record.fetched) == len(list(tmp_path.glob("*/*"))) == 1


def test_a_key_that_a_pacs_leaves_empty_is_compared_in_the_images(pacs: Node, tmp_path: Path) -> None:
    pacs.silent = ("SeriesDescription", "BodyPartExamined")
    query = parse_query(["StudyDate=20260101", "Modality=MR", "BodyPartExamined=PROSTATE"])
    assert len(fetch(asked(pacs), query, tmp_path / "out", masks="none").fetched) == 2
    pacs.silent = ("BodyPartExamined", "SOPClassUID")  # the second need not be said at all
    with raises("pacs-empty", naming="BodyPartExamined"):
        fetch(
            asked(pacs), parse_query(["StudyDate=20260101", "BodyPartExamined=LIVER"]), tmp_path / "none", masks="none"
        )


def test_associations_that_are_rejected_say_why(
    pacs: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG"), raises("pacs-rejected", naming=(pacs.address, "OTHER")):
        asked(pacs, title="OTHER").studies(parse_query(["PatientName=Doe^Jane"]))
    assert "Doe" not in caplog.text
    wrong = pacs.address.replace(TITLE, "WRONG")
    with raises("pacs-rejected", naming="WRONG"):
        open_archive(wrong, Access()).studies(T2)
    nobody = pacs.address.replace(str(pacs.port), "9")
    with raises("pacs-unreachable", naming=nobody):
        open_archive(nobody, Access()).studies(T2)
    with raises("pacs-unreachable", naming="no-such-machine.invalid"):
        open_archive("dimse://X@no-such-machine.invalid:104", Access(allow_unencrypted=True)).studies(T2)
    pacs.find_status = 0xA700
    with raises("pacs-answer", naming="A700"):
        asked(pacs).studies(T2)


def test_a_pacs_without_c_get_is_told_of(held: Path, tmp_path: Path) -> None:
    with running_node(held, models=(FIND, MOVE)) as pacs:
        record = fetch(asked(pacs), ONE, tmp_path / "get", masks="none")
        assert not record.fetched and all("--receive-port" in each.reason for each in record.failed)
        ours = {"receive_port": pacs.receive_port}
        assert len(fetch(asked(pacs, **ours), ONE, tmp_path / "move", masks="none").fetched) == 1
    with running_node(held, models=(FIND,)) as pacs:
        record = fetch(asked(pacs, receive_port=pacs.receive_port), ONE, tmp_path / "none", masks="none")
        assert not record.fetched and all("C-MOVE" in each.reason for each in record.failed)


def test_results_are_stored_once_and_refusals_are_errors(pacs: Node, held: Path, tmp_path: Path) -> None:
    write_study(tmp_path, "9")
    mask = tmp_path / "seg" / "seg.dcm"
    assert store(asked(pacs), [mask]) == (1, 0) and store(asked(pacs), [mask]) == (0, 1)
    assert pacs.stored[0].PixelData == pydicom.dcmread(mask).PixelData
    del pacs.held[pacs.stored.pop().SOPInstanceUID]
    pacs.store_status = 0xA700
    with raises("pacs-refused", naming=("A700", pacs.address)):
        store(asked(pacs), [mask])
    pacs.store_status = 0xB000  # stored, but changed
    assert store(asked(pacs), [mask]) == (1, 0)
    pacs.stored.clear()
    for storage, models in (([MR], (FIND,)), ([pydicom.dcmread(mask).SOPClassUID], ())):
        with running_node(models=models, storage=storage) as other:
            if models:
                with raises("pacs-refused", naming="Segmentation Storage"):
                    store(asked(other), [mask])
            else:  # it only stores, and cannot be asked
                assert store(asked(other), [mask]) == (1, 0)


def test_a_port_that_cannot_be_listened_at_is_named(pacs: Node, tmp_path: Path) -> None:
    with raises("pacs-unreachable", naming=str(pacs.port)):
        fetch(asked(pacs, receive_port=pacs.port), T2, tmp_path, masks="none")
    record = read_record(tmp_path)
    assert record is None or not record.fetched
