"""``--guarantee``: a hospital's own calibration, outlines and sets that keep it, and what is said where none does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import highdicom as hd
import numpy as np
import pytest
import SimpleITK as sitk
from conftest import make_image_site, small_image_job
from inference.conftest import brightness_model
from scanfiles import write_dicom
from scipy.ndimage import gaussian_filter

from cli.conftest import Refused
from cli.test_evaluate_labels import write_pictures
from fedshift.cli import main
from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import add_guarantee, header_of, read_model_file
from fedshift.inference.model import open_model
from fedshift.inference.promise import Outlines
from fedshift.inference.ready import Choice, make_ready
from fedshift.schema.guarantee import LEVELS, Guarantee, Level, Promise, Reason
from fedshift.schema.results import BEST

ALPHA = 0.3
"""Which three cases are enough for, if nothing is missed."""
SHAPE = (12, 44, 44)


def write_scan(path: Path, number: int) -> np.ndarray:
    """A ball in a larger one that is meant, with an edge as unsharp as the case's number says; its mask (z, y, x)."""
    z, y, x = np.ogrid[: SHAPE[0], : SHAPE[1], : SHAPE[2]]
    squares = 4 * (z - 6) ** 2 + (y - 22) ** 2 + (x - 20 - number % 3) ** 2
    mask, bright = squares < 11**2, squares < 9.8**2
    image = sitk.GetImageFromArray((1000 * gaussian_filter(bright.astype(float), 1 + 0.2 * number)).astype(np.float32))
    image.SetSpacing((0.8, 0.8, 3.0))
    path.parent.mkdir(parents=True, exist_ok=True)
    sitk.WriteImage(image, str(path))
    return np.asarray(mask)


def write_cases(folder: Path, n: int) -> dict[str, np.ndarray]:
    masks = {}
    for number in range(n):
        name = f"case{number}.nii.gz"
        masks[name] = write_scan(folder / "images" / name, number)
        mask = sitk.GetImageFromArray(masks[name].astype(np.uint8))
        mask.CopyInformation(sitk.ReadImage(str(folder / "images" / name)))
        (folder / "masks").mkdir(exist_ok=True)
        sitk.WriteImage(mask, str(folder / "masks" / name))
    return masks


def calibrate(folder: Path, model: Path, *words: str) -> int:
    options = ["--images", folder / "images", "--masks", folder / "masks", "--out", folder / "scores"]
    options += ["--guarantee", ALPHA, "--calibrated", folder / "calibrated.pt", *words]
    return main(["evaluate", str(model), *map(str, options)])


def predict(model: Path, out: Path, *images: Path, overlay: bool = False) -> int:
    arguments = [model, *images, "--out", out, "--guarantee", ALPHA, *(["--overlay"] if overlay else [])]
    return main(["predict", *map(str, arguments)])


def promised(path: Path) -> Guarantee:
    guarantee = header_of(read_model_file(path), where=path.name).guarantee
    assert guarantee is not None
    return guarantee


def test_outlines_miss_on_average_just_what_the_calibration_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    masks = write_cases(tmp_path, 8)
    assert calibrate(tmp_path, brightness_model(tmp_path / "model.pt")) == 0
    printed = capsys.readouterr().out
    assert "calibrated model" in printed and "whose 8 labelled patients" in printed
    promise = promised(tmp_path / "calibrated.pt").calibrated["prostate"]
    assert promise.n == 8 and promise.outer.level in LEVELS and promise.inner is not None
    out = tmp_path / "out"
    assert predict(tmp_path / "calibrated.pt", out, tmp_path / "images") == 0
    assert "new patients of the hospital" in capsys.readouterr().out
    missed, false = [], []
    for name, truth in masks.items():
        stem = name.removesuffix(".nii.gz")
        values = sitk.GetArrayFromImage(sitk.ReadImage(str(out / f"{stem}_prostate_outlines.nii.gz")))
        voxels = sitk.GetArrayFromImage(sitk.ReadImage(str(out / f"{stem}_mask.nii.gz"))) > 0
        assert set(np.unique(values)) == {0, 1, 2}
        assert voxels[values == 2].all() and (values[voxels] > 0).all(), "the mask lies between the two"
        missed.append(1 - (truth & (values > 0)).sum() / truth.sum())
        false.append((~truth & (values == 2)).sum() / (values == 2).sum())
    # With the correction for the new case, (n R + 1) / (n + 1) is at most the share.
    assert np.mean(missed) > 0.1 and (8 * np.mean(missed) + 1) / 9 <= ALPHA and (8 * np.mean(false) + 1) / 9 <= ALPHA
    record = json.loads((out / "predictions.json").read_text(encoding="utf-8"))
    assert record["guarantee"]["alpha"] == ALPHA and set(record["guarantee"]["levels"]) == {"prostate"}


def test_too_few_cases_are_told_how_many_more_are_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cases(tmp_path, 2)
    assert calibrate(tmp_path, brightness_model(tmp_path / "model.pt")) == 1
    assert re.search(r"prostate: not covered here: \d more labelled cases are needed\n", capsys.readouterr().out)
    assert not (tmp_path / "calibrated.pt").exists()


