#!/bin/sh
# COCO's polygons are in coordinates of the picture whose whole numbers are corners of pixels: a square from 3 to 8 covers
# 5 x 5 pixels, and so pycocotools, which the format is of, draws it. Pillow and scikit-image take whole numbers for the
# centres of pixels and draw the edge too. Masks of one polygon file therefore depend on who drew them.
#
# Expected: masks of the same area, as that of the file's own `area`.
# Seen: of a square of 25 pixels pycocotools makes 25, Pillow and scikit-image 36, which is 44 % more; of one of 100
# pixels 121. Moved by half a pixel, scikit-image agrees in the area and Pillow does not.
# Versions: pycocotools 2.0.10, pillow 13.0.0, scikit-image 0.26.0.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pycocotools==2.0.10 pillow==13.0.0 scikit-image==0.26.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import numpy as np
from PIL import Image, ImageDraw
from pycocotools import mask as coco
from skimage.draw import polygon2mask

print(", ".join(f"{name} {version(name)}" for name in ("pycocotools", "pillow", "scikit-image")))


def areas(first, last):
    """Of a square between two corners, in pixels: pycocotools, Pillow, scikit-image."""
    corners = [(first, first), (last, first), (last, last), (first, last)]
    flat = [number for corner in corners for number in corner]
    by_coco = coco.decode(coco.merge(coco.frPyObjects([flat], 20, 20)))
    by_pillow = Image.new("L", (20, 20))
    ImageDraw.Draw(by_pillow).polygon(flat, fill=1, outline=1)
    by_skimage = polygon2mask((20, 20), np.array(corners)[:, ::-1])
    return int(by_coco.sum()), int(np.array(by_pillow).sum()), int(by_skimage.sum())


seen = {square: areas(*square) for square in ((3, 8), (2, 12), (2.5, 12.5))}
for (first, last), counts in seen.items():
    print(f"from {first} to {last}, area {(last - first) ** 2:g}: pycocotools, Pillow, scikit-image draw {counts}")
assert seen == {(3, 8): (25, 36, 36), (2, 12): (100, 121, 121), (2.5, 12.5): (100, 121, 100)}, "it is otherwise now"
PYTHON
