"""``fedshift serve``: results for each new study of a PACS."""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.cli import predict, predict_classes, predict_pacs
from fedshift.cli.arguments import add_shared, positive
from fedshift.cli.model_choice import add_choice, add_models
from fedshift.cli.opened_model import OpenedModel, open_for
from fedshift.cli.pacs_access import add_query, archive_at, check_access, node_of, port
from fedshift.cli.predict_pacs import Source
from fedshift.schema.errors import ConfigError, FedshiftError
from fedshift.schema.names import printable

if TYPE_CHECKING:
    from fedshift.pacs.archive import Archive
    from fedshift.pacs.queue import Entry, Queue
    from fedshift.pacs.received import Received

ABOUT = """Look at a PACS again and again, or listen for what scanners and routers send (C-STORE); segment the series of
each new study that matches, and store the results, a study at a time. What has been seen, done and has failed is in
--work, so that a restart goes on where the last one ended. A study is taken when two looks in a row have found the same
images.
"""
log = logging.getLogger("fedshift")
QUEUE, STUDIES, RECEIVED, LOCK = "queue", "studies", "received", ".serve.lock"
DAYS = 7


def add_arguments(parser: Any) -> None:
    parser.description = ABOUT
    parser.add_argument(
        "model", type=Path, metavar="MODEL", help="as of 'fedshift predict', but for one that segments pictures"
    )
    whence = parser.add_mutually_exclusive_group(required=True)
    whence.add_argument(
        "--from",
        dest="source",
        metavar="PACS",
        help="the PACS to look at: https://…, dimse+tls://AE_TITLE@machine:port or dimse://AE_TITLE@machine:port",
    )
    whence.add_argument(
        "--listen", metavar="[HOST:]PORT", help="listen there as a DICOM node, for what the nodes of --accept send"
    )
    parser.add_argument(
        "--accept", action="append", default=[], metavar="AE_TITLE", help="of --listen: who may send, once for each"
    )
    parser.add_argument(
        "--keep",
        type=positive,
        metavar="DAYS",
        help=f"of --listen: for how long images stay here that came and are done or did not match (default: {DAYS})",
    )
    add_query(parser, required=False)
    predict_pacs.add_destination(parser, required=True)
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="for the queue and the results")
    parser.add_argument(
        "--every", type=positive, default=60, metavar="SECONDS", help="how often it looks (default: every 60 seconds)"
    )
    parser.add_argument("--once", action="store_true", help="look once, work on what waits, and end: for cron")
    parser.add_argument("--retry", action="store_true", help="also try those studies again that have failed")
    parser.add_argument(
        "--format",
        action="append",
        default=[],
        choices=("mask", "seg", "rtstruct", "sr"),
        help="as of 'fedshift predict', once for each (default: mask and seg; of a model that classifies, sr)",
    )
    parser.add_argument("--codes", type=Path, metavar="TASK", help="as of 'fedshift predict'")
    add_shared(parser, "--volume", "--bits")
    add_models(parser)
    add_choice(parser)
    parser.set_defaults(func=run, images=[], overlay=False, guarantee=None, force=True)


def run(args: argparse.Namespace) -> int:
    """Watch until it is ended; with ``--once`` the exit code is 1 if a study has failed."""
    from fedshift.pacs.queue import STATES, Queue

    _check(args)
    target = predict_pacs.destination(args)
    model = KeptModel(args)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a service is stopped by it, and the study waits on
    with _alone(args.work), _source(args) as (source, received):
        work = Work(args, Queue(args.work / QUEUE), model, source, target)
        if args.retry:
            work.queue.retry()
        line = ""
        while True:
            failed = work.look()
            counts = work.queue.counts
            former, line = line, ", ".join(f"{counts[state]} {state}" for state in STATES)
            if line != former:
                print(line, flush=True)
            if args.once:
                return int(failed)
            if received is not None:
                for study in received.remove(days=args.keep or DAYS, keep=work.queue.unsettled):
                    print(f"study {study}: its images are removed from here", flush=True)
            time.sleep(args.every)


def _check(args: argparse.Namespace) -> None:
    """Refuse options that do not go together (`ConfigError`)."""
    if args.listen is None:
        if not args.query:
            raise ConfigError("options-clash", "--from takes every study that a PACS has: say which with --query")
        for option, value in {"--accept": args.accept, "--keep": args.keep}.items():
            if value:
                raise ConfigError("no-effect", f"{option} is of --listen, which is not there: leave it out")
    elif not args.accept:
        raise ConfigError("options-clash", "--listen takes images of nodes that are named: name theirs with --accept")
    elif args.once:
        raise ConfigError("options-clash", "--once ends before anything can be sent: leave it out, or --listen")
    listener = "dimse://" if args.listen is not None else None  # it has options of DIMSE too
    check_access(args, args.source, args.target, listener)
    if args.statistics == "own":
        message = "--statistics own takes many scans of one scanner, and a study has few: use --site or --site-state"
        raise ConfigError("options-clash", message)
    if args.format and not {*args.format} - {"mask"}:
        raise ConfigError("no-effect", "--format mask alone leaves nothing to store: add --format seg")


