"""EMNIST: handwritten letters and digits at many sites, either random samples of unequal size or one writer each.

The source is one of
- the folder with the files of ``gzip.zip`` (536 MB, unpacked): ``emnist-letters-train-images-idx3-ubyte.gz`` and the
  three others of a form. ``--form letters`` (default): 26 letters, 124,800 and 20,800 images; ``balanced``: 47 classes,
  112,800 and 18,800; ``byclass``: 62 classes, 697,932 and 116,323. The files store images transposed; here images are
  upright. It is described at https://www.nist.gov/itl/products-and-services/emnist-dataset.
- the same as ``emnist_letters.npz``: x_train (N, 28, 28) upright, y_train from 0, x_test, y_test.
- with ``--writers 200``: FEMNIST as LEAF makes it, ``all_data_*.json`` in the folder or in its subfolders ``train`` and
  ``test``: {"users": […], "user_data": {writer: {"x": [784 numbers from 0 to 1, …], "y": [class, …]}}}. It is described
  at https://github.com/TalwalkarLab/leaf, whose scripts make these files: 0.8 million images with the classes of
  ``byclass``, each stored as 784 numbers of text. LEAF's images are black on white; here they are inverted to white on
  black, as in EMNIST.

Without ``--writers`` the training part is distributed at random to sites with log-normal sizes, see
`data_prep.partition`; the default skew is that of FEMNIST's writers. Each class of the official test part is
distributed in the same proportions as the training part, so each test image belongs to exactly one site. A tenth of a
site's training images is used for validation.

With ``--writers`` each site is one writer, drawn by seed among those with ten images or more. A tenth of the images is
for testing and a tenth for validation. If LEAF made a test part, it is kept, and writers without images in it are left
out; LEAF must then have split by sample, not by user. Data sets: emnist_letters, emnist_balanced, emnist_byclass,
femnist_writers. FedFA uses 200 writers, although Table 9 of its paper says 100. Duplicate images are left out.
"""

from __future__ import annotations

import argparse
import json
import string
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from data_prep.arrayfiles import Part, array_sources, read_idx, read_parts
from data_prep.dealing import TEST, deal_small, deal_small_official
from data_prep.manysites import plan_sites, site_names
from data_prep.partition import least, require_seed, size_skewed
from data_prep.pictures import Dealing, PictureSet, Plan, Source
from fedshift.data.downloads import names_in, read_file
from fedshift.schema.errors import DataError

Form = Literal["letters", "balanced", "byclass"]
UPPER, LOWER = string.ascii_uppercase, string.ascii_lowercase
CLASSES: dict[str, tuple[str, ...]] = {
    "letters": tuple(UPPER),
    "balanced": (*string.digits, *UPPER, *"abdefghnqrt"),  # the other lower-case letters look like their capitals
    "byclass": (*string.digits, *UPPER, *LOWER),
}
FIRST_LABEL = {"letters": 1, "balanced": 0, "byclass": 0}
EMNIST = PictureSet(
    dataset="emnist_letters",
    name="EMNIST",
    sites=(),
    classes=CLASSES["letters"],
    described="the download is described at https://www.nist.gov/itl/products-and-services/emnist-dataset",
    licence="public domain (NIST Special Database 19)",
    citation="Cohen G, Afshar S, Tapson J, van Schaik A. EMNIST: extending MNIST to handwritten letters. IJCNN 2017",
    channels=1,
)
FEMNIST = replace(
    EMNIST,
    dataset="femnist_writers",
    name="FEMNIST",
    classes=CLASSES["byclass"],
    described="how to make it is described at https://github.com/TalwalkarLab/leaf",
    citation=f"Caldas S, et al. LEAF: a benchmark for federated settings. arXiv:1812.01097, 2018; {EMNIST.citation}",
)
SIDE = 28
FEWEST = 10
LEAF_FORM = '{"users": ["f0001_41", …], "user_data": {"f0001_41": {"x": [[784 numbers], …], "y": [0, …]}, …}}'

