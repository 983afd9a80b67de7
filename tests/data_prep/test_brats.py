"""Brain tumours: the layouts of BraTS and FeTS, sites by FeTS's tables, and the way to masks of three regions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
from errors import raises
from volumesites import write

from data_prep.brats import SEQUENCES, plan_volumes
from data_prep.volumes import write_volumes
from fedshift.cli import main
from fedshift.data.locate import find_site
from fedshift.data.prepared import read_labels
from fedshift.federation.in_process import run_in_process
from fedshift.federation.resolve import resolve
from fedshift.schema.manifest import read_manifest
from fedshift.schema.results import LAST

SHAPE = (16, 20, 20)
FORMS = {
    "FeTS2022_{:05d}": ("_t1", "_t1ce", "_t2", "_flair", "_seg", 4),
    "BraTS20_Training_{:03d}": ("_t1", "_t1ce", "_t2", "_flair", "_seg", 4),
    "BraTS2021_{:05d}": ("_t1", "_t1ce", "_t2", "_flair", "_seg", 4),
    "BraTS-GLI-{:05d}-000": ("-t1n", "-t1c", "-t2w", "-t2f", "-seg", 3),
}


def subject(folder: Path, form: str, number: int, *, mask: bool = True) -> str:
    """A tumour of nested balls, each brighter on one of the sequences."""
    *ends, seg, enhancing = FORMS[form]
    name = form.format(number)
    (folder / name).mkdir(parents=True)
    rng = np.random.default_rng(number)
    centre = np.array(SHAPE) / 2 + rng.uniform(-2, 2, 3)
    distance = np.sqrt(((np.stack(np.indices(SHAPE), -1) - centre) ** 2).sum(-1))
    labels = np.select([distance < 2, distance < 3.5, distance < 6], [1, enhancing, 2], 0)
    brain = distance < 9
    for k, end in enumerate(ends):
        bright = (labels > 0) * 60 + (labels == (enhancing, 1, 2, 1)[k]) * 80
        image = brain * (100 + bright + rng.normal(0, 5, SHAPE))
        write(folder / name / f"{name}{end}.nii.gz", image.astype(np.float32), (1.0, 1.0, 1.0))
    if mask:
        write(folder / name / f"{name}{seg}.nii.gz", labels.astype(np.uint8), (1.0, 1.0, 1.0))
    return name


def download(folder: Path, form: str, count: int = 2) -> list[str]:
    return [subject(folder / "MICCAI_TrainingData", form, number) for number in range(count)]


def partition(path: Path, subjects: Sequence[str], ids: Sequence[object]) -> Path:
    rows = "".join(f"{number},{name}\n" for number, name in zip(ids, subjects, strict=True))
    path.write_text(f"Partition_ID,Subject_ID\n{rows}", encoding="utf-8")
    return path


@pytest.mark.parametrize("form", FORMS)
def test_each_layout_is_read(tmp_path: Path, form: str) -> None:
    names = download(tmp_path / "in", form)
    subject(tmp_path / "in" / "MICCAI_ValidationData", form, 7, mask=False)
    plan = plan_volumes(tmp_path / "in")
    assert [site.site for site in plan.sites] == ["BraTS"] and plan.dataset == "brats"
    (site,) = write_volumes(plan, tmp_path / "out")
    manifest = read_manifest(site)
    assert [case.id for case in manifest.cases] == names and manifest.sequences == SEQUENCES
    assert manifest.classes == ("background", "necrotic_core", "edema", "enhancing_tumor")
    counts = np.bincount(read_labels(site, manifest.cases[0]).ravel(), minlength=4)
    assert counts[1] < counts[3] < counts[2]
    assert not manifest.has_unknown_spacing
    assert manifest.cases[0].subject == ("BraTS-GLI-00000" if "GLI" in form else "")


def test_fets_tables_name_the_institutions(tmp_path: Path) -> None:
    source = tmp_path / "in"
    names = download(source, "FeTS2022_{:05d}", 4)
    inside = source / "MICCAI_TrainingData"
    partition(inside / "partitioning_1.csv", [*names, "FeTS2022_09999"], [3, 3, 21, 3, 1])
    partition(inside / "partitioning_2.csv", names, [3, 24, 21, 24])
    first, second = plan_volumes(source), plan_volumes(source, partition="2")
    assert {site.site: len(site.cases) for site in first.sites} == {"institution_03": 3, "institution_21": 1}
    assert second.dataset == "brats_partition_2" and [len(site.cases) for site in second.sites] == [1, 1, 2]
    parts = partition(tmp_path / "own.csv", names, ["east", "west", "east", "west"])
    assert [site.site for site in plan_volumes(source, partition=str(parts)).sites] == ["east", "west"]
    for protocol, plan in ((None, first), ("partition_2", second)):
        task = resolve("brats", "fedavg", protocol=protocol, checked=False).task
        assert task.dataset == plan.dataset and {site.site for site in plan.sites} <= {*task.sites}
    for rows, ids, code in (
        (names[:3], [1, 1, 1], "list-incomplete"),
        ([*names, names[0]], [1, 1, 1, 1, 2], "list-twice"),
    ):
        with raises(code, naming=names[0] if code == "list-twice" else names[3]):
            plan_volumes(source, partition=str(partition(tmp_path / "wrong.csv", rows, ids)))
    (tmp_path / "wrong.csv").write_text("a,b\n", encoding="utf-8")
    with raises("list-form", naming="Partition_ID"):
        plan_volumes(source, partition=str(tmp_path / "wrong.csv"))


def test_what_is_no_such_download_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with raises("other-data", naming="none"):
        plan_volumes(tmp_path / "none")
    with raises("file-missing", naming="partitioning_2.csv"):
        download(tmp_path / "in", "BraTS2021_{:05d}")
        plan_volumes(tmp_path / "in", partition="2")
    lost = tmp_path / "in" / "MICCAI_TrainingData" / "BraTS2021_00001" / "BraTS2021_00001_t2.nii.gz"
    lost.unlink()
    with raises("cases-unmatched", naming="BraTS2021_00001"):
        write_volumes(plan_volumes(tmp_path / "in"), tmp_path / "out")
    download(tmp_path / "in", "BraTS-GLI-{:05d}-000")
    with raises("other-data", naming="BraTS 2023"):
        plan_volumes(tmp_path / "in")


@pytest.mark.slow
def test_four_commands_lead_to_masks_of_regions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = download(tmp_path / "in", "FeTS2022_{:05d}", 8)
    table = partition(tmp_path / "table.csv", names, [1, 2] * 4)
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path / "data"))
    words = ["--source", str(tmp_path / "in"), "--partition", str(table), "--out", str(tmp_path / "data")]
    assert main(["data", "prepare", "brats", *words]) == 0
    sites = ["institution_01", "institution_02"]
    options = [
        *("data.patch=[16,16,16]", "data.augmentation=none", "schedule.rounds=10", "schedule.local_epochs=2"),
        *("network={name: monai.UNet, options: {channels: [8, 16], strides: [2]}}", "optimizer.lr=0.02"),
    ]
    job = resolve("brats", "fedavg", sites=sites, options=options)
    data = {site: find_site("brats", site, local=None, simulator=True) for site in sites}
    final = run_in_process(job, data, tmp_path / "run").results.final
    assert final is not None
    scores = final.last.sites["institution_01"]["test"]
    assert {"dice whole_tumor", "dice tumor_core", "dice enhancing_tumor"} <= scores.keys()
    assert scores["dice whole_tumor"] > 0.6
    new = subject(tmp_path / "new", "FeTS2022_{:05d}", 50)
    images = [str(tmp_path / "new" / new / f"{new}_{name}.nii.gz") for name in SEQUENCES]
    formats = ["--format", "mask", "--format", "regions"]
    assert main(["predict", str(tmp_path / "run" / LAST), *images, "--out", str(tmp_path / "out"), *formats]) == 0
    whole, mask = (
        sitk.GetArrayFromImage(sitk.ReadImage(path))
        for path in (next((tmp_path / "out").glob("*whole_tumor_mask.nii.gz")), tmp_path / "out" / f"{new}_mask.nii.gz")
    )
    reference = sitk.GetArrayFromImage(sitk.ReadImage(tmp_path / "new" / new / f"{new}_seg.nii.gz")) > 0
    assert 2 * (reference & (whole > 0)).sum() / (reference.sum() + whole.sum()) > 0.6
    assert ((mask > 0) == (whole > 0)).mean() > 0.99
