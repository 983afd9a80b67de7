"""Images of models that work on patches: planes of test volumes, with the outlines of each class."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from volumesites import make_volume_site, write_task

from fedshift import cli
from fedshift.federation.in_process import run_in_process
from fedshift.federation.resolve import resolve
from fedshift.reporting.report.images.models import Looked, look
from fedshift.reporting.report.images.volumes import Volume
from fedshift.reporting.report.runs import Run, read
from fedshift.schema.results import read_results
from reporting.reports import Page

SCHEDULE = "{rounds: 1, local_epochs: 4, batch_size: 2}"
IN_3D = "{patch: [16, 16, 16], spacing: [1.5, 1.2, null], samples_per_case: 6, sequences: [T2, ADC]}"
IN_2D = "{dims: 2, patch: [16, 16], context: 3, samples_per_case: 8}"
SPACING = (2.0, 0.8, 1.0)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs in 3D, with FedRDN, two sequences and a site that outlines one of two classes, and in 2D."""
    root = tmp_path_factory.mktemp("volumes")
    for name, data, methods in (("3d", IN_3D, "fedrdn"), ("2d", IN_2D, "fedbn")):
        sequences = ("T2", "ADC") if "ADC" in data else ()
        given = {
            "A": make_volume_site(root / name, "A", sequences=sequences, cases=4, spacing=SPACING),
            "B": make_volume_site(
                root / name,
                "B",
                sequences=sequences,
                gain=3.0,
                cases=4,
                annotated=("left",) if name == "3d" else None,
            ),
        }
        task = write_task(root / "task.yaml", data=data, schedule=SCHEDULE)
        options = ("evaluation.mirror=true",) if name == "3d" else ("fedbn.norms=all",)
        job = resolve(str(task), methods, options=options, seed=1)
        run_in_process(job, given, root / f"run_{name}")
    return root


Seen = Callable[[str], dict[str, Looked]]
Made = Callable[[str], str]


@pytest.fixture(scope="module")
def seen(root: Path) -> Seen:
    """What the images of a run in ``root`` show at each site, looked at once."""

    @functools.cache
    def see(name: str) -> dict[str, Looked]:
        run = read(root / f"run_{name}")
        assert isinstance(run, Run)
        folders = {site: root / name / "blobs" / site for site in "AB"}
        return {site.site: site for site in look(run, folders=folders, most_sites=9, progress=lambda line: None)}

    return see


@pytest.fixture(scope="module")
def made(root: Path) -> Made:
    """The report of a run in ``root`` with its images, made once."""

    @functools.cache
    def make(name: str) -> str:
        out = root / f"{name}.html"
        words = [word for site in "AB" for word in ("--site-data", f"{site}={root / name / 'blobs' / site}")]
        assert cli.main(["report", str(root / f"run_{name}"), "--images", *words, "--out", str(out)]) == 0
        return out.read_text(encoding="utf-8")

    return make


@pytest.mark.parametrize("name", ["3d", "2d"])
def test_scores_of_a_shown_case_are_those_of_the_record(root: Path, seen: Seen, name: str) -> None:
    final = read_results(root / f"run_{name}").final
    assert final is not None
    for site, looked in seen(name).items():
        (volume,) = looked.volumes
        assert isinstance(volume, Volume)
        told = final.best.sites[site]["test"]
        assert volume.mean == pytest.approx(told["dice"])
        assert volume.scores == pytest.approx({of: told[f"dice {of}"] for of in volume.scores})
        assert set(volume.scores) == ({"left"} if (name, site) == ("3d", "B") else {"left", "right"})
        assert looked.features.shape == (1, 16)


@pytest.mark.slow
def test_the_report_says_how_predictions_are_made(made: Made) -> None:
    assert "mirror true" in made("3d")
    assert "mirror" not in Page(made("2d")).sections["setup"]


def test_planes_are_the_scans_own_and_radiological(seen: Seen) -> None:
    looked = seen("3d")["A"]
    (volume,) = looked.volumes
    reference = looked.data.reference(volume.entry)  # type: ignore[attr-defined]
    assert [plane.name.partition(",")[0] for plane in volume.planes] == ["axial", "coronal", "sagittal"]
    axial, coronal, sagittal = volume.planes
    assert [plane.aspect for plane in volume.planes] == pytest.approx([0.8, 2.0, 2.0 / 0.8])
    assert [plane.sides for plane in volume.planes] == [("R", "A"), ("R", "S"), ("A", "S")]
    inside = reference > 0
    for plane, axis in ((axial, 0), (coronal, 1), (sagittal, 2)):
        counts = inside.sum(tuple(other for other in range(3) if other != axis))
        assert plane.name.endswith(f"{counts.argmax() + 1} of {reference.shape[axis]}")
        assert (plane.reference > 0).sum() == counts.max(), "nothing of it is cut off"
    # RAS: class 2 is at the patient's right (larger x), which is on the left of the picture.
    columns = [np.argwhere(axial.reference == number)[:, 1].mean() for number in (1, 2)]
    assert columns[1] < columns[0]
    bright = [image[axial.reference == 1].mean() - image[axial.reference == 0].mean() for image in axial.images]
    assert len(bright) == 2 and min(bright) > 0, "the image lies below its mask"


def test_in_2d_three_neighbouring_slices(seen: Seen) -> None:
    (volume,) = seen("2d")["A"].volumes
    places = [int(re.match(r"axial, (\d+) of", plane.name)[1]) for plane in volume.planes]  # type: ignore[index]
    assert np.diff(places).tolist() == [1, 1]
    assert not volume.sequences and all(len(plane.images) == 1 for plane in volume.planes)


def test_what_the_network_gets_is_compared_window_by_window(seen: Seen) -> None:
    changed, same = seen("3d")["A"], seen("2d")["A"]
    assert len(changed.before) == len(changed.after) and not np.allclose(changed.before, changed.after, atol=1e-2)
    assert np.allclose(same.before, same.after, atol=1e-6), "FedBN changes no input"


def test_page(made: Made) -> None:
    html = made("3d")
    page = Page(html)
    assert "contains images" in page.text
    pictures = [attrs for tag, attrs in page.tags if tag == "image"]
    assert len(pictures) == 2 * 3 * 2, "a case at each of two sites, three planes, two sequences"
    assert re.search(r"Dice \d+\.\d % \(left \d+\.\d %, right \d+\.\d %\) \(case03\)", page.sections["cases"])
    assert " B " in page.passages["not_outlined"] and "right" in page.passages["not_outlined"]
    assert "images_unchanged" not in page.passages and "few_to_arrange" in page.passages
    assert len(set(page.ids())) == len(page.ids())


def test_classes_are_told_apart_without_their_colours(made: Made) -> None:
    html = made("3d")
    labels = [attrs["aria-label"] for tag, attrs in Page(html).tags if tag == "svg" and attrs.get("aria-label")]
    assert "number 1:" in labels and "number 2:" in labels
    label_of_worst = next(label for label in labels if label and label.startswith("A, worst of 1"))
    for fact in ("T2 and ADC", "1 left and 2 right", "model (solid)", "reference (dashed)"):
        assert fact in label_of_worst
    drawing = html[html.index('aria-label="A, worst of 1') :].partition("</svg>")[0]
    words = re.findall(r"<text[^>]*>([^<]*)</text>", drawing)
    assert {"1", "2", "R", "A", "S", "T2", "ADC"} <= set(words)


def test_personal_parts_come_from_the_sites(seen: Seen, made: Made) -> None:
    assert all(site.complete for site in seen("2d").values())
    assert "without_own_parts" not in Page(made("2d")).passages
