"""Public pictures with masks: what is particular to each download; the rest is in `test_contract`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from errors import raises
from maskedpictures import (
    SIZE,
    save,
    write_breasts,
    write_chests,
    write_domains,
    write_eyelids,
    write_nuclei,
    write_polyps,
    write_sections,
    write_vessels,
)
from segmentpictures import disc

from data_prep import breast_us, chest_lungs, fundus, histology, meibomian, nuclei, polyps, retina_vessels
from data_prep.volumes import VolumePlan, write_volumes
from fedshift.data.picture_scan import as_picture
from fedshift.data.prepared import read_labels
from fedshift.data.splits import subject_of
from fedshift.schema.manifest import Manifest, read_manifest

Plan = Callable[[Path], VolumePlan]


def written(plan: VolumePlan, out: Path, **options: bool) -> dict[str, tuple[Manifest, Path]]:
    return {folder.name: (read_manifest(folder), folder) for folder in write_volumes(plan, out, **options)}


def mask_of(site: tuple[Manifest, Path], case: str) -> np.ndarray:
    """Rows and columns as in the picture."""
    manifest, folder = site
    (entry,) = [each for each in manifest.cases if each.id == case]
    return as_picture(read_labels(folder, entry, manifest.stored))


def test_both_eyes_of_a_child_are_in_one_part(tmp_path: Path) -> None:
    sites = written(retina_vessels.plan_volumes(write_vessels(tmp_path / "raw")), tmp_path)
    manifest, _ = sites["CHASE"]
    splits: dict[str, set[str]] = {}
    for case in manifest.cases:
        splits.setdefault(subject_of(case), set()).add(case.split)
    assert len(splits) == 6 and all(len(parts) == 1 for parts in splits.values())
    assert np.array_equal(mask_of(sites["CHASE"], "Image_01L"), disc(1, size=SIZE)[1])


def test_drives_test_part_stays_and_may_be_absent(tmp_path: Path) -> None:
    source = write_vessels(tmp_path / "raw")
    manifest, _ = written(retina_vessels.plan_volumes(source, sites=["DRIVE"]), tmp_path / "a")["DRIVE"]
    assert {case.id for case in manifest.by_split("test")} == {f"{number:02d}" for number in range(1, 7)}
    shutil.rmtree(source / "DRIVE" / "test" / "1st_manual")
    manifest, _ = written(retina_vessels.plan_volumes(source, sites=["DRIVE"]), tmp_path / "b")["DRIVE"]
    assert len(manifest.cases) == 6 and manifest.by_split("test")


def test_reduced_pictures_are_recognised_by_the_sites_name(tmp_path: Path) -> None:
    for number in range(3):
        for folder, array in (("images", disc(number)[0]), ("masks", np.uint8(255) * disc(number)[1])):
            save(array, tmp_path / "raw" / "HRF" / folder / f"0{number}_h.png")
    (site,) = retina_vessels.plan_volumes(tmp_path / "raw").sites
    assert site.site == "HRF" and len(site.cases) == 3


def test_rim_and_cup_are_nested_and_edges_go_to_the_nearest(tmp_path: Path) -> None:
    source = write_domains(tmp_path / "raw")
    mask = source / "Domain2" / "train" / "ROIs" / "mask" / "train1.png"
    values = disc(210, size=SIZE)[1].astype(np.uint8) * 0 + 255
    values[10:20, 10:30], values[12:18, 14:22], values[10, 10:30] = 120, 10, 200
    save(values, mask)
    sites = written(fundus.plan_volumes(source), tmp_path)
    classes = mask_of(sites["RIMONE"], "train1")
    assert (classes[12:18, 14:22] == 2).all() and (classes == 2).sum() == 48
    assert (classes == 1).sum() == 180 - 48 and (classes[10] == 0).all()
    save(np.zeros(SIZE, np.uint8), mask)
    with raises("scans-damaged", naming=mask.name):
        written(fundus.plan_volumes(source), tmp_path / "b")


def test_frames_of_a_video_are_of_one_subject(tmp_path: Path) -> None:
    manifest, _ = written(polyps.plan_volumes(write_polyps(tmp_path / "raw")), tmp_path)["CLINICDB"]
    subjects = {case.id: subject_of(case) for case in manifest.cases}
    assert subjects["1"] == subjects["2"] == "sequence 01" and subjects["26"] == subjects["27"] == "sequence 02"
    assert subjects["612"] == "sequence 29"
    assert len(polyps.SEQUENCES) == 29 and list(polyps.SEQUENCES) == sorted(polyps.SEQUENCES)


def test_masks_in_jpeg_are_cut_at_half(tmp_path: Path) -> None:
    sites = written(polyps.plan_volumes(write_polyps(tmp_path / "raw")), tmp_path)
    inside = disc(0, size=SIZE)[1]
    assert (mask_of(sites["KVASIR"], "k0") != inside).mean() < 0.01


def test_a_tumour_is_whatever_is_not_zero(tmp_path: Path) -> None:
    sites = written(histology.plan_volumes(write_sections(tmp_path / "raw")), tmp_path)
    assert sorted(sites) == ["3DHISTECH", "KFBIO", "TEKSQRAY"]
    assert np.array_equal(mask_of(sites["KFBIO"], "1"), disc(101, size=SIZE)[1])


@pytest.mark.slow
def test_nuclei_are_put_together_and_grouped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sites = written(nuclei.plan_volumes(write_nuclei(tmp_path / "raw")), tmp_path)
    assert {name: len(manifest.cases) for name, (manifest, _) in sites.items()} == dict.fromkeys(nuclei.GROUPS, 3)
    assert np.array_equal(mask_of(sites["HE320"], "d0"), disc(ord("d") * 100, size=(256, 320))[1])
    assert sum("1 of 64 x 64" in record.getMessage() for record in caplog.records) == 1


def test_lesions_are_put_together_and_normal_breasts_have_none(tmp_path: Path) -> None:
    plan = breast_us.plan_volumes(write_breasts(tmp_path / "raw"))
    with raises("scans-damaged", naming="normal"):
        written(plan, tmp_path / "a")
    sites = written(plan, tmp_path / "b", empty=True)
    assert np.array_equal(mask_of(sites["BUSI"], "malignant_001"), disc(101, size=SIZE)[1])
    assert not mask_of(sites["BUSI"], "normal_002").any()


def test_both_lungs_are_put_together_and_radiographs_without_masks_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = write_chests(tmp_path / "raw")
    sites = written(chest_lungs.plan_volumes(source), tmp_path)
    assert np.array_equal(mask_of(sites["MONTGOMERY"], "MCUCXR_0001_1"), disc(1, size=SIZE)[1])
    assert len(sites["SHENZHEN"][0].cases) == 5
    assert any("has 1 radiograph" in record.getMessage() for record in caplog.records)
    left = source / "MontgomerySet" / "ManualMask" / "leftMask"
    save(np.zeros((10, 10), bool), left / "MCUCXR_0002_0.png")
    with raises("scans-damaged", naming="MCUCXR_0002_0.png"):
        written(chest_lungs.plan_volumes(source), tmp_path / "b")


def test_both_lids_of_a_person_are_in_one_part_and_the_eyelids_outline_is_no_gland(tmp_path: Path) -> None:
    source = write_eyelids(tmp_path / "raw")
    sites = written(meibomian.plan_volumes(source), tmp_path / "a")
    manifest, _ = sites["MGD1K"]
    splits: dict[str, set[str]] = {}
    for case in manifest.cases:
        splits.setdefault(subject_of(case), set()).add(case.split)
    assert len(splits) == 5 and all(len(parts) == 1 for parts in splits.values())
    assert np.array_equal(mask_of(sites["MGD1K"], "DMI_OD_UPPER_REFLECTED_IR_10209333"), disc(3, size=SIZE)[1])
    assert np.array_equal(mask_of(sites["CAMG"], "2_Image"), disc(102, size=SIZE)[1])


def test_labels_of_a_zip_and_folders_of_the_benchmark_are_recognised(tmp_path: Path) -> None:
    source = write_eyelids(tmp_path / "raw")
    labels = source / "Expore MGD1k Dataset" / "Meibomian Gland Labels"
    labels.rename(tmp_path / "unpacked")
    labels.mkdir()
    (tmp_path / "unpacked").rename(labels / labels.name)
    assert [len(site.cases) for site in meibomian.plan_volumes(source).sites] == [10, 5]
    subset = source / "MGD1k" / "Subset"
    subset.mkdir(parents=True)
    (source / "Expore MGD1k Dataset" / "Original Images").rename(subset / "Original")
    (labels / labels.name).rename(subset / "Meibomian_Gland_Labels")
    assert [len(site.cases) for site in meibomian.plan_volumes(source).sites] == [10, 5]


def test_another_layout_of_camg_is_refused_with_what_it_holds(tmp_path: Path) -> None:
    source = write_eyelids(tmp_path / "raw")
    (source / "CAMG" / "Original").rename(source / "CAMG" / "infrared")
    with raises("layout-unknown", naming="infrared/"):
        meibomian.plan_volumes(source)
    (source / "CAMG").rename(source / "others")
    assert [site.site for site in meibomian.plan_volumes(source).sites] == ["MGD1K"]


@pytest.mark.parametrize(
    ("plan", "write"),
    [
        (retina_vessels.plan_volumes, write_vessels),
        (fundus.plan_volumes, write_domains),
        (polyps.plan_volumes, write_polyps),
        (nuclei.plan_volumes, write_nuclei),
        (histology.plan_volumes, write_sections),
        (breast_us.plan_volumes, write_breasts),
        (chest_lungs.plan_volumes, write_chests),
        (meibomian.plan_volumes, write_eyelids),
    ],
)
def test_sites_can_be_chosen_and_are_found_once(plan: Callable[..., VolumePlan], write: Plan, tmp_path: Path) -> None:
    source = write(tmp_path / "raw" / "here")
    names = [site.site for site in plan(source).sites]
    assert len(names) > 1 and [site.site for site in plan(source, sites=names[1:2]).sites] == names[1:2]
    with raises("site-unknown", naming="BIDMC"):
        plan(source, sites=["BIDMC"])
    shutil.copytree(source, tmp_path / "raw" / "copy")
    with raises("site-twice", naming="copy"):
        plan(tmp_path / "raw")
    with raises("other-data", naming="empty"):
        (tmp_path / "empty").mkdir()
        plan(tmp_path / "empty")


def test_a_picture_without_its_mask_is_named(tmp_path: Path) -> None:
    source = write_polyps(tmp_path / "raw")
    (source / "CVC-ColonDB" / "masks" / "3.png").unlink()
    with raises("cases-unmatched", naming="3.png"):
        written(polyps.plan_volumes(source), tmp_path)
