"""Digits: the ten digits from MNIST, MNIST-M, SVHN and USPS, each data set as one site.

The source is one folder that holds each data set's files, directly or in a folder named after the data set
(``MNIST/raw`` as torchvision makes it is found too). Any of these forms is accepted; idx and LIBSVM files may be
compressed or not:

    mnist   train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz,
            t10k-labels-idx1-ubyte.gz: 60,000 and 10,000 grey images of 28 x 28, 12 MB
    mnistm  mnist_m_train/*.png with mnist_m_train_labels.txt, mnist_m_test/*.png with mnist_m_test_labels.txt:
            59,001 and 9,001 RGB images of 32 x 32 (mnist_m.tar.gz, unpacked: 68,004 files); or mnistm_data.pkl or
            keras_mnistm.pkl.gz, 28 x 28, which use MNIST's labels and so need MNIST's files in the same folder
    svhn    train_32x32.mat (73,257 images of 32 x 32, 182 MB), test_32x32.mat (26,032, 64 MB); label 10 means 0
    usps    usps.bz2 and usps.t.bz2 from LIBSVM's page: 7,291 and 2,007 images of 16 x 16, 8 MB
    any     <site>.npz with x_train, y_train, x_test, y_test: integer intensities 0 to 255 and labels 0 to 9

Described at http://yann.lecun.com/exdb/mnist (MNIST), http://yaroslav.ganin.net (MNIST-M),
http://ufldl.stanford.edu/housenumbers (SVHN) and https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets (USPS).
If one of them is missing, list the others: ``--sites mnist,mnistm,usps``.

Grey images become RGB with three equal channels. Each data set keeps its official test part; a tenth of each class of
the training part is used for validation, by content. FRAug's code instead draws a fixed tenth of both parts together.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from data_prep.arrayfiles import (
    array_sources,
    open_gzip,
    read_idx,
    read_libsvm,
    read_mat,
    read_parts,
    require_classes,
)
from data_prep.dealing import OFFICIAL
from data_prep.pickles import read_pickle
from data_prep.pictures import PictureSet, Plan, Source
from fedshift.data.decode import read_picture
from fedshift.data.downloads import names_in, read_file
from fedshift.schema.errors import DataError
from fedshift.schema.names import comma_separated
from fedshift.schema.strict import nearest

CLASSES = tuple("0123456789")
DIGITS = PictureSet(
    dataset="digits",
    name="Digits",
    sites=("mnist", "mnistm", "svhn", "usps"),
    classes=CLASSES,
    described="the downloads are named by `fedshift data prepare digits --help`",
    licence="research use; MNIST: CC BY-SA 3.0; SVHN: non-commercial use only",
    citation="LeCun Y, Bottou L, Bengio Y, Haffner P. Gradient-based learning applied to document recognition. Proc. "
    "IEEE 1998 (MNIST); Ganin Y, Lempitsky V. Unsupervised domain adaptation by backpropagation. ICML 2015 (MNIST-M); "
    "Netzer Y, et al. Reading digits in natural images with unsupervised feature learning. NIPS workshop 2011 (SVHN); "
    "Hull JJ. A database for handwritten text recognition research. IEEE TPAMI 1994 (USPS)",
)
SIZES = (28, 32)  # 28: FedBN; 32: FRAug and this task's default
IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
USPS_SIDE = 16
SHOWN = 20

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Training images and labels, then test images and labels."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `plan` for the command line."""
    parser.add_argument(
        "--sites",
        type=comma_separated,
        metavar="A,B",
        help="only these sites (default: all four)",
    )


def plan(source: Path, *, sites: Sequence[str] | None = None) -> Plan:
    """The images of the downloads in a folder, one data set after the other.

    Raises:
        DataError: a data set is missing or differs from the published one, or a name is none of the four.
    """
    for site in sites or ():
        if site not in DIGITS.sites:
            raise DataError("site-unknown", f"Digits has no site {site!r}{nearest(site, DIGITS.sites)}")
    chosen = [site for site in DIGITS.sites if sites is None or site in sites]
    return Plan(DIGITS, {site: _site(source, site) for site in chosen}, SIZES, OFFICIAL)


