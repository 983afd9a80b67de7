"""``fedshift postprocess``: a model with another choice of what its masks keep; the weights stay as they are."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, cast

from fedshift.cli.arguments import check_new_model
from fedshift.schema.errors import ConfigError
from fedshift.schema.names import comma_separated

ABOUT = """Write a model whose masks keep only the largest connected part of some structures, or of none.

Compare it with the model as it is on validation cases of the sites before you use it:

  fedshift postprocess best.pt --largest-component all --out largest.pt
  fedshift job --evaluate best.pt largest.pt TASK --part val

and then name those structures alone that gain by it. Scores in the file are of masks as they were, and are left out.
"""
ALL, NONE = "all", "none"


def add_arguments(parser: Any) -> None:
    parser.description, parser.formatter_class = ABOUT, argparse.RawDescriptionHelpFormatter
    parser.add_argument("model", type=Path, metavar="MODEL", help="best_global_model.pt of a run, for example")
    parser.add_argument(
        "--largest-component",
        type=comma_separated,
        required=True,
        metavar="A,B",
        help=f"the structures of which only the largest part is kept; {ALL} or {NONE}",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="MODEL2", help="the model file to write")
    parser.add_argument("--force", action="store_true", help="replace MODEL2 if it exists")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    from fedshift.federation.model_files import write_postprocessed
    from fedshift.inference.model import open_model
    from fedshift.reporting.report.wording import listed
    from fedshift.runtime.segmentation import PatchSpec
    from fedshift.schema.job import EvaluationSpec
    from fedshift.tasks.kinds import build_task
    from fedshift.tasks.segmentation.patch_task import Task as PatchTask

    model = open_model(args.model)
    check_new_model(args.out, args.model, force=args.force)
    if not (model.is_segmentation and isinstance(model.spec, PatchSpec)):
        message = "does not segment by patches, and only such models keep largest parts: use it as it is"
        raise ConfigError("wrong-task", f"{model.path} {message}")
    names = args.largest_component
    if not names or (len(names) > 1 and {ALL, NONE} & {*names}):
        raise ConfigError("invalid-value", f"--largest-component: name structures, or {ALL} or {NONE} by itself")
    before = model.header.job
    options = {**before.evaluation.model_dump(), "largest_component": {ALL: True, NONE: False}.get(names[0], names)}
    job = before.model_copy(update={"evaluation": EvaluationSpec.parse(options, where="--largest-component")})
    kept = cast(PatchTask, build_task(job)).spec.largest_component
    if kept == model.spec.largest_component:
        raise ConfigError("no-effect", f"{model.path} does so already: name other structures, or use it as it is")
    write_postprocessed(args.model, args.out, job=job)
    what = listed([model.structures[number - 1] for number in kept]) or "no structure"
    print(f"of {what} only the largest part is kept")
    print(f"model: {args.out} (the same weights)")
    return 0
