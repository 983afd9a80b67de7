"""``fedshift site``: what the owner of a kit does before it is started, and the account of what left it."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from fedshift.cli import site_check, site_packages
from fedshift.cli.display import console
from fedshift.data.locate import SITE_FILE, find_site, read_settings
from fedshift.schema.errors import ConfigError
from fedshift.schema.launcher import KINDS, launcher_options, parse_launcher
from fedshift.schema.manifest import FILE_NAME, read_manifest
from fedshift.schema.policy import Policy

if TYPE_CHECKING:
    from fedshift.federation.site.privacy.ledger import Account
    from fedshift.flare.dry_run import Sent
    from fedshift.flare.kit import Kit
    from fedshift.schema.job import JobSpec
    from fedshift.schema.manifest import Manifest
    from fedshift.schema.policy import PrivacyBudget

MANY = 8
"""Arrays of one part of a message that are shown one by one."""


USUAL_DELTA = 1e-5
"""At which totals of a ledger are given if the site has no budget."""


def add_arguments(site: Any) -> None:
    kinds = site.add_subparsers(required=True, metavar="COMMAND")

    init = kinds.add_parser("init", help="write a kit's local settings, and say whether it is ready to start")
    init.add_argument("kit", type=Path, metavar="KIT", help="the folder that holds startup/ and local/")
    init.add_argument(
        "--data", type=Path, nargs="+", default=[], metavar="DIR", help="of a site: its prepared folder, one a data set"
    )
    init.add_argument("--evaluation-only", action="store_true", help="the site trains nothing, whatever a job says")
    init.add_argument("--phantom", action="store_true", help="the data are simulated, and that is meant")
    init.add_argument(
        "--launcher",
        choices=KINDS,
        default="process",
        help="where the site's processes of jobs run (default process: beside the site's own)",
    )
    init.add_argument(
        "--set", nargs="+", default=[], metavar="OPTION=VALUE", help="options of the launcher, such as partition=gpu"
    )
    init.add_argument("--allow-code", action="store_true", help="accept jobs that bring their own code")
    init.add_argument("--allow-root", action="store_true", help="the party runs as root, and that is meant")
    init.add_argument("--force", action="store_true", help="replace settings that differ; the former are kept as .old")
    init.set_defaults(func=_init)

    look = kinds.add_parser("check", help="say whether a kit is ready to start; nothing is written")
    look.add_argument("kit", type=Path, metavar="KIT")
    look.set_defaults(func=_check)

    objects = kinds.add_parser("manifests", help="write what Kubernetes needs for a site with --launcher k8s, as YAML")
    objects.add_argument("kit", type=Path, metavar="KIT")
    objects.set_defaults(func=_manifests)

    dry = kinds.add_parser(
        "dry-run", help="do a job's first step on the site's own data, show what would be sent, send nothing"
    )
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
    account.set_defaults(func=_ledger)

    packages = kinds.add_parser(
        "packages", help="list installed packages with parts for jobs, and the lines by which a policy allows them"
    )
    packages.add_argument("kit", type=Path, nargs="?", metavar="KIT", help="of a site: whether its policy lists them")
    packages.set_defaults(func=site_packages.show)

    decrypt = kinds.add_parser("decrypt", help="make a readable model of what an encrypted job's server has written")
    decrypt.add_argument("kit", type=Path, metavar="KIT", help="of a site: the server has no key for it")
    decrypt.add_argument("model", type=Path, metavar="FILE", help="best_global_model.pt or last_global_model.pt")
    decrypt.add_argument("--out", type=Path, required=True, metavar="FILE", help="where to write it")
    decrypt.set_defaults(func=_decrypt)


def _decrypt(args: argparse.Namespace) -> int:
    from fedshift.federation.encryption.kit_keys import SITE_KEYS, read_keys
    from fedshift.federation.encryption.site import decrypt_model
    from fedshift.flare.kit import open_kit

    kit = open_kit(args.kit)
    if kit.role == "server":
        raise ConfigError("wrong-kit", f"{args.kit} is the server's kit, whose keys decrypt nothing: name a site's")
    round_ = decrypt_model(
        args.model, args.out, read_keys(kit.folder / "startup", SITE_KEYS), weights=read_settings(kit.local).weights
    )
    print(f"{args.out}: the model of round {round_}")
    return 0


# --- init and check -----------------------------------------------------------------------------------------


def _init(args: argparse.Namespace) -> int:
    from fedshift.flare.kit import is_root, open_kit
    from fedshift.flare.kit_files import lay, local_files

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
    launcher = parse_launcher(args.launcher, launcher_options(args.set))
    if kit.role == "server" and launcher is not None:
        raise ConfigError("wrong-kit", f"{args.kit} is the server's kit, and --launcher is for a site's: leave it out")
    data: dict[str, Path] = {}
    for folder in args.data:
        manifest = _own_data(kit, folder.absolute(), phantom=args.phantom)
        if manifest.dataset in data:
            raise ConfigError(
                "other-data", f"{data[manifest.dataset]} and {folder} are both of {manifest.dataset}: name one of them"
            )
        data[manifest.dataset] = folder.absolute()
    files = local_files(kit, data=data, train=not args.evaluation_only, allow_code=args.allow_code, launcher=launcher)
    written = lay(files, kit.local, force=args.force)
    print(f"{kit.local}: {'wrote ' + ', '.join(written) if written else 'is as it should be'}")
    return site_check.report(kit)


def _own_data(kit: Kit, folder: Path, *, phantom: bool) -> Manifest:
    """The manifest of data that are this site's, and not simulated unless that is meant."""
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

    return site_check.report(open_kit(args.kit))


