#!/bin/sh
# A TIFF may store grey with 0 as white (PhotometricInterpretation 0, WhiteIsZero; TIFF 6.0, page 37), as X-ray exports
# do. Pillow turns such a picture where it has 8 bits, and not where it has 16.
#
# Expected: one picture, stored with 8 and with 16 bits, looks the same in both; or neither is turned and the tag is left
# to the reader.
# Seen: the mode L picture is turned, the mode I;16 one is not, without a warning: one of them is the negative of the
# other.
# Versions: Pillow 12.0.0 (tifffile 2025.9.20 writes the files).
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pillow==12.0.0 tifffile==2025.9.20 numpy==2.2.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import numpy as np
import tifffile
from PIL import Image

print("Pillow", version("pillow"), "tifffile", version("tifffile"))
shown = {}
for bits, dtype, unit in ((8, np.uint8, 1), (16, np.uint16, 257)):
    stored = (np.arange(256).reshape(16, 16) * unit).astype(dtype)  # the first pixel is white, the last one black
    tifffile.imwrite(f"{bits}.tif", stored, photometric="miniswhite")
    with Image.open(f"{bits}.tif") as picture:
        values = np.asarray(picture).astype(int) // unit
        shown[bits] = int(values[0, 0]), int(values[-1, -1])
        print(f"{bits} bits, mode {picture.mode}: white is read as {shown[bits][0]} of 255, black as {shown[bits][1]}")
assert shown == {8: (255, 0), 16: (0, 255)}, "Pillow reads both alike by now"
PYTHON
