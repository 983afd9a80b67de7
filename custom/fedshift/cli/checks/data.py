"""A site's data: in full for ``fedshift site check``, as far as the time goes for ``fedshift doctor``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedshift.cli.checks.remark import Remark
from fedshift.data.case_notes import Contents, Counts
from fedshift.data.check import check
from fedshift.data.locate import SITE_FILE, find_site, read_settings
from fedshift.data.prepared import FOLDER
from fedshift.data.scan_file import Finding
from fedshift.data.site_check import check_site
from fedshift.schema.errors import FedshiftError
from fedshift.schema.manifest import FILE_NAME, Manifest, read_manifest
from fedshift.schema.policy import Policy

if TYPE_CHECKING:
    from fedshift.flare.kit import Kit

DATA_LIMIT = 10.0
"""Seconds that `in_short` looks at the cases of a data set."""
Examine = Callable[[Path], Iterator[Remark]]


def about_data(kit: Kit, examine: Examine) -> Iterator[Remark]:
    """The data sets that a site's settings name, its ledger and its policy. ``examine`` looks at the cases."""
    from fedshift.federation.site.privacy.ledger import Ledger

    try:
        settings = read_settings(kit.local)
    except FedshiftError as error:
        yield Remark("error", "data", str(error))
        return
    broken = Ledger(kit.local).read().broken
    if broken is not None:
        text = f"broken at release {broken.number}: 'fedshift site ledger {kit.folder}' says more"
        yield Remark("error", "ledger", text)
    if settings.privacy is not None and not settings.privacy.train:
        yield Remark("note", "training", "none: this site only scores models, for jobs that hold it out")
    if settings.weights is not None and not settings.weights.is_dir():
        yield Remark("error", "weights", f"{settings.weights} of {kit.local / SITE_FILE} is no folder: correct it")
    if not settings.data:
        yield Remark("error", "data", f"{kit.local / SITE_FILE} names none: run 'fedshift site init' with --data DIR")
    for dataset in settings.data:
        try:
            folder = find_site(dataset, kit.name, local=kit.local, simulator=False)
            manifest = read_manifest(folder)
        except FedshiftError as error:
            yield Remark("error", "data", str(error))
            continue
        for what, have, want in (("data set", manifest.dataset, dataset), ("site", manifest.site, kit.name)):
            if have != want:
                yield Remark("error", "data", f"{folder} is of {what} {have}, not {want}: name the right folder")
        yield from examine(folder)
        yield from _describe(folder, manifest, settings.privacy)


def in_full(folder: Path) -> Iterator[Remark]:
    """All that ``fedshift data check`` finds in a prepared folder."""
    yield from map(_remark, check(folder))


def in_short(folder: Path, *, limit: float = DATA_LIMIT) -> Iterator[Remark]:
    """Whether the files can be read by this user, and what ``fedshift data check`` finds until the time is over."""
    for path in (folder, folder / FILE_NAME, *sorted((folder / FOLDER).glob("*"))):
        if not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
            yield Remark("error", "data", f"{path} cannot be read by this user: see to its owner and its permissions")
            return
    end, looked_at = time.monotonic() + limit, 0

    def progress(_: str) -> None:
        nonlocal looked_at
        if time.monotonic() > end:
            raise _OutOfTime
        looked_at += 1

    try:
        yield from map(_remark, check_site(folder, Contents(), progress, Counts()))
    except _OutOfTime:
        text = f"{looked_at} cases of {folder} were read in {limit:g} s: 'fedshift data check {folder}' reads them all"
        yield Remark("note", "data", text)


class _OutOfTime(Exception):
    """The check of the data has looked long enough."""


def _remark(finding: Finding) -> Remark:
    return Remark("error" if finding.level == "error" else "warning", "data", finding.sentence())


def _describe(folder: Path, manifest: Manifest, privacy: Policy | None) -> Iterator[Remark]:
    counts = ", ".join(f"{len(manifest.by_split(split))} {split}" for split in ("train", "val", "test"))
    what = "cases" if manifest.cases else "pictures"
    text = f"{manifest.dataset}, {len(manifest.entries)} {what} ({counts}), kind {manifest.kind}, in {folder}"
    yield Remark("ok", "data", text)
    if manifest.kind == "phantom":
        yield Remark("warning", "data", "they are simulated, not a hospital's: for trying things out only")
    trained = len(manifest.by_split("train"))
    if not trained:
        yield Remark("note", "data", "none to train on: jobs must hold this site out (fedshift job --held-out)")
    elif privacy is not None and privacy.train and trained < privacy.min_cases:
        text = (
            f"min_cases {privacy.min_cases}, and this site has {trained} training {what} of {manifest.dataset}: only "
            "the network, losses and scores leave, and a job whose methods send more is refused"
        )
        yield Remark("note", "policy", text)
