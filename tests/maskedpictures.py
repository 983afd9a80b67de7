"""Small downloads of public pictures with masks, in the layouts in which they are published."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from segmentpictures import disc

SIZE = (48, 64)


def save(array: np.ndarray, path: Path, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)  # type: ignore[arg-type]


def write(image: Path, mask: Path, seed: int, *, size: tuple[int, int] = SIZE, grey: bool = False) -> None:
    """A picture and its mask of 0 and 255; their endings say the form."""
    picture, inside = disc(seed, size=size)
    save(picture[..., 0] if grey else picture, image)
    save(np.uint8(255) * inside, mask)


def write_vessels(root: Path) -> Path:
    for number in range(6):
        for eye in "LR":
            name = f"Image_{number + 1:02d}{eye}"
            write(root / "CHASEDB1" / f"{name}.jpg", root / "CHASEDB1" / f"{name}_1stHO.png", 2 * number + (eye == "L"))
            save(np.zeros(SIZE, np.uint8), root / "CHASEDB1" / f"{name}_2ndHO.png")
        for kind, ending in (("h", "jpg"), ("dr", "JPG"), ("g", "jpg")):
            name = f"{number + 1:02d}_{kind}"
            seed = 100 + 3 * number + len(kind) + (kind == "g") * 50
            write(root / "HRF" / "images" / f"{name}.{ending}", root / "HRF" / "manual1" / f"{name}.tif", seed)
        for part, first in (("training", 21), ("test", 1)):
            folder, name = root / "DRIVE" / part, f"{first + number:02d}"
            write(
                folder / "images" / f"{name}_{part}.tif",
                folder / "1st_manual" / f"{name}_manual1.gif",
                300 + first + number,
            )
        stare = root / "STARE"
        write(
            stare / "images" / f"im{number + 1:04d}.ppm",
            stare / "labels-ah" / f"im{number + 1:04d}.ah.ppm",
            400 + number,
        )
    return root


def write_domains(root: Path) -> Path:
    """Disc and cup: 0 in the cup, 128 in the rest of the disc, 255 around it."""
    for domain in range(1, 5):
        for part in ("train", "test"):
            for number in range(4 if part == "train" else 2):
                seed = 100 * domain + 10 * number + (part == "test")
                picture, inside = disc(seed, size=SIZE)
                cup = np.zeros_like(inside)
                rows, columns = (int(places.mean()) for places in np.nonzero(inside))
                cup[rows - 2 : rows + 3, columns - 2 : columns + 3] = True
                folder, name = root / f"Domain{domain}" / part / "ROIs", f"{part}{number}.png"
                save(picture, folder / "image" / name)
                save(np.where(cup, 0, np.where(inside, 128, 255)).astype(np.uint8), folder / "mask" / name)
    return root


def write_polyps(root: Path) -> Path:
    for number in range(6):
        kvasir = root / "Kvasir-SEG"
        write(kvasir / "images" / f"k{number}.jpg", kvasir / "masks" / f"k{number}.jpg", number)
        frame = (1, 2, 26, 27, 51, 612)[number]
        clinic = root / "CVC-ClinicDB"
        write(clinic / "Original" / f"{frame}.tif", clinic / "Ground Truth" / f"{frame}.tif", 100 + number)
        for seed, name in ((200, "CVC-ColonDB"), (300, "ETIS-LaribPolypDB")):
            write(root / name / "images" / f"{number}.png", root / name / "masks" / f"{number}.png", seed + number)
    return root


def write_sections(root: Path) -> Path:
    """Of three scanners; a mask is 0 or 1."""
    for seed, scanner in enumerate(("3d-1000", "kfbio-400", "teksqray-600p")):
        for number in range(3):
            picture, inside = disc(seed * 100 + number, size=SIZE)
            save(picture, root / "task2" / scanner / "image" / f"{number}.png")
            save(inside.astype(np.uint8), root / "task2" / scanner / "mask" / f"{number}.png")
    return root


def write_nuclei(root: Path) -> Path:
    """A folder for each picture, and a file for each of its two nuclei."""
    sizes = {"a": (256, 256, True), "b": (360, 360, True), "c": (520, 696, True), "d": (256, 320, False)}
    for group, (rows, columns, grey) in {**sizes, "e": (64, 64, True)}.items():
        for number in range(3 if group != "e" else 1):
            seed = ord(group) * 100 + number
            picture, inside = disc(seed, size=(rows, columns))
            if grey:
                picture = np.repeat(picture[..., :1], 3, 2)
            folder = root / f"{group}{number}"
            opaque = np.full((rows, columns, 1), 255, np.uint8)
            save(np.concatenate([picture, opaque], 2), folder / "images" / f"{group}{number}.png")
            half = np.arange(columns) < columns // 2
            for name, part in (("x", half), ("y", ~half)):
                save(np.uint8(255) * (inside & part), folder / "masks" / f"{group}{number}{name}.png")
    return root


def write_breasts(root: Path) -> Path:
    busi = root / "Dataset_BUSI_with_GT"
    for kind, seed in (("benign", 0), ("malignant", 100), ("normal", 200)):
        for number in range(1, 4):
            name = f"{kind} ({number})"
            picture, inside = disc(seed + number, size=SIZE)
            save(np.repeat(picture[..., :1], 3, 2), busi / kind / f"{name}.png")
            half = np.arange(SIZE[1]) < SIZE[1] // 2
            if kind == "normal":
                inside = np.zeros_like(inside)
            two = kind == "malignant"
            save(np.uint8(255) * (inside & half if two else inside), busi / kind / f"{name}_mask.png")
            if two:
                save(np.uint8(255) * (inside & ~half), busi / kind / f"{name}_mask_1.png")
    for number in range(1, 6):
        write(
            root / "BUS" / "original" / f"{number:06d}.png",
            root / "BUS" / "GT" / f"{number:06d}.png",
            300 + number,
            grey=True,
        )
    return root


def write_eyelids(root: Path) -> Path:
    """Of MGD-1k two lids of each of five people; of CAMG five pictures."""
    mgd, camg = root / "Expore MGD1k Dataset", root / "CAMG"
    for number in range(5):
        for lid in ("LOWER", "UPPER"):
            name = f"DMI_OD_{lid}_REFLECTED_IR_{10209332 + number}"
            picture, inside = disc(2 * number + (lid == "UPPER"), size=SIZE)
            save(np.repeat(picture[..., :1], 3, 2), mgd / "Original Images" / f"{name}.JPG", quality=95)
            save(np.uint8(255) * inside, mgd / "Meibomian Gland Labels" / f"{name}.png")
            save(np.full(SIZE, 255, np.uint8), mgd / "Eyelid Lebels" / f"{name}.png")
        original, labels = camg / "Original", camg / "Meibomian_Gland_Labels"
        write(original / f"{number}_Image.png", labels / f"{number}_Seg.png", 100 + number, grey=True)
    return root


def write_chests(root: Path) -> Path:
    for number in range(1, 6):
        montgomery, name = root / "MontgomerySet", f"MCUCXR_{number:04d}_{number % 2}"
        picture, inside = disc(number, size=SIZE)
        save(picture[..., 0], montgomery / "CXR_png" / f"{name}.png")
        half = np.arange(SIZE[1]) < SIZE[1] // 2
        save(inside & half, montgomery / "ManualMask" / "rightMask" / f"{name}.png")
        save(inside & ~half, montgomery / "ManualMask" / "leftMask" / f"{name}.png")
        shenzhen, name = root / "ChinaSet_AllFiles", f"CHNCXR_{number:04d}_{number % 2}"
        write(shenzhen / "CXR_png" / f"{name}.png", shenzhen / "mask" / f"{name}_mask.png", 100 + number, grey=True)
    save(disc(999, size=SIZE)[0][..., 0], root / "ChinaSet_AllFiles" / "CXR_png" / "CHNCXR_0009_0.png")
    return root
