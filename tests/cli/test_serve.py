"""``fedshift serve``, with a client of DICOMweb in memory."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydicom
import pytest
import requests
from dicomstudies import write_slices
from fakepacs import ADDRESS, Client, archive
from inference.conftest import BALL, brightness_model
from scanfiles import volume

from cli.conftest import Refused
from fedshift.cli import main, predict, predict_pacs, serve
from fedshift.federation.run_lock import take
from fedshift.inference import model, segment


def add_study(client: Client, folder: Path, seed: str) -> str:
    """Give a PACS another study; its UID."""
    image, _ = volume(**BALL)
    client.add(write_slices(folder / "pacs" / seed, image, seed=seed))
    return str(pydicom.dcmread(folder / "pacs" / seed / "IM0001.dcm").StudyInstanceUID)


@pytest.fixture
def pacs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    client = Client()
    for module in (predict_pacs, serve):
        monkeypatch.setattr(module, "archive_at", lambda url, args, **how: archive(client))
    former = signal.getsignal(signal.SIGTERM)
    yield client
    signal.signal(signal.SIGTERM, former)


class Watcher:
    """Calls of ``fedshift serve --once`` in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.model = folder / "work", brightness_model(folder / "model.pt")

    def look(self, *words: str) -> int:
        ways = [
            "--from",
            ADDRESS,
            "--query",
            "StudyDate=20260101-",
            "--to",
            ADDRESS,
            "--format",
            "seg",
            "--format",
            "sr",
        ]
        return main(["serve", str(self.model), *ways, "--work", str(self.folder), "--once", *words])

    @property
    def states(self) -> dict[str, str]:
        entries = (json.loads(file.read_text("utf-8")) for file in (self.folder / "queue").iterdir())
        return {entry["study"]: entry["state"] for entry in entries}


@pytest.mark.parametrize("counts", [True, False])
def test_each_study_is_done_once_and_again_when_its_images_change(counts: bool, pacs: Client, tmp_path: Path) -> None:
    pacs.counts = counts
    watcher, first = Watcher(tmp_path), add_study(pacs, tmp_path, "1")
    assert watcher.look() == 0 and watcher.states == {first: "arriving"} and not pacs.stored
    second = add_study(pacs, tmp_path, "2")
    assert watcher.look() == 0 and watcher.states == {first: "done", second: "arriving"}
    assert watcher.look() == 0 and watcher.look() == 0
    assert watcher.states == {first: "done", second: "done"} and len(pacs.stored) == len(set(pacs.stored)) == 4
    for study in (first, second):
        assert list((watcher.folder / "studies" / study).glob("*_seg.dcm"))
        assert not (watcher.folder / "studies" / study / "fetched").exists()
    pacs.looked_into.clear()
    watcher.look()
    assert bool(pacs.looked_into) != counts, "what is settled is not looked into, if it is known to be"
    more = pydicom.dcmread(tmp_path / "pacs" / "1" / "IM0001.dcm")
    more.SOPInstanceUID = more.file_meta.MediaStorageSOPInstanceUID = f"{more.SOPInstanceUID}"[:-1]
    more.SeriesInstanceUID = f"{more.SeriesInstanceUID}"[:-1]
    (tmp_path / "more").mkdir()
    more.save_as(tmp_path / "more" / "more.dcm")
    pacs.add(tmp_path / "more")
    watcher.look()
    assert watcher.states == {first: "arriving", second: "done"}


