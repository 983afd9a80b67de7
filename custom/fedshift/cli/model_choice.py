"""What ``predict``, ``evaluate``, ``drift`` and ``export`` share: a model file, and how it is to take scans."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.cli.arguments import add_shared
from fedshift.schema.errors import ConfigError
from fedshift.schema.names import printable

if TYPE_CHECKING:
    from fedshift.inference.model import Model
    from fedshift.inference.ready import Choice, ReadyModel


def add_choice(parser: Any) -> None:
    """Add the options that `choice` reads, ``--true-spacing`` and ``--device``."""
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("--site", metavar="NAME", help="use this site's statistics, which the model file holds")
    whose.add_argument(
        "--statistics", metavar="SITE|own", help="the same as --site; or 'own': estimate them from the images given"
    )
    whose.add_argument(
        "--site-state", type=Path, metavar="DIR", help="a site's folder of the job, which holds its personal parts"
    )
    add_shared(parser, "--true-spacing")
    parser.add_argument("--device", default="auto", metavar="NAME", help="cpu, cuda, cuda:1 … (default: a GPU if any)")


def add_models(parser: Any) -> None:
    """Add ``--models``, which `averaged_models` reads."""
    parser.add_argument(
        "--models",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="models of the same task, such as of other folds, whose probabilities are averaged with those of MODEL",
    )


def averaged_models(model: Model, args: argparse.Namespace) -> list[Model]:
    """The models of ``--models``, each of which is said to be averaged.

    Raises:
        ConfigError: as `fedshift.inference.ensemble.open_others`; or something else asks for a single model.
    """
    from fedshift.inference.ensemble import open_others

    if args.models and args.guarantee is not None:
        message = "--guarantee is about a single model, whose cases set its levels: leave out --models or --guarantee"
        raise ConfigError("options-clash", message)
    others = open_others(model, args.models)
    for other in others:
        print(f"averaged with {other.path}: {'+'.join(other.header.job.methods)}, round {other.header.round}")
    return others


def choice(args: argparse.Namespace) -> Choice:
    """Whose statistics and personal parts the command line asks for."""
    from fedshift.inference.ready import Choice

    estimate = args.statistics == "own"
    return Choice(site=args.site or (None if estimate else args.statistics), estimate=estimate, state=args.site_state)


def describe(model: Model) -> Iterator[str]:
    """Lines that say what a model is."""
    header, job = model.header, model.header.job
    scores = "".join(f", {name} {value:.3f}" for name, value in header.scores.items())
    yield f"model: {'+'.join(job.methods)} on {job.task.name}, round {header.round}, {len(header.sites)} sites{scores}"
    if header.adaptation is not None:
        yield f"at one hospital: {printable(header.adaptation.reason)}"
    if header.kind == "phantom":
        yield "it was trained on simulated data (phantom), not on patients"
    yield "research use only; not a medical device"


def scored_model(model: Model, statistics: str, others: Sequence[Model] = ()) -> dict[str, Any]:
    """What a record of scores says of a model: the fields of `fedshift.schema.protocol_results.ScoredModel`."""
    from fedshift.federation.carried_model import sha256_of
    from fedshift.schema.results import new_results

    header = model.header
    results = new_results(header.job, metric=model.task.metric)
    lineage = {"initial_weights": header.initial_weights, "lineage": {k: list(v) for k, v in header.lineage.items()}}
    return {
        "job": results.job.model_copy(update=lineage),
        "versions": results.versions,
        "model": model.path.name,
        "sha256": sha256_of(model.path),
        "averaged_with": [sha256_of(other.path) for other in others],
        "round": header.round,
        "sites": list(header.sites),
        "kind": header.kind,
        "statistics": statistics,
        "adapted": {each.path.name: n for each in (model, *others) if (n := adapted_on(each))},
    }


def adapted_on(model: Model) -> int:
    """On how many cases of one hospital a model was adapted."""
    adaptation = model.header.adaptation
    return 0 if adaptation is None else adaptation.trained_on


def print_statistics(ready: ReadyModel) -> None:
    """Print whose statistics are used, and what to know about it."""
    print(f"statistics: {ready.statistics}")
    for note in ready.notes:
        print(f"  note: {note}")
