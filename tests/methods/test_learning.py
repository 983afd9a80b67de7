"""Methods on sites whose images differ: they learn, and on slices they run in other settings and beside others.

`test_every_method` runs every method with its defaults on both kinds of task.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from conftest import small_job

from fedshift.federation.in_process import run_in_process

from .learning import assert_learns

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
    *(f"fedfa+mixstyle {precision}" for precision in (HALF, FULL)),
    *(
        f"fedfa+{mixing}+mixup+fedsam loss={loss} {precision}"
        for (mixing, precision), loss in product((("manifold_mixup", FULL), ("moex", HALF)), ("ce_dice", "dice"))
    ),
]
"""Methods, then options."""


@pytest.mark.parametrize("method", ["ditto", "feddyn", "fediir", "fedrep", "fedsr", "fpl", "moon"])
def test_it_learns_on_shifted_images(method: str, three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    assert_learns(method, three_image_sites, tmp_path)


@pytest.mark.parametrize("job", ON_SLICES)
def test_it_runs_on_slices(job: str, three_sites: dict[str, Path], tmp_path: Path) -> None:
    names, *options = job.split()
    results = run_in_process(small_job(names, "schedule.rounds=1", *options), three_sites, tmp_path).results
    assert results.statistics is not None and results.statistics.rejected == []
    assert results.rounds[0].rejected == []
    losses = [site.train_loss for site in results.rounds[0].sites.values()]
    assert np.isfinite(losses).all()
    assert "mixup+" not in job or all(0 < loss < 1 for loss in losses)
