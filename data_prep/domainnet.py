"""DomainNet: the ten of its 345 classes that FedBN uses, in six domains.

The domains are clip art, infographics, paintings, quick drawings, photographs and sketches. The source is a folder with
the downloads: ``clipart.zip`` (the cleaned version, 1.3 GB), ``infograph.zip`` (4.0 GB), ``painting.zip`` (cleaned,
3.7 GB), ``quickdraw.zip`` (0.4 GB), ``real.zip`` (5.6 GB) and ``sketch.zip`` (2.5 GB), each with
``<domain>/<class>/<domain>_030_000123.jpg`` (``<number>.png`` in quickdraw). The zips need not be unpacked; unpacked
folders ``<domain>/<class>`` work too. Only pictures of the ten classes are read. Described at http://ai.bu.edu/M3SDA,
and in Peng, Bai, Xia, Huang, Saenko, Wang, "Moment matching for multi-source domain adaptation", ICCV 2019.

There are three splits. ``hash`` (the default) keeps the official test part if the official lists are in the same folder
as the downloads: ``<domain>_train.txt`` and ``<domain>_test.txt`` with lines
``<domain>/<class>/<file> <number of the class>``. A fifth of each class of the training part is used for validation, by
content. Without these lists all splits go by content, see `data_prep.dealing`.

``papers`` is the split of FedFA. It uses FedBN's lists ``<domain>_train.pkl`` and ``<domain>_test.pkl``, which must be
in the same folder as the downloads (https://github.com/med-air/FedBN says where to get them). The first 80 % of the
training list are for training and the last 20 % for validation. Copies of a picture may then be in several splits; the
manifest records how many.

                             clipart  infograph  painting  quickdraw  real  sketch
    FedBN's training list       2103       2626      2472       4000  4864    2213
    papers: training            1682       2100      1977       3200  3891    1770
    papers: validation           420        525       494        800   972     442
    papers: test                 526        657       619       1000  1217     554
    FedFA, Table 12              672        840       791       1280  1556     708
    FedFA, released code        1009       1260      1186       1920  2334    1062

FedFA's Table 12 uses 0.4 of the training images (FedRDN's Table 6 has the same counts), its released code 0.6. Set
``data.fraction`` of the task to choose. Here the fraction is drawn by seed, while FedFA takes the first images, and it
is rounded, which gives one more image for clipart (0.4) and real (0.6). FedBN's code limits every site to 105 images, a
twentieth of clipart's list; FedRDN's scores suggest that it does the same, although its Table 6 says otherwise. Set
``data.images`` for that.

``seeded`` needs only the zips and makes splits of the papers' sizes as a separate data set, ``domainnet_seeded``. In
each domain it draws by ``--seed`` as many pictures as the papers' splits have in total and divides them: a fifth for
testing as in FedBN's lists (rounded up), the others as in ``papers``. Pictures of the same content are in one split,
also across domains. The pictures in each split differ from FedBN's lists, so scores are comparable to the papers' only
as another random draw of the same sizes is.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from data_prep.dealing import BY_CONTENT, deal_counts, deal_official
from data_prep.lists import PARTS, Part, ids_of, in_order, keep_listed, read_fedbn, split_of
from data_prep.partition import require_seed
from data_prep.pictures import Dealing, Hashed, PicturesBySite, PictureSet, Plan
from data_prep.trees import Tree
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import LISTED, ORDER, Split

DOMAINNET = PictureSet(
    dataset="domainnet",
    name="DomainNet",
    sites=("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
    classes=(
        *("bird", "feather", "headphones", "ice_cream", "teapot"),
        *("tiger", "whale", "windmill", "wine_glass", "zebra"),
    ),
    described="the download is described at http://ai.bu.edu/M3SDA",
    licence="non-commercial research and education; the pictures are their owners', not for redistribution",
    citation="Peng X, Bai Q, Xia X, Huang Z, Saenko K, Wang B. Moment matching for multi-source domain adaptation. "
    "ICCV 2019",
)
SIZES = (128, 256)  # 128: the task's default; 256: the papers
PAPERS_RULE = "papers: FedBN's lists, training part 80/20"
FEDBN: Mapping[str, Mapping[Part, int]] = {
    "clipart": {"train": 2103, "test": 526},
    "infograph": {"train": 2626, "test": 657},
    "painting": {"train": 2472, "test": 619},
    "quickdraw": {"train": 4000, "test": 1000},
    "real": {"train": 4864, "test": 1217},
    "sketch": {"train": 2213, "test": 554},
}
"""Number of pictures in FedBN's lists."""
OFFICIAL_RULE = "official test part, training part 80/20 by content"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `plan` for the command line."""
    parser.add_argument(
        "--split",
        choices=["hash", "papers", "seeded"],
        default="hash",
        help="hash: by content, keeping the official test part (default); papers: FedFA's, by FedBN's lists; "
        "seeded: the papers' sizes, drawn by --seed",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the seeded split (default: 0)")


def plan(source: Path, *, split: Literal["papers", "hash", "seeded"] = "hash", seed: int | None = None) -> Plan:
    """The pictures of the ten classes, domain by domain; only the listed ones if lists are used.

    Raises:
        DataError: an unknown layout, lists that are missing, broken or name a missing picture, too few pictures for
            the papers' counts, or a seed without the seeded split.
    """
    if seed is not None and split != "seeded":
        raise DataError("invalid-value", "--seed only applies to the seeded split: add --split seeded or remove --seed")
    require_seed(seed or 0)
    tree = Tree(source, DOMAINNET)
    by_site = tree.pictures(some_classes=True)
    if split == "seeded":
        return _seeded(by_site, source=tree.top, seed=seed or 0)
    if split == "papers":
        parts = {site: papers(read_fedbn(tree, site)) for site in DOMAINNET.sites}
        name, otherwise = "FedBN's lists", "use --split hash"
    else:
        parts = _read_official(tree)
        name, otherwise = "the official lists", "remove the lists to split all pictures by content"
    if not parts:
        return Plan(DOMAINNET, by_site, SIZES, BY_CONTENT)
    listed = {site: split_of(site, of_site, name) for site, of_site in parts.items()}
    by_site = keep_listed(by_site, listed, source=tree.top, name=name, otherwise=otherwise)
    if split == "papers":
        picture_set = replace(DOMAINNET, dataset=f"{DOMAINNET.dataset}_papers")
        dealing = Dealing(lambda site, _: listed[site], PAPERS_RULE, keep_copies=True, notes={ORDER: LISTED})
        return Plan(picture_set, in_order(by_site, listed), SIZES, dealing)

    def deal(site: str, pictures: Hashed) -> dict[str, Split]:
        return deal_official(site, pictures, is_test=lambda picture: listed[site][picture] == "test", one_in=5)

    return Plan(DOMAINNET, by_site, SIZES, Dealing(deal, OFFICIAL_RULE))


def papers(lists: Mapping[Part, Sequence[str]]) -> dict[Split, Sequence[str]]:
    """FedFA's split of FedBN's lists: the first 80 % of the training list for training, the last 20 % for validation.

    Both counts are rounded down, so that a picture in between may be in neither.
    """
    train, n = lists["train"], len(lists["train"])
    return {"train": train[: int(0.8 * n)], "val": train[n - int(0.2 * n) :], "test": lists["test"]}


def counts(site: str) -> dict[Split, int]:
    """Number of pictures in each of the papers' splits of a site."""
    lists = {part: [str(k) for k in range(n)] for part, n in FEDBN[site].items()}
    return {split: len(ids) for split, ids in papers(lists).items()}