def _manifests(args: argparse.Namespace) -> int:
    import yaml

    from fedshift.flare.kit import open_kit
    from fedshift.flare.launchers.kubernetes import manifests

    kit = open_kit(args.kit)
    launcher = read_settings(kit.local).launcher if kit.role == "site" else None
    if launcher is None or launcher.k8s is None:
        raise ConfigError(
            "wrong-launcher",
            f"{kit.local / SITE_FILE} names no launcher k8s: run 'fedshift site init' with --launcher k8s",
        )
    print(yaml.safe_dump_all(manifests(kit.name, launcher.k8s), sort_keys=False), end="")
    return 0


# --- dry-run ------------------------------------------------------------------------------------------------


def _dry_run(args: argparse.Namespace) -> int:
    from fedshift.flare.dry_run import dry_run
    from fedshift.flare.export import read_job_folder
    from fedshift.flare.kit import open_kit
    from fedshift.flare.validation.job import is_validation

    kit = open_kit(args.kit)
    if kit.role == "server":
        raise ConfigError("wrong-kit", f"{args.kit} is the server's kit: a dry run is a site's")
    if args.steps < 1:
        raise ConfigError("invalid-value", f"--steps {args.steps} must be at least 1")
    if is_validation(args.job):
        return _dry_run_of_validation(args, kit)
    job = read_job_folder(args.job)
    data = _data(job.task.dataset, kit)
    with tempfile.TemporaryDirectory(prefix="fedshift-dry-run-") as folder:
        settings = read_settings(kit.local)
        answers = dry_run(job, kit.name, data, Path(folder), settings=settings, steps=args.steps, ledger=kit.local)
    if job.federation.encryption == "masks":
        _say_what_masks_hide(job, kit, settings.privacy)
    if job.federation.encryption == "ckks":
        from fedshift.federation.encryption.kit_keys import SITE_KEYS, read_keys

        read_keys(kit.folder / "startup", SITE_KEYS)
        print("the job encrypts all arrays but batch counters: this is what will be in the ciphertexts")
    for sent in answers:
        console.print(_table(sent, every=args.all))
    if job.task.network.weights is not None and job.task.network.adapters is None:
        print("from random weights: the job's own are at the server")
    print(f"nothing was sent: this is what site {kit.name} would answer to job {job.name}")
    return 0


def _dry_run_of_validation(args: argparse.Namespace, kit: Kit) -> int:
    """Show the scores that the site would tell."""
    from fedshift.flare.dry_run import dry_run_validation
    from fedshift.flare.export import SPEC
    from fedshift.flare.validation.job import read_validation_spec

    spec = read_validation_spec(args.job / SPEC)
    data = _data(spec.dataset, kit)
    with tempfile.TemporaryDirectory(prefix="fedshift-dry-run-") as folder:
        settings = read_settings(kit.local)
        sent = dry_run_validation(args.job, kit.name, data, Path(folder), settings=settings, ledger=kit.local)
    console.print(_table(sent, every=True))
    print(f"nothing was sent: this is what site {kit.name} would answer to job {spec.validation}")
    return 0


def _data(dataset: str, kit: Kit) -> Path:
    """The site's prepared folder; says so if it is the phantom."""
    data = find_site(dataset, kit.name, local=kit.local, simulator=False)
    if read_manifest(data).kind == "phantom":
        print("the data are the phantom: simulated scans, not patients")
    return data


def _say_what_masks_hide(job: JobSpec, kit: Kit, policy: Policy | None) -> None:
    """What masks hide of the answers, and from whom."""
    from fedshift.federation.encryption.kit_keys import KitIdentity
    from fedshift.federation.encryption.masks.protocol import helpers_needed
    from fedshift.federation.encryption.masks.site import SiteMasks
    from fedshift.reporting.report.wording import counted

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


