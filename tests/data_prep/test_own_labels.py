"""A hospital's pictures become a site by its table of labels; subjects stay together and in their split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dicompictures import write_dicom
from errors import raises
from picturefiles import write_picture

from data_prep.dealing import deal_by_content, deal_by_subject
from data_prep.own_labels import prepare_labelled
from data_prep.pictures import Source
from fedshift.cli import main
from fedshift.data.arrays import UNKNOWN, open_images
from fedshift.schema.manifest import read_manifest

TASK = """
name: chest
kind: classification
dataset: chest
sites: [NORTH, SOUTH]
classes: [effusion, mass, fracture]
data: {size: 16, channels: 1, multi_label: true}
network: {name: resnet18}
"""


def write_table(folder: Path, *, n: int, name: str = "labels.csv") -> Path:
    """Two pictures of each subject; every third has an effusion, and of every fourth nobody knows about masses."""
    lines = ["file,subject,Effusion,MASS"]
    for k in range(n):
        write_picture(folder / f"p{k}.png", k)
        lines.append(f"p{k}.png,S{k // 2},{int(k % 3 == 0)},{'' if k % 4 == 0 else int(k % 5 == 0)}")
    (folder / name).write_text("\n".join(lines), encoding="utf-8")
    return folder / name


def test_a_table_becomes_a_site_of_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "task.yaml").write_text(TASK, encoding="utf-8")
    table = write_table(tmp_path / "raw", n=40)
    command = ["data", "prepare", "own", "--table", str(table), "--task", str(tmp_path / "task.yaml")]
    assert main([*command, "--site", "NORTH", "--out", str(tmp_path / "root")]) == 0
    assert "effusion in 14 of 40, mass in 6 of 30, fracture unknown" in " ".join(capsys.readouterr().out.split())
    folder = tmp_path / "root" / "chest" / "NORTH"
    manifest, arrays = read_manifest(folder), open_images(folder, size=16, channels=1)
    assert manifest.preparation["findings_without_column"] == ["fracture"]
    assert arrays.labels[:2].tolist() == [[1, UNKNOWN, UNKNOWN], [0, 0, UNKNOWN]]
    for subject in range(20):
        assert len({p.split for p in manifest.pictures if p.subject == f"S{subject}"}) == 1
    assert [len(manifest.by_split(split)) for split in ("train", "val", "test")] == [24, 8, 8]


def test_prepared_again_pictures_keep_their_splits(tmp_path: Path) -> None:
    options = {"dataset": "chest", "sizes": (16,)}
    table = write_table(tmp_path / "raw", n=19)
    first = prepare_labelled(table, "NORTH", tmp_path / "root", **options)  # type: ignore[arg-type]
    before = {picture.id: picture.split for picture in read_manifest(first).pictures}
    prepare_labelled(write_table(tmp_path / "raw", n=60), "NORTH", tmp_path / "root", **options)  # type: ignore[arg-type]
    after = {picture.id: picture.split for picture in read_manifest(first).pictures}
    assert {name: after[name] for name in before} == before and after["p19.png"] == before["p18.png"]
    assert np.unique(list(after.values()), return_counts=True)[1].tolist() == [12, 36, 12]


def test_pictures_that_a_later_table_moves_to_another_split_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the first table did not say whose they are: models trained before have seen what is now tested on."""
    options = {"dataset": "chest", "sizes": (16,), "classes": ("effusion", "mass"), "findings": True}
    table = write_table(tmp_path / "raw", n=40)
    text = table.read_text(encoding="utf-8")
    table.write_text(text.replace("subject,", "room,"), encoding="utf-8")
    site = prepare_labelled(table, "NORTH", tmp_path / "root", **options)  # type: ignore[arg-type]
    before = {picture.id: picture.split for picture in read_manifest(site).pictures}
    prepare_labelled(table, "NORTH", tmp_path / "root", **options)  # type: ignore[arg-type]
    assert "splits" not in caplog.text
    table.write_text(text, encoding="utf-8")
    prepare_labelled(table, "NORTH", tmp_path / "root", **options)  # type: ignore[arg-type]
    moved = [picture.id for picture in read_manifest(site).pictures if picture.split != before[picture.id]]
    (warning,) = [record.getMessage() for record in caplog.records if str(site) in record.getMessage()]
    assert moved and f"has {len(moved)} image(s)" in warning and moved[0] in warning


def test_subjects_that_have_a_picture_each_are_dealt_as_contents_are() -> None:
    pictures = [(Source(f"{k}", "ab"[k % 2], lambda: None), f"{(7 * k) % 31:02d}") for k in range(31)]  # type: ignore[arg-type,return-value]
    assert deal_by_subject("", pictures) == deal_by_content("", pictures)


def test_what_readers_remark_on_is_said_once_for_all_pictures(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "images").mkdir()
    for k in range(6):
        pixels = np.random.default_rng(k).integers(1, 4000, (16, 16)).astype(np.uint16)
        write_dicom(tmp_path / "images" / f"p{k}.dcm", pixels, PixelAspectRatio=[4, 3])
    (tmp_path / "labels.csv").write_text("id,label\n" + "".join(f"p{k},{'ab'[k % 2]}\n" for k in range(6)))
    prepare_labelled(
        tmp_path / "labels.csv", "A", tmp_path / "out", dataset="d", images=tmp_path / "images", sizes=(16,)
    )
    (warning,) = [record.getMessage() for record in caplog.records if "PixelAspectRatio" in record.getMessage()]
    assert warning.startswith("p0 ") and "the same in 5 more picture(s), p1, p2" in warning


def test_a_faulty_table_writes_nothing(tmp_path: Path) -> None:
    table = write_table(tmp_path / "raw", n=4)
    table.write_text(table.read_text(encoding="utf-8") + "\np77.png,S9,1,0\np1.png,S9,1,maybe\n", encoding="utf-8")
    with raises("table-faults", naming=("p77.png", "line 7, column MASS: 'maybe'", "line 3")):
        prepare_labelled(table, "NORTH", tmp_path / "root", dataset="chest")
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ([], "table-missing"),
        (["--table", "x.csv", "--masks", "y"], "no-effect"),
        (["--table", "x.csv", "--volume", "2"], "no-effect"),
        (["--table", "x.csv", "--subject", "P*_?"], "no-effect"),
        (["--size", "16"], "table-missing"),
    ],
)
def test_options_that_do_nothing_are_refused(
    options: list[str], code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "task.yaml").write_text(TASK, encoding="utf-8")
    command = ["data", "prepare", "own", "--task", str(tmp_path / "task.yaml"), "--site", "NORTH"]
    assert main([*command, *options]) == 2
    assert code in capsys.readouterr().err


def test_check_reads_the_table_and_every_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "task.yaml").write_text(TASK, encoding="utf-8")
    table = write_table(tmp_path / "raw", n=6)
    command = ["data", "check", str(tmp_path / "raw"), "--task", str(tmp_path / "task.yaml")]
    assert main([*command, "--table", str(table)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "6 pictures in 1 folder: 0 error(s), 1 warning(s)" in printed and "[finding-unknown]" in printed
    (tmp_path / "raw" / "p1.png").write_bytes((tmp_path / "raw" / "p0.png").read_bytes())
    (tmp_path / "raw" / "p2.png").write_bytes(b"damaged")
    (tmp_path / "raw" / "p3.png").unlink()
    assert main([*command, "--table", str(table)]) == 1
    printed = capsys.readouterr().out
    assert all(code in printed for code in ("[labels-differ]", "[file-damaged]", "[file-missing]"))
    assert main(command) == 1 and "--table" in capsys.readouterr().out
