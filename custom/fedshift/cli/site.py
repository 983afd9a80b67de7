"""``fedshift site``: what the owner of a kit does before it is started, and the account of what left it."""

from __future__ import annotations

import argparse
import errno
import os
import platform
import shutil
import socket
import ssl
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedshift.cli import site_ledger

if TYPE_CHECKING:
    from fedshift.flare.dry_run import Sent
    from fedshift.flare.kit import Kit
    from fedshift.schema.job import JobSpec
    from fedshift.schema.manifest import Manifest
    from fedshift.schema.policy import Policy

console = Console(soft_wrap=True, highlight=False)

COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "red"}
FEW_DAYS = 30
"""A certificate that ends sooner is worth a warning."""
LITTLE_SPACE = 5e9
"""Bytes: states of a few jobs and their logs."""
PATIENCE = 3.0
"""Seconds for the server to answer."""
OUT_OF_TIME = {9: "is not valid yet", 10: "has expired"}
"""OpenSSL's codes for a certificate whose time has not come or is over."""
MANY = 8
"""Arrays of one part of a message that are shown one by one."""


@dataclass(frozen=True)
class Remark:
    """One line of the report; an ``error`` means that the kit is not ready."""

    level: Literal["ok", "note", "warning", "error"]
    about: str
    text: str


def add_parsers(subparsers: Any) -> None:
    """Add ``fedshift site``."""
    site = subparsers.add_parser("site", help="set up, check and try out the kit of a site, or of the server")
    kinds = site.add_subparsers(required=True, metavar="COMMAND")

    init = kinds.add_parser("init", help="write a kit's local settings, and say whether it is ready to start")
    init.add_argument("kit", type=Path, metavar="KIT", help="the folder that holds startup/ and local/")
    init.add_argument(
        "--data", type=Path, nargs="+", default=[], metavar="DIR", help="of a site: its prepared folder, one a data set"
    )
    init.add_argument("--evaluation-only", action="store_true", help="the site trains nothing, whatever a job says")
    init.add_argument("--phantom", action="store_true", help="the data are simulated, and that is meant")
    init.add_argument("--allow-code", action="store_true", help="accept jobs that bring their own code")
    init.add_argument("--allow-root", action="store_true", help="the party runs as root, and that is meant")
    init.add_argument("--force", action="store_true", help="replace settings that differ; the former are kept as .old")
    init.set_defaults(func=_init)

    look = kinds.add_parser("check", help="say whether a kit is ready to start; nothing is written")
    look.add_argument("kit", type=Path, metavar="KIT")
    look.set_defaults(func=_check)

    dry = kinds.add_parser("dry-run", help="train a step on the site's own data, show what would be sent, send nothing")
    dry.add_argument("kit", type=Path, metavar="KIT")
    dry.add_argument("job", type=Path, metavar="JOB_FOLDER")
    dry.add_argument("--steps", type=int, default=1, metavar="N", help="optimiser steps (default 1)")
    dry.add_argument("--all", action="store_true", help="show every array in a line of its own")
    dry.set_defaults(func=_dry_run)

    account = kinds.add_parser("ledger", help="show what has left a site with noise, and what it adds up to")
    account.add_argument("kit", type=Path, metavar="KIT", help="of a site; of the server: what it has seen of theirs")
    account.add_argument("--json", action="store_true", help="everything as JSON, for other programs")
    account.add_argument(
        "--forget",
        metavar="SITE",
        help="at the server: delete what it has seen of a site's ledger, which is lost for good (see the runbook)",
    )
    account.set_defaults(func=site_ledger.run)

    decrypt = kinds.add_parser("decrypt", help="make a readable model of what an encrypted job's server has written")
    decrypt.add_argument("kit", type=Path, metavar="KIT", help="of a site: the server has no key for it")
    decrypt.add_argument("model", type=Path, metavar="FILE", help="best_global_model.pt or last_global_model.pt")
    decrypt.add_argument("--out", type=Path, required=True, metavar="FILE", help="where to write it")
    decrypt.set_defaults(func=_decrypt)


def _decrypt(args: argparse.Namespace) -> int:
    from fedshift.federation.encryption.site import decrypt_model
    from fedshift.flare.kit import open_kit
    from fedshift.flare.kit_keys import SITE_KEYS, read_keys
    from fedshift.schema.errors import ConfigError

    kit = open_kit(args.kit)
    if kit.role == "server":
        raise ConfigError("wrong-kit", f"{args.kit} is the server's kit, whose keys decrypt nothing: name a site's")
    round_ = decrypt_model(args.model, args.out, read_keys(kit.folder / "startup", SITE_KEYS))
    print(f"{args.out}: the model of round {round_}")
    return 0


