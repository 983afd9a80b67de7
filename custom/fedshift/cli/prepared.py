"""What the commands that prepare and check data share: the default folder, a progress bar, and what they print."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedshift.cli.arguments import add_shared
from fedshift.cli.display import console
from fedshift.data.locate import DATA, data_home
from fedshift.schema.codes import WITHOUT_STRUCTURE
from fedshift.schema.manifest import DEPTH, Case, Manifest, Picture, read_manifest
from fedshift.schema.names import few_names
from fedshift.schema.task_files import apps_dir, tasks
from fedshift.schema.yaml_file import read_yaml

if TYPE_CHECKING:
    from fedshift.data.scan_file import Finding


LEFT_OUT = "cases_left_out_as_damaged"
"""Key in a manifest's ``preparation``."""
NNUNET = "nnunet"
"""Likewise: the plans and the configuration of volumes that nnU-Net has prepared."""


def default_root() -> Path:
    """The default folder of prepared data: ``$FEDSHIFT_DATA``, or ``$XDG_DATA_HOME/fedshift`` (``~/.local/share``)."""
    folder = os.environ.get(DATA)
    return Path(folder).absolute() if folder else data_home(os.environ)


def add_out(parser: Any) -> None:
    parser.add_argument("--out", type=Path, metavar="ROOT", help=f"default: {str(default_root()).replace('%', '%%')}")


def add_volumes(parser: Any) -> None:
    """Options of all data sets of volumes."""
    add_out(parser)
    parser.add_argument("--matrix", type=sizes, default=(), metavar="N,M", help="image sizes in pixels to cache now")
    add_shared(parser, "--trust-voxels", "--empty")
    parser.add_argument(
        "--skip-damaged", action="store_true", help="leave out cases with an error, list them, and count them"
    )


def print_findings(findings: Iterable[Finding]) -> None:
    """Print findings, a line each, with the codes that they can be looked up by."""
    for finding in findings:
        colour = "red" if finding.level == "error" else "yellow"
        console.print(f"[{colour}]{finding.level}[/{colour}] {escape(f'{finding.sentence()} [{finding.code}]')}")


def print_site(folder: Path) -> None:
    """Print a prepared site's name, number of cases or images by split, and folder."""
    manifest = read_manifest(folder)
    counts = ", ".join(f"{len(manifest.by_split(split))} {split}" for split in ("train", "val", "test"))
    noun = "cases" if manifest.cases and not manifest.pictured else "pictures"
    console.print(f"{manifest.site}: {len(manifest.entries)} {noun[:-1]}(s) ({counts}) in {folder}", markup=False)
    preparation, counts_of, montage = manifest.preparation, manifest.counts, folder / "montage.png"
    totals = [] if counts_of is None else [sum(n[label] for n in counts_of.values()) for label in manifest.classes]
    details = {
        f"classes {', '.join(manifest.classes[1:])}": len(manifest.classes) > 2 and manifest.has_masks,
        f"masks of {', '.join(manifest.annotated or ())} only": manifest.annotated is not None,
        f"sequences {', '.join(manifest.sequences)}": manifest.sequences,
        f"simulated {manifest.simulated}": manifest.simulated,
        f"{preparation.get(WITHOUT_STRUCTURE)} without the structure": preparation.get(WITHOUT_STRUCTURE),
        f"{preparation.get(LEFT_OUT)} left out, see above": preparation.get(LEFT_OUT),
        f"{len(totals)} classes of {min(totals, default=0)} to {max(totals, default=0)} {noun}": totals
        and not manifest.has_findings,
        few_names(_findings(manifest)): manifest.has_findings,
        f"{preparation.get(DEPTH)}": preparation.get(DEPTH),
        f"volumes as nnU-Net prepared them, {', '.join(preparation.get(NNUNET, {}).values())}": NNUNET in preparation,
        f"look at {montage}": montage.is_file(),
    }
    if any(details.values()):
        console.print(f"  {'; '.join(text for text, holds in details.items() if holds)}", markup=False)


def _findings(manifest: Manifest) -> list[str]:
    """How many have each finding, of those of which it is known."""
    entries: Sequence[Case | Picture] = manifest.entries
    by_name = {name: [entry.findings[name] for entry in entries if name in entry.findings] for name in manifest.classes}
    return [f"{name} in {sum(has)} of {len(has)}" if has else f"{name} unknown" for name, has in by_name.items()]


def print_export(out: Path | None) -> None:
    """Print the command that makes other commands find data in ``out``, unless it is the default folder."""
    if out is not None and out.absolute() != default_root().absolute():
        print("For runs to find these data:")
        print(f"export {DATA}={shlex.quote(str(out.absolute()))}")


def print_next(dataset: str) -> None:
    """Print the command that plans a task for a data set, unless a task of `apps/` is of it."""
    if all(read_yaml(apps_dir() / f"{name}.yaml").get("dataset") != dataset for name in tasks()):
        print(f"To compare its sites and plan a task for them: fedshift survey {shlex.quote(dataset)}")


@contextmanager
def progress(total: int | None) -> Iterator[Callable[[str], None]]:
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


def sizes(text: str) -> tuple[int, ...]:
    """A list such as ``384,128``."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of sizes such as 384,128") from None
