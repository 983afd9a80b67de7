"""Office-Caltech 10: ten kinds of objects in shop pictures, a picture collection, and the pictures of two cameras.

The source is the download, unpacked or as the zip, ``<domain>/<class>/*.jpg`` with the domains amazon (958 pictures),
caltech (1123), dslr (157) and webcam (295), 2533 in total. It is described at https://github.com/med-air/FedBN (section
on data), and the same pictures are at https://github.com/ChristophRaab/Office_Caltech_DA_Dataset. Described in Gong,
Shi, Sha, Grauman, "Geodesic flow kernel for unsupervised domain adaptation", CVPR 2012.

There are two splits. ``hash`` (the default) goes by content, see `data_prep.dealing`; the data contain duplicates,
mostly at amazon. ``papers`` is FedFA's split, as a separate data set ``office_caltech_papers``: the first 60 % of the
training part of FedBN's lists are for training, the rest for validation; pictures are in the order of the lists. Copies
of a picture may then be in several splits; the manifest records how many. The lists must be in the same folder as the
domains, either as FedBN publishes them, ``<domain>_train.pkl`` and ``<domain>_test.pkl``, or together as
``fedbn_split.json``: ``{domain: {"train": [...], "test": [...]}}`` with paths ``<domain>/<class>/<file>`` in the same
order.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from data_prep.dealing import BY_CONTENT
from data_prep.lists import PARTS, Part, ids_of, in_order, keep_listed, read_fedbn, split_of
from data_prep.pictures import Dealing, PictureSet, Plan
from data_prep.trees import Tree
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import LISTED, ORDER, Split

OFFICE_CALTECH = PictureSet(
    dataset="office_caltech",
    name="Office-Caltech 10",
    sites=("amazon", "caltech", "dslr", "webcam"),
    classes=(
        "back_pack",
        "bike",
        "calculator",
        "headphones",
        "keyboard",
        "laptop_computer",
        "monitor",
        "mouse",
        "mug",
        "projector",
    ),
    described="the download is described at https://github.com/med-air/FedBN",
    licence="research use; the pictures are their owners', not for redistribution",
    citation="Gong B, Shi Y, Sha F, Grauman K. Geodesic flow kernel for unsupervised domain adaptation. CVPR 2012",
)
SIZES = (256,)
LISTS = "fedbn_split.json"
TRAIN_SHARE = 0.6
SPLIT_RULE = "papers: FedBN's lists, training part 60/40"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `plan` for the command line."""
    parser.add_argument(
        "--split",
        choices=["hash", "papers"],
        default="hash",
        help="hash: by content (default); papers: FedFA's, by FedBN's lists, with copies in several splits",
    )


def plan(source: Path, *, split: Literal["papers", "hash"] = "hash") -> Plan:
    """The pictures of a download, domain by domain; with ``papers``, those in FedBN's lists.

    Raises:
        DataError: an unknown layout, or lists that are missing, broken or name a missing picture.
    """
    tree = Tree(source, OFFICE_CALTECH)
    by_site = tree.pictures()
    if split == "hash":
        return Plan(OFFICE_CALTECH, by_site, SIZES, BY_CONTENT)
    name = LISTS if LISTS in tree.files() else "FedBN's lists"
    if name == LISTS:
        listed = _read_json(tree)
    else:
        listed = {site: read_fedbn(tree, site, instead=LISTS) for site in OFFICE_CALTECH.sites}
    splits = {site: split_of(site, _papers(parts), name) for site, parts in listed.items()}
    by_site = keep_listed(by_site, splits, source=tree.top, name=name, otherwise="use --split hash")
    picture_set = replace(OFFICE_CALTECH, dataset=f"{OFFICE_CALTECH.dataset}_papers")
    dealing = Dealing(lambda site, _: splits[site], SPLIT_RULE, keep_copies=True, notes={ORDER: LISTED})
    return Plan(picture_set, in_order(by_site, splits), SIZES, dealing)


def _read_json(tree: Tree) -> dict[str, dict[Part, list[str]]]:
    """Ids by site and part, in the order of the lists."""
    form = 'expected {"amazon": {"train": ["amazon/bike/frame_0001.jpg", …], "test": […]}, …}'
    with tree.open(LISTS) as stream:
        try:
            raw = json.loads(stream.read())
            return {
                site: {part: ids_of(site, raw[site][part], LISTS) for part in PARTS} for site in OFFICE_CALTECH.sites
            }
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(
                "file-form", f"{tree.top}/{LISTS} is not in the form of FedBN's lists ({error}): {form}"
            ) from None


def _papers(parts: Mapping[Part, Sequence[str]]) -> dict[Split, Sequence[str]]:
    """FedFA's split: the first 60 % of the training list for training, the others for validation."""
    train = parts["train"]
    cut = int(TRAIN_SHARE * len(train))
    return {"train": train[:cut], "val": train[cut:], "test": parts["test"]}
