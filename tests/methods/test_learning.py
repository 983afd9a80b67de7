"""Methods on sites whose images differ: they learn, and on slices they run in other settings and beside others.

`test_every_method` runs every method with its defaults on both kinds of task.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from conftest import small_job
from shallow import shallow_networks

from fedshift.federation.in_process import run_in_process

from .made import LEARNS, run, shifted_sites

_shallow = pytest.fixture(autouse=True, scope="module")(shallow_networks)

AUTHORS_NORM = "network.options.norm=batch_statistics network.options.bn_momentum=0.1"
HALF, FULL = "schedule.precision=bf16", "schedule.precision=fp32"

ON_SLICES = [
    *(
        f"augmentation augmentation.level=moderate augmentation.rotation=15 augmentation.blur=0.5 {precision}"
        for precision in (HALF, FULL)
    ),
    *(f"fedharmo fedharmo.variant=released {option}" for option in (HALF, AUTHORS_NORM)),
    *(f"harmofl harmofl.variant={variant}" for variant in ("paper", "released")),
    *(f"fedmix+fedsam+mixup loss=dice {precision}" for precision in (HALF, FULL)),
    "fedfa+fedwon",
    "fedirm fedirm.warmup=1",
    f"fedrobust {HALF}",
    "fedprox fedprox.variant=released",
    *(f"fedfa+mixstyle {precision}" for precision in (HALF, FULL)),
    *(
        f"fedfa+{mixing}+mixup+fedsam loss={loss} {precision}"
        for (mixing, precision), loss in product((("manifold_mixup", FULL), ("moex", HALF)), ("ce_dice", "dice"))
    ),
]
"""Methods, then options."""


@pytest.mark.parametrize(
    "method", ["ditto", "fedalign", "feddyn", "fediir", "fedper", "fedrep", "fedrod", "fedsr", "fpl", "moon"]
)
def test_it_learns_on_shifted_images(method: str, three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    """On test images of every site most are right after six rounds, where chance is a third."""
    final = run(method, three_image_sites, tmp_path, *LEARNS).final
    assert final is not None
    assert min(splits["test"]["accuracy"] for splits in final.last.sites.values()) > 0.6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "images", "rounds", "gain", "parts"),
    [("fedbn", 72, 8, 0.1, ("val", "test")), ("partialfed", 90, 12, 0.15, ("test",))],
)
def test_parts_of_their_own_help_sites_that_differ_in_brightness_and_contrast(
    method: str, images: int, rounds: int, gain: float, parts: tuple[str, ...], tmp_path: Path
) -> None:
    """On enough images that the processor's rounding does not decide; a head needs more of them to train on."""
    data = shifted_sites(tmp_path / "data", images=images)
    scores = {}
    for name in ("fedavg", method):
        final = run(name, data, tmp_path / name, f"schedule.rounds={rounds}", "schedule.local_epochs=3").final
        assert final is not None
        scores[name] = np.mean([splits[part]["accuracy"] for splits in final.best.sites.values() for part in parts])
    assert scores[method] > scores["fedavg"] + gain, scores
    assert final.personal == {site: splits["test"] for site, splits in final.best.sites.items()}, "of its own model"


def test_fine_tuned_models_gain_where_sites_differ(tmp_path: Path) -> None:
    options = ("pfedavg.epochs=5", "schedule.rounds=5", "schedule.local_epochs=4")
    final = run("pfedavg", shifted_sites(tmp_path / "data", images=72), tmp_path, *options).final
    assert final is not None
    shared = [splits["test"]["accuracy"] for splits in final.best.sites.values()]
    assert np.mean([values["accuracy"] for values in final.personal.values()]) > np.mean(shared) + 0.05


@pytest.mark.parametrize("job", ON_SLICES)
def test_it_runs_on_slices(job: str, three_sites: dict[str, Path], tmp_path: Path) -> None:
    names, *options = job.split()
    results = run_in_process(small_job(names, "schedule.rounds=1", *options), three_sites, tmp_path).results
    assert results.statistics is not None and results.statistics.rejected == []
    assert results.rounds[0].rejected == []
    losses = [site.train_loss for site in results.rounds[0].sites.values()]
    assert np.isfinite(losses).all()
    assert "mixup+" not in job or all(0 < loss < 1 for loss in losses)
