"""``fedshift mailbox``: a federation without ports and processes, by files in a shared folder."""

from __future__ import annotations

import argparse
import json
import logging
import secrets
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.cli.arguments import positive
from fedshift.schema.errors import ConfigError
from fedshift.schema.names import printable

if TYPE_CHECKING:
    from fedshift.mailbox.coordinator_party import CoordinatorParty
    from fedshift.mailbox.site_party import SiteParty
    from fedshift.mailbox.step import Outcome

LOG, LOG_BYTES = "mailbox.log", 2_000_000


def add_arguments(mailbox: Any) -> None:
    mailbox.description = (
        "A federation by mailbox: rounds as files in a folder that any carrier synchronises. A step does what can be "
        "done now and ends; its exit code is 0 when the run has ended, 3 when it waits, 2 for an error."
    )
    kinds = mailbox.add_subparsers(required=True, metavar="COMMAND")

    init = kinds.add_parser("init", help="make a party's own folder, with keys that its kit signs")
    init.add_argument("folder", type=Path, metavar="DIR", help="a new folder of this party alone, never a shared one")
    init.add_argument("--project", type=Path, required=True, metavar="FILE", help="the project.yml that made the kits")
    init.add_argument("--kit", type=Path, required=True, metavar="KIT", help="the kit of this site, or of the server")
    init.add_argument("--mail", type=Path, required=True, metavar="MAIL", help="the shared folder")
    init.add_argument("--job", type=Path, metavar="JOB_FOLDER", help="of the coordinator: what the federation trains")
    init.set_defaults(func=_init)

    step = kinds.add_parser("step", help="do what can be done now, and end")
    step.add_argument("folder", type=Path, metavar="DIR")
    step.add_argument(
        "--until",
        metavar="TIME",
        help="at the coordinator: a round ends so long after it was opened (90min, 12h, 3d), or at a time, if enough "
        "sites have answered (default: when all have)",
    )
    step.add_argument("--ask-again", action="store_true", help="at the coordinator: ask the open request once more")
    step.add_argument(
        "--every",
        type=positive,
        metavar="SECONDS",
        help="go on with a step every so many seconds until the run has ended",
    )
    step.set_defaults(func=_step)

    status = kinds.add_parser("status", help="the state of a party in one line, without a step")
    status.add_argument("folder", type=Path, metavar="DIR")
    status.add_argument("--json", action="store_true", help="for other programs")
    status.set_defaults(func=_status)

    watch = kinds.add_parser("watch", help="at the coordinator: the run on a page, or in the terminal")
    watch.add_argument("folder", type=Path, metavar="DIR")
    watch.add_argument("--text", action="store_true", help="lines in the terminal in place of a page, until it ends")
    watch.add_argument("--port", type=int, default=0, metavar="N", help="the page's port (default: any that is free)")
    watch.add_argument("--open", action="store_true", help="open the page in this machine's browser")
    watch.set_defaults(func=_watch)

    report = kinds.add_parser("report", help="at the coordinator: the results as one HTML file")
    report.add_argument("folder", type=Path, metavar="DIR")
    report.add_argument(
        "--out", type=Path, default=Path("report.html"), metavar="FILE.html", help="default: report.html"
    )
    report.set_defaults(func=_report)

    for name, help_ in (
        ("disable", "at the coordinator: leave a site out, from the open round on"),
        ("enable", "at the coordinator: let a disabled site in again"),
        ("readmit", "at the coordinator: take a site's new folder for the former one"),
    ):
        change = kinds.add_parser(name, help=help_)
        change.add_argument("folder", type=Path, metavar="DIR")
        change.add_argument("site", metavar="SITE")
        change.set_defaults(func=_change, change=name)


def _init(args: argparse.Namespace) -> int:
    from fedshift.mailbox.coordinator_party import JOB_FILE
    from fedshift.mailbox.party import make_party
    from fedshift.schema.files import write_private

    job = None
    if args.job is not None:
        from fedshift.flare.export import read_job_folder

        job = read_job_folder(args.job)
        if job.federation.hosts is not None:
            raise ConfigError("options-clash", "a party by mailbox is one site: use --set federation.hosts=null")
    party = make_party(
        args.folder, project=args.project, kit=args.kit, mail=args.mail, run=secrets.token_hex(16), job=job
    )
    if job is not None:
        write_private(args.folder / JOB_FILE, job.model_dump_json(by_alias=True).encode())
    print(f"{args.folder}: {party.role} {party.name} of {party.project}; shared folder {party.mail}")
    print(f"next: fedshift mailbox step {args.folder}")
    return 0


