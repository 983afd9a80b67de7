"""Public data sets of findings, grades and volumes to classify, on small trees of their layouts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from errors import raises
from labelledfiles import write_volume
from picturefiles import write_picture

from data_prep import breast_mri, chest_xray, medmnist
from fedshift.cli import main
from fedshift.data.check import check
from fedshift.federation.resolve import resolve
from fedshift.schema.manifest import Manifest, Picture, read_manifest
from fedshift.tasks.kinds import build_task

CHEXPERT = chest_xray.CHEST_XRAY.classes


def write_chexpert(root: Path, *, patients: int = 20) -> Path:
    """Two frontal views and a lateral one of each patient; of every third patient nobody has said anything."""
    for name, first in (("train", 1), ("valid", 1001)):
        lines = ["Path,Sex,Age,Frontal/Lateral,AP/PA," + ",".join(CHEXPERT)]
        for k in range(first, first + patients // (1 if name == "train" else 5)):
            for view, side in ((1, "Frontal"), (2, "Frontal"), (3, "Lateral")):
                path = f"CheXpert-v1.0-small/{name}/patient{k:05d}/study1/view{view}.jpg"
                if side == "Frontal":
                    write_picture(root / path, 10 * k + view)
                cells = ["" for _ in CHEXPERT] if k % 3 == 0 else ["1.0", "", "0.0", "-1.0", *[""] * 10]
                lines.append(f"{path},Male,50,{side},AP,{','.join(cells)}")
        (root / "CheXpert-v1.0-small" / f"{name}.csv").write_text("\n".join(lines), encoding="utf-8")
    return root


def write_nih(root: Path, *, n: int = 30, lists: bool = True) -> Path:
    folder = root / "nih"
    lines = ["Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position"]
    names = [f"{k // 2:08d}_{k % 2:03d}.png" for k in range(n)]
    for k, name in enumerate(names):
        write_picture(folder / f"images_{1 + k % 2:03d}" / "images" / name, 50_000 + k)
        labels = ["No Finding", "Effusion|Mass", "Infiltration", "Nodule", "Hernia|Edema"][k % 5]
        lines.append(f"{name},{labels},0,{k // 2},58,M,PA")
    (folder / "Data_Entry_2017.csv").write_text("\n".join(lines), encoding="utf-8")
    if lists:
        (folder / "train_val_list.txt").write_text("\n".join(names[: n - 6]), encoding="utf-8")
        (folder / "test_list.txt").write_text("\n".join(names[n - 6 :]), encoding="utf-8")
    return root


def write_chest(root: Path) -> Path:
    return write_nih(write_chexpert(root))


def write_odelia(root: Path) -> Path:
    for s, site in enumerate(("CAM", "MHA", "RUMC", "UKA", "RSH")):
        folder = root / "data" / site
        labels, splits = ["UID,PatientID,Age,Lesion"], ["UID,Fold,Split"]
        for k in range(10):
            uid = f"{site}_{k // 2}_{'left' if k % 2 else 'right'}"
            for number, name in enumerate(("Pre", "Post_1")):
                write_volume(folder / "data_unilateral" / uid / f"{name}.nii.gz", 1000 * s + 10 * k + number)
            labels.append(f"{uid},{site}{k // 2},50,{k % 3}")
            splits += [f"{uid},0,{['train', 'train', 'train', 'val', 'test'][k // 2]}", f"{uid},1,train"]
        (folder / "metadata_unilateral").mkdir()
        (folder / "metadata_unilateral" / "split.csv").write_text("\n".join(splits), encoding="utf-8")
        if site != "RSH":
            (folder / "metadata_unilateral" / "annotation.csv").write_text("\n".join(labels), encoding="utf-8")
    return root


def write_medmnist(subset: str, n: int = 120) -> Callable[[Path], Path]:
    about = medmnist.SUBSETS[subset]

    def write(root: Path) -> Path:
        root.mkdir(parents=True)
        rng = np.random.default_rng(0)
        arrays = {}
        for part, size in (("train", n), ("val", n // 3), ("test", n // 3)):
            shape = (size, *[28] * (3 if about.volumes else 2), *([3] if about.channels == 3 else []))
            arrays[f"{part}_images"] = rng.integers(0, 256, shape, dtype=np.uint8)
            columns = len(about.classes) if about.findings else 1
            most = 2 if about.findings else len(about.classes)
            arrays[f"{part}_labels"] = rng.integers(0, most, (size, columns), dtype=np.uint8)
        arrays["train_images"][1] = arrays["test_images"][0]
        np.savez_compressed(root / f"{subset}.npz", **arrays)
        return root

    return write


SETS: dict[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "chest_xray": (write_chest, ("chest_xray", "--size", "128")),
    "breast_mri": (write_odelia, ("breast_mri",)),
    "medmnist": (write_medmnist("chestmnist"), ("medmnist", "--alpha", "0.6")),
    "retinamnist": (write_medmnist("retinamnist"), ("medmnist", "--subset", "retinamnist")),
    "organmnist3d": (write_medmnist("organmnist3d"), ("medmnist", "--subset", "organmnist3d")),
}


@pytest.mark.parametrize("task", SETS)
def test_a_download_becomes_the_sites_of_its_task(task: str, tmp_path: Path) -> None:
    write, (name, *options) = SETS[task]
    source = write(tmp_path / "raw")
    assert main(["data", "prepare", name, "--source", str(source), "--out", str(tmp_path / "out"), *options]) == 0
    assert [finding.sentence() for finding in check(tmp_path / "out") if finding.level == "error"] == []
    job = resolve(task, "fedavg")
    folder = tmp_path / "out" / job.task.dataset
    assert {path.name for path in folder.iterdir() if path.is_dir()} == set(job.task.everyone)
    for site in job.task.sites:
        data = build_task(job).open(folder / site, site)
        x, y = data.train_samples(np.arange(2))
        assert x.isfinite().all() and tuple(x.shape[2:]) == build_task(job).spatial and len(y) == 2
        held_out = [data.count("val"), data.count("test")]
        assert all(held_out) or options, "sites by Dirichlet may have too few for a part"
        manifest = read_manifest(folder / site)
        assert str(source) not in (folder / site / "manifest.json").read_text(encoding="utf-8")
        assert len(str(manifest.preparation["split_rule"])) <= 64 and manifest.licence and manifest.citation


def by_site(root: Path, dataset: str) -> dict[str, Manifest]:
    return {path.name: read_manifest(path) for path in sorted((root / dataset).iterdir()) if path.is_dir()}


def test_chest_findings_are_of_one_list_and_patients_in_one_split(tmp_path: Path) -> None:
    source = write_chest(tmp_path / "raw")
    command = ["data", "prepare", "chest_xray", "--source", str(source), "--out", str(tmp_path), "--size", "16"]
    assert main(command) == 0
    sites = by_site(tmp_path, "chest_xray")
    here = {picture.id: picture for picture in sites["nih"].pictures}
    assert here["00000000_001.png"].findings["Pleural Effusion"] and here["00000000_001.png"].findings["Lung Lesion"]
    assert not any(here["00000001_000.png"].findings.values()), "an infiltration is none of the list"
    assert "Lung Opacity" not in here["00000001_000.png"].findings and len(here["00000001_000.png"].findings) == 9
    first = sites["chexpert"].pictures[0]
    assert first.findings == {"No Finding": True, "Cardiomegaly": False} and first.subject == "patient00001"
    assert not any(picture.subject == "patient00003" for picture in sites["chexpert"].pictures), "nothing is known"
    for manifest in sites.values():
        splits: dict[str, set[str]] = {}
        for picture in manifest.pictures:
            splits.setdefault(picture.subject, set()).add(picture.split)
        assert max(map(len, splits.values())) == 1 and not any("view3" in picture.id for picture in manifest.pictures)
    assert {p.subject for p in sites["chexpert"].by_split("test") if isinstance(p, Picture)} == {
        "patient01001",
        "patient01003",
        "patient01004",
    }
    assert main([*command, "--blank", "negative"]) == 0
    assert len(by_site(tmp_path, "chest_xray")["chexpert"].pictures[0].findings) == 13, "all but the uncertain one"


@pytest.mark.parametrize(
    ("spoil", "code", "naming"),
    [
        (lambda root: (root / "nih" / "Data_Entry_2017.csv").unlink(), "file-missing", "--sites"),
        (lambda root: (root / "nih" / "test_list.txt").write_text(""), "list-incomplete", "test_list.txt"),
        (lambda root: next(root.rglob("view1.jpg")).unlink(), "file-missing", ".csv, line"),
        (
            lambda root: (root / "nih" / "Data_Entry_2017.csv").write_text(
                "Image Index,Finding Labels,Patient ID\n00000000_000.png,Efusion,1\n"
            ),
            "table-cell",
            "did you mean 'Effusion'",
        ),
    ],
)
def test_a_chest_download_that_lacks_something_is_refused(
    spoil: Callable[[Path], object], code: str, naming: str, tmp_path: Path
) -> None:
    source = write_chest(tmp_path / "raw")
    spoil(source)
    with raises(code, naming=naming):
        chest_xray.plan(source)
    assert chest_xray.plan(write_nih(tmp_path / "one", lists=False), sites=["nih"]).dealing.rule.startswith(
        "by subject"
    )


def test_breasts_have_the_challenges_split_and_patients_are_whole(tmp_path: Path) -> None:
    source = write_odelia(tmp_path / "raw")
    plan = breast_mri.plan(source)
    assert list(plan.by_site) == ["CAM", "MHA", "RUMC", "UKA"] and plan.total == 40
    first = plan.by_site["CAM"][0]
    assert (first.label, first.subject, first.split) == ("no lesion", "CAM0", "train")
    assert [file.name for file in first.files] == ["Pre.nii.gz", "Post_1.nii.gz"]
    assert {each.split for each in breast_mri.plan(source, split="own").by_site["CAM"]} == {None}
    with raises("invalid-value", naming="no fold 7"):
        breast_mri.plan(source, fold=7)
    (source / "data" / "CAM" / "metadata_unilateral" / "annotation.csv").write_text("UID,PatientID,Lesion\na,b,3\n")
    with raises("table-cell", naming="line 2"):
        breast_mri.plan(source, split="own")


def test_medmnist_keeps_its_parts_and_leaves_copies_out(tmp_path: Path) -> None:
    source = write_medmnist("chestmnist")(tmp_path / "raw")
    plan = medmnist.plan(source, sites_count=3)
    ids = [picture.id for pictures in plan.by_site.values() for picture in pictures]  # type: ignore[attr-defined,union-attr]
    assert len(ids) == len(set(ids)) and "train/000001" not in ids
    assert sum(name.startswith("train") for name in ids) == 119
    with raises("invalid-value", naming="did you mean 'chestmnist'"):
        medmnist.plan(source, subset="chestmist")
    with raises("file-missing", naming="chestmnist_64.npz"):
        medmnist.plan(source, side=64)
    np.savez(source / "retinamnist.npz", **np.load(source / "chestmnist.npz"))
    with raises("arrays-form", naming="retinamnist.npz"):
        medmnist.plan(source, subset="retinamnist")
