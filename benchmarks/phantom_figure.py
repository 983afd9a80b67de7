"""Draw ``docs/phantom.png``: slices of the phantom at each site, with the gland's outline.

python benchmarks/phantom_figure.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

from data_prep.phantom import make_phantom
from data_prep.phantom_scanner import SCANNERS
from fedshift.data.arrays import open_arrays
from fedshift.schema.manifest import read_manifest

TARGET = Path(__file__).resolve().parents[1] / "docs" / "phantom.png"
PLACES = (0.15, 0.5, 0.8)  # of the gland's slices: apex, middle, base
MATRIX = 128


def main() -> None:
    """One column a site, one row a place, and a last row above the gland."""
    figure, axes = plt.subplots(
        len(PLACES) + 1, len(SCANNERS), figsize=(9, 6.3), gridspec_kw={"wspace": 0.03, "hspace": 0.03}
    )
    with tempfile.TemporaryDirectory() as scratch:
        root = make_phantom(Path(scratch), cases=1, matrices=(MATRIX,))
        for column, site in enumerate(SCANNERS):
            folder = root / "prostate" / site
            assert read_manifest(folder).kind == "phantom"
            arrays = open_arrays(folder, matrix=MATRIX)
            gland = np.flatnonzero(arrays.labels.any((1, 2)))
            slices = [gland[int(place * (len(gland) - 1))] for place in PLACES]
            for row, index in enumerate([*slices, len(arrays.labels) - 2]):
                panel = axes[row, column]
                panel.imshow(arrays.images[index], cmap="gray", vmin=0, vmax=255)
                if arrays.labels[index].any():
                    panel.contour(arrays.labels[index], [0.5], colors="#ffb000", linewidths=0.8)
                panel.axis("off")
            axes[0, column].set_title(site, fontsize=9)
    figure.suptitle("fedshift phantom: SIMULATED, not patients", fontsize=10, y=0.95)
    figure.savefig(TARGET, dpi=100, bbox_inches="tight", pad_inches=0.05)
    Image.open(TARGET).convert("RGB").quantize(64).save(TARGET, optimize=True)  # noise compresses badly


if __name__ == "__main__":
    main()
