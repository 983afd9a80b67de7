"""A small download in the layout of M&Ms: five centres, three patients each, four frames of which two are outlined."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np

SHAPE, FRAMES = (20, 22, 6), 4
PHASES = {"ED": 0, "ES": 3}
VENDORS = ("A", "B", "B", "C", "D")
PARTS = ("Training/Labeled", "Validation", "Testing")
PATIENTS = tuple(f"A{centre}A{part}A0" for centre in range(5) for part in range(len(PARTS)))


def write_hearts(root: Path) -> Path:
    """The folder with the table; a patient of vendor C is in ``Training/Unlabeled``, with a mask as published later."""
    source = root / "OpenDataset"
    rows = []
    for code in PATIENTS:
        centre, part = int(code[1]), int(code[3])
        place = "Training/Unlabeled" if VENDORS[centre] == "C" and part == 0 else PARTS[part]
        folder = source / place / code
        folder.mkdir(parents=True)
        images, masks = zip(*(frame(code, number) for number in range(FRAMES)), strict=True)
        for end, arrays in (("sa", images), ("sa_gt", masks)):
            file = nibabel.Nifti1Image(np.stack(arrays, -1), np.diag([1.25, 1.25, 10.0, 1.0]))
            file.header.set_xyzt_units("mm", "sec")
            nibabel.save(file, folder / f"{code}_{end}.nii.gz")
        rows.append(f"{len(rows)},{code},Vendor {VENDORS[centre]},{VENDORS[centre]},{centre + 1},0,3\n")
    head = ",External code,VendorName,Vendor,Centre,ED,ES\n"
    (source / "211230_M&Ms_Dataset_information_diagnosis_opendataset.csv").write_text(head + "".join(rows))
    return source


def frame(code: str, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Image int16 and mask uint8 of a frame, (x, y, z); the mask is empty in all but two."""
    rng = np.random.default_rng([*code.encode(), number])
    x, y, z = np.indices(SHAPE)
    radius = 5 - number / 2
    left = np.hypot(x - 8, y - 9)
    inside = (z > 0) & (z < SHAPE[2] - 1)
    mask = np.select([inside & (left < radius - 2), inside & (left < radius)], [1, 2], 0)
    mask[inside & (np.hypot(x - 15, y - 15) < radius - 1) & (mask == 0)] = 3
    image = 100 + 60 * (mask == 1) + 40 * (mask == 3) + rng.normal(0, 8, SHAPE)
    return image.astype(np.int16), (mask * (number in PHASES.values())).astype(np.uint8)


def frames(code: str, phase: str) -> tuple[np.ndarray, np.ndarray]:
    return frame(code, PHASES[phase])