def read_mnist(source: Path) -> Arrays:
    """Read MNIST's idx files or ``mnist.npz`` from a folder or from a folder ``mnist`` in it.

    Raises:
        DataError: MNIST is missing or differs from the published one.
    """
    for place in _places(source, "mnist"):
        if arrays := _idx(place) or _npz(place, site="mnist"):
            return arrays
    raise _absent(source, "mnist", f"{IDX[0]}.gz and the three others")


def _site(source: Path, site: str) -> list[Source]:
    if site == "mnist":
        pictures = _sources(read_mnist(source), site)
    elif site == "mnistm":
        pictures = _mnistm(source)
    else:
        read, named = {"svhn": (_svhn, "train_32x32.mat"), "usps": (_usps, "usps.bz2")}[site]
        arrays = next(filter(None, (read(place) or _npz(place, site=site) for place in _places(source, site))), None)
        if arrays is None:
            raise _absent(source, site, f"{named} and the test part's")
        pictures = _sources(arrays, site)
    require_classes(pictures, CLASSES, site)
    return pictures


def _mnistm(source: Path) -> list[Source]:
    for place in _places(source, "mnistm"):
        if pictures := _mnistm_pictures(place):
            return pictures
        if arrays := _mnistm_pickle(place, source=source) or _npz(place, site="mnistm"):
            return _sources(arrays, "mnistm")
    raise _absent(source, "mnistm", "mnist_m_train_labels.txt with the pictures, mnistm_data.pkl, keras_mnistm.pkl.gz")


def _sources(arrays: Arrays, site: str) -> list[Source]:
    """Sources of both parts; ids begin with the name of the part, as `OFFICIAL` requires."""
    x_train, y_train, x_test, y_test = arrays
    try:
        train = array_sources(x_train, y_train, CLASSES, prefix="train")
        return train + array_sources(x_test, y_test, CLASSES, prefix="test")
    except DataError as error:
        raise DataError(error.code, f"{site}: {error}") from None


def _places(source: Path, site: str) -> Iterator[Path]:
    """The folder itself, then the folders in it named after the site and their subfolders.

    Case, '-' and '_' in the names are ignored.
    """
    if not source.is_dir():
        raise DataError("not-a-folder", f"{source} is not a folder: give the one that holds {site}'s files")
    yield source
    for name in names_in(source):
        folder = source / name
        if folder.is_dir() and name.lower().replace("-", "").replace("_", "") == site:
            yield folder
            yield from (folder / inner for inner in names_in(folder) if (folder / inner).is_dir())


def _absent(source: Path, site: str, expected: str) -> DataError:
    names = [os.fsencode(name).decode("utf-8", "backslashreplace") for name in names_in(source)]
    holds = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "") or "nothing"
    others = ",".join(name for name in DIGITS.sites if name != site)
    without = "" if site == "mnist" else f", or leave it out with --sites {others}"
    return DataError(
        "other-data",
        f"{source} has no {site}, it holds {holds}: expected there or in a folder {site} are {expected}, or "
        f"{site}.npz; {DIGITS.described}{without}",
    )


def _all_or_none(paths: Sequence[Path]) -> bool:
    """Whether the files of a form exist. Having only some of them is an error."""
    present = [path for path in paths if path.is_file()]
    if present and len(present) < len(paths):
        absent = next(path for path in paths if path not in present)
        raise DataError("file-missing", f"{absent} does not exist, but {present[0].name} does: download it")
    return bool(present)


def _either(place: Path, *names: str) -> Path:
    """The first of these files that exists, or the first name if none does."""
    return next((place / name for name in names if (place / name).is_file()), place / names[0])


def _idx(place: Path) -> Arrays | None:
    """Read idx files: compressed or not, with the published names or the dotted names that some mirrors use."""
    forms = [(f"{name}.gz", name, name.replace("-idx", ".idx"), f"{name.replace('-idx', '.idx')}.gz") for name in IDX]
    paths = [_either(place, *names) for names in forms]
    if not _all_or_none(paths):
        return None
    x_train, y_train, x_test, y_test = (read_idx(path) for path in paths)
    return x_train, y_train, x_test, y_test


def _npz(place: Path, *, site: str) -> Arrays | None:
    path = place / f"{site}.npz"
    if not path.is_file():
        return None
    (x_train, y_train), (x_test, y_test) = read_parts(path)
    return x_train, y_train, x_test, y_test


def _svhn(place: Path) -> Arrays | None:
    paths = [place / "train_32x32.mat", place / "test_32x32.mat"]
    if not _all_or_none(paths):
        return None
    (x_train, y_train), (x_test, y_test) = (_svhn_part(path) for path in paths)
    return x_train, y_train, x_test, y_test


