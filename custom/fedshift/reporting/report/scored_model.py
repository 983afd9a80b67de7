"""What pages on labelled scans and on labelled images say of the model that was scored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedshift.reporting.report import setup, summary
from fedshift.reporting.report.runs import Run
from fedshift.reporting.report.section import Section
from fedshift.reporting.report.wording import counted
from fedshift.schema.protocol_results import ScoredModel
from fedshift.schema.results import Results


def about(record: ScoredModel, cases: str) -> str:
    """The model, and on how many cases it was scored."""
    return f"{record.model} ({_methods(record)} on {record.job.task}) on {cases}"


def cases_of_subjects(cases: int, subjects: int) -> str:
    """``56 cases of 30 subjects``."""
    text = counted(cases, "case")
    return text if subjects == cases else f"{text} of {counted(subjects, 'subject')}"


def facts(record: ScoredModel) -> list[tuple[str, str]]:
    """Rows on the model's file and on its training."""
    return [
        ("Model", record.model),
        ("SHA-256", record.sha256),
        *(("Averaged with", sha256) for sha256 in record.averaged_with),
        ("Task", record.job.task),
        ("Methods", _methods(record)),
        ("Round", str(record.round)),
        ("Trained at", f"{counted(len(record.sites), 'site')}: {', '.join(record.sites)}"),
        ("Trained on", summary.KINDS[record.kind]),
        ("Statistics", record.statistics),
    ]


def how_it_was_trained(record: ScoredModel) -> Section:
    """The settings of the training."""
    run = Run(Path(record.FILE_NAME), Results(job=record.job, versions=record.versions))
    return replace(
        setup.what_was_run(run, has_rounds=False),
        title="How the model was trained",
        how="The job in the model file. The versions are those that scored.",
    )


def _methods(record: ScoredModel) -> str:
    return " + ".join(method.name for method in record.job.methods)
