"""The command ``fedshift compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.cli.arguments import add_shared

if TYPE_CHECKING:
    import argparse


def add_parsers(subparsers: Any) -> None:
    """Add the command."""
    compare = subparsers.add_parser(
        "compare",
        help="run a grid of tasks, methods, options and seeds, and make tables",
        description="Run the cells of a comparison in parallel, each only once, and write cells.json, table.csv, "
        "table.md, table.tex, curves.csv and curves.svg. Repeat the command to resume it. Exit code 1: some cells "
        "failed.",
    )
    add = compare.add_argument
    add("spec", type=Path, metavar="SPEC", help="a .yaml file; with --tables-only also a cells.json")
    add("--scale", metavar="NAME", help="a scale of the spec (default: quick, else its first)")
    add("--only", nargs="+", default=[], metavar="LABEL", help="run only cells with these labels")
    rows = "run only these rows; one that the spec does not have is added, such as a method of your own"
    add("--methods", nargs="+", default=[], metavar="METHODS", help=rows)
    options = "options for the rows of --methods, which are then rows of their own"
    add("--set", nargs="+", default=[], metavar="KEY=VALUE", help=options)
    add("--seeds", nargs="+", type=int, default=[], metavar="N", help="run only these of the seeds")
    add("--folds", nargs="+", type=int, default=[], metavar="N", help="run only these of the folds")
    add("--again", action="store_true", help="run the chosen cells anew, also those that have finished")
    add("--dry-run", action="store_true", help="resolve and estimate all cells, but run none")
    add("--flare", action="store_true", help="run in FLARE's simulator, one cell after another")
    add("--jobs", type=int, metavar="N", help="cells in parallel (default: as cores and memory allow)")
    cells = Path("runs/cells")
    add("-w", "--workspace", type=Path, default=cells, metavar="DIR", help=f"folder of the cells (default: {cells})")
    add("--out", type=Path, metavar="DIR", help="folder of the tables (default: runs/<name>_<scale>)")
    add("--tables-only", action="store_true", help="make the tables again from cells.json alone")
    add_shared(compare, "--phantom")
    compare.set_defaults(func=compare_command)


def compare_command(args: argparse.Namespace) -> int:
    """The command ``fedshift compare``."""
    from fedshift.schema.errors import ConfigError
    from fedshift_bench.compare import Command, show
    from fedshift_bench.record import FILE_NAME, read_comparison
    from fedshift_bench.spec import DOMAINS, folder_name, read_spec

    if args.tables_only and (args.spec.is_dir() or args.spec.name == FILE_NAME):
        return show(read_comparison(args.spec), args.out or (args.spec if args.spec.is_dir() else args.spec.parent))
    if args.jobs is not None and args.jobs < 1:
        raise ConfigError("option-value", "--jobs must be 1 or more")
    if args.flare and args.jobs not in (None, 1):
        what = "--flare runs cells one after another, each with its sites in parallel on all cores"
        raise ConfigError("options-together", f"{what}: leave out --jobs")
    if args.set and not args.methods:
        what = "--set is for the rows of --methods"
        raise ConfigError("options-together", f"{what}: name them, or change the spec's options")
    spec, scale = read_spec(args.spec, args.scale)
    if args.flare and DOMAINS in spec.parts("federation"):
        what = "--flare: sites do not send the gradients that domains need (part: domains)"
        raise ConfigError("options-together", f"{what}: leave it out")
    out = args.out or Path("runs") / folder_name(spec.name, scale)
    if args.tables_only:
        return show(read_comparison(out), out)
    return Command(args, spec, scale, out.absolute()).run()