def test_a_study_that_fails_keeps_its_sentence_and_stops_no_other(
    pacs: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watcher, first, second = Watcher(tmp_path), add_study(pacs, tmp_path, "1"), add_study(pacs, tmp_path, "2")
    pacs.change = lambda image, number: None if number and image.StudyInstanceUID == first else image
    watcher.look()
    assert watcher.look() == 1 and watcher.states == {first: "failed", second: "done"}
    entry = json.loads((watcher.folder / "queue" / f"{first}.json").read_text("utf-8"))
    assert first in entry["error"] and first in capsys.readouterr().err
    pacs.change = lambda image, number: image
    assert watcher.look() == 0 and watcher.states[first] == "failed"
    assert watcher.look("--retry") == 0 and watcher.states[first] == "done"


def test_a_pacs_that_is_away_fails_no_study(pacs: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher, study = Watcher(tmp_path), add_study(pacs, tmp_path, "1")
    watcher.look()

    def away(*args: object, **how: object) -> None:
        raise requests.ConnectionError

    for what in ("store_instances", "search_for_studies"):
        with monkeypatch.context() as patch:
            patch.setattr(pacs, what, away)
            assert watcher.look() == 1
        assert watcher.states == {study: "waiting"}
    assert watcher.look() == 0 and watcher.states == {study: "done"}


def test_a_watcher_that_ended_goes_on_and_what_ends_it_twice_fails(
    pacs: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher, first, second = Watcher(tmp_path), add_study(pacs, tmp_path, "1"), add_study(pacs, tmp_path, "2")
    watcher.look()
    running = predict.predict

    def stopped(*args: object, **how: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(predict, "predict", stopped)
    for _ in range(3):  # however often a service is restarted
        assert watcher.look() == 130
    assert watcher.states == {first: "waiting", second: "waiting"}

    class Killed(BaseException):
        pass

    def killed(*args: object, **how: object) -> int:
        raise Killed

    monkeypatch.setattr(predict, "predict", killed)
    for _ in range(2):
        with pytest.raises(Killed):
            watcher.look()
    monkeypatch.setattr(predict, "predict", running)
    assert watcher.look() == 0 and watcher.states == {first: "failed", second: "done"}


def test_an_error_that_nobody_expected_is_of_its_study_alone(
    pacs: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher, study = Watcher(tmp_path), add_study(pacs, tmp_path, "1")
    watcher.look()

    def broken(*args: object, **how: object) -> int:
        raise TypeError("PatientName^secret")

    monkeypatch.setattr(predict, "predict", broken)
    assert watcher.look() == 1 and watcher.states == {study: "failed"}
    assert "secret" not in (watcher.folder / "queue" / f"{study}.json").read_text("utf-8")


def test_the_model_is_read_once_and_again_when_its_file_changes(
    pacs: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    watcher = Watcher(tmp_path)
    studies = [add_study(pacs, tmp_path, seed) for seed in ("1", "2", "3", "4")]
    watcher.look()
    done, reading, predicting, made_ready = [], model.open_model, predict.predict, segment.make_ready
    read: list[Path] = []
    ready: list[object] = []

    def changing(*args: Any, **how: Any) -> int:
        failed = predicting(*args, **how)
        done.append(failed)
        if len(done) == 2:
            brightness_model(watcher.model, scale=2.0)
        if len(done) == 3:
            watcher.model.write_bytes(b"half of it")
        return failed

    monkeypatch.setattr(predict, "predict", changing)
    monkeypatch.setattr(model, "open_model", lambda path: read.append(path) or reading(path))
    monkeypatch.setattr(segment, "make_ready", lambda *args, **how: ready.append(args) or made_ready(*args, **how))
    assert watcher.look() == 1
    assert len(read) == 3 and len(ready) == 2 and done == [0, 0, 0], "the last one is no model"
    assert [watcher.states[study] for study in studies].count("done") == 3 and "waiting" in watcher.states.values()
    printed = capsys.readouterr()
    assert printed.out.count("has changed") == 1 and str(watcher.model) in printed.err
    serial_numbers = {str(each.DeviceSerialNumber) for each in pacs.held.values() if each.Modality == "SEG"}
    assert len(serial_numbers) == 2


def test_what_would_be_wrong_with_every_study_is_refused_at_once(
    pacs: Client, tmp_path: Path, refused: Refused
) -> None:
    model, ways = (
        brightness_model(tmp_path / "model.pt"),
        ("--from", ADDRESS, "--query", "Modality=MR", "--to", ADDRESS),
    )
    work = ("--work", tmp_path / "work", "--once")
    refused("serve", tmp_path / "nowhere.pt", *ways, *work, code="model-missing")
    refused("serve", model, *ways, *work, "--statistics", "own", code="options-clash")
    refused("serve", model, *ways, *work, "--format", "mask", code="no-effect")
    refused("serve", model, "--from", ADDRESS, "--query", "X=1", "--to", ADDRESS, *work, code="query-key")
    listen = ("--listen", "127.0.0.1:11112", "--to", ADDRESS, "--work", tmp_path / "work")
    refused("serve", model, *listen, code="options-clash", naming="--accept")
    refused("serve", model, *listen, "--accept", "A", "--once", code="options-clash", naming="--once")
    refused("serve", model, *ways, *work, "--accept", "A", code="no-effect", naming="--accept")
    refused("serve", model, *ways, *work, "--ae-title", "A", code="no-effect", naming="--ae-title")
    refused("serve", model, "--from", ADDRESS, "--to", ADDRESS, *work, code="options-clash", naming="--query")
    nowhere = ("--listen", "port", *listen[2:], "--accept", "A")
    refused("serve", model, *nowhere, code="listen-address", naming="--listen")
    (tmp_path / "work").mkdir(exist_ok=True)
    with take(tmp_path / "work" / serve.LOCK):
        refused("serve", model, *ways, *work, code="run-in-use", naming=str(tmp_path / "work"))
    (tmp_path / "work" / "queue").mkdir(exist_ok=True)
    (tmp_path / "work" / "queue" / "1.2.json").write_text("{", encoding="utf-8")
    refused("serve", model, *ways, *work, code="record-damaged", naming="1.2.json")
