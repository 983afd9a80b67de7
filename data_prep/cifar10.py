"""CIFAR-10: ten classes of natural images, distributed to many sites with different class shares (Dirichlet).

The source is a folder with ``cifar-10-python.tar.gz`` (170 MB) or its unpacked content ``cifar-10-batches-py/``:
``data_batch_1`` to ``data_batch_5`` with 50,000 RGB training images of 32 x 32, and ``test_batch`` with 10,000. It is
described at https://www.cs.toronto.edu/~kriz/cifar.html. The batches are pickles; no code that they name is executed.
Alternatively the folder holds ``cifar10.npz`` with x_train (N, 32, 32, 3), y_train, x_test and y_test, with class
numbers as labels.

Each class of the training part is distributed over all sites in proportions drawn from Dirichlet(alpha), see
`data_prep.partition`. Sites have 500 images on average and at least ten, including those for validation. FedFA's
experiments use 100 sites and alpha 0.6 or 0.3; the paper does not state which form of the partition. The data set is
named after alpha: ``cifar10_dirichlet_0.6``.

Each class of the official test part is distributed in the same proportions as the training part, so each of the
10,000 test images belongs to exactly one site. A tenth of a site's training images is used for validation. Duplicate
images are left out; if an image occurs in both parts, the copy in the training part is left out.
"""

from __future__ import annotations

import argparse
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from data_prep.arrayfiles import Part, read_parts
from data_prep.manysites import plan_sites
from data_prep.partition import dirichlet, least, require_seed
from data_prep.pickles import read_pickle
from data_prep.pictures import PictureSet, Plan
from fedshift.data.downloads import names_in, open_file, reason
from fedshift.schema.errors import DataError

CIFAR10 = PictureSet(
    dataset="cifar10_dirichlet_0.6",
    name="CIFAR-10",
    sites=(),
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    described="the download is described at https://www.cs.toronto.edu/~kriz/cifar.html",
    licence="research use; the pictures are their owners', from the 80 million tiny images",
    citation="Krizhevsky A. Learning multiple layers of features from tiny images. Technical report, University of "
    "Toronto 2009",
)
SIDE = 32
TAR, FOLDER, NPZ = "cifar-10-python.tar.gz", "cifar-10-batches-py", "cifar10.npz"
TRAIN, TEST = tuple(f"data_batch_{number}" for number in range(1, 6)), "test_batch"
MOST_BYTES = 2**28
EXPECTED = f"expected {TAR}, the folder {FOLDER} that it holds, or {NPZ}; {CIFAR10.described}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `plan` for the command line."""
    parser.add_argument(
        "--alpha",
        type=float,
        default=0.6,
        metavar="X",
        help="Dirichlet parameter; smaller is more uneven (default: 0.6)",
    )
    parser.add_argument("--sites-count", type=int, default=100, metavar="N", help="number of sites (default: 100)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the partition (default: 0)")


def plan(source: Path, *, alpha: float = 0.6, sites_count: int = 100, seed: int = 0) -> Plan:
    """The images of a download, distributed to ``sites_count`` sites.

    Raises:
        DataError: an unknown layout, damaged files, or a partition that is not possible.
    """
    require_seed(seed)
    train, test = read_cifar10(source)

    def partition(labels: np.ndarray) -> tuple[np.ndarray, ...]:
        return dirichlet(labels, sites_count, alpha, seed=seed, min_each=least(len(labels), sites_count))

    return plan_sites(
        replace(CIFAR10, dataset=f"cifar10_dirichlet_{alpha:g}"),
        train,
        test,
        partition=partition,
        seed=seed,
        size=SIDE,
        rule=f"Dirichlet {alpha:g}, seed {seed}",
        described=f"each class over {sites_count} sites by Dirichlet({alpha:g}), seed {seed}",
    )


def read_cifar10(source: Path) -> tuple[Part, Part]:
    """Read the training and test parts from whichever form is found.

    Raises:
        DataError: no known form is found, or files are damaged.
    """
    tar = source if source.is_file() else source / TAR
    folder = next((path for path in (source / FOLDER, source) if (path / TEST).is_file()), None)
    npz = source if source.suffix == ".npz" else source / NPZ
    if folder is not None:
        return _parts({name: _batch(folder / name) for name in (*TRAIN, TEST)})
    if tar.is_file() and tar != npz:
        return _parts(dict(_from_tar(tar)))
    if npz.is_file():
        return read_parts(npz)
    if not source.is_dir():
        raise DataError("not-a-folder", f"{source} is not a folder: {EXPECTED}")
    names = names_in(source)
    raise DataError(
        "other-data", f"{source} has no CIFAR-10, it holds {', '.join(map(ascii, names[:20])) or 'nothing'}: {EXPECTED}"
    )


def _from_tar(path: Path) -> Iterator[tuple[str, Part]]:
    """Read the batches from the archive without unpacking it to disk."""
    wanted = {f"{FOLDER}/{name}": name for name in (*TRAIN, TEST)}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                inside, name = member.name.removeprefix("./"), f"{path}: {member.name}"
                stream = archive.extractfile(member) if inside in wanted and member.isfile() else None
                if stream is None:
                    continue
                if member.size > MOST_BYTES:
                    raise DataError("too-large", f"{name} claims to have {member.size} bytes: download it again")
                yield wanted.pop(inside), _images(read_pickle(stream, name), name)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(
            "file-damaged", f"{path} is damaged or cut short ({reason(error)}): download it again"
        ) from None
    if wanted:
        raise DataError("arrays-form", f"{path} has no {min(wanted)}, so it is not CIFAR-10 for Python: {EXPECTED}")


def _batch(path: Path) -> Part:
    if not path.is_file():
        raise DataError("file-missing", f"{path} does not exist: unpack {TAR} again")
    with open_file(path) as stream:
        return _images(read_pickle(stream, str(path)), str(path))


def _images(batch: object, name: str) -> Part:
    """Convert a batch to images (N, 32, 32, 3). Its rows of 3072 values are all red, then all green, then all blue."""
    data = batch.get("data") if isinstance(batch, dict) else None
    labels = batch.get("labels") if isinstance(batch, dict) else None
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (3 * SIDE**2,):
        raise DataError(
            "arrays-form",
            f"{name} has no 'data' of bytes (N, {3 * SIDE**2}), so it is not a CIFAR-10 batch: {EXPECTED}",
        )
    if not isinstance(labels, list) or len(labels) != len(data) or not all(isinstance(k, int) for k in labels):
        raise DataError(
            "arrays-form", f"{name} has no 'labels', a number for each of its {len(data)} images: {EXPECTED}"
        )
    return data.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1), np.array(labels, np.int64)


def _parts(batches: dict[str, Part]) -> tuple[Part, Part]:
    images, labels = zip(*(batches[name] for name in TRAIN), strict=True)
    return (np.concatenate(images), np.concatenate(labels)), batches[TEST]
