"""The fingerprint of a site's manifest is that of its data."""

from __future__ import annotations

from pathlib import Path

from fedshift.schema.manifest import Case, Manifest, manifest_sha256
from fedshift.schema.reading import Reading

CASE = Case(
    id="P1",
    sha256_image="a" * 64,
    sha256_label="b" * 64,
    split="train",
    shape=(3, 4, 5),
    spacing=(3.0, 0.7, 0.7),
    direction=(1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0),
    array="arrays",
    offset=0,
)


def fingerprint(folder: Path, **changes: object) -> str:
    folder.mkdir()
    Manifest(
        dataset="prostate",
        site="NORTH",
        kind="patients",
        preparation={},
        classes=("background", "prostate"),
        cases=(CASE.model_copy(update=changes),),
        licence="",
        citation="",
    ).write(folder)
    return manifest_sha256(folder)


def test_how_a_scan_was_read_is_no_part_of_it_and_what_was_read_is(tmp_path: Path) -> None:
    bare = fingerprint(tmp_path / "bare")
    read = {"image": Reading(format="NIfTI-1"), "mask": Reading(format="DICOM SEG", remarks=("one",))}
    assert fingerprint(tmp_path / "read", reading=read) == bare
    assert fingerprint(tmp_path / "other", sha256_label="c" * 64) != bare
    assert '"reading"' in (tmp_path / "read" / "manifest.json").read_text(encoding="utf-8")
