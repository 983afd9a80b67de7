"""``fedshift adapt``."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.cli import own_scans
from fedshift.cli.arguments import add_shared, check_new_model
from fedshift.cli.display import steps_shown
from fedshift.cli.model_choice import add_choice, choice, describe, print_statistics
from fedshift.schema.errors import ConfigError
from fedshift.schema.names import printable

if TYPE_CHECKING:
    from fedshift.inference.adaptation.decision import Outcome
    from fedshift.inference.model import Model
    from fedshift.schema.adaptation import Part

ABOUT = """Adapt a model to the scans of one hospital, if there is evidence that this helps.

With --masks, of one to ten cases or more, it is fine-tuned, and goes half of the way from the weights that it had to
those after training; for how long it trains, and whether it is worth it, is decided by cross-validation over these
cases. Without masks the norm layers are adapted to the scans; the evidence is then how the model's outlines agree with
those of the same scans altered.

Where the evidence does not say that the model is better, it is kept: MODEL2 then holds the same weights. Either way it
says what was found, on how many cases. Nothing of a case is in it.
"""


FOR_MASKS = ("part", "label", "annotated", "sequence", "subject", "empty", "trust_voxels", "interpolate")
"""Options that say nothing of scans without masks."""


def add_arguments(parser: Any) -> None:
    parser.description, parser.formatter_class = ABOUT, argparse.RawDescriptionHelpFormatter
    parser.add_argument("model", type=Path, metavar="MODEL", help="best_global_model.pt of a run, for example")
    parser.add_argument("--images", type=Path, metavar="DIR", help="the scans; with masks also a pattern in quotes")
    parser.add_argument("--masks", type=Path, metavar="DIR", help="their masks, with the same names; or a pattern")
    parser.add_argument("--source", type=Path, metavar="DIR", help="a folder with images and masks in a usual layout")
    own_scans.add_meaning(parser)
    add_shared(parser, "--subject", "--trust-voxels", "--interpolate", "--empty")
    parser.add_argument("--out", type=Path, required=True, metavar="MODEL2", help="the model file to write")
    parser.add_argument(
        "--part",
        choices=("norm", "decoder", "all"),
        help="with masks: train this part of the network (default: all)",
    )
    parser.add_argument(
        "--by",
        choices=("statistics", "entropy", "agreement"),
        help="without masks: adapt in this way (default: the one after which outlines agree best)",
    )
    parser.add_argument("--anyway", action="store_true", help="adapt it whatever the evidence says; the file tells so")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all random numbers (default: 0)")
    parser.add_argument("--force", action="store_true", help="replace MODEL2 if it exists")
    add_choice(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """``fedshift adapt``; the exit code is 0 whether the model is adapted or kept."""
    from fedshift.federation.model_files import write_adapted
    from fedshift.inference.model import open_model

    if args.seed < 0:
        raise ConfigError("invalid-value", f"--seed is {args.seed}: give a whole number from 0")
    model = open_model(args.model)
    _refuse_model(model)
    _refuse_options(args)
    for line in describe(model):
        print(line)
    outcome = _with_masks(args, model) if args.masks or args.source else _without_masks(args, model)
    write_adapted(args.model, args.out, weights=outcome.weights, adaptation=outcome.adaptation)
    print(printable(outcome.adaptation.reason))
    same = " (the same weights)" if outcome.adaptation.decision == "kept" else ""
    print(f"model: {args.out}{same}")
    return 0


def _refuse_model(model: Model) -> None:
    """Refuse what cannot be adapted, or not again."""
    if not model.is_segmentation:
        message = "classifies, and only models that segment can be adapted: use it as it is, with 'fedshift evaluate'"
        raise ConfigError("wrong-task", f"{model.path} {message}")
    if model.header.personal:
        message = (
            f"keeps {len(model.header.personal)} of its arrays at each site, and has none for another hospital: "
            "use 'fedshift predict --statistics own', or adapt a model without personal layers"
        )
        raise ConfigError("model-personal", f"{model.path} {message}")
    if model.header.adaptation is not None and model.header.adaptation.decision != "kept":
        message = "is adapted already: adapt the model that it was made from, with all the cases that there are"
        raise ConfigError("adapted-already", f"{model.path} {message}")


def _refuse_options(args: argparse.Namespace) -> None:
    check_new_model(args.out, args.model, force=args.force)
    if args.site_state is not None:
        message = "--site-state is of a site that took part: leave it out, and predict with it as it is"
        raise ConfigError("no-effect", message)
    labelled = args.masks is not None or args.source is not None
    if not labelled and args.images is None:
        raise ConfigError(
            "option-missing", "which scans? name their folder with --images, and with --masks their masks"
        )
    names, others = (("by",), "scans without masks") if labelled else (FOR_MASKS, "scans with masks")
    for name in names:
        if getattr(args, name):
            option = f"--{name.replace('_', '-')}"
            raise ConfigError("no-effect", f"{option} is for {others}: leave it out")


def _with_masks(args: argparse.Namespace, model: Model) -> Outcome:
    from fedshift.inference import scoring
    from fedshift.inference.adaptation import decision, fine_tuning

    sets, cases = own_scans.cases_for(model, args)
    for finding in (finding for folder in sets for finding in folder.findings):
        print(f"warning: {finding.sentence()}")
    ready = scoring.ready_for(model, cases, choice(args), device=args.device, true_spacing=args.true_spacing)
    print_statistics(ready)
    with tempfile.TemporaryDirectory(prefix="fedshift-") as root:
        subjects = scoring.subjects_of(sets)
        labelled = fine_tuning.open_cases(model, cases, subjects, Path(root), true_spacing=args.true_spacing)
        part: Part = args.part or "all"
        with steps_shown() as show:
            return decision.with_masks(ready, labelled, part=part, anyway=args.anyway, seed=args.seed, progress=show)


def _without_masks(args: argparse.Namespace, model: Model) -> Outcome:
    from fedshift.cli.scan_cases import find_scans
    from fedshift.inference import segment
    from fedshift.inference.adaptation import decision, unlabelled

    cases = find_scans(model, [args.images], volume=args.volume, true_spacing=args.true_spacing)
    ready = segment.ready_for(model, cases, choice(args), device=args.device, true_spacing=args.true_spacing)
    print_statistics(ready)
    scans = unlabelled.windows_of(model, cases, true_spacing=args.true_spacing)
    means = unlabelled.MEANS if args.by is None else (args.by,)
    return decision.without_masks(ready, scans, means=means, anyway=args.anyway, seed=args.seed)
