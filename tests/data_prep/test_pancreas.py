from __future__ import annotations

from pathlib import Path

import SimpleITK as sitk
from errors import raises
from scanfiles import volume

from data_prep.pancreas import plan_volumes
from data_prep.volumes import write_volumes
from fedshift.federation.resolve import resolve
from fedshift.schema.manifest import read_manifest
from fedshift.tasks.kinds import build_task


def write_download(root: Path, *cases: str) -> Path:
    """The part t1 of the download."""
    for folder in ("imagesTr", "labelsTr"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for seed, case in enumerate(cases):
        image, mask = volume(seed)
        sitk.WriteImage(image, str(root / f"imagesTr/{case}_0000.nii.gz"))
        sitk.WriteImage(mask, str(root / f"labelsTr/{case}.nii.gz"))
    return root


def test_a_centre_is_a_site_whatever_its_abbreviation(tmp_path: Path) -> None:
    source = write_download(tmp_path / "t1", "AHN_0001", "NU_0001", "NWU_0002", "nyu_0003")
    folders = write_volumes(plan_volumes(source), tmp_path / "out")
    manifests = {folder.name: read_manifest(folder) for folder in folders}
    assert {site: [case.id for case in manifest.cases] for site, manifest in manifests.items()} == {
        "NYU": ["nyu_0003"],
        "NU": ["NU_0001", "NWU_0002"],
        "AHN": ["AHN_0001"],
    }
    job = resolve("pancreas", "fedavg", seed=1)
    assert set(manifests) < set(job.task.sites)
    assert manifests["AHN"].classes == job.task.classes
    data = build_task(job).open(folders[-1], "AHN")
    assert len(data.members("all")) == 1


def test_a_file_of_no_centre_and_an_image_without_its_mask_are_refused(tmp_path: Path) -> None:
    source = write_download(tmp_path / "t1", "AHN_0001", "MCA_0001")
    (source / "labelsTr/MCA_0001.nii.gz").unlink()
    with raises("cases-unmatched", naming="MCA_0001_0000.nii.gz"):
        write_volumes(plan_volumes(source), tmp_path / "out")
    write_download(source, "AHM_0002")
    with raises("site-unknown", naming="AHN"):
        plan_volumes(source)
    with raises("layout-unknown", naming="t1"):
        plan_volumes(tmp_path)
