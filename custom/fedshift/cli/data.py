"""``fedshift data prepare …`` and ``fedshift data check``: the command lines of data_prep and data.check."""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedshift.cli import phantom
from fedshift.cli.parser import Parser
from fedshift.data.locate import DATA, data_home
from fedshift.schema.task_files import tasks

console = Console(soft_wrap=True, highlight=False)
MOST_LISTED = 20
"""With more sites than this, only their number is printed."""


def default_root() -> Path:
    """Where prepared data go: ``$FEDSHIFT_DATA``, else ``$XDG_DATA_HOME/fedshift`` (``~/.local/share``)."""
    given = os.environ.get(DATA)
    return Path(given).absolute() if given else data_home(os.environ)


class _PicturesParser(Parser):
    """Parses the options of a data set of pictures.

    Its module, which needs NumPy and Pillow, is imported only when there is something to parse: every command makes
    this parser.
    """

    def __init__(self, *, module: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._module = module

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As of every parser."""
        if self._module:
            module = importlib.import_module(self._module)
            self._module = ""
            self.description = module.__doc__
            if hasattr(module, "add_options"):
                module.add_options(self)
            self.set_defaults(func=_prepare_pictures, plan=module.plan)
        return super().parse_known_args(args, namespace)


def add_parsers(subparsers: Any) -> None:
    """Add ``fedshift data`` with its sub-commands."""
    parser = subparsers.add_parser("data", help="prepare and check a site's images")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_parsers(commands)
    phantom.add_parser(commands)


def _add_parsers(subparsers: Any) -> None:
    prepare = subparsers.add_parser("prepare", help="turn scans or pictures into a prepared site")
    kinds = prepare.add_subparsers(required=True, metavar="DATASET", parser_class=_PicturesParser)

    public = kinds.add_parser("prostate", help="a public prostate set, as downloaded and unpacked")
    public.add_argument("--source", type=Path, required=True, metavar="DIR", help="the unpacked download")
    public.add_argument("--sites", type=_names, metavar="A,B", help="only these sites (default: all)")
    _add_common(public)
    public.set_defaults(func=_prepare_prostate)

    own = kinds.add_parser("own", help="a hospital's own scans; call again to add or withdraw cases")
    own.add_argument("--images", type=Path, metavar="DIR", help="NIfTI, NRRD, MHA, or a DICOM series per folder")
    own.add_argument("--masks", type=Path, metavar="DIR", help="masks with the same names")
    own.add_argument("--site", required=True, metavar="NAME", help="the site's name in the federation")
    own.add_argument("--dataset", default="prostate", metavar="NAME", help="default: prostate")
    own.add_argument("--withdraw", nargs="+", default=[], metavar="ID", help="cases to remove")
    own.add_argument("--licence", metavar="TEXT", help="terms to note in the manifest")
    _add_common(own)
    own.set_defaults(func=_prepare_own)

    modules = {file.name.removesuffix(".py"): file for file in resources.files("data_prep").iterdir()}
    for name in sorted(modules.keys() & {*tasks()} - {*kinds.choices}):
        first_line = modules[name].read_text(encoding="utf-8").partition("\n")[0]
        pictures = kinds.add_parser(
            name,
            module=f"data_prep.{name}",
            help=first_line.strip('"'),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        pictures.add_argument("--source", type=Path, required=True, metavar="DIR", help="the download, see above")
        _add_out(pictures)
        pictures.add_argument(
            "--size", type=_sizes, metavar="N,M", help="sides in pixels (default: those of the task and its protocols)"
        )
        pictures.add_argument(
            "--skip-damaged",
            action="store_true",
            help="leave out pictures that cannot be read, and count them",
        )

    look = subparsers.add_parser("check", help="say what is wrong with scans or prepared sites")
    look.add_argument("dir", type=Path, metavar="DIR", help="a folder of scans, or prepared data")
    look.add_argument("--masks", type=Path, metavar="DIR", help="the masks, if they lie elsewhere")
    look.set_defaults(func=_check)


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, metavar="ROOT", help=f"default: {str(default_root()).replace('%', '%%')}")


def _add_common(parser: argparse.ArgumentParser) -> None:
    _add_out(parser)
    parser.add_argument("--matrix", type=_sizes, default=(), metavar="N,M", help="sizes to cache right away")
    parser.add_argument(
        "--trust-voxels",
        action="store_true",
        help="use masks whose header differs from the image's, if the number of voxels is the same",
    )


def _prepare_prostate(args: argparse.Namespace) -> int:
    from data_prep.prostate import plan_prostate, prepare_prostate

    total = sum(len(plan.cases) for plan in plan_prostate(args.source, sites=args.sites))
    with _progress(total) as tell:
        folders = prepare_prostate(
            args.source,
            args.out or default_root(),
            sites=args.sites,
            matrices=args.matrix,
            trust_voxels=args.trust_voxels,
            progress=tell,
        )
    for folder in folders:
        _tell_site(folder)
    _tell_export(args.out)
    return 0


def _prepare_pictures(args: argparse.Namespace) -> int:
    from data_prep.pictures import write_pictures
    from fedshift.schema.manifest import read_manifest

    options = {key: value for key, value in vars(args).items() if key in inspect.signature(args.plan).parameters}
    plan = args.plan(**options)
    with _progress(plan.total) as tell:
        folders = write_pictures(
            plan, args.out or default_root(), sizes=args.size, skip_damaged=args.skip_damaged, progress=tell
        )
    if len(folders) <= MOST_LISTED:
        for folder in folders:
            _tell_site(folder)
    else:
        written = sum(len(read_manifest(folder).pictures) for folder in folders)
        console.print(f"{len(folders)} sites, {written} pictures, in {folders[0].parent}", markup=False)
        console.print(f"  look at {folders[0].parent / 'montage.png'}", markup=False)
    _tell_export(args.out)
    return 0


def _prepare_own(args: argparse.Namespace) -> int:
    from data_prep.own import LICENCE, prepare_own

    with _progress(None) as tell:
        folder = prepare_own(
            args.images,
            args.masks,
            args.site,
            args.out or default_root(),
            dataset=args.dataset,
            withdraw=args.withdraw,
            matrices=args.matrix,
            licence=args.licence or LICENCE,
            trust_voxels=args.trust_voxels,
            progress=tell,
        )
    _tell_site(folder)
    _tell_export(args.out)
    return 0


def _check(args: argparse.Namespace) -> int:
    """Print the findings; the exit code is 1 if one of them is an error."""
    from fedshift.data.check import Counts, check

    counts = Counts()
    with _progress(None) as tell:
        findings = check(args.dir, masks=args.masks, progress=tell, counts=counts)
    for finding in findings:
        colour = "red" if finding.level == "error" else "yellow"
        console.print(f"[{colour}]{finding.level}[/{colour}] {escape(finding.sentence())}")
    errors = sum(finding.level == "error" for finding in findings)
    found = f"{errors} error(s), {len(findings) - errors} warning(s)"
    console.print(f"{args.dir}: {counts}: {found}", markup=False)
    return 1 if errors else 0


def _tell_site(folder: Path) -> None:
    from fedshift.schema.manifest import read_manifest

    manifest = read_manifest(folder)
    counts = ", ".join(f"{len(manifest.by_split(split))} {split}" for split in ("train", "val", "test"))
    what = "case(s)" if manifest.cases else "picture(s)"
    console.print(f"{manifest.site}: {len(manifest.entries)} {what} ({counts}) in {folder}", markup=False)
    about = []
    if manifest.counts is not None:
        totals = [sum(of_class[label] for of_class in manifest.counts.values()) for label in manifest.classes]
        about.append(f"{len(totals)} classes of {min(totals)} to {max(totals)} pictures")
    if (folder / "montage.png").is_file():
        about.append(f"look at {folder / 'montage.png'}")
    if about:
        console.print(f"  {'; '.join(about)}", markup=False)


def _tell_export(out: Path | None) -> None:
    """How other commands find data in ``out``, unless they look there anyway."""
    if out is not None and out.absolute() != default_root().absolute():
        print("For runs to find these data:")
        print(f"export {DATA}={shlex.quote(str(out.absolute()))}")


@contextmanager
def _progress(total: int | None) -> Iterator[Callable[[str], None]]:
    """Show a progress bar with the current case, on standard error so that results can be piped."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    screen = Console(stderr=True)
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("reading", total=total)
        begun = 0

        def tell(case: str) -> None:
            nonlocal begun
            bar.update(task, description=escape(case), completed=begun)
            begun += 1

        yield tell


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of sizes such as 384,128") from None
