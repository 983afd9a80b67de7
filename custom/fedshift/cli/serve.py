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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.cli import predict, predict_pacs
from fedshift.cli.arguments import add_shared, positive
from fedshift.cli.model_choice import add_choice
from fedshift.cli.pacs_access import add_query, archive_at
from fedshift.schema.codes import parse_codes
from fedshift.schema.errors import ConfigError, FedshiftError
from fedshift.schema.job import read_yaml
from fedshift.schema.names import printable

if TYPE_CHECKING:
    from fedshift.dicomweb.archive import Archive
    from fedshift.dicomweb.query import Query
    from fedshift.dicomweb.queue import Entry, Queue

ABOUT = """Look at a PACS again and again; fetch each new study that matches, segment its series, and store the
results, a study at a time. What has been seen, done and has failed is in --work, so that a restart goes on where the
last one ended. A study is taken when two looks in a row have found the same images.
"""
log = logging.getLogger("fedshift")
QUEUE, STUDIES, LOCK = "queue", "studies", ".serve.lock"


def add_arguments(parser: Any) -> None:
    parser.description = ABOUT
    parser.add_argument("model", type=Path, metavar="MODEL", help="as of 'fedshift predict'; it must segment scans")
    parser.add_argument("--from", dest="source", required=True, metavar="URL", help="the PACS to look at")
    add_query(parser, required=True)
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
        help="as of 'fedshift predict', once for each (default: mask and seg)",
    )
    parser.add_argument("--codes", type=Path, metavar="TASK", help="as of 'fedshift predict'")
    add_shared(parser, "--volume")
    add_choice(parser)
    parser.set_defaults(func=run, images=[], overlay=False, guarantee=None, bits=None, force=True)


def run(args: argparse.Namespace) -> int:
    """Watch until it is ended; with ``--once`` the exit code is 1 if a study has failed."""
    from fedshift.dicomweb.query import parse_query
    from fedshift.dicomweb.queue import STATES, Queue

    query = parse_query(args.query, args.sequence)
    archive = archive_at(args.source, args)
    predict_pacs.destination(args)
    _check_model(args)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a service is stopped by it, and the study waits on
    with _alone(args.work):
        queue = Queue(args.work / QUEUE)
        if args.retry:
            queue.retry()
        said = ""
        while True:
            failed = _look(queue, archive, query, args)
            former, said = said, ", ".join(f"{queue.counts[state]} {state}" for state in STATES)
            if said != former:
                print(said, flush=True)
            if args.once:
                return int(failed)
            time.sleep(args.every)


def _check_model(args: argparse.Namespace) -> None:
    """Refuse, before any study waits, what would be wrong with every one (`ConfigError`)."""
    from fedshift.inference import dicom_source
    from fedshift.inference.model import open_model
    from fedshift.inference.monai_bundle import open_bundle

    if args.statistics == "own":
        said = "--statistics own takes many scans of one scanner, and a study has few: use --site or --site-state"
        raise ConfigError("options-clash", said)
    model = open_bundle(args.model, device=args.device) if args.model.is_dir() else open_model(args.model)
    if model.of_pictures:
        raise ConfigError("kind-of-data", f"{args.model} segments pictures: name a model that segments scans")
    codes = None if args.codes is None else parse_codes(read_yaml(args.codes), where=str(args.codes))
    dicom_source.origin(model, codes)
    if args.format and not {*args.format} - {"mask"}:
        raise ConfigError("no-effect", "--format mask alone leaves nothing to store: add --format seg")


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


def _look(queue: Queue, archive: Archive, query: Query, args: argparse.Namespace) -> bool:
    """Look once and work on all that waits; whether a study has failed, or the PACS did not answer."""
    try:
        queue.look(archive, query)
    except FedshiftError as error:
        print(f"fedshift: {printable(str(error))}", file=sys.stderr, flush=True)
        return True
    failed = False
    while (entry := queue.start()) is not None:
        said = _work_on(entry, queue, args)
        failed |= said is not None
        if said == "":
            break
    return failed


def _work_on(entry: Entry, queue: Queue, args: argparse.Namespace) -> str | None:
    """Fetch, segment and store a study. None if it is done, why not if it has failed, "" if the PACS is away."""
    from fedshift.dicomweb.archive import FATAL

    print(f"study {entry.study}", flush=True)
    folder, errors = args.work / STUDIES / entry.study, io.StringIO()
    words = [word for word in args.query if not word.startswith("StudyInstanceUID=")]
    asked = argparse.Namespace(**{**vars(args), "query": [*words, f"StudyInstanceUID={entry.study}"], "out": folder})
    try:
        with contextlib.redirect_stderr(errors):
            failed = predict.run(asked)
    except FedshiftError as error:
        if error.code in FATAL:
            queue.put_back(entry)
            print(f"fedshift: {printable(str(error))}", file=sys.stderr, flush=True)
            return ""
        errors.write(str(error))
        failed = 1
    except KeyboardInterrupt:
        queue.put_back(entry)
        raise
    except Exception as error:  # of no study that follows
        log.exception("study %s", entry.study)
        errors.write(f"study {entry.study}: fedshift did not expect this ({type(error).__name__}): see the log")
        failed = 1
    said = " ".join(errors.getvalue().replace("fedshift: ", "").split())
    if not failed:
        shutil.rmtree(folder / predict_pacs.FOLDER, ignore_errors=True)  # the images: the PACS has them
        queue.finish(entry)
        return None
    queue.finish(entry, error=said)
    print(printable(f"failed: {said}"), file=sys.stderr, flush=True)
    return said
