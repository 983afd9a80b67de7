"""Settings and data of a run."""

from __future__ import annotations

import json
from typing import Any

from fedshift.data.splits import split_rule
from fedshift.reporting.report.runs import Run
from fedshift.reporting.report.section import Cell, Column, Facts, Row, Section, Table, paragraph
from fedshift.schema.manifest import Split
from fedshift.schema.results import DataRecord, MachineRecord, Results

SPLITS: tuple[Split, ...] = ("train", "val", "test")
_RULES = {
    "case": "by case; scans of one subject stay together where BIDS names, a table or --subject say whose they are",
    split_rule("all"): "by case; what was prepared for testing was trained on, so nothing was tested here",
    "slice-legacy": "slice-legacy: slices of one patient may be in several splits",
}
_SETTINGS = {
    "schedule": "Schedule",
    "optimizer": "Optimiser",
    "loss": "Loss",
    "federation": "Federation",
    "evaluation": "Evaluation",
}


def what_was_run(run: Run, *, has_rounds: bool = True) -> Section:
    """Task, methods, network, schedule, seed and versions.

    ``has_rounds`` is False for a record without training rounds; then only their planned number is shown.
    """
    job, model = run.results.job, run.model
    facts = [
        ("Job", job.name),
        ("Task", f"{job.task}, protocol {job.protocol}"),
        *((f"Method {method.name}", _options(method.options)) for method in job.methods),
        ("Network", f"{job.network.get('name', '?')}: {_options(job.network.get('options', {}))}"),
        ("Initial weights", job.initial_weights),
        ("Data settings", _options(job.data)),
        ("Rounds", f"{len(run.results.rounds)} of {job.rounds}" if has_rounds else str(job.rounds)),
    ]
    if model is not None:
        task, evaluation = model.job.task, model.job.evaluation.model_dump(mode="json")
        facts += [
            ("Schedule", _options(task.schedule.model_dump(mode="json", exclude={"rounds", "precision", "threads"}))),
            ("Optimiser", _options(task.optimizer.model_dump(mode="json"))),
            ("Loss", str(task.loss)),
            ("Federation", _options(model.job.federation.model_dump(mode="json"))),
            *([("Evaluation", _options(evaluation))] if evaluation else []),
        ]
    else:
        facts += [(title, _options(run.settings[key])) for key, title in _SETTINGS.items() if run.settings.get(key)]
    if run.results.selected is not None:
        facts.append(("Best round", f"{run.results.selected.round}, chosen by: {run.results.selected.rule}"))
    facts += [
        ("Seed", str(job.seed)),
        ("Precision", f"{job.precision}, {_threads(job.threads)} a site"),
        *_machines(run),
        *_parts(run.results),
        ("Versions", ", ".join(f"{name} {version}" for name, version in run.results.versions.items())),
    ]
    return Section(
        "setup",
        "What was run",
        "All settings that affect the results; method options include the defaults.",
        [Facts(facts), *([paragraph("without_model_file", fault=run.fault)] if run.fault else [])],
    )


def data(run: Run, *, role: str = "trains") -> Section | None:
    """Counts, kinds, splits and fingerprints; ``role`` describes sites that are not held out. None without data."""
    results = run.results
    if not results.data:
        return None
    counted = all(record.cases for record in results.data.values())
    samples = _samples(results)
    columns = [
        Column("Site", numeric=False),
        Column("Role", numeric=False),
        Column("Kind", numeric=False),
        *(Column(name) for name in ("Train", "Val", "Test")),
        Column("Split", numeric=False),
        Column("Manifest", numeric=False),
    ]
    rows: list[Row] = [
        [
            site,
            "held out" if site in results.job.held_out else role,
            record.kind,
            *(_count(record, split, samples) for split in SPLITS),
            record.split_rule,
            record.manifest_sha256[:12],
        ]
        for site, record in results.data.items()
    ]
    numbers = [record.cases if counted else record.n for record in results.data.values()]
    totals = [f"{sum(of_site.get(split, 0) for of_site in numbers):,}" for split in SPLITS]
    rules = sorted({record.split_rule for record in results.data.values()})
    return Section(
        "data",
        "Data",
        paragraph("data_how", samples=samples, counted=counted),
        [
            Table(columns, rows, [["all sites", "", "", *totals, "", ""]]),
            paragraph("split_rules", rules=[_RULES.get(rule, rule) for rule in rules]),
        ],
    )


def _samples(results: Results) -> str:
    """What the network takes one of at a time."""
    if all(record.kind == "images" for record in results.data.values()):
        return "pictures"
    return "patches" if "patch" in results.job.data else "slices"


def _count(record: DataRecord, split: Split, samples: str) -> Cell:
    """The number of cases, and below it that of the samples if it differs."""
    n = record.n.get(split, 0)
    cases = record.cases.get(split, n)
    return Cell(f"{cases:,}", f"{n:,} {samples}" if n != cases else "")


def _machines(run: Run) -> list[tuple[str, str]]:
    """The sites' machines, grouped; empty in records of earlier versions."""
    sites_by_machine: dict[str, list[str]] = {}
    for site, machine in run.results.machines.items():
        sites_by_machine.setdefault(machine_name(machine), []).append(site)
    text = "; ".join(f"{machine}: {', '.join(sites)}" for machine, sites in sites_by_machine.items())
    return [("Sites computed on", text)] if text else []


def _parts(results: Results) -> list[tuple[str, str]]:
    """The sites whose memory ran out, and in how many parts their batches were since."""
    first_rounds: dict[str, dict[int, int]] = {}
    for record in results.rounds:
        for site, site_record in record.sites.items():
            if site_record.parts > 1:
                first_rounds.setdefault(site, {}).setdefault(site_record.parts, record.round)
    sites = [
        f"{site}: {', '.join(f'{number} from round {since} on' for number, since in numbers.items())}"
        for site, numbers in first_rounds.items()
    ]
    return [("Batches in parts, as memory ran out", "; ".join(sites))] if sites else []


def machine_name(machine: MachineRecord) -> str:
    """A site's hardware in a few words."""
    each = f"{machine.device}, {machine.precision}, {_threads(machine.threads)}"
    return each if machine.devices == 1 else f"{machine.devices} devices that share each batch, each {each}"


def _threads(number: int | str) -> str:
    return f"{number} thread{'s' if number != 1 else ''}"


def _options(options: Any) -> str:
    if not isinstance(options, dict) or not options:
        return "no options" if not options else str(options)
    return ", ".join(f"{key} {_value(value)}" for key, value in options.items())


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
