"""What ``fedshift data prepare`` does with every public data set; what is special to one is in its own file."""

from __future__ import annotations

import functools
import importlib
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from downloads import DOWNLOADS, Counts
from forbidding import forbid
from picturefiles import pixels, shown
from PIL import Image

from fedshift import cli
from fedshift.data.check import check
from fedshift.federation.resolve import resolve
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import Manifest, read_manifest
from fedshift.tasks.kinds import build_task

SEEDED = [name for name, download in DOWNLOADS.items() if download.seeded is not None]
VOLUMES = ["prostate", "hippocampus", "mms"]
MASKED = ["retina_vessels", "fundus", "polyps", "nuclei", "histology", "breast_us", "chest_lungs", "meibomian"]
"""Pictures with masks."""
PICTURES = [name for name in DOWNLOADS if name not in (*VOLUMES, *MASKED)]


@dataclass(frozen=True)
class Prepared:
    """A download and what was prepared from it; tests share it and change nothing."""

    name: str
    source: Path
    out: Path
    said: str
    """By the command."""

    @functools.cached_property
    def job(self) -> JobSpec:
        """A job of the task that is trained on these sites."""
        download = DOWNLOADS[self.name]
        return resolve(download.name or self.name, "fedavg", protocol=download.protocol, options=download.task)

    @functools.cached_property
    def sites(self) -> dict[str, Path]:
        """Site -> its folder, in the job's order."""
        dataset = self.out / (DOWNLOADS[self.name].dataset or self.name)
        folders = {path.name: path for path in dataset.iterdir() if path.is_dir()}
        return {site: folders.pop(site) for site in self.job.task.everyone} | folders

    @functools.cached_property
    def manifests(self) -> dict[str, Manifest]:
        return {site: read_manifest(folder) for site, folder in self.sites.items()}


def command(name: str, source: Path, out: Path) -> list[str]:
    """What one types to prepare a download."""
    download = DOWNLOADS[name]
    size = ["--size", str(download.size)] if download.size else []
    words = ["data", "prepare", download.name or name, "--source", str(source), "--out", str(out)]
    return [*words, *size, *download.options]


