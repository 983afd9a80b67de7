"""This machine as a node: who may send, and what is kept of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydicom
import pytest
from errors import raises
from fakepacs import write_study
from orthanc import free_ports
from pydicom.uid import MPEG2MPML, ExplicitVRLittleEndian
from pynetdicom import AE

from fedshift.data.dicom_objects import quiet
from fedshift.pacs.archive import Archive
from fedshift.pacs.dimse.listener import VERIFICATION, Listening, listening
from fedshift.pacs.dimse.node import Node
from fedshift.pacs.fetch import fetch
from fedshift.pacs.query import parse_query
from fedshift.pacs.queue import Queue
from fedshift.pacs.received import DAY, Received

MR = "1.2.840.10008.5.1.4.1.1.4"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    write_study(folder / "1", "1")
    write_study(folder / "2", "2", date="20260301")
    return folder


@pytest.fixture
def received(tmp_path: Path) -> Received:
    return Received(tmp_path / "received")


@pytest.fixture
def port(received: Received) -> Iterator[int]:
    (free,) = free_ports(1)
    with listening(Listening(Node("HERE"), "127.0.0.1", free, ["SCANNER"]), received):
        yield free


def associated(port: int, *, ours: str = "SCANNER", theirs: str = "HERE", syntax: str = ExplicitVRLittleEndian) -> Any:
    sender = AE(ours)
    sender.add_requested_context(VERIFICATION)
    for sop_class in (MR, "1.2.840.10008.5.1.4.1.1.66.4"):
        sender.add_requested_context(sop_class, syntax)
    return sender.associate("127.0.0.1", port, ae_title=theirs)


def test_what_is_sent_is_on_disk_and_is_asked_for_as_in_a_pacs(
    port: int, received: Received, images: Path, tmp_path: Path
) -> None:
    sender = associated(port)
    assert sender.send_c_echo().Status == 0
    for file in sorted(images.rglob("*.dcm")):
        assert sender.send_c_store(pydicom.dcmread(file)).Status == 0
        assert sender.send_c_store(pydicom.dcmread(file)).Status == 0  # and again
    sender.release()
    archive, first = Archive(received), parse_query(["Modality=MR", "SeriesDescription=t2*", "StudyDate=20260102"])
    record = fetch(archive, first, tmp_path / "out")
    assert {each.modality for each in record.fetched} == {"MR", "SEG"} and not record.failed
    (series,) = (each for each in record.fetched if each.modality == "MR")
    back = {image.SOPInstanceUID: image for image in map(pydicom.dcmread, (tmp_path / "out" / series.folder).iterdir())}
    for file in (images / "1" / "t2").iterdir():
        image = pydicom.dcmread(file)
        assert back.pop(image.SOPInstanceUID).to_json_dict() == image.to_json_dict()
    assert not back and not [
        each for each in tmp_path.rglob("*.dcm") if "received" in each.parts and each.stat().st_mode & 0o77
    ]
    assert len(archive.studies(parse_query(["ModalitiesInStudy=SEG"]))) == 2
    queue = Queue(tmp_path / "queue")
    queue.look(archive, first)
    queue.look(archive, first)
    assert queue.counts == {"waiting": 1}


def test_others_are_not_let_in_and_what_cannot_be_read_is_not_taken(
    port: int, received: Received, images: Path, tmp_path: Path
) -> None:
    assert associated(port, ours="SOMEBODY").is_rejected and associated(port, theirs="THERE").is_rejected
    movie = associated(port, syntax=MPEG2MPML)
    assert [str(each.abstract_syntax) for each in movie.accepted_contexts] == [VERIFICATION]
    movie.release()
    image = pydicom.dcmread(next((images / "1" / "t2").iterdir()))
    sender = associated(port)
    for name, value, status in (
        ("StudyInstanceUID", "1.2/../../up", 0xC000),
        ("SeriesInstanceUID", "", 0xC000),
    ):
        wrong = pydicom.dcmread(image.filename)
        with quiet():
            setattr(wrong, name, value)
            assert sender.send_c_store(wrong).Status == status
    sender.release()
    assert not list(tmp_path.rglob("*.dcm")) and Archive(received).studies(parse_query(["Modality=MR"])) == []


def test_images_are_kept_for_a_time_and_those_of_studies_at_work_longer(received: Received, images: Path) -> None:
    studies = set()
    for file in images.rglob("*.dcm"):
        header = pydicom.dcmread(file, stop_before_pixels=True)
        received.add(header, file.read_bytes())
        studies.add(str(header.StudyInstanceUID))
    first, second = sorted(studies)
    assert not list(received.remove(days=7, keep=()))
    for file in Path(received.address).rglob("*.dcm"):
        os.utime(file, (0, file.stat().st_mtime - 8 * DAY))
    assert list(received.remove(days=7, keep={first})) == [second]
    assert [str(each.StudyInstanceUID) for each in received.studies({})] == [first]


def test_a_port_that_is_taken_and_others_without_encryption_are_refused(port: int, received: Received) -> None:
    with raises("port-taken", naming=str(port)), listening(Listening(Node(), "127.0.0.1", port, ["A"]), received):
        pass
    with raises("pacs-unencrypted"), listening(Listening(Node(), "", port, ["A"]), received):
        pass
    with raises("ae-title"):
        Listening(Node(), "", port, ["x" * 17])