# --- init and check -----------------------------------------------------------------------------------------


def _init(args: argparse.Namespace) -> int:
    from fedshift.flare.kit import is_root, open_kit
    from fedshift.flare.kit_files import lay, local_files
    from fedshift.schema.errors import ConfigError

    if is_root() and not args.allow_root:
        raise ConfigError(
            "root",
            "a party that runs as root puts the whole machine at risk: run this, and start the kit, as a user of its "
            "own (or say --allow-root)",
        )
    kit = open_kit(args.kit)
    if kit.role == "server" and args.data:
        raise ConfigError("wrong-kit", f"{args.kit} is the server's kit, which has no data: leave out --data")
    if kit.role == "site" and not args.data:
        raise ConfigError(
            "no-data", f"{args.kit} is the kit of site {kit.name}: name its prepared data with --data DIR"
        )
    data: dict[str, Path] = {}
    for folder in args.data:
        manifest = _own_data(kit, folder.absolute(), phantom=args.phantom)
        if manifest.dataset in data:
            raise ConfigError(
                "other-data", f"{data[manifest.dataset]} and {folder} are both of {manifest.dataset}: name one of them"
            )
        data[manifest.dataset] = folder.absolute()
    files = local_files(kit, data=data, train=not args.evaluation_only, allow_code=args.allow_code)
    written = lay(files, kit.local, force=args.force)
    print(f"{kit.local}: {'wrote ' + ', '.join(written) if written else 'is as it should be'}")
    return _report(kit)


def _own_data(kit: Kit, folder: Path, *, phantom: bool) -> Manifest:
    """The manifest of data that are this site's, and not simulated unless that is meant.

    Raises:
        ConfigError: another site's, or simulated; or the folder is not there, or is one above the site's.
    """
    from fedshift.schema.errors import ConfigError
    from fedshift.schema.manifest import FILE_NAME, read_manifest

    if not folder.is_dir():
        raise ConfigError(
            "not-a-folder", f"{folder} is no folder: name the site's prepared one, such as DATA/prostate/{kit.name}"
        )
    if not (folder / FILE_NAME).is_file():
        below = (folder / kit.name, *sorted(other / kit.name for other in folder.iterdir()))
        meant = [str(other) for other in below if (other / FILE_NAME).is_file()]
        if meant:
            raise ConfigError("not-prepared", f"{folder} holds no {FILE_NAME}: did you mean {' or '.join(meant)}?")
    manifest = read_manifest(folder)
    if manifest.site != kit.name:
        raise ConfigError(
            "other-data", f"{folder} holds data of site {manifest.site}, the kit is of site {kit.name}: name its own"
        )
    if manifest.kind == "phantom" and not phantom:
        raise ConfigError(
            "phantom-data", f"{folder} holds simulated data (kind: phantom): name real ones, or say --phantom"
        )
    return manifest


def _check(args: argparse.Namespace) -> int:
    from fedshift.flare.kit import open_kit

    return _report(open_kit(args.kit))


def _report(kit: Kit) -> int:
    """What is known of a kit, a line each; 1 if it is not ready."""
    what = "the server" if kit.role == "server" else f"site {kit.name}"
    console.print(f"{what} of project {kit.project} (organisation {kit.organisation})", markup=False)
    ready = True
    for remark in remarks(kit):
        ready = ready and remark.level != "error"
        colour = COLOURS[remark.level]
        console.print(f"  [{colour}]{remark.level:<8}[/{colour}]{remark.about + ':':<13}{escape(remark.text)}")
    console.print("ready" if ready else "not ready", style="green" if ready else "red")
    return 0 if ready else 1


def remarks(kit: Kit) -> Iterator[Remark]:
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
    from fedshift.data.locate import SITE_FILE, find_site, read_settings
    from fedshift.schema.errors import FedshiftError
    from fedshift.schema.manifest import read_manifest
    from fedshift.tasks.device import choose_device

    try:
        settings = read_settings(kit.local)
    except FedshiftError as error:
        yield Remark("error", "data", str(error))
        return
    yield from _about_ledger(kit)
    try:
        choose_device(settings.device)
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


def _about_ledger(kit: Kit) -> Iterator[Remark]:
    from fedshift.federation.site.privacy.ledger import Ledger

    account = Ledger(kit.local).read()
    if account.broken is not None:
        text = f"broken at release {account.broken.number}: 'fedshift site ledger {kit.folder}' says more"
        yield Remark("error", "ledger", text)


