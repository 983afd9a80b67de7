"""Any task of the Medical Segmentation Decathlon, or a data set in nnU-Net's layout, as one site.

The source is the unpacked folder, with ``imagesTr``, ``labelsTr`` and ``dataset.json``. Sequences, classes and the
values of the masks are those of ``dataset.json``; 4D files hold several sequences. Pictures (``file_ending`` .png, .tif
or .bmp) have red, green and blue where three channels are named, and are grey where one is. Classes can be merged or
named otherwise: ``--label NAME=1,2`` for each. Described in Antonelli et al., Nature Communications 2022;
http://medicaldecathlon.com.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from data_prep.volumes import SitePlan, VolumePlan
from fedshift.data.cases import CaseTable, parse_sequences
from fedshift.data.colours import with_colours
from fedshift.data.labels import parse_labels, settle_labels
from fedshift.data.layouts.find import find_sets
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.manifest import BY_HEADERS, TRUE_SPACING
from fedshift.schema.names import comma_separated

SITE = "MSD"
LICENCE = "as the data set's source says"
CITATION = "Antonelli M et al. The Medical Segmentation Decathlon. Nature Communications 13, 4128, 2022"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the site's and the data set's names, labels and sequences."""
    parser.add_argument("--site", default=SITE, metavar="NAME", help=f"the site's name (default: {SITE})")
    parser.add_argument("--dataset", metavar="NAME", help="default: the name in dataset.json, in lower case")
    parser.add_argument(
        "--label", action="append", default=[], metavar="NAME=V,V", help="a class and the mask's values for it"
    )
    parser.add_argument("--sequence", action="append", default=[], metavar="NAME", help="only these sequences")
    parser.add_argument(
        "--annotated", type=comma_separated, metavar="A,B", help="the classes that the masks outline (default: all)"
    )


def plan_volumes(
    source: Path,
    *,
    site: str = SITE,
    dataset: str | None = None,
    label: Sequence[str] = (),
    sequence: Sequence[str] = (),
    annotated: Sequence[str] | None = None,
) -> VolumePlan:
    """Find the scans of a task.

    Raises:
        ConfigError: nothing says what the masks' values mean, or names that do not fit.
        DataError: another layout.
    """
    table = with_colours(find_described(source).with_sequences(tuple(parse_sequences(sequence))))
    label_values = parse_labels(label)
    labels = settle_labels(
        label_values=label_values, described=table.described_labels(label_values), annotated=annotated
    )
    if labels is None:
        raise ConfigError(
            "labels-missing", f"{table.folder} has no labels in dataset.json: name them, as in --label spleen=1"
        )
    name = dataset or re.sub(r"[^\w.-]+", "_", table.name.lower())
    plan = SitePlan(
        site=site,
        cases=table.cases,
        findings=table.findings,
        source=f"{table.name}, in the Decathlon's or nnU-Net's layout",
        licence=table.licence or LICENCE,
        citation=CITATION,
        preparation={} if table.of_pictures else {TRUE_SPACING: BY_HEADERS},
    )
    return VolumePlan(dataset=name, labels=labels, sites=(plan,), sequences=table.sequences)


def find_described(source: Path) -> CaseTable:
    """The one folder below ``source`` with imagesTr and labelsTr.

    Raises:
        DataError: there is none, or several.
    """
    sets = [table for table in find_sets(source) if table.layout == "described"]
    if len(sets) != 1:
        folders = ", ".join(str(table.folder) for table in sets) or "none"
        raise DataError(
            "layout-unknown", f"{source} has to hold one folder with imagesTr and labelsTr, it holds {folders}: name it"
        )
    return sets[0]
