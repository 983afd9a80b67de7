"""Rotated MNIST: six sites with disjoint images of MNIST, rotated by 0, 15, 30, 45, 60 and 75 degrees.

The source is a folder with MNIST's four idx files, compressed or not (``train-images-idx3-ubyte.gz`` and so on,
12 MB), or ``mnist.npz``, directly or in a folder ``mnist`` or ``MNIST/raw``. MNIST is described at
http://yann.lecun.com/exdb/mnist, Rotated MNIST in Ghifary, Kleijn, Zhang, Balduzzi, "Domain generalization for object
recognition with multi-task autoencoders", ICCV 2015. The form used here is DomainBed's (Gulrajani & Lopez-Paz, "In
search of lost domain generalization", ICLR 2021).

MNIST's two parts are joined and shuffled by ``--seed``. Site i has the images i, i + 6, i + 12, … of the shuffled list,
rotated counter-clockwise by Pillow's bilinear rotation with black corners. Duplicate images are removed before the
rotation, because hashes cannot detect them afterwards.

Each site's images are split by content, 80/10/10 within each class. The papers hold out 75 degrees and test on all of
its images, so all of them are its test part here. ``--held-out deg30`` holds out another site, and with
``--held-out none`` all six can train. The papers split the other sites 90/10 without a test part.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
from PIL import Image

from data_prep.arrayfiles import array_sources, require_classes
from data_prep.dealing import deal_by_content
from data_prep.digits import read_mnist
from data_prep.partition import require_seed
from data_prep.pictures import Dealing, Hashed, PictureSet, Plan, Source
from fedshift.schema.manifest import Split

ANGLES = {"deg00": 0, "deg15": 15, "deg30": 30, "deg45": 45, "deg60": 60, "deg75": 75}
ROTATED_MNIST = PictureSet(
    dataset="rotated_mnist",
    name="Rotated MNIST",
    sites=tuple(ANGLES),
    classes=tuple("0123456789"),
    described="MNIST is described at http://yann.lecun.com/exdb/mnist",
    licence="MNIST: CC BY-SA 3.0",
    citation="LeCun Y, Bottou L, Bengio Y, Haffner P. Gradient-based learning applied to document recognition. Proc. "
    "IEEE 1998; Ghifary M, et al. Domain generalization for object recognition with multi-task autoencoders. ICCV 2015",
    channels=1,
)
SIZES = (28,)
ONE_IN = 10
NOBODY = "none"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `plan` for the command line."""
    parser.add_argument("--seed", type=int, default=0, help="seed of the shuffle (default: 0)")
    parser.add_argument(
        "--held-out",
        choices=[*ANGLES, NOBODY],
        default="deg75",
        help="site whose images are all for testing (default: deg75)",
    )


def plan(source: Path, *, seed: int = 0, held_out: str = "deg75") -> Plan:
    """MNIST's images, distributed to the six sites.

    Raises:
        DataError: MNIST is missing or differs from the published one, or the seed is negative.
    """
    require_seed(seed)
    x_train, y_train, x_test, y_test = read_mnist(source)
    pictures = array_sources(x_train, y_train, ROTATED_MNIST.classes, prefix="train")
    pictures += array_sources(x_test, y_test, ROTATED_MNIST.classes, prefix="test")
    require_classes(pictures, ROTATED_MNIST.classes, "MNIST")
    by_content: dict[bytes, Source] = {}
    for picture, image in zip(pictures, chain(x_train, x_test), strict=True):
        by_content.setdefault(image.tobytes(), picture)
    unique = list(by_content.values())
    order = np.random.default_rng(seed).permutation(len(unique))
    by_site = {
        site: [_turned(unique[number], angle) for number in order[start :: len(ANGLES)].tolist()]
        for start, (site, angle) in enumerate(ANGLES.items())
    }
    whole = "" if held_out == NOBODY else f", all of {held_out} test"
    rule = f"by content 80/10/10{whole}; paper: 90/10, no test"
    dealing = Dealing(
        partial(_deal, held_out=held_out), rule, notes={"seed": seed, "copies_left_out": len(pictures) - len(unique)}
    )
    return Plan(ROTATED_MNIST, by_site, SIZES, dealing)


def turn(picture: Image.Image, angle: float) -> Image.Image:
    """Rotate counter-clockwise by ``angle`` degrees about the centre; size is kept, uncovered pixels are black."""
    return picture.rotate(angle, Image.Resampling.BILINEAR)


def _turned(picture: Source, angle: float) -> Source:
    def read() -> Image.Image:
        upright = picture.read()
        assert isinstance(upright, Image.Image)  # MNIST has 8 bits
        return turn(upright, angle)

    return replace(picture, read=read)


def _deal(site: str, pictures: Hashed, *, held_out: str) -> Mapping[str, Split]:
    if site == held_out:
        return {picture.id: "test" for picture, _ in pictures}
    return deal_by_content(site, pictures, one_in=ONE_IN)
