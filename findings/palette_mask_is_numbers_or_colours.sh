#!/bin/sh
# Masks drawn by hand are often PNG, BMP or TIFF with a palette: each pixel holds the number of its class, and the
# palette only says in which colour to show it. What a reader makes of the same file differs, and nothing is said.
#
# Expected: the numbers, or everywhere the colours.
# Seen: Pillow gives the numbers of all three formats. SimpleITK gives the colours: three values per pixel of PNG and BMP.
# Of TIFF it gives 16-bit colours that are 256 times the palette's (TIFF's palette has 16 bits, where white is 65535 and
# not 65280), and where all colours are grey one value per pixel, which looks like a mask of classes 2560 and 51200.
# scikit-image gives the colours of PNG and BMP and the numbers of TIFF.
# Versions: pillow 13.0.0, simpleitk 2.5.5, scikit-image 0.26.0.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pillow==13.0.0 simpleitk==2.5.5 scikit-image==0.26.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import warnings
from importlib.metadata import version

import numpy as np
import SimpleITK as sitk
from PIL import Image
from skimage import io

print(", ".join(f"{name} {version(name)}" for name in ("pillow", "simpleitk", "scikit-image")))
classes = np.zeros((8, 8), np.uint8)
classes[2:5, 2:5], classes[5:7, 5:7] = 1, 2
palettes = {"colours": [0, 0, 0, 255, 0, 0, 0, 255, 0], "greys": [0, 0, 0, 10, 10, 10, 200, 200, 200]}
readers = {
    "Pillow": lambda path: np.array(Image.open(path)),
    "SimpleITK": lambda path: sitk.GetArrayFromImage(sitk.ReadImage(path)),
    "scikit-image": io.imread,
}
seen = {}
for name, palette in palettes.items():
    mask = Image.new("P", classes.shape[::-1])
    mask.putdata(classes.ravel().tolist())
    mask.putpalette(palette)
    for suffix in ("png", "bmp", "tif"):
        path = f"{name}.{suffix}"
        mask.save(path)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            read = {reader: function(path) for reader, function in readers.items()}
        assert not warned
        seen[path] = {reader: (voxels.ndim, np.unique(voxels).tolist()) for reader, voxels in read.items()}
        print(path, seen[path])
numbers, colours, greys = (2, [0, 1, 2]), (3, [0, 255]), (3, [0, 10, 200])
for path, shown in (("colours", colours), ("greys", greys)):
    for suffix in ("png", "bmp"):
        expected = {"Pillow": numbers, "SimpleITK": shown, "scikit-image": shown}
        assert seen[f"{path}.{suffix}"] == expected, "it is otherwise now"
of_tiff = {"colours": (3, [0, 65280]), "greys": (2, [0, 2560, 51200])}
for name, shown in of_tiff.items():
    expected = {"Pillow": numbers, "SimpleITK": shown, "scikit-image": numbers}
    assert seen[f"{name}.tif"] == expected, "it is otherwise now"
PYTHON