Writers = dict[str, Part]
"""Images uint8 (N, 28, 28) and labels (N,), by writer."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `plan` for the command line."""
    parser.add_argument("--form", choices=get_args(Form), help="which form of EMNIST (default: letters)")
    parser.add_argument("--writers", type=int, metavar="N", help="use N writers of LEAF's FEMNIST as sites")
    parser.add_argument("--sites-count", type=int, metavar="N", help="number of sites without --writers (default: 200)")
    parser.add_argument(
        "--skew",
        type=float,
        metavar="X",
        help="standard deviation of the log of the site sizes, 0 for equal sizes (default: 0.4, as FEMNIST's writers)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the partition (default: 0)")


def plan(
    source: Path,
    *,
    form: Form | None = None,
    writers: int | None = None,
    sites_count: int | None = None,
    skew: float | None = None,
    seed: int = 0,
) -> Plan:
    """The images of a download, distributed to sites of unequal size or by writer.

    Raises:
        DataError: an unknown layout, damaged files, or a partition that is not possible.
    """
    require_seed(seed)
    if writers is not None:
        options = {"--form": form, "--sites-count": sites_count, "--skew": skew}
        idle = [option for option, value in options.items() if value is not None]
        if idle:
            raise DataError(
                "options-clash",
                f"{' and '.join(idle)} cannot be combined with --writers, which makes each writer a site: remove one",
            )
        return _plan_writers(source, writers, seed)
    form = form or "letters"
    sites_count = 200 if sites_count is None else sites_count
    skew = 0.4 if skew is None else skew
    train, test = read_emnist(source, form)

    def partition(labels: np.ndarray) -> tuple[np.ndarray, ...]:
        n = len(labels)
        return size_skewed(n, sites_count, skew, seed=seed, min_each=least(n, sites_count))

    return plan_sites(
        replace(EMNIST, dataset=f"emnist_{form}", classes=CLASSES[form]),
        train,
        test,
        partition=partition,
        seed=seed,
        size=SIDE,
        rule=f"log-normal sizes {skew:g}, seed {seed}",
        described=f"at random over {sites_count} sites of log-normal sizes, skew {skew:g}, seed {seed}",
    )


def read_emnist(source: Path, form: Form) -> tuple[Part, Part]:
    """Read the training and test parts of a form of EMNIST.

    Raises:
        DataError: the files are missing or damaged.
    """
    stem = f"emnist-{form}-train-images-idx3-ubyte"
    for folder in (source, source / "gzip", source / "raw", source / "EMNIST" / "raw"):
        if any((folder / f"{stem}{suffix}").is_file() for suffix in (".gz", "")):
            return _idx(folder, form, "train"), _idx(folder, form, "test")
    npz = source / f"emnist_{form}.npz"
    if npz.is_file():
        return read_parts(npz)
    raise _absent(source, f"{stem}.gz and the three others of --form {form}, or {npz.name}; {EMNIST.described}")


def _idx(folder: Path, form: Form, part: str) -> Part:
    paths = [folder / f"emnist-{form}-{part}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")]
    images, labels = (read_idx(path if path.is_file() else path.with_suffix("")) for path in paths)
    first, last = FIRST_LABEL[form], FIRST_LABEL[form] + len(CLASSES[form]) - 1
    if images.ndim != 3 or labels.shape != images.shape[:1] or not np.isin(labels, range(first, last + 1)).all():
        raise DataError(
            "arrays-form",
            f"{paths[1]} has labels {labels.min(initial=255)} to {labels.max(initial=0)} for {len(images)} images, "
            f"expected one of {first} to {last} for each: download gzip.zip again",
        )
    return images.transpose(0, 2, 1), labels.astype(np.int64) - first


