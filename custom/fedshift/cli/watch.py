"""``fedshift watch`` and ``fedshift status``: a run on a screen while it goes on, or in one line."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import webbrowser
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.cli.display import describe, make_display
from fedshift.reporting.progress import FILE_NAME
from fedshift.reporting.report.wording import counted
from fedshift.schema.errors import ConfigError
from fedshift.schema.names import printable

if TYPE_CHECKING:
    from fedshift.reporting.watch.snapshot import Snapshot, Source

ON_THIS_MACHINE, ASKED = 1.0, 5.0
"""Seconds between two looks at a run on this machine, and between two questions to a federation's server."""


def add_watch(watch: Any) -> None:
    watch.description = (
        "Show a run while it goes on, as a page on this machine or in the terminal: rounds, sites in and missing, "
        "scores by site, time left, refused updates, the log. It only reads."
    )
    _add_run(watch)
    watch.add_argument("--text", action="store_true", help="lines in the terminal in place of a page, until it ends")
    watch.add_argument("--port", type=int, default=0, metavar="N", help="the page's port (default: any that is free)")
    watch.add_argument("--open", action="store_true", help="open the page in this machine's browser")
    watch.set_defaults(func=show)


def add_status(status: Any) -> None:
    _add_run(status)
    status.set_defaults(func=say)


def _add_run(parser: Any) -> None:
    parser.add_argument(
        "run",
        type=Path,
        metavar="WORKSPACE_OR_KIT",
        help="the workspace or folder of a run, the kit of a federation's coordinator, or the server's kit",
    )
    parser.add_argument("--job", metavar="ID", help="of a kit: this job (default: the newest that runs)")


def show(args: argparse.Namespace) -> int:
    if args.text and (args.port or args.open):
        raise ConfigError("options-clash", "--port and --open are for the page: leave out --text or them")
    source, interval = open_source(args.run, args.job)
    try:
        return _lines(source, interval) if args.text else _page(source, interval, args)
    except KeyboardInterrupt:  # who stops watching has not stopped the run
        return 0
    finally:
        source.close()


def say(args: argparse.Namespace) -> int:
    source, _ = open_source(args.run, args.job)
    try:
        snapshot = source.read()
    finally:
        source.close()
    if snapshot.progress is None and snapshot.problem:
        warn_of_expiry(args.run)  # it may be the reason
        raise ConfigError("no-run", snapshot.problem)
    print(line(snapshot))
    warn_of_expiry(args.run)
    return int(snapshot.failed)


def warn_of_expiry(kit: Path) -> None:
    """Say on the standard error that the certificate in a kit ends soon; nothing of a folder that is no kit."""
    from fedshift.federation.certificate_dates import expiry_notice

    notice = expiry_notice(kit)
    if notice is not None:
        print(printable(f"fedshift: warning: {notice}"), file=sys.stderr)


def open_source(path: Path, job_id: str | None) -> tuple[Source, float]:
    """What to watch, and the seconds between two looks at it."""
    from fedshift.federation.run_lock import was_killed
    from fedshift.flare.workspaces import RunFolders
    from fedshift.reporting.watch.snapshot import RunFile

    if not path.is_dir():
        raise ConfigError(
            "not-a-folder", f"{path} is no folder: name the workspace of a run, such as runs/fedfa_prostate, or a kit"
        )
    startup = path / "startup"
    if (startup / "fed_admin.json").is_file():
        from fedshift.flare.kit import console_user
        from fedshift.flare.watched_job import WatchedJob

        return WatchedJob(path, user=console_user(path) or "", job_id=job_id), ASKED
    if (startup / "fed_client.json").is_file():
        raise ConfigError(
            "wrong-kit", f"{path} is a site's kit, and sites see no others: name the coordinator's or the server's"
        )
    if (startup / "fed_server.json").is_file():
        jobs = [file.parent for file in path.glob(f"{job_id or '*'}/{FILE_NAME}")]
        if not jobs:
            raise ConfigError(
                "no-run", f"{path} holds no {FILE_NAME} of {'a job' if job_id is None else f'job {job_id}'}"
            )
        newest = max(jobs, key=lambda folder: (folder / FILE_NAME).stat().st_mtime)
        return RunFile([newest], where=f"{newest}"), ON_THIS_MACHINE
    if job_id is not None:
        raise ConfigError("options-clash", f"--job is for kits, and {path} is none: leave it out, or name the kit")
    folders = RunFolders(path)
    if not (path / FILE_NAME).is_file() and not folders.server.parent.is_dir() and not folders.log.is_file():
        inside = sorted(file.parent for file in path.glob(f"**/{FILE_NAME}"))
        if inside:
            raise ConfigError("several-runs", f"{path} holds {len(inside)} runs: name one of them, such as {inside[0]}")
        raise ConfigError(
            "no-run", f"{path} holds no run: name the workspace that 'fedshift run' has begun to write, or a kit"
        )
    return RunFile([path, folders.server], where=f"{path}", was_killed=partial(was_killed, path)), ON_THIS_MACHINE