@pytest.fixture(scope="session")
def source_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes a download, each once; copy it to change it."""
    return functools.cache(lambda name: DOWNLOADS[name].write(tmp_path_factory.mktemp(name) / "raw"))


@pytest.fixture(scope="session")
def prepared_of(
    source_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Prepared]:
    """Prepares a data set, each once."""

    def prepare(name: str) -> Prepared:
        source, out = source_of(name), tmp_path_factory.mktemp(f"{name}_out") / "out"
        with redirect_stdout(StringIO()) as said:
            assert cli.main(command(name, source, out)) == 0
        return Prepared(name, source, out, said.getvalue())

    return functools.cache(prepare)


@pytest.fixture(params=DOWNLOADS)
def prepared(request: pytest.FixtureRequest, prepared_of: Callable[[str], Prepared]) -> Prepared:
    return prepared_of(request.param)


def counts(manifest: Manifest) -> Counts:
    train, val, test = (len(manifest.by_split(part)) for part in ("train", "val", "test"))
    return train, val, test


def test_every_site_has_its_share(prepared: Prepared) -> None:
    expected = DOWNLOADS[prepared.name]
    shares = {site: counts(manifest) for site, manifest in prepared.manifests.items()}
    if expected.counts is not None:
        assert shares == expected.counts
    else:
        assert (
            len(shares),
            sum(map(sum, shares.values())),
            sum(test for *_, test in shares.values()),
        ) == expected.total


def test_the_command_counts_what_it_has_written(prepared: Prepared) -> None:
    what = "case(s)" if prepared.name in VOLUMES else "picture(s)"
    for site, manifest in prepared.manifests.items():
        train, val, test = counts(manifest)
        line = f"{site}: {train + val + test} {what} ({train} train, {val} val, {test} test) in {prepared.sites[site]}"
        assert line in prepared.said


def test_sites_and_classes_are_those_of_the_task(prepared: Prepared) -> None:
    task = prepared.job.task
    assert list(prepared.sites) == list(task.everyone)
    for site, manifest in prepared.manifests.items():
        assert (manifest.dataset, manifest.site, manifest.classes) == (task.dataset, site, task.classes)
        labels = {picture.label for picture in manifest.pictures}
        if DOWNLOADS[prepared.name].counts and task.kind == "classification":
            assert labels == set(task.classes)
        else:
            assert labels <= set(task.classes), "few of each are at a site that was drawn"


def test_manifests_say_where_the_data_are_from_and_on_what_terms(prepared: Prepared) -> None:
    for site, manifest in prepared.manifests.items():
        assert manifest.licence and manifest.citation
        assert manifest.kind == ("patients" if prepared.name in (*VOLUMES, *MASKED) else "images")
        text = (prepared.sites[site] / "manifest.json").read_text(encoding="utf-8")
        assert str(prepared.source) not in text and str(prepared.out) not in text


@pytest.mark.parametrize("name", PICTURES)
def test_the_rule_of_the_split_fits_into_the_results(name: str, prepared_of: Callable[[str], Prepared]) -> None:
    for manifest in prepared_of(name).manifests.values():
        rule = str(manifest.preparation["split_rule"])
        assert rule and len(rule) <= 64, "results.json cuts off the rest"


@pytest.mark.parametrize("name", PICTURES)
def test_no_content_is_in_two_splits_or_at_two_sites(name: str, prepared_of: Callable[[str], Prepared]) -> None:
    places: dict[str, set[tuple[str, str]]] = {}
    for site, manifest in prepared_of(name).manifests.items():
        for picture in manifest.pictures:
            places.setdefault(picture.sha256, set()).add((site, picture.split))
    assert max(map(len, places.values())) == 1


def test_the_check_finds_no_error(prepared: Prepared) -> None:
    assert [finding.sentence() for finding in check(prepared.out) if finding.level == "error"] == []


def test_the_task_trains_on_it(prepared: Prepared, tmp_path: Path) -> None:
    job = prepared.job
    site, folder = next(iter(prepared.sites.items()))
    shutil.copytree(folder, tmp_path / site)  # opening it may cache arrays
    x, _ = next(build_task(job).open(tmp_path / site, site).chunks())
    assert tuple(x.shape[1:]) == DOWNLOADS[prepared.name].shape and x.isfinite().all() and x.std() > 0
    if prepared.name in ("pacs", "officehome"):
        assert x.min() < 0 < x.max(), "normalised as ImageNet is"


def test_preparing_again_gives_the_same_bytes(prepared: Prepared, tmp_path: Path) -> None:
    def content(root: Path) -> dict[Path, bytes]:
        return {file.relative_to(root): file.read_bytes() for file in sorted(root.rglob("*")) if file.is_file()}

    assert cli.main(command(prepared.name, prepared.source, tmp_path)) == 0
    assert content(tmp_path) == content(prepared.out)


def refused(name: str, source: Path, out: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    """What the command says; nothing may be left of the attempt."""
    capsys.readouterr()
    assert cli.main([*command(name, source, out), *more]) == 2
    assert not [path for path in out.rglob("*") if path.is_file()]
    printed = capsys.readouterr().err
    assert "Traceback" not in printed
    return printed


@pytest.mark.parametrize("name", DOWNLOADS)
def test_a_source_that_is_not_there_is_named(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(name, tmp_path / "absent", tmp_path / "out", capsys)
    assert str(tmp_path / "absent") in message and message.count("\n") == 1


@pytest.mark.parametrize("name", DOWNLOADS)
def test_an_empty_source_is_named(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert "empty" in refused(name, tmp_path / "empty", tmp_path / "out", capsys)


@pytest.mark.parametrize("name", [*PICTURES, *MASKED])
def test_a_source_that_may_not_be_read_is_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raw").mkdir()
    forbid(tmp_path / "raw", monkeypatch)
    assert "Permission denied" in refused(name, tmp_path / "raw", tmp_path / "out", capsys)


@pytest.mark.parametrize("name", DOWNLOADS)
def test_a_damaged_file_is_named_and_nothing_is_written(
    name: str, source_of: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Path(shutil.copytree(source_of(name), tmp_path / "raw", symlinks=True))
    file = source / DOWNLOADS[name].cut
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    assert file.name in refused(name, source, tmp_path / "out", capsys)


@pytest.mark.parametrize("name", SEEDED)
def test_a_negative_seed_is_refused(
    name: str, source_of: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (*(DOWNLOADS[name].seeded or ()), "--seed", "-1")
    message = refused(name, source_of(name), tmp_path / "out", capsys, *options)
    assert "seed" in message and "-1" in message


@pytest.mark.parametrize("name", ["pacs", "officehome", "office_caltech", "domainnet"])
def test_every_kind_of_picture_is_read_as_rgb(name: str, source_of: Callable[[str], Path], tmp_path: Path) -> None:
    source = Path(shutil.copytree(source_of(name), tmp_path / "raw", symlinks=True))
    site, label, file = Path(DOWNLOADS[name].cut).parts
    folder, grey = source / site / label, pixels(7, channels=1)[..., 0]
    before = len(list(folder.iterdir()))
    Image.fromarray(grey).save(folder / f"a_{file}")
    Image.fromarray(pixels(8)).convert("CMYK").save(folder / "b_000011.jpg")
    Image.fromarray(pixels(9)).quantize(16).save(folder / "c_000012.png")
    Image.fromarray(grey.astype(np.uint16) * 200).save(folder / "d_000013.png")
    pictures = importlib.import_module(f"data_prep.{name}").plan(source).by_site[site]
    of_label = [picture for picture in pictures if picture.label == label]
    assert [picture.mode for picture in shown(of_label)] == ["RGB"] * (before + 4)
