"""Volumes to classify: prepared from a table, several sequences on one grid, cut to one size, checked."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from errors import raises
from labelledfiles import write_table

from data_prep.own_labels import prepare_labelled
from fedshift.cli import main
from fedshift.data.arrays import open_arrays
from fedshift.data.check import check
from fedshift.data.prepared import read_images
from fedshift.data.resampled import Preparation
from fedshift.data.whole_volumes import Cut, cut, open_whole
from fedshift.schema.manifest import read_manifest

TASK = """
name: breast
kind: classification
dataset: breast
sites: [NORTH, SOUTH]
classes: [benign, malignant]
data: {patch: [8, 16, 16], spacing: [2, 1, 1], sequences: [pre, post]}
network: {name: densenet121}
"""


def test_a_table_of_sequences_becomes_a_site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "task.yaml").write_text(TASK, encoding="utf-8")
    command = ["data", "prepare", "own", "--table", str(write_table(tmp_path / "raw"))]
    command += ["--task", str(tmp_path / "task.yaml"), "--site", "NORTH", "--out", str(tmp_path / "root")]
    assert main(command) == 0
    assert "2 classes of 5 to 5 cases" in " ".join(capsys.readouterr().out.split())
    site = tmp_path / "root" / "breast" / "NORTH"
    manifest = read_manifest(site)
    assert [case.label for case in manifest.cases[:2]] == ["malignant", "benign"] and not manifest.has_masks
    assert {case.subject for case in manifest.cases} == {f"S{k}" for k in range(5)}
    case = manifest.cases[0]
    assert case.sha256_label == "" and case.reading["post"].resampled and not case.reading["pre"].resampled
    pre, post = read_images(site, manifest, case)
    assert pre.shape == post.shape == (8, 16, 16) and post[4, 8, 8] > 100 > post[4, 1, 1] > 0
    assert check(tmp_path / "root") == []
    with raises("kind-of-data", naming="classify"):
        open_arrays(site, matrix=16)
    (site / "volumes" / "p3_0000.nii.gz").write_bytes((site / "volumes" / "p4_0000.nii.gz").read_bytes())
    assert [finding.code for finding in check(tmp_path / "root")] == ["files-changed"]
    again = prepare_labelled(write_table(tmp_path / "raw", 20), "NORTH", tmp_path / "root", dataset="breast")
    split_of = {case.id: case.split for case in read_manifest(again).cases}
    assert {case.id: split_of[case.id] for case in manifest.cases} == {case.id: case.split for case in manifest.cases}


def test_arrays_have_one_size_and_are_made_again(tmp_path: Path) -> None:
    site = prepare_labelled(write_table(tmp_path / "raw"), "NORTH", tmp_path / "root", dataset="breast")
    how = Cut(Preparation(spacing=(2, 1, 1), sequences=("post",)), (4, 20, 12))
    opened = open_whole(site, how)
    assert opened.images.shape == (10, 1, 4, 20, 12) and opened.images.dtype == np.float16
    assert isinstance(opened.images.base, np.memmap) or isinstance(opened.images, np.memmap)
    assert opened.labels.tolist() == [1, 0] * 5, "in the table's order of names"
    manifest = opened.manifest
    voxels = read_images(site, manifest, manifest.cases[3])[1:]
    assert np.array_equal(how.volume(voxels, manifest.known_spacing(manifest.cases[3])), opened.images[3])
    assert not opened.images[:, :, :, :2].any() and opened.images[:, :, :, 2:18].any(), "padded with 0"
    (folder,) = (site / "arrays").glob("whole_*")
    (folder / "images.npy").write_bytes(b"x")
    with raises("arrays-changed", naming=str(folder)):
        open_whole(site, how)


def test_a_box_is_around_the_middle_or_around_what_is_there() -> None:
    volume = np.zeros((1, 10, 10, 10), np.float16)
    volume[0, 7:9, 1:3, 4:6] = 1
    plain = Cut(Preparation(normalise="none"), (4, 4, 4))
    assert not plain.volume(volume, None).any()
    around = Cut(Preparation(normalise="none"), (4, 4, 4), centre="nonzero").volume(volume, None)
    assert around.sum() == 8 and around[0, 2, 2, 2] == 1, "at the edge the box stays inside"
    assert np.array_equal(cut(volume, (10, 10, 10), [0.5] * 3), volume)
    wide = cut(volume, (4, 4, 4), [0.8, 0.2, 0.5], margin=(4, 3, 8))
    assert wide.shape == (1, 8, 7, 12)
    assert np.array_equal(wide[:, 2:6, 1:5, 4:8], cut(volume, (4, 4, 4), [0.8, 0.2, 0.5])), "the box is the same"


@pytest.mark.parametrize(
    ("row", "code", "naming"),
    [
        ("p1,p1/pre.nii.gz,p1/gone.nii.gz,benign,", "table-faults", "gone.nii.gz"),
        ("p1,p0/pre.nii.gz,p0/post.nii.gz,benign,", "table-faults", "line 2"),
        ("p1,copy/pre.nii.gz,copy/post.nii.gz,benign,", "scans-damaged", "case p0"),
    ],
)
def test_what_cannot_be_read_is_refused(row: str, code: str, naming: str, tmp_path: Path) -> None:
    table = write_table(tmp_path / "raw", 1)
    shutil.copytree(tmp_path / "raw" / "p0", tmp_path / "raw" / "copy")
    table.write_text(table.read_text(encoding="utf-8") + f"\n{row}\n", encoding="utf-8")
    with raises(code, naming=naming):
        prepare_labelled(table, "NORTH", tmp_path / "root", dataset="breast")
    assert not (tmp_path / "root" / "breast" / "NORTH").exists()


def test_check_reads_every_sequence_of_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "task.yaml").write_text(TASK, encoding="utf-8")
    table = write_table(tmp_path / "raw", 2)
    command = ["data", "check", str(tmp_path / "raw"), "--table", str(table), "--task", str(tmp_path / "task.yaml")]
    assert main(command) == 0 and "2 cases in 1 folder: 0 error(s), 0 warning(s)" in capsys.readouterr().out
    (tmp_path / "raw" / "p1" / "post.nii.gz").write_bytes(b"damaged")
    assert main(command) == 1 and "p1/post.nii.gz" in "".join(capsys.readouterr().out.split())