def line(snapshot: Snapshot) -> str:
    """A snapshot in one line, without characters that would make more of it."""
    progress = snapshot.progress
    if progress is None:
        return _in_a_line(f"{snapshot.where}: {snapshot.problem or snapshot.waits_for}")
    parts = [f"{progress.job or snapshot.where}: {progress.state}"]
    if progress.state == "finished":
        stage = counted(progress.rounds, "round") if progress.rounds else "models scored"
        parts.append(f"{'PHANTOM ' if progress.phantom else ''}{stage}")
    else:
        parts.append(describe(progress))
    if not snapshot.ended and progress.sites_in and progress.awaited:
        parts.append(f"awaited: {' '.join(progress.awaited)}")
    if progress.best_score is not None:
        parts.append(f"best {progress.best_score:.3f} (round {progress.best_round})")
    if progress.n_refused:
        parts.append(f"{counted(progress.n_refused, 'update')} refused")
    parts += [reason for reason in (progress.reason, snapshot.problem) if reason]
    return _in_a_line(", ".join(parts))


def _in_a_line(text: str) -> str:
    return printable(" ".join(text.split()))


def _lines(source: Source, interval: float) -> int:
    """Lines as those of ``fedshift run``, until the run has ended."""
    snapshot = source.read()
    problem = ""
    with make_display(phantom=snapshot.progress is not None and snapshot.progress.phantom) as display:
        while True:
            if snapshot.problem and snapshot.problem != problem:
                print(printable(snapshot.problem), flush=True)
            problem = snapshot.problem
            if snapshot.progress is not None or not snapshot.problem:
                display.show(snapshot.progress)
            if snapshot.ended:
                break
            time.sleep(interval)
            snapshot = source.read()
    print(line(snapshot), flush=True)
    return int(snapshot.failed)


def _page(source: Source, interval: float, args: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    from fedshift.reporting.watch.server import WatchServer

    with WatchServer(source, port=args.port, interval=interval) as server, tempfile.TemporaryDirectory() as folder:
        print(f"{server.url}\nOpen this address in a browser on this machine; Ctrl-C ends the page, not the run.")
        port = server.server_address[1]
        print(f"From another machine: ssh -L {port}:127.0.0.1:{port} THIS_MACHINE, and open it there.", flush=True)
        if args.open:
            _open(server.url, Path(folder))
        server.serve_forever()
    return 0


def _open(url: str, folder: Path) -> None:
    """Open the page by way of a file that only this user may read: a browser's command line is there for all to see."""
    file = folder / "watch.html"
    file.touch(mode=0o600)
    file.write_text(
        f'<meta charset="utf-8"><meta http-equiv="refresh" content="0; url={escape(url)}">', encoding="utf-8"
    )
    graphical = (
        os.name == "nt"
        or os.uname().sysname == "Darwin"
        or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    )
    if not graphical or not webbrowser.open(file.as_uri()):
        print("No browser could be opened here.", flush=True)