def _about_software() -> Iterator[Remark]:
    import torch

    from fedshift.schema.identity import own_identity

    devices = f"{torch.cuda.device_count()} GPU(s)" if torch.cuda.is_available() else "no GPU"
    text = f"fedshift {own_identity()}, NVFlare {version('nvflare')}, torch {torch.__version__} ({devices}), "
    yield Remark("ok", "software", text + f"Python {platform.python_version()}")
    # The kit's start.sh takes whatever Python comes first.
    found = shutil.which("python3")
    if found is None or Path(found).parent.resolve() != (Path(sys.prefix) / "bin").resolve():
        text = (
            f"start.sh will run {found or 'no Python at all'}, not {sys.executable}: put its folder first on the PATH"
        )
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


# --- dry-run ------------------------------------------------------------------------------------------------


def _dry_run(args: argparse.Namespace) -> int:
    from fedshift.data.locate import find_site, read_settings
    from fedshift.flare.dry_run import dry_run
    from fedshift.flare.export import read_job_folder
    from fedshift.flare.kit import open_kit
    from fedshift.schema.errors import ConfigError
    from fedshift.schema.manifest import read_manifest

    kit, job = open_kit(args.kit), read_job_folder(args.job)
    if kit.role == "server":
        raise ConfigError("wrong-kit", f"{args.kit} is the server's kit: a dry run is a site's")
    if args.steps < 1:
        raise ConfigError("invalid-value", f"--steps {args.steps} must be at least 1")
    data = find_site(job.task.dataset, kit.name, local=kit.local, simulator=False)
    if read_manifest(data).kind == "phantom":
        print("the data are the phantom: simulated scans, not patients")
    with tempfile.TemporaryDirectory(prefix="fedshift-dry-run-") as folder:
        settings = read_settings(kit.local)
        answers = dry_run(job, kit.name, data, Path(folder), settings=settings, steps=args.steps, ledger=kit.local)
    if job.federation.encryption == "masks":
        _tell_of_masks(job, kit, settings.privacy)
    if job.federation.encryption == "ckks":
        from fedshift.flare.kit_keys import SITE_KEYS, read_keys

        read_keys(kit.folder / "startup", SITE_KEYS)
        print("the job encrypts all arrays but batch counters: this is what will be in the ciphertexts")
    for sent in answers:
        console.print(table(sent, every=args.all))
    if job.task.network.weights is not None:
        print("from random weights: the job's own are at the server")
    print(f"nothing was sent: this is what site {kit.name} would answer to job {job.name}")
    return 0


def _tell_of_masks(job: JobSpec, kit: Kit, policy: Policy | None) -> None:
    """What masks hide of the answers, and from whom.

    Raises:
        ConfigError: the kit cannot sign.
        PolicyError: the job has fewer sites than the policy wants in a sum.
    """
    from fedshift.federation.encryption.masks.protocol import helpers_needed
    from fedshift.federation.encryption.masks.site import SiteMasks
    from fedshift.flare.kit_keys import KitIdentity
    from fedshift.reporting.report.wording import counted
    from fedshift.schema.policy import Policy

    least = (policy or Policy()).min_sites_in_sum
    with tempfile.TemporaryDirectory(prefix="fedshift-dry-run-") as folder:
        identity = KitIdentity(kit.folder / "startup")
        masks = SiteMasks(job, kit.name, folder=Path(folder), run="", identity=identity, least=least)
    needed = helpers_needed(len(job.task.sites), masks.least)
    print("the job masks all arrays but batch counters: this is what will be behind the masks; only the sum over the")
    print("sites can be read. Beside it leave a public key, a certificate and shares of the masks' seeds")
    print(
        f"its update goes into sums over {masks.least} sites or more: to read it, a dishonest server needs the help of "
        f"{counted(needed, 'other site')}"
    )


def table(sent: Sent, *, every: bool = False) -> Table:
    """What is in a message. Many arrays of one part are one line unless ``every`` is set."""
    rows = Table(title=f"answer to {sent.task!r}", title_justify="left", box=None, pad_edge=False)
    for name in ("what", "shape or value"):
        rows.add_column(name, overflow="fold")
    rows.add_column("bytes", justify="right")
    parts: dict[str, list[Any]] = {}
    for item in sent.items:
        parts.setdefault(item.name.rpartition("/")[0] if item.bytes else item.name, []).append(item)
    for part, items in parts.items():
        if len(items) > MANY and not every:
            rows.add_row(f"{part}/…", f"{len(items)} arrays", str(sum(item.bytes for item in items)))
            continue
        for item in items:
            rows.add_row(item.name, escape(item.shape), str(item.bytes) if item.bytes else "")
    rows.add_row("all arrays", "", str(sum(item.bytes for item in sent.items)))
    return rows
