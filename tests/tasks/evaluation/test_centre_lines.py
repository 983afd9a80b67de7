"""Centre-line Dice: by its definition, of pictures and volumes, of the classes that a job names."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from errors import raises

from fedshift.federation.resolve import resolve
from fedshift.tasks.evaluation import centre_lines
from fedshift.tasks.evaluation.by_class import RANGES, scores_by_class, values_by_score
from fedshift.tasks.kinds import build_task

needed = pytest.mark.skipif(importlib.util.find_spec("skimage") is None, reason="scikit-image is not installed")


def vessel(width: int) -> np.ndarray:
    """A horizontal bar of an odd width, and a thin one below it."""
    mask = np.zeros((1, 40, 60), bool)
    mask[0, 10 - width // 2 : 11 + width // 2, 5:55] = True
    mask[0, 30, 5:55] = True
    return mask


@needed
def test_a_width_counts_for_nothing_and_a_torn_vessel_does() -> None:
    wide, narrow = vessel(9), vessel(3)
    assert centre_lines.centre_line_dice(wide, wide) == 1
    assert centre_lines.centre_line_dice(narrow, wide) == 1
    torn = wide.copy()
    torn[0, 30] = False
    line = centre_lines.centre_line(wide)
    found = line[0, :20].sum() / line.sum()
    assert centre_lines.centre_line_dice(torn, wide) == pytest.approx(2 * found / (1 + found))
    dice = 2 * torn.sum() / (torn.sum() + wide.sum())
    assert centre_lines.centre_line_dice(torn, wide) < dice - 0.15


@needed
def test_a_volume_has_the_line_of_three_dimensions() -> None:
    rod = np.zeros((9, 9, 30), bool)
    rod[3:6, 3:6, 3:27] = True
    line = centre_lines.centre_line(rod)
    assert 18 <= line.sum() <= 24 and line[4, 4].sum() == line.sum()
    assert centre_lines.centre_line_dice(rod, rod) == 1


@needed
def test_masks_without_anything_in_common_have_0() -> None:
    mask = vessel(3)
    for other in (np.zeros_like(mask), np.roll(mask, 5, 1)):
        assert centre_lines.centre_line_dice(other, mask) == centre_lines.centre_line_dice(mask, other) == 0
    dot = np.zeros_like(mask)
    dot[0, 3:5, 3:5] = True
    assert centre_lines.centre_line_dice(dot, dot) == 1


@needed
def test_only_the_classes_that_are_named_have_it() -> None:
    classes = vessel(5)[0].astype(np.uint8)[None] + 2 * np.eye(40, 60, dtype=np.uint8)[None]
    numbers = {"vessel": 1, "disc": 2}
    case = scores_by_class(classes, classes, numbers, (1, 1, 1), tolerance=1.0, thin=("vessel",))
    assert case["vessel"]["cldice"] == 1 and "cldice" not in case["disc"]
    means = values_by_score([case], ["vessel", "disc"])
    assert means["cldice"] == means["cldice vessel"] == 1 and "cldice disc" not in means
    assert "cldice" not in scores_by_class(classes, classes, numbers, (1, 1, 1), tolerance=1.0)["vessel"]


@needed
def test_a_job_that_names_a_class_has_its_score() -> None:
    job = resolve("hippocampus", "fedavg", options=["evaluation.cldice=[Anterior]"])
    assert "cldice Anterior" in build_task(job).metrics
    plain = build_task(resolve("hippocampus", "fedavg")).metrics
    assert "cldice" not in plain and set(plain) == {name for name in build_task(job).metrics if "cldice" not in name}
    assert "cldice" in RANGES


@pytest.mark.parametrize(
    ("task", "protocol", "classes", "code", "names"),
    [
        ("hippocampus", None, ["anterior"], "class-unknown", "'Anterior'"),
        ("prostate", "quick", ["prostate"], "options-clash", "evaluation.cldice=[]"),
    ],
)
def test_what_is_refused(task: str, protocol: str | None, classes: list[str], code: str, names: str) -> None:
    with raises(code, naming=names):
        resolve(task, "fedavg", protocol=protocol, options=[f"evaluation.cldice=[{classes[0]}]"])


def test_a_site_without_the_library_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """When it opens its data; a job can be made, and a model's masks predicted, without it."""
    monkeypatch.setattr(centre_lines, "find_spec", lambda name: None)
    task = build_task(resolve("hippocampus", "fedavg", options=["evaluation.cldice=[Anterior]"]))
    with raises("not-installed", naming="fedshift[centre-lines]"):
        task.open(tmp_path, "sim_a")