def open_party(folder: Path) -> SiteParty | CoordinatorParty:
    """A party by what its folder says."""
    from fedshift.mailbox.party import Party

    if Party.load(folder).role == "site":
        from fedshift.mailbox.site_party import SiteParty

        return SiteParty(folder)
    from fedshift.mailbox.coordinator_party import CoordinatorParty

    return CoordinatorParty(folder)


def _step(args: argparse.Namespace) -> int:
    party = open_party(args.folder)
    _log_to(args.folder / LOG)
    while True:
        outcome = _one_step(party, args)
        print(printable(outcome.line), flush=True)
        if outcome.done or args.every is None:
            return outcome.code
        args.ask_again = False
        time.sleep(args.every)


def _one_step(party: SiteParty | CoordinatorParty, args: argparse.Namespace) -> Outcome:
    from fedshift.mailbox.deadline import Until
    from fedshift.mailbox.party import StepInProgress
    from fedshift.mailbox.site_party import SiteParty
    from fedshift.mailbox.step import Outcome

    try:
        if isinstance(party, SiteParty):
            if args.until is not None or args.ask_again:
                raise ConfigError(
                    "options-clash", f"--until and --ask-again are the coordinator's, and {args.folder} is a site's"
                )
            return party.step()
        return party.step(until=None if args.until is None else Until.parse(args.until), again=args.ask_again)
    except StepInProgress as error:
        return Outcome(f"{party.party.name}: {error}")


def _log_to(path: Path) -> None:
    """Write the log beside the state too: cron's mails get lost."""
    handler = RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    logger = logging.getLogger("fedshift")
    logger.addHandler(handler)
    logger.setLevel(min(logging.INFO, logger.getEffectiveLevel()))
    for other in logging.getLogger().handlers:
        other.setLevel(logging.DEBUG if logging.getLogger().level == logging.DEBUG else logging.WARNING)


def _status(args: argparse.Namespace) -> int:
    from fedshift.cli import watch
    from fedshift.mailbox.party import is_locked

    party = open_party(args.folder)
    outcome, owner = party.status(), is_locked(args.folder)
    if args.json:
        member = party.party
        content = {
            "name": member.name,
            "role": member.role,
            "project": member.project,
            "done": outcome.done,
            "line": outcome.line,
        }
        print(json.dumps(content | {"step_in_progress": owner}, indent=1))
    else:
        print(printable(outcome.line) + ("" if owner is None else f"; a step is at work (process {owner})"))
    watch.warn_of_expiry(party.party.kit)
    return outcome.code


def _run_folder(folder: Path, what: str) -> Path:
    from fedshift.mailbox.coordinator_party import RUN
    from fedshift.mailbox.party import Party

    if Party.load(folder).role == "site":
        raise ConfigError("wrong-kit", f"{folder} is a site's, and sites see no others: {what} at the coordinator")
    return folder / RUN


def _watch(args: argparse.Namespace) -> int:
    from fedshift.cli import watch

    args.run, args.job = _run_folder(args.folder, "watch"), None
    return watch.show(args)


def _report(args: argparse.Namespace) -> int:
    from fedshift.cli import report

    folder = _run_folder(args.folder, "report")
    return report.report(
        argparse.Namespace(runs=[folder], out=args.out, images=False, site_data=[], most_sites=12, site=None, own=None)
    )


def _change(args: argparse.Namespace) -> int:
    from fedshift.mailbox.coordinator_party import CoordinatorParty
    from fedshift.mailbox.disabled import disable, enable

    party = open_party(args.folder)
    if not isinstance(party, CoordinatorParty):
        raise ConfigError("wrong-kit", f"{args.folder} is a site's: only the coordinator can {args.change} a site")
    if args.site not in party.party.sites:
        raise ConfigError("unknown-site", f"the project's sites are {', '.join(party.party.sites)}, not {args.site}")
    if args.change == "readmit":
        party.readmit(args.site)
    else:
        (disable if args.change == "disable" else enable)(party.party.kit, args.site)
    print(f"{args.site}: {args.change}d" if args.change != "readmit" else f"{args.site}: its next card counts")
    return 0
