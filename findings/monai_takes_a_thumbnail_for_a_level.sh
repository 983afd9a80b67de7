#!/bin/sh
# A slide of Aperio (SVS) is a TIFF whose first page is the slide, the second a thumbnail, and those behind it the slide at
# smaller scales. MONAI's WSIReader gives a patch of a level at a place, which is counted in pixels of level 0, with any of
# three libraries as its backend.
#
# Expected: the same patch with each of them.
# Seen: with backend "tifffile" a page is taken for a level: there is one level too many, and level 1 is said to have the
# size of the thumbnail and its scale (8 here, and not 2). The pixels come from the right level, and the place is divided
# by the wrong scale, so the patch is of another part of the slide, without a word. OpenSlide gives the right one.
# Versions: monai 1.6.1, tifffile 2026.3.3 (which writes the slide), openslide-python 1.4.7, openslide-bin 4.0.1.2.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 monai==1.6.1 tifffile==2026.3.3 openslide-python==1.4.7 \
    openslide-bin==4.0.1.2 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import numpy as np
import tifffile
from monai.data import WSIReader

print(*(f"{name} {version(name)}" for name in ("monai", "tifffile", "openslide-python", "openslide-bin")))
HEIGHT, WIDTH, PLACE = 2048, 1536, (1200, 800)  # row and column, as MONAI counts
row, column = np.mgrid[:HEIGHT, :WIDTH]
slide = np.stack([row // 8, column // 8, row % 8], -1).astype(np.uint8)  # each pixel says where it is
about = "Aperio Image Library v12.0.15\r\n1536x2048 [0,0 1536x2048] (256x256) RGB|AppMag = 20|MPP = 0.5"
with tifffile.TiffWriter("slide.svs") as file:
    for step, layout in ((1, "tile"), (8, "strip"), (2, "tile"), (4, "tile")):  # the second is the thumbnail
        cut = {"tile": (256, 256)} if layout == "tile" else {"rowsperstrip": 16}
        file.write(slide[::step, ::step].copy(), photometric="rgb", metadata=None, description=about, **cut)

seen = {}
for backend in ("openslide", "tifffile"):
    reader = WSIReader(backend=backend)
    opened = reader.read("slide.svs")
    patch, _ = reader.get_data(opened, location=PLACE, size=(64, 64), level=1)
    found = tuple(8 * int(value) for value in patch[:2, 0, 0])
    seen[backend] = reader.get_level_count(opened), round(reader.get_downsample_ratio(opened, 1), 2), found
    levels, scale, _ = seen[backend]
    print(f"{backend}: {levels} levels, level 1 {scale:g} times smaller, the patch for {PLACE} begins at {found}")
assert seen == {"openslide": (3, 2, PLACE), "tifffile": (4, 8, (296, 200))}, f"it is otherwise now: {seen}"
PYTHON