def _seeded(by_site: PicturesBySite, *, source: object, seed: int) -> Plan:
    """Draw by seed as many pictures as the papers' splits have and divide them; equal contents stay together."""
    drawn: PicturesBySite = {}
    for number, (site, pictures) in enumerate(by_site.items()):
        needed = sum(counts(site).values())
        if len(pictures) < needed:
            raise DataError(
                "too-few-items",
                f"{source}/{site} has {len(pictures)} pictures of the ten classes, too few for the papers' {needed}: "
                "download it again, or use --split hash",
            )
        chosen = np.random.default_rng([seed, number, 8]).choice(len(pictures), needed, replace=False)
        drawn[site] = [pictures[n] for n in sorted(chosen)]
    known: dict[str, Split] = {}  # by content hash, of the sites that are already split

    def deal(site: str, pictures: Hashed) -> dict[str, Split]:
        try:
            split_of = deal_counts(pictures, counts(site), seed=8 * seed + list(by_site).index(site), known=known)
        except DataError as error:
            raise DataError(error.code, f"{source}/{site}: {error}: download it again, or use --split hash") from None
        known.update({sha: split_of[picture.id] for picture, sha in pictures})
        return split_of

    picture_set = replace(DOMAINNET, dataset=f"{DOMAINNET.dataset}_seeded")
    rule = f"the papers' counts, by seed {seed}: FedBN's 80/20, training part 80/20, copies together"
    return Plan(picture_set, drawn, SIZES, Dealing(deal, rule, keep_copies=True, notes={"split_seed": seed}))


def _read_official(tree: Tree) -> dict[str, dict[Split, Sequence[str]]]:
    """Ids of the ten classes in the official lists, by site and split; empty if there is no list."""
    names = {site: {part: f"{site}_{part}.txt" for part in PARTS} for site in DOMAINNET.sites}
    wanted = [name for of_site in names.values() for name in of_site.values()]
    absent = [name for name in wanted if name not in tree.files()]
    if len(absent) == len(wanted):
        return {}
    if absent:
        raise DataError(
            "list-form",
            f"{tree.top} has official lists, but no {', '.join(absent)}: download these too ({DOMAINNET.described}), "
            "or remove the others to split all pictures by content",
        )
    return {
        site: {part: _read_text(tree, name, site) for part, name in of_site.items()} for site, of_site in names.items()
    }


def _read_text(tree: Tree, name: str, site: str) -> list[str]:
    where = f"{tree.top}/{name}"
    try:
        with tree.open(name) as stream:
            paths = [line.rsplit(None, 1)[0] for line in stream.read().decode().splitlines() if line.strip()]
    except UnicodeDecodeError:
        raise DataError("file-form", f"{where} is not text in UTF-8: download it again") from None
    ids = [picture for picture in ids_of(site, paths, where) if picture.partition("/")[0] in DOMAINNET.classes]
    listed = {picture.partition("/")[0] for picture in ids}
    absent = [label for label in DOMAINNET.classes if label not in listed]
    if absent:
        raise DataError("list-form", f"{where} lists no picture of {', '.join(absent)}: download it again")
    return ids