def test_a_file_that_is_read_is_not_written(tmp_path: Path, refused: Refused) -> None:
    model = brightness_model(tmp_path / "scores.csv")  # as what is written is called
    before, images = model.read_bytes(), ["--images", tmp_path / "images", "--masks", tmp_path / "masks", "--force"]
    words = ["evaluate", model, *images, "--guarantee", ALPHA, "--calibrated"]
    refused(*words, model, "--out", tmp_path / "out", code="output-exists", naming=("scores.csv", "--calibrated"))
    refused(*words, tmp_path / "new.pt", "--out", tmp_path, code="output-exists", naming=("scores.csv", "--out"))
    assert model.read_bytes() == before


def test_a_site_gets_its_own_outlines_and_a_new_hospital_is_told_that_it_is_not_covered(
    tmp_path: Path, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    model = brightness_model(tmp_path / "model.pt")
    write_scan(tmp_path / "scan.nii.gz", 1)
    asked = ("predict", model, tmp_path / "scan.nii.gz", "--out", tmp_path / "out", "--guarantee")
    refused(*asked, ALPHA, code="no-guarantee", naming=("--set evaluation.guarantee=0.3", "fedshift evaluate"))
    of_site = Promise(n=20, outer=Level(level=LEVELS[10], others=21, at_most=0.37), inner=Level(level=LEVELS[40]))
    of_others = Promise(n=2, outer=Level(level=None, needed=3), inner=Level(level=None, needed=3))
    guarantee = Guarantee(alpha=ALPHA, sites={"HK": {"prostate": of_site}}, newcomer={"prostate": of_others})
    add_guarantee(model, guarantee)
    refused(*asked, 0.1, code="other-guarantee", naming="--guarantee 0.3")
    refused(*asked, ALPHA, code="not-covered", naming="prostate: not covered here: 3 more labelled cases are needed")
    refused(*asked, ALPHA, "--site", "UCL", code="site-unknown", naming="no risk curve")
    assert not (tmp_path / "out").exists()
    assert main([*map(str, asked), str(ALPHA), "--site", "HK"]) == 0
    printed = capsys.readouterr().out
    assert "new patients of site HK, scanned as its 20 validation patients" in printed and "at most 37 %" in printed
    personal = guarantee.model_copy(update={"newcomer": {}})
    add_guarantee(model, personal)
    refused(*asked, ALPHA, "--site", "HK", "--force", code="not-covered", naming="--site-state")


@pytest.mark.parametrize(
    ("reason", "naming"),
    [
        ("absent", "did not score this model"),
        ("policy", "policy lets no risk curve leave"),
        ("few-cases", "too few validation cases"),
        ("held-out", "held out of training"),
    ],
)
def test_a_site_without_a_curve_is_told_why(reason: Reason, naming: str, tmp_path: Path, refused: Refused) -> None:
    model = brightness_model(tmp_path / "model.pt")
    write_scan(tmp_path / "scan.nii.gz", 1)
    levels = {"prostate": Promise(n=20, outer=Level(level=LEVELS[10]))}
    guarantee = Guarantee(alpha=ALPHA, sites={"HK": levels}, newcomer=levels, without_curve={"UCL": reason})
    add_guarantee(model, guarantee)
    asked = ("predict", model, tmp_path / "scan.nii.gz", "--out", tmp_path / "out", "--guarantee", ALPHA)
    refused(*asked, "--site", "UCL", code="site-unknown", naming=("'UCL'", naming, "fedshift evaluate"))
    add_guarantee(model, Guarantee(alpha=ALPHA, without_curve={"UCL": "policy", "HK": "few-cases"}))
    refused(*asked, code="no-guarantee", naming=("UCL: by its policy", "HK: too few cases"))


@pytest.mark.parametrize("site", [(), ("--site", "HK")])
def test_a_model_whose_sites_sent_no_curve_says_so(site: tuple[str, ...], tmp_path: Path, refused: Refused) -> None:
    model = brightness_model(tmp_path / "model.pt")
    write_scan(tmp_path / "scan.nii.gz", 1)
    add_guarantee(model, Guarantee(alpha=ALPHA))
    asked = ("predict", model, tmp_path / "scan.nii.gz", "--out", tmp_path / "out", "--guarantee", ALPHA, *site)
    refused(*asked, code="no-guarantee", naming=("model.pt", "no site", "fedshift evaluate"))


def test_one_of_two_outlines_may_be_covered_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = brightness_model(tmp_path / "model.pt")
    write_scan(tmp_path / "scan.nii.gz", 1)
    outer_alone = Promise(n=20, outer=Level(level=LEVELS[10]), inner=Level(level=None))
    add_guarantee(model, Guarantee(alpha=ALPHA, calibrated={"prostate": outer_alone}, statistics="the model's own"))
    assert predict(model, tmp_path / "out", tmp_path / "scan.nii.gz", overlay=True) == 0
    assert (tmp_path / "out" / "scan_prostate_outlines.png").is_file()
    assert "prostate (its inner outline): not covered here: the model errs too much" in capsys.readouterr().out
    values = sitk.GetArrayFromImage(sitk.ReadImage(str(tmp_path / "out" / "scan_prostate_outlines.nii.gz")))
    assert set(np.unique(values)) == {0, 1}


def test_an_outline_that_says_little_is_remarked_on(tmp_path: Path) -> None:
    ready = make_ready(open_model(brightness_model(tmp_path / "model.pt")), Choice(), device="cpu")
    outlines = Outlines(ready, {"prostate": Promise(n=9, outer=Level(level=LEVELS[5]))}, (2, 4, 4))
    for part in (slice(0, 1), slice(1, 2)):
        outlines.add(1, part, np.full((1, 4, 4), 0.4, np.float32))
    outlines.add(0, slice(None), np.zeros((2, 4, 4), np.float32))
    assert outlines.sides["prostate"].keys() == {"outer"} and outlines.sides["prostate"]["outer"].all()
    assert not list(outlines.remarks({"prostate": 7}))
    assert "16 times as large as the mask" in next(outlines.remarks({"prostate": 2}))
    assert "is empty, and its outer outline has 32 voxels" in next(outlines.remarks({"prostate": 0}))


def test_dicom_has_a_segment_for_each_outline(tmp_path: Path) -> None:
    model = brightness_model(tmp_path / "model.pt")
    write_scan(tmp_path / "scan.nii.gz", 1)
    write_dicom(tmp_path / "series", sitk.Cast(sitk.ReadImage(str(tmp_path / "scan.nii.gz")), sitk.sitkInt16))
    both = Promise(n=20, outer=Level(level=LEVELS[5]), inner=Level(level=LEVELS[50]))
    add_guarantee(model, Guarantee(alpha=ALPHA, calibrated={"prostate": both}, statistics="the model's own"))
    assert predict(model, tmp_path / "out", tmp_path / "series") == 0
    seg = hd.seg.segread(tmp_path / "out" / "series_prostate_outlines.dcm")
    assert [part.SegmentLabel for part in seg.SegmentSequence] == ["prostate, outer outline", "prostate, inner outline"]
    values = sitk.GetArrayFromImage(sitk.ReadImage(str(tmp_path / "out" / "series_prostate_outlines.nii.gz")))
    frames = seg.pixel_array
    assert frames.sum() == (values > 0).sum() + (values == 2).sum() and (values == 2).any()


def test_levels_are_of_other_weights_once_a_model_is_adapted(tmp_path: Path) -> None:
    from fedshift.federation.model_files import write_adapted
    from fedshift.schema.adaptation import Adaptation

    model = brightness_model(tmp_path / "model.pt")
    add_guarantee(model, Guarantee(alpha=ALPHA))
    weights = {key: value.numpy() for key, value in read_model_file(model)["weights"].items()}
    about = {"reason": "r", "labelled": 1, "unlabelled": 0, "seed": 0, "statistics": "s", "fedshift": "1"}
    for decision, kept in (("kept", True), ("adapted", False)):
        adaptation = Adaptation.parse({"decision": decision, **about}, where="test")
        write_adapted(model, tmp_path / f"{decision}.pt", weights=weights, adaptation=adaptation)
        header = header_of(read_model_file(tmp_path / f"{decision}.pt"), where=decision)
        assert (header.guarantee is not None) == kept


def test_sets_of_classes_hold_every_class_that_they_must(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = {site: make_image_site(tmp_path, site, images=60) for site in "AB"}
    job = small_image_job("fedavg", f"evaluation.guarantee={ALPHA}", "schedule.rounds=1", sites=("A", "B"))
    run_in_process(job, data, tmp_path / "run")
    names = write_pictures(make_image_site(tmp_path, "C", images=60), tmp_path / "pictures")
    shapes = ("disc", "square", "bar")
    lines = ["file,label", *(f"{name},{shapes[number % 3]}" for number, name in enumerate(names))]
    (tmp_path / "labels.csv").write_text("\n".join(lines), encoding="utf-8")
    options = ["--table", tmp_path / "labels.csv", "--images", tmp_path / "pictures", "--out", tmp_path / "scores"]
    options += ["--guarantee", ALPHA, "--calibrated", tmp_path / "own.pt"]
    assert main(["evaluate", str(tmp_path / "run" / BEST), *map(str, options)]) == 0
    assert set(promised(tmp_path / "own.pt").calibrated) == set(shapes)
    capsys.readouterr()
    pictures = [tmp_path / "pictures" / name for name in names]
    assert predict(tmp_path / "own.pt", tmp_path / "out", *pictures) == 0
    assert "of the cases that have a class, on average at most 30 % lack it" in capsys.readouterr().out
    record = json.loads((tmp_path / "out" / "predictions.json").read_text(encoding="utf-8"))
    truth = {str(tmp_path / "pictures" / name): shapes[number % 3] for number, name in enumerate(names)}
    for shape in shapes:
        lacking = [shape not in each["set"] for each in record["images"] if truth[each["file"]] == shape]
        assert len(lacking) == 20 and (20 * np.mean(lacking) + 1) / 21 <= ALPHA
