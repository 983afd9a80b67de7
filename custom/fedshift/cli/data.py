"""The commands ``fedshift data prepare`` and ``fedshift data check``."""

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
MAX_SITES_LISTED = 20
"""With more sites than this, only their number is printed."""


def default_root() -> Path:
    """The default folder of prepared data: ``$FEDSHIFT_DATA``, or ``$XDG_DATA_HOME/fedshift`` (``~/.local/share``)."""
    given = os.environ.get(DATA)
    return Path(given).absolute() if given else data_home(os.environ)


class _PicturesParser(Parser):
    """Parser for the options of an image data set.

    Every fedshift command creates this parser, so the data set's module, which needs NumPy and Pillow, is imported only
    when its options are parsed.
    """

    def __init__(self, *, module: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._module = module

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Import the data set's module, add its options, then parse."""
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
    prepare = subparsers.add_parser("prepare", help="convert scans or images to a prepared site")
    kinds = prepare.add_subparsers(required=True, metavar="DATASET", parser_class=_PicturesParser)

    public = kinds.add_parser("prostate", help="a public prostate data set, downloaded and unpacked")
    public.add_argument("--source", type=Path, required=True, metavar="DIR", help="the unpacked download")
    public.add_argument("--sites", type=_names, metavar="A,B", help="only these sites (default: all)")
    _add_common(public)
    public.set_defaults(func=_prepare_prostate)

    own = kinds.add_parser("own", help="a hospital's own scans; run again to add or withdraw cases")
    own.add_argument(
        "--images", type=Path, metavar="DIR", help="NIfTI, NRRD or MHA files, or one folder per DICOM series"
    )
    own.add_argument("--masks", type=Path, metavar="DIR", help="masks with the same names as the images")
    own.add_argument("--site", required=True, metavar="NAME", help="the site's name in the federation")
    own.add_argument("--dataset", default="prostate", metavar="NAME", help="default: prostate")
    own.add_argument("--withdraw", nargs="+", default=[], metavar="ID", help="cases to remove")
    own.add_argument("--licence", metavar="TEXT", help="licence terms, stored in the manifest")
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
        pictures.add_argument(
            "--source", type=Path, required=True, metavar="DIR", help="the downloaded data, see above"
        )
        _add_out(pictures)
        pictures.add_argument(
            "--size",
            type=_sizes,
            metavar="N,M",
            help="image sizes in pixels (default: those of the task and its protocols)",
        )
        pictures.add_argument(
            "--skip-damaged",
            action="store_true",
            help="skip images that cannot be read, and count them",
        )

    look = subparsers.add_parser("check", help="report problems of scans or prepared sites")
    look.add_argument("dir", type=Path, metavar="DIR", help="a folder of scans, or prepared data")
    look.add_argument("--masks", type=Path, metavar="DIR", help="the masks, if they are in another folder")
    look.set_defaults(func=_check)


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, metavar="ROOT", help=f"default: {str(default_root()).replace('%', '%%')}")


def _add_common(parser: argparse.ArgumentParser) -> None:
    _add_out(parser)
    parser.add_argument("--matrix", type=_sizes, default=(), metavar="N,M", help="image sizes in pixels to cache now")
    parser.add_argument(
        "--trust-voxels",
        action="store_true",
        help="accept masks whose header differs from the image's if the number of voxels is the same",
    )


def _prepare_prostate(args: argparse.Namespace) -> int:
    from data_prep.prostate import plan_prostate, prepare_prostate

    total = sum(len(plan.cases) for plan in plan_prostate(args.source, sites=args.sites))
    with _progress(total) as on_case:
        folders = prepare_prostate(
            args.source,
            args.out or default_root(),
            sites=args.sites,
            matrices=args.matrix,
            trust_voxels=args.trust_voxels,
            progress=on_case,
        )
    for folder in folders:
        _print_site(folder)
    _print_export(args.out)
    return 0


def _prepare_pictures(args: argparse.Namespace) -> int:
    from data_prep.pictures import write_pictures
    from fedshift.schema.manifest import read_manifest

    options = {key: value for key, value in vars(args).items() if key in inspect.signature(args.plan).parameters}
    plan = args.plan(**options)
    with _progress(plan.total) as on_case:
        folders = write_pictures(
            plan, args.out or default_root(), sizes=args.size, skip_damaged=args.skip_damaged, progress=on_case
        )
    if len(folders) <= MAX_SITES_LISTED:
        for folder in folders:
            _print_site(folder)
    else:
        written = sum(len(read_manifest(folder).pictures) for folder in folders)
        console.print(f"{len(folders)} sites, {written} pictures, in {folders[0].parent}", markup=False)
        console.print(f"  look at {folders[0].parent / 'montage.png'}", markup=False)
    _print_export(args.out)
    return 0


def _prepare_own(args: argparse.Namespace) -> int:
    from data_prep.own import LICENCE, prepare_own

    with _progress(None) as on_case:
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
            progress=on_case,
        )
    _print_site(folder)
    _print_export(args.out)
    return 0


def _check(args: argparse.Namespace) -> int:
    """Print the findings; the exit code is 1 if there are errors."""
    from fedshift.data.check import Counts, check

    counts = Counts()
    with _progress(None) as on_case:
        findings = check(args.dir, masks=args.masks, progress=on_case, counts=counts)
    for finding in findings:
        colour = "red" if finding.level == "error" else "yellow"
        console.print(f"[{colour}]{finding.level}[/{colour}] {escape(finding.sentence())}")
    errors = sum(finding.level == "error" for finding in findings)
    summary = f"{errors} error(s), {len(findings) - errors} warning(s)"
    console.print(f"{args.dir}: {counts}: {summary}", markup=False)
    return 1 if errors else 0


def _print_site(folder: Path) -> None:
    """Print a prepared site's name, number of cases or images by split, and folder."""
    from fedshift.schema.manifest import read_manifest

    manifest = read_manifest(folder)
    counts = ", ".join(f"{len(manifest.by_split(split))} {split}" for split in ("train", "val", "test"))
    noun = "case(s)" if manifest.cases else "picture(s)"
    console.print(f"{manifest.site}: {len(manifest.entries)} {noun} ({counts}) in {folder}", markup=False)
    details = []
    if manifest.counts is not None:
        totals = [sum(of_class[label] for of_class in manifest.counts.values()) for label in manifest.classes]
        details.append(f"{len(totals)} classes of {min(totals)} to {max(totals)} pictures")
    if (folder / "montage.png").is_file():
        details.append(f"look at {folder / 'montage.png'}")
    if details:
        console.print(f"  {'; '.join(details)}", markup=False)


def _print_export(out: Path | None) -> None:
    """Print the command that makes other commands find data in ``out``, unless it is the default folder."""
    if out is not None and out.absolute() != default_root().absolute():
        print("For runs to find these data:")
        print(f"export {DATA}={shlex.quote(str(out.absolute()))}")


@contextmanager
def _progress(total: int | None) -> Iterator[Callable[[str], None]]:
    """Show a progress bar on standard error, so that standard output can be piped.

    Yields a function to call with the name of each case before it is processed. ``total`` is the number of cases.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    screen = Console(stderr=True)
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("reading", total=total)
        n_started = 0

        def on_case(case: str) -> None:
            nonlocal n_started
            bar.update(task, description=escape(case), completed=n_started)
            n_started += 1

        yield on_case


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of sizes such as 384,128") from None
