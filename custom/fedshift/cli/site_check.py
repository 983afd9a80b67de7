"""What can be said of a kit before it is started: ``fedshift site check``, and the end of ``fedshift site init``."""

from __future__ import annotations

import errno
import os
import platform
import shutil
import socket
import ssl
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.markup import escape

from fedshift.cli.display import console
from fedshift.data.locate import SITE_FILE, find_site, read_settings
from fedshift.schema.errors import FedshiftError
from fedshift.schema.manifest import read_manifest

if TYPE_CHECKING:
    from fedshift.flare.kit import Kit

COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "red"}
FEW_DAYS = 30
"""A certificate that ends sooner is worth a warning."""
LITTLE_SPACE = 5e9
"""Bytes: states of a few jobs and their logs."""
PATIENCE = 3.0
"""Seconds for the server to answer."""
OUT_OF_TIME = {9: "is not valid yet", 10: "has expired"}
"""OpenSSL's codes for a certificate whose time has not come or is over."""


@dataclass(frozen=True)
class Remark:
    """One line of the report; an ``error`` means that the kit is not ready."""

    level: Literal["ok", "note", "warning", "error"]
    about: str
    text: str


def report(kit: Kit) -> int:
    """What is known of a kit, a line each; 1 if it is not ready."""
    what = "the server" if kit.role == "server" else f"site {kit.name}"
    console.print(f"{what} of project {kit.project} (organisation {kit.organisation})", markup=False)
    ready = True
    for remark in _remarks(kit):
        ready = ready and remark.level != "error"
        colour = COLOURS[remark.level]
        console.print(f"  [{colour}]{remark.level:<8}[/{colour}]{remark.about + ':':<13}{escape(remark.text)}")
    console.print("ready" if ready else "not ready", style="green" if ready else "red")
    return 0 if ready else 1


def _remarks(kit: Kit) -> Iterator[Remark]:
    """All that can be said of a kit before it is started."""
    from fedshift.flare.kit import key_fault
    from fedshift.flare.kit_files import faults

    settled = True
    for fault in faults(kit):
        settled = False
        yield Remark("error" if fault.grave else "warning", "settings", fault.sentence)
    if settled:
        stays = ", no log leaves" if kit.role == "site" else ""
        yield Remark("ok", "settings", f"only fedshift's components are built, no job brings code{stays}")
    if kit.role == "site":
        yield from _about_data(kit)
    yield from _about_software()
    no_key = key_fault(kit)
    if no_key is not None:
        yield Remark("error", "certificate", no_key)
    yield _about_certificate(kit)
    if kit.role == "server":
        yield _about_port(kit)
    elif no_key is None:  # without its key a site is not answered
        yield _about_server(kit)
    free = shutil.disk_usage(kit.folder).free
    yield Remark("ok" if free > LITTLE_SPACE else "warning", "disk", f"{free / 1e9:.0f} GB free for jobs and logs")


def _about_data(kit: Kit) -> Iterator[Remark]:
    from fedshift.data.check import check
    from fedshift.federation.site.privacy.ledger import Ledger
    from fedshift.tasks.device import choose_devices

    try:
        settings = read_settings(kit.local)
    except FedshiftError as error:
        yield Remark("error", "data", str(error))
        return
    broken = Ledger(kit.local).read().broken
    if broken is not None:
        text = f"broken at release {broken.number}: 'fedshift site ledger {kit.folder}' says more"
        yield Remark("error", "ledger", text)
    try:
        choose_devices(settings.device, settings.devices)
    except FedshiftError as error:
        yield Remark("error", "device", f"{kit.local / SITE_FILE}: {error}")
    named, privacy = settings.data, settings.privacy
    if privacy is not None and not privacy.train:
        yield Remark("note", "training", "none: this site only scores models, for jobs that hold it out")
    if not named:
        yield Remark("error", "data", f"{kit.local / SITE_FILE} names none: run 'fedshift site init' with --data DIR")
    for dataset in named:
        try:
            folder = find_site(dataset, kit.name, local=kit.local, simulator=False)
            manifest = read_manifest(folder)
        except FedshiftError as error:
            yield Remark("error", "data", str(error))
            continue
        for what, have, want in (("data set", manifest.dataset, dataset), ("site", manifest.site, kit.name)):
            if have != want:
                yield Remark("error", "data", f"{folder} is of {what} {have}, not {want}: name the right folder")
        findings = check(folder)
        for finding in findings:
            yield Remark("error" if finding.level == "error" else "warning", "data", finding.sentence())
        counts = ", ".join(f"{len(manifest.by_split(split))} {split}" for split in ("train", "val", "test"))
        what = "cases" if manifest.cases else "pictures"
        text = f"{dataset}, {len(manifest.entries)} {what} ({counts}), kind {manifest.kind}, in {folder}"
        yield Remark("ok", "data", text)
        if manifest.kind == "phantom":
            yield Remark("warning", "data", "they are simulated, not a hospital's: for trying things out only")
        trained = len(manifest.by_split("train"))
        if not trained:
            yield Remark("note", "data", "none to train on: jobs must hold this site out (fedshift job --held-out)")
        elif privacy is not None and privacy.train and trained < privacy.min_cases:
            text = (
                f"min_cases {privacy.min_cases}, and this site has {trained} training {what} of {dataset}: only the "
                "network, losses and scores leave, and a job whose methods send more is refused"
            )
            yield Remark("note", "policy", text)