def _plan_writers(source: Path, count: int, seed: int) -> Plan:
    names = site_names(count)
    parts = {part: source / part for part in ("train", "test")}
    official = all(folder.is_dir() for folder in parts.values())
    train = _read_leaf(parts["train"] if official else source)
    test = _read_leaf(parts["test"]) if official else {}
    if _mean(train) > 127:
        train, test = ({name: (255 - x, y) for name, (x, y) in part.items()} for part in (train, test))
    if official and train.keys().isdisjoint(test):
        raise DataError(
            "writers",
            f"{parts['test']} has other writers than train (LEAF's split by user): split by sample, or give "
            f"{parts['train']} alone",
        )
    usable = sorted(
        writer for writer, (_, labels) in train.items() if len(labels) >= FEWEST and (writer in test or not official)
    )
    if len(usable) < count:
        tested = " and some for testing" if official else ""
        raise DataError(
            "too-few-items",
            f"{source} has {len(usable)} writers with {FEWEST} images or more{tested}, {len(train)} in all: ask for "
            "fewer with --writers, and 'sites.count' of the job, or make more with LEAF",
        )
    drawn = np.sort(np.random.default_rng([seed, 5]).choice(len(usable), count, replace=False))
    by_site = {
        site: _sources(train, writer) + _sources(test, writer, TEST)
        for site, writer in zip(names, (usable[number] for number in drawn), strict=True)
    }
    deal, rule = (deal_small_official, "LEAF's test part") if official else (deal_small, "test 1/10")
    notes = {"partition": f"{count} of {len(usable)} writers, seed {seed}; ids begin with the writer's"}
    dealing = Dealing(deal, f"writers, seed {seed}; {rule}; val 1/10", notes=notes, whole=True)
    return Plan(replace(FEMNIST, sites=tuple(names)), by_site, (SIDE,), dealing)


def _sources(writers: Writers, writer: str, prefix: str = "") -> list[Source]:
    if writer not in writers:
        return []
    return array_sources(*writers[writer], FEMNIST.classes, prefix=f"{prefix}{writer}")


def _mean(writers: Writers) -> float:
    """Mean intensity. It is high in images of black ink on white paper."""
    return float(np.mean([images.mean() for images, _ in writers.values()])) if writers else 0.0


def _read_leaf(folder: Path) -> Writers:
    """Read all writers from the files of a folder, one file at a time because the text form needs much memory."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise _absent(folder, f"FEMNIST as all_data_*.json of LEAF, {LEAF_FORM}; {FEMNIST.described}")
    writers: Writers = {}
    for path in files:
        for writer, part in _writers(path):
            if writer in writers:
                raise DataError(
                    "writers", f"{path} repeats writer {writer} of another file: keep the files of one LEAF run"
                )
            writers[writer] = part
    return writers


def _writers(path: Path) -> Iterator[tuple[str, Part]]:
    try:
        content = json.loads(read_file(path))["user_data"]
        for writer, part in content.items():
            if len(part["y"]):
                yield str(writer).replace("/", "_"), _images(part["x"], part["y"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        reason = " ".join(str(error).split()[:24])
        raise DataError(
            "file-form", f"{path} is not in the form of LEAF's FEMNIST ({reason}): expected {LEAF_FORM}"
        ) from None


def _images(rows: Sequence[Sequence[float]], classes: Sequence[int]) -> Part:
    values, labels = np.array(rows, np.float64), np.array(classes)
    if values.shape != (len(labels), SIDE**2) or not (values.min() >= 0 and values.max() <= 1):
        raise ValueError(f"images {values.shape} are not {len(labels)} rows of {SIDE**2} numbers from 0 to 1")
    if labels.dtype.kind not in "iu" or not 0 <= labels.min() <= labels.max() < len(FEMNIST.classes):
        raise ValueError(f"classes are not numbers from 0 to {len(FEMNIST.classes) - 1}")
    return np.rint(values * 255).astype(np.uint8).reshape(-1, SIDE, SIDE), labels


def _absent(folder: Path, expected: str) -> DataError:
    if not folder.is_dir():
        return DataError("not-a-folder", f"{folder} is not a folder: expected {expected}")
    names = names_in(folder)
    unpack = "unpack gzip.zip there; " if "gzip.zip" in names else ""
    holds = ", ".join(map(ascii, names[:20])) or "nothing"
    return DataError("file-missing", f"{folder} has none of the files, it holds {holds}: {unpack}expected {expected}")
