"""``--guarantee`` of ``predict`` and ``evaluate``: what a model promises, and the calibration on one's own cases."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.schema.errors import ConfigError
from fedshift.schema.job import EvaluationSpec

if TYPE_CHECKING:
    from fedshift.inference.model import Model
    from fedshift.inference.promise import Promised
    from fedshift.schema.guarantee import Curve


def add_guarantee(parser: Any, what: str) -> None:
    """Add ``--guarantee``."""
    parser.add_argument("--guarantee", type=float, metavar="SHARE", help=what)


def add_calibration(parser: Any) -> None:
    """Add ``--guarantee`` and ``--calibrated``, as `calibrate` reads them."""
    add_guarantee(
        parser,
        "what these cases promise to new patients here: levels at which outlines, or sets of classes, miss on average "
        "no more than this share, 0.1 for example",
    )
    parser.add_argument(
        "--calibrated", type=Path, metavar="FILE", help="with --guarantee: the model with what it promises, for predict"
    )


def check_calibration(args: argparse.Namespace) -> None:
    """Refuse one of the two without the other, a share that is none, and a file that exists (ConfigError)."""
    if (args.guarantee is None) != (args.calibrated is None):
        message = (
            "--guarantee and --calibrated go together: the share to promise, and the file for the calibrated model"
        )
        raise ConfigError("options-clash", message)
    if args.guarantee is not None:
        EvaluationSpec.parse({"guarantee": args.guarantee}, where=f"--guarantee {args.guarantee:g}")
        if args.calibrated.exists() and not args.force:
            message = (
                f"{args.calibrated} already exists: name another file with --calibrated, or replace it with --force"
            )
            raise ConfigError("output-exists", message)


def calibrate(
    model: Model, curves: Mapping[str, Curve], names: Sequence[str], args: argparse.Namespace, *, statistics: str
) -> bool:
    """Write the model with what labelled cases here promise; whether that is anything. It is printed."""
    from fedshift.federation.model_files import add_guarantee as write_guarantee
    from fedshift.inference.promise import of_hospital, own_guarantee

    guarantee = own_guarantee(curves, names, args.guarantee, statistics)
    promise = of_hospital(guarantee)
    show(promise, outlines=model.is_segmentation)
    adaptation = model.header.adaptation
    if adaptation is not None and adaptation.decision != "kept" and adaptation.labelled:
        caveat = "if any is among these, nothing is promised: calibrate on other patients"
        print(f"warning: {model.path} was adapted on {adaptation.labelled} labelled cases: {caveat}")
    if promise.covered:
        write_guarantee(model.path, guarantee, path=args.calibrated)
        print(f"calibrated model: {args.calibrated}")
    return bool(promise.covered)


def show(promise: Promised, *, outlines: bool) -> None:
    """Print what is promised and to whom, and what is not covered."""
    for line in promise.lines(outlines=outlines) if promise.covered else ():
        print(line)
    for sentence in promise.uncovered():
        print(f"  {sentence}" if promise.covered else sentence)