def _about_software() -> Iterator[Remark]:
    import torch

    from fedshift.schema.identity import own_identity

    devices = f"{torch.cuda.device_count()} GPU(s)" if torch.cuda.is_available() else "no GPU"
    text = f"fedshift {own_identity()}, NVFlare {version('nvflare')}, torch {torch.__version__} ({devices}), "
    yield Remark("ok", "software", text + f"Python {platform.python_version()}")
    # The kit's start.sh takes whatever Python comes first.
    python = shutil.which("python3")
    if python is None or Path(python).parent.resolve() != (Path(sys.prefix) / "bin").resolve():
        runs = python or "no Python at all"
        text = f"start.sh will run {runs}, not {sys.executable}: put its folder first on the PATH"
        yield Remark("warning", "software", text)


def _about_certificate(kit: Kit) -> Remark:

    now = datetime.now(UTC)
    fault = kit.out_of_time(now)
    if fault is not None:
        return Remark("error", "certificate", fault)
    text = f"of {kit.name}, valid from {kit.valid_from:%Y-%m-%d} to {kit.valid_until:%Y-%m-%d}"
    days = (kit.valid_until - now).days
    return Remark("ok" if days > FEW_DAYS else "warning", "certificate", f"{text}, {days} days left")


def _about_server(kit: Kit) -> Remark:
    where, startup = f"{kit.host}:{kit.port}", kit.folder / "startup"
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ours.check_hostname = False  # kits name the server as it was provisioned, addresses may differ
    try:
        ours.load_verify_locations(startup / "rootCA.pem")
        ours.load_cert_chain(startup / "client.crt", startup / "client.key")
    except OSError as error:  # OpenSSL's errors, too
        return Remark("error", "server", f"the certificates and the key in {startup} cannot be used ({error})")
    try:
        with (
            socket.create_connection((kit.host, kit.port), timeout=PATIENCE) as connection,
            ours.wrap_socket(connection),
        ):
            pass
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in OUT_OF_TIME:
            text = f"the certificate of {where} {OUT_OF_TIME[error.verify_code]} by this machine's clock"
            return Remark("error", "server", f"{text}: see to the clocks of both, or ask the project's owner")
        return Remark("error", "server", f"{where} is no server of project {kit.project} ({error.verify_message})")
    except ssl.SSLError as error:
        return Remark("warning", "server", f"{where} does not speak TLS as FLARE's server does ({error.reason})")
    except OSError as error:
        return Remark("note", "server", f"{where} does not answer ({error.strerror or error}): it may not run yet")
    return Remark("ok", "server", f"{where} answers")


def _about_port(kit: Kit) -> Remark:
    try:
        socket.create_server(("", kit.port)).close()
    except OSError as error:
        text = f"{kit.port} cannot be used ({os.strerror(error.errno) if error.errno else error})"
        if error.errno != errno.EADDRINUSE:
            return Remark("note", "port", text)
        process = _own_server(kit)
        if process:
            return Remark("note", "port", f"{text}: this kit's server runs already (process {process})")
        text += ", and not because this kit's server runs: end what listens there, perhaps the server of another kit"
        return Remark("error", "port", text)
    return Remark("ok", "port", f"{kit.port} is free")


def _own_server(kit: Kit) -> str | None:
    """The process of the server that was started from this kit, in whatever way; None if there is none."""
    from fedshift.flare.kit import holder

    process = holder(kit.folder)
    if process is not None:
        return process
    try:  # of a server that was started before servers locked their store
        number = (kit.folder / "pid.fl").read_text(encoding="utf-8").strip()
        os.kill(int(number), 0)
    except PermissionError:
        return number
    except (OSError, ValueError):
        return None
    return number
