"""Hippocampus MRI of the Decathlon (Task04): one centre, or four sites with simulated scanners.

The source is ``Task04_Hippocampus``, unpacked: ``imagesTr``, ``labelsTr`` and ``dataset.json``. 260 T1-weighted volumes
of 1 mm voxels, cropped around one hippocampus, with two classes: Anterior and Posterior. They are from one centre
(Vanderbilt University Medical Center), so there is no shift between sites in them. Without an option they become one
site, MSD.

``--simulate`` deals them to four sites, sim_a to sim_d, of the data set ``hippocampus_simulated``, by ``--seed``, and
changes each site's intensities as another scanner would: gamma, a smooth coil bias, Rician noise, and a thicker slice
(averaged over neighbours, on the same grid). Masks and grids stay as they are. The sites and scanners are made up: the
manifests say so, and results on them are about a simulated shift.

The Decathlon has 394 volumes of 195 people, and which belong to one person is not published: sites and splits are by
volume. Described in Antonelli et al., Nature Communications 2022; http://medicaldecathlon.com. CC-BY-SA 4.0.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.msd import CITATION, SITE, find_described
from data_prep.scanners import Scanner, scan_again
from data_prep.volumes import Change, SitePlan, VolumePlan
from fedshift.data.case_check import Decoded
from fedshift.data.cases import CaseFiles
from fedshift.data.fingerprint import SCANNER
from fedshift.data.labels import settle_labels
from fedshift.data.scan_file import Finding
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.manifest import SIMULATED, TRUE_SPACING
from fedshift.schema.seeding import derive_seed

CLASSES = ("background", "Anterior", "Posterior")
SOURCE = "Medical Segmentation Decathlon, Task04_Hippocampus"
LICENCE = "CC-BY-SA 4.0"
SCANNERS = {
    "sim_a": Scanner(gamma=1.0, bias=0.0, noise=0.0, thickness=1.0),  # as taken
    "sim_b": Scanner(gamma=0.55, bias=0.3, noise=0.02, thickness=1.0),
    "sim_c": Scanner(gamma=1.6, bias=0.15, noise=0.035, thickness=1.0),
    "sim_d": Scanner(gamma=0.8, bias=0.6, noise=0.025, thickness=2.0),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--simulate`` and ``--seed``."""
    parser.add_argument(
        "--simulate", action="store_true", help="deal the volumes to four sites and give each a simulated scanner"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of --simulate: who goes where, coil and noise (default: 0)"
    )


def plan_volumes(source: Path, *, simulate: bool = False, seed: int = 0) -> VolumePlan:
    """Find the volumes, and deal them to sites if ``simulate``.

    Raises:
        ConfigError: a negative seed.
        DataError: another data set.
    """
    if seed < 0:
        raise ConfigError("invalid-value", f"--seed must be 0 or more, not {seed}")
    table = find_described(source)
    labels = settle_labels(described=table.labels)
    if labels is None or labels.classes != CLASSES:
        fault = ", ".join(labels.classes) if labels else "no labels"
        raise DataError(
            "other-data",
            f"{table.folder / 'dataset.json'} has the classes {fault}, not {', '.join(CLASSES)}: it is not the "
            "hippocampus task, prepare it with 'fedshift data prepare msd'",
        )
    if not simulate:
        plan = _site(SITE, table.cases, table.findings, SOURCE, {TRUE_SPACING: True})
        return VolumePlan(dataset="hippocampus", labels=labels, sequences=table.sequences, sites=(plan,))
    sites: list[SitePlan] = []
    for site, cases in deal_cases(table.cases, sorted(SCANNERS), seed=seed).items():
        scanner = SCANNERS[site]
        notes = {
            TRUE_SPACING: True,
            SIMULATED: "sites and scanners",
            SCANNER: f"simulated {site}",
            "scanner_settings": asdict(scanner),
            "seed": seed,
        }
        findings = () if sites else table.findings  # of the download: an error stops the first site
        plan = _site(site, cases, findings, f"{SOURCE}, dealt to simulated sites", notes)
        sites.append(replace(plan, change=_change(scanner, site, seed)))
    return VolumePlan(dataset="hippocampus_simulated", labels=labels, sequences=table.sequences, sites=tuple(sites))


def deal_cases(cases: Sequence[CaseFiles], sites: Sequence[str], *, seed: int) -> dict[str, tuple[CaseFiles, ...]]:
    """Deal cases to sites in turn, in the order of a hash of seed and id; at a site they keep their order."""
    dealt = sorted(cases, key=lambda case: hashlib.sha256(f"{seed}/{case.id}".encode()).digest())
    chosen = {case.id: sites[number % len(sites)] for number, case in enumerate(dealt)}
    return {site: tuple(case for case in cases if chosen[case.id] == site) for site in sites}


def _site(
    site: str, cases: tuple[CaseFiles, ...], findings: tuple[Finding, ...], source: str, preparation: dict[str, Any]
) -> SitePlan:
    return SitePlan(
        site=site,
        cases=cases,
        findings=findings,
        source=source,
        licence=LICENCE,
        citation=CITATION,
        preparation=preparation,
    )


def _change(scanner: Scanner, site: str, seed: int) -> Change:
    def change(case: str, decoded: Decoded) -> Decoded:
        rng = np.random.default_rng(derive_seed(seed, site, 0, f"scanner {case}"))
        return replace(decoded, images=tuple(scan_again(image, scanner, rng) for image in decoded.images))

    return change
