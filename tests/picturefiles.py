"""Small trees of pictures in the layout of the public data sets."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from data_prep.domainnet import DOMAINNET
from data_prep.office_caltech import LISTS, OFFICE_CALTECH
from data_prep.officehome import OFFICEHOME
from data_prep.pictures import PictureSet, Source
from fedshift.data.depth import Depth

TREE = PictureSet(
    dataset="things",
    name="Things",
    sites=("here", "there"),
    classes=("cup", "pen"),
    described="the download is described at nowhere",
    licence="none",
    citation="none",
)


def pixels(seed: int, *, rows: int = 20, columns: int = 24, channels: int = 3) -> np.ndarray:
    """Smooth colours, so that no compression changes them much."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (3, 3, channels), dtype=np.uint8)
    layers = [
        Image.fromarray(coarse[..., k]).resize((columns, rows), Image.Resampling.BICUBIC) for k in range(channels)
    ]
    return np.stack([np.asarray(layer) for layer in layers], axis=-1)


def shown(pictures: Sequence[Source]) -> list[Image.Image]:
    """Pictures of a site as they are cached, before they are resized."""
    depth = Depth([picture.read for picture in pictures])
    return [depth.shown(picture.read()) for picture in pictures]


def write_picture(path: Path, seed: int) -> Path:
    """An RGB picture in the format of its suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels(seed)).save(path)
    return path


def write_16_bits(path: Path, seed: int) -> np.ndarray:
    """A grey picture of 16 bits, most of whose values are no multiples of 257; returns what it shall be read as."""
    values = pixels(seed, channels=1)[..., 0].astype(np.uint16) * 200 + 99
    Image.fromarray(values).save(path)
    return np.stack([np.rint(values / 257).astype(np.uint8)] * 3, -1)


def write_tree(
    root: Path,
    sites: Sequence[str],
    classes: Sequence[str],
    *,
    each: int = 5,
    suffix: str = ".png",
    name: str = "frame_{:04d}",
) -> Path:
    """``each`` pictures, all different, in every class of every site, named after their numbers from 1."""
    for s, site in enumerate(sites):
        for c, label in enumerate(classes):
            for k in range(each):
                write_picture(root / site / label / f"{name.format(k + 1)}{suffix}", 10_000 * s + 100 * c + k)
    return root


def write_office(root: Path) -> Path:
    """Office-Caltech 10 with five pictures of each class at each site; the lists train on the first four, backwards."""
    write_tree(root, OFFICE_CALTECH.sites, OFFICE_CALTECH.classes, suffix=".jpg")
    lists = {
        site: {
            "train": [f"{site}/{c}/frame_{k:04d}.jpg" for k in (4, 3, 2, 1) for c in OFFICE_CALTECH.classes],
            "test": [f"{site}/{c}/frame_0005.jpg" for c in OFFICE_CALTECH.classes],
        }
        for site in OFFICE_CALTECH.sites
    }
    (root / LISTS).write_text(json.dumps(lists), encoding="utf-8")
    return root


def domainnet_name(site: str, label: str, k: int) -> str:
    """As in the download, where quickdraw's names are numbers."""
    c = DOMAINNET.classes.index(label)
    return f"{4500000000000000 + 100 * c + k}.png" if site == "quickdraw" else f"{site}_{c + 30:03d}_{k:06d}.jpg"


def write_domainnet(root: Path, *, each: int = 5) -> Path:
    """DomainNet's ten classes with ``each`` pictures; the eleventh class must not be opened."""
    for s, site in enumerate(DOMAINNET.sites):
        for c, label in enumerate(DOMAINNET.classes):
            for k in range(each):
                write_picture(root / site / label / domainnet_name(site, label, k), 10_000 * s + 100 * c + k)
        (root / site / "aircraft_carrier").mkdir()
        (root / site / "aircraft_carrier" / f"{site}_001_000001.jpg").write_bytes(b"damaged")
    return root


def write_officehome(root: Path, *, each: int = 3) -> Path:
    """The content of OfficeHome's zip, with the two lists that lie beside its domains."""
    domains = ("Art", "Clipart", "Product", "Real World")
    write_tree(root, domains, OFFICEHOME.classes, each=each, suffix=".jpg", name="{:05d}")
    (root / "ImageInfo.csv").write_text("Art/Alarm_Clock/00001.jpg, 24, 20\n", encoding="utf-8")
    (root / "imagelist.txt").write_text("Art/Alarm_Clock/00001.jpg\n", encoding="utf-8")
    return root


def write_zip(path: Path, folder: Path, *, inside: str = "") -> Path:
    """A zip of what is in a folder, below ``inside`` in the zip; the folders are members of it too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, f"{inside}/{file.relative_to(folder)}".lstrip("/"))
    return path


def patch_zip(path: Path, member: str, *, at: int, value: bytes) -> None:
    """Overwrite bytes of a member's entry in the zip's table of contents, ``at`` bytes from the entry's beginning."""
    content = bytearray(path.read_bytes())
    entry = content.rindex(member.encode()) - 46
    assert content[entry : entry + 4] == b"PK\1\2"
    content[entry + at : entry + at + len(value)] = value
    path.write_bytes(content)