def _table(sent: Sent, *, every: bool) -> Table:
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


# --- ledger -------------------------------------------------------------------------------------------------


def _ledger(args: argparse.Namespace) -> int:
    """Show the ledger of a site's kit, 1 if its chain is broken; of the server's, what it has seen of the sites'."""
    from fedshift.federation.site.privacy.ledger import Ledger
    from fedshift.flare.kit import open_kit

    kit = open_kit(args.kit)
    if kit.role == "server":
        return _heads_seen(kit, as_json=args.json, forget=args.forget)
    if args.forget is not None:
        raise ConfigError(
            "wrong-kit", f"--forget is for the server's kit, which keeps what it has seen of ledgers, not {args.kit}"
        )
    ledger, policy = Ledger(kit.local), read_settings(kit.local).privacy
    account, budget = ledger.read(), None if policy is None else policy.budget
    content = _summary(account, budget)
    if args.json:
        print(json.dumps({"site": kit.name, "file": str(ledger.path), **content}, indent=1))
    else:
        if account.releases:
            console.print(_releases(account, title=f"what has left site {kit.name} with noise"))
        _print_sums(content, ledger.path.name)
    return 0 if account.broken is None else 1


def _heads_seen(kit: Kit, *, as_json: bool, forget: str | None) -> int:
    """What the server has seen of the sites' ledgers."""
    from fedshift.federation.ledger_heads import LedgerHeads

    heads = LedgerHeads(kit.local)
    if forget is not None:
        forgotten = heads.forget(forget)
        print(
            f"forgotten: {forgotten.number} releases of site {forget}, up to {forgotten.hash}: whatever its ledger "
            "then holds is taken for all that it has spent"
        )
        return 0
    by_site = heads.all()
    if as_json:
        print(json.dumps({site: head.model_dump() for site, head in by_site.items()}, indent=1))
        return 0
    for site, head in by_site.items():
        print(f"{site}: {head.number} releases, up to {head.hash}")
    if not by_site:
        print("no site has told of a release with noise")
    return 0


def _summary(account: Account, budget: PrivacyBudget | None) -> dict[str, Any]:
    """The ledger as plain data: releases, sums, and whether the chain holds."""
    delta = USUAL_DELTA if budget is None else budget.delta
    runs: dict[str, list[str]] = {}
    for release in sorted(account.releases, key=lambda release: release.job):
        runs.setdefault(release.job, []).append(release.run)
    return {
        "releases": [release.model_dump() for release in account.releases],
        "spent": {"epsilon": account.epsilon(delta), "delta": delta},
        "jobs": {job: {"releases": len(names), "runs": len(set(names))} for job, names in runs.items()},
        **({} if budget is None else {"budget": budget.model_dump()}),
        "last": account.last,
        "broken": None if account.broken is None else vars(account.broken),
    }


def _releases(account: Account, *, title: str) -> Table:
    rows = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("", "date", "job", "round", "what", "mechanism", "sensitivity", "noise", "ε alone", "δ"):
        text = name in ("date", "job", "what", "mechanism")
        rows.add_column(name, justify="left" if text else "right", overflow="fold", no_wrap=name == "date")
    for number, each in enumerate(account.releases, start=1):
        how: str = each.mechanism
        if each.steps > 1:
            how += f", {each.steps} steps"
        if each.sampling_rate < 1:
            how += f" of {100 * each.sampling_rate:.3g} %"
        rows.add_row(
            *(str(number), each.date[:10], escape(each.job), str(each.round), each.what, how),
            *(f"{each.sensitivity:.4g}", f"{each.deviation:.4g}", f"{each.epsilon:.4g}", f"{each.delta:g}"),
        )
    return rows


def _print_sums(content: dict[str, Any], name: str) -> None:
    """The sums, and whether the chain holds."""
    spent, budget, broken = content["spent"], content.get("budget"), content["broken"]
    number = len(content["releases"])
    if not number and broken is None:
        print("nothing has left with noise")
    for job, count in content["jobs"].items():
        print(f"job {job}: {count['releases']} releases in {count['runs']} runs")
    if number:
        print(f"all {number} together: epsilon {spent['epsilon']:.4g} at delta {spent['delta']:g}")
    if budget is not None:
        print(f"budget: epsilon {budget['epsilon']:g} at delta {budget['delta']:g}")
    elif number:
        print("budget: none (privacy.budget)")
    if broken is not None:
        print(f"THE CHAIN IS BROKEN at release {broken['number']}: {broken['reason']}; what follows is not shown")
    elif number:
        print(f"the chain of {name} holds up to {content['last']}")