def _svhn_part(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Convert images (32, 32, 3, N) to (N, 32, 32, 3), and label 10 to 0."""
    stored = read_mat(path, ("X", "y"))
    images, labels = stored["X"], stored["y"].ravel()
    if images.ndim != 4 or not np.isin(labels, range(1, 11)).all():
        raise DataError(
            "arrays-form",
            f"{path} holds X {images.shape} and labels {np.unique(labels)[:12].tolist()}, expected X (32, 32, 3, N) "
            "and labels 1 to 10: download it again",
        )
    return images.transpose(3, 0, 1, 2), labels.astype(np.int64) % 10


def _usps(place: Path) -> Arrays | None:
    paths = [_either(place, "usps.bz2", "usps"), _either(place, "usps.t.bz2", "usps.t")]
    if not _all_or_none(paths):
        return None
    (x_train, y_train), (x_test, y_test) = (_usps_part(path) for path in paths)
    return x_train, y_train, x_test, y_test


def _usps_part(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Convert intensities from [-1, 1] to 0 to 255, and labels 1 to 10 to digits 0 to 9."""
    values, labels = read_libsvm(path, USPS_SIDE**2)
    if np.abs(values).max() > 1:
        raise DataError(
            "arrays-form", f"{path} holds intensities outside -1 to 1, unlike the scaled USPS: download it again"
        )
    images = np.rint((values + 1) * 127.5).astype(np.uint8)
    return images.reshape(-1, USPS_SIDE, USPS_SIDE), labels - 1


def _mnistm_pictures(place: Path) -> list[Source] | None:
    """Read the published form: picture files, and text files with lines ``<name> <label>``."""
    lists = [place / f"mnist_m_{part}_labels.txt" for part in ("train", "test")]
    if not _all_or_none(lists):
        return None
    return [source for path, part in zip(lists, ("train", "test"), strict=True) for source in _listed(path, part)]


def _listed(path: Path, part: str) -> Iterator[Source]:
    folder = path.parent / f"mnist_m_{part}"
    try:
        lines = read_file(path).decode().splitlines()
    except UnicodeDecodeError:
        raise DataError("file-form", f"{path} is not text in UTF-8: download it again") from None
    for number, line in enumerate(lines, start=1):
        name, _, label = line.strip().rpartition(" ")
        if label not in CLASSES or not name or Path(name).name != name:
            raise DataError(
                "file-form", f"{path}, line {number}, is not '<picture> <digit>', but {line[:60]!r}: download it again"
            )
        yield Source(f"{part}/{name}", label, partial(read_picture, folder / name))


def _mnistm_pickle(place: Path, *, source: Path) -> Arrays | None:
    """Read a pickled ``{"train": …, "valid": …, "test": …}`` of images that were made from MNIST's images in order.

    If there are validation images, they were made from MNIST's first training images, which is TensorFlow's split.
    """
    names = [f"{name}.pkl{packed}" for name in ("mnistm_data", "keras_mnistm") for packed in ("", ".gz")]
    path = _either(place, *names)
    if not path.is_file():
        return None
    parts = _pickled(path)
    _, y_train, _, y_test = read_mnist(source)
    train, test, valid = parts["train"], parts["test"], parts.get("valid")
    if valid is not None and len(train) < len(y_train):
        train = np.concatenate([valid, train])
    if (len(train), len(test)) != (len(y_train), len(y_test)):
        raise DataError(
            "arrays-form",
            f"{path} holds {len(train)} and {len(test)} images, but MNIST, whose labels it uses, has {len(y_train)} "
            f"and {len(y_test)}: download both again",
        )
    return train, y_train, test, y_test


def _pickled(path: Path) -> dict[str, np.ndarray]:
    with open_gzip(path) as stream:
        stored = read_pickle(stream, str(path))
    parts = stored if isinstance(stored, dict) else {}
    parts = {name: images for name, images in parts.items() if isinstance(images, np.ndarray) and images.ndim == 4}
    if not {"train", "test"} <= set(parts):
        raise DataError(
            "arrays-form",
            f"{path} holds {', '.join(map(str, parts)) or 'no arrays of images'}, expected a dictionary with train and "
            "test of images (N, 28, 28, 3): download it again",
        )
    return parts