@contextmanager
def _source(args: argparse.Namespace) -> Iterator[tuple[Source, Received | None]]:
    """Where studies come from; and the folder of those that are sent here, if it is that."""
    from fedshift.pacs.archive import Archive
    from fedshift.pacs.query import parse_query

    query = parse_query(args.query, args.sequence, all_if_none=args.listen is not None)
    if args.listen is None:
        yield Source(archive_at(args.source, args), query), None
        return
    from fedshift.pacs.dimse.listener import Listening, listening
    from fedshift.pacs.received import Received

    host, _, at = args.listen.rpartition(":")
    where = Listening(node_of(args), host.strip("[]"), _port(at), args.accept)
    received = Received(args.work / RECEIVED)
    with listening(where, received, ca_file=args.ca_file, allow_unencrypted=args.allow_unencrypted):
        print(f"{where.node.title} listens at {args.listen} for {', '.join(args.accept)}", flush=True)
        yield Source(Archive(received), query), received


def _port(text: str) -> int:
    try:
        return port(text)
    except argparse.ArgumentTypeError as error:
        raise ConfigError("listen-address", f"--listen: {error}: write 11112, or 127.0.0.1:11112") from None


class KeptModel:
    """The model, read once, and again when its file is another."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._opened = self._read()

    def current(self) -> OpenedModel:
        """The model of the file as it is now.

        Raises:
            ConfigError: the file has changed and cannot be used.
        """
        if self._opened.has_changed:
            self._opened = self._read()
            print(f"{self._args.model} has changed, and was read again", flush=True)
        return self._opened

    def _read(self) -> OpenedModel:
        """Refuse, before any study waits, what would be wrong with every one (`ConfigError`)."""
        opened = open_for(self._args)
        predict_pacs.require_results(opened)
        if opened.classifies:
            predict_classes.check(opened.classifier, self._args)
        opened.origin(self._args.codes)
        return opened


@contextmanager
def _alone(work: Path) -> Iterator[None]:
    """See that no other process works in a folder."""
    from fedshift.federation.run_lock import owner_of, take

    work.mkdir(parents=True, exist_ok=True)
    try:
        lock = take(work / LOCK)
    except BlockingIOError:
        owner = owner_of(work / LOCK)
        raise ConfigError(
            "run-in-use",
            f"{work} is in use by another 'fedshift serve' (process {owner}): end it, or name another --work",
        ) from None
    with lock:
        yield


@dataclass(frozen=True)
class Work:
    """What a watcher works with."""

    args: argparse.Namespace
    queue: Queue
    model: KeptModel
    source: Source
    target: Archive | None

    def look(self) -> bool:
        """Look once and work on all that waits; whether a study has failed, or the PACS did not answer."""
        try:
            self.queue.look(self.source.archive, self.source.query)
        except FedshiftError as error:
            _say(str(error))
            return True
        failed = False
        while (entry := self.queue.start()) is not None:
            reason = self._study(entry)
            failed |= reason is not None
            if reason == "":
                break
        return failed

    def _study(self, entry: Entry) -> str | None:
        """Fetch, segment and store a study.

        Returns:
            None if it is done, why not if it has failed, "" if it waits on: for the PACS, or for a model.
        """
        from fedshift.pacs.archive import FATAL

        try:
            opened = self.model.current()
        except FedshiftError as error:
            self.queue.put_back(entry)
            _say(str(error))
            return ""
        print(f"study {entry.study}", flush=True)
        folder, errors, query = self.args.work / STUDIES / entry.study, io.StringIO(), self.source.query
        query = replace(query, study={**query.study, "StudyInstanceUID": entry.study})
        asked = argparse.Namespace(**{**vars(self.args), "out": folder})
        try:
            with contextlib.redirect_stderr(errors):
                images = Source(self.source.archive, query)
                failed = predict.predict(opened, asked, source=images, target=self.target)
        except FedshiftError as error:
            if error.code in FATAL:
                self.queue.put_back(entry)
                _say(str(error))
                return ""
            errors.write(str(error))
            failed = 1
        except KeyboardInterrupt:
            self.queue.put_back(entry)
            raise
        except Exception as error:  # of no study that follows
            log.exception("study %s", entry.study)
            errors.write(f"study {entry.study}: fedshift did not expect this ({type(error).__name__}): see the log")
            failed = 1
        reason = " ".join(errors.getvalue().replace("fedshift: ", "").split())
        if not failed:
            shutil.rmtree(folder / predict_pacs.FOLDER, ignore_errors=True)  # the images: whoever sent them has them
            self.queue.finish(entry)
            return None
        self.queue.finish(entry, error=reason)
        print(printable(f"failed: {reason}"), file=sys.stderr, flush=True)
        return reason


def _say(error: str) -> None:
    print(f"fedshift: {printable(error)}", file=sys.stderr, flush=True)
