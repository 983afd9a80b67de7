"""``fedshift data phantom``: write the simulated data of six sites, of the prostate or of the eye."""

from __future__ import annotations

import argparse
import shlex
import time
from pathlib import Path

from fedshift.cli.display import console
from fedshift.cli.prepared import progress
from fedshift.data.locate import DATA, phantom_home
from fedshift.schema.errors import ConfigError
from fedshift.schema.names import comma_separated

TASKS = ("prostate", "fundus")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "phantom",
        help="write simulated scans or pictures of six sites, to try things out",
        description="Write simulated T2-like pelvis scans, or photographs of the optic disc, of six sites (no "
        "patients) as prepared site folders.",
    )
    parser.add_argument("--task", choices=TASKS, default=TASKS[0], help="for which task (default %(default)s)")
    parser.add_argument("--out", type=Path, metavar="ROOT", help=f"folder to write to (default {phantom_home()})")
    parser.add_argument("--seed", type=int, default=0, help="decides every number (default 0)")
    parser.add_argument(
        "--sites",
        type=comma_separated,
        metavar="A,B",
        help="some of BIDMC,HK,I2CVB,BMC,RUNMC,UCL, or of DRISHTI,RIMONE,REFUGE_TRAIN,REFUGE_VAL,NEW_A,NEW_B (default "
        "all)",
    )
    parser.add_argument("--cases", type=int, metavar="N", help="patients a site (default 8, of the eye 20)")
    parser.add_argument("--matrix", metavar="M,N", help="image sizes to cache right away (default 96)")
    parser.add_argument("--zones", action="store_true", help="two zones of the gland as classes, not the whole gland")
    parser.add_argument("--sequences", type=int, default=1, metavar="N", help="2: an ADC map beside T2 (default 1)")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Write the phantom with a progress bar; returns the exit code."""
    from data_prep.phantom import CASES, dataset_of, make_phantom
    from data_prep.phantom_scanner import SCANNERS

    if args.seed < 0:
        raise ConfigError("invalid-value", f"--seed must be 0 or more, not {args.seed}")
    root = (args.out or phantom_home()).absolute()
    if args.task == "fundus":
        return _fundus(args, root)
    try:
        matrices = [int(part) for part in (args.matrix or "96").split(",")]
    except ValueError:
        raise ConfigError(
            "invalid-value", f"--matrix {args.matrix!r} is not a list of whole numbers such as 96,128"
        ) from None
    total = len(SCANNERS if args.sites is None else args.sites) * (CASES if args.cases is None else args.cases)
    started = time.monotonic()
    with progress(total) as on_case:
        make_phantom(
            root,
            seed=args.seed,
            sites=args.sites,
            cases=args.cases,
            matrices=matrices,
            zones=args.zones,
            sequences=args.sequences,
            progress=on_case,
        )
    return _say(root, dataset_of(zones=args.zones, sequences=args.sequences), total, started)


def _fundus(args: argparse.Namespace, root: Path) -> int:
    from data_prep.phantom_fundus import CAMERAS, CASES, DATASET, make_fundus

    options = {"--matrix": args.matrix is not None, "--zones": args.zones, "--sequences": args.sequences != 1}
    if asked := [option for option, is_set in options.items() if is_set]:
        message = f"{asked[0]} is of the prostate's phantom, and --task is fundus: leave it out"
        raise ConfigError("options-clash", message)
    total = len(CAMERAS if args.sites is None else args.sites) * (CASES if args.cases is None else args.cases)
    started = time.monotonic()
    with progress(total) as on_case:
        make_fundus(root, seed=args.seed, sites=args.sites, cases=args.cases, progress=on_case)
    return _say(root, DATASET, total, started)


def _say(root: Path, dataset: str, total: int, started: float) -> int:
    seconds = f"{time.monotonic() - started:.0f} s"
    console.print(f"Phantom (simulated, no patients): {total} cases in {seconds}, in {root / dataset}", markup=False)
    if root != phantom_home().absolute():
        print("For runs to find these data:")
        print(f"export {DATA}={shlex.quote(str(root))}")
    return 0
