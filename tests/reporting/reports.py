"""Runs and pages for the tests of the report."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from conftest import make_image_site, make_site
from markupsafe import Markup

from fedshift.federation.resolve import resolve
from fedshift.reporting import figures
from fedshift.reporting.report import page
from fedshift.reporting.report.runs import ReportInput, read
from fedshift.schema.evaluation import Calibration, Evaluation, OneSided
from fedshift.schema.job import JobSpec
from fedshift.schema.protocol_results import LabelledScans
from fedshift.schema.results import DataRecord, Final, FinalScores, Results, RoundRecord, SiteRound, new_results
from fedshift.tasks.evaluation.spread import distribution

SHIFTS = {"BIDMC": (1.0, 0.0), "HK": (0.5, 20.0), "UCL": (1.4, -30.0)}
HOSTILE = "<script>alert(1)</script>\"onload='x' $x_{$ {{ 7*7 }} \u2028\u0007&amp;"


def scan_sites(root: Path) -> dict[str, Path]:
    """Three small sites of scans under a root that ``$FEDSHIFT_DATA`` can name."""
    return {site: make_site(root, site, gain=gain, offset=offset) for site, (gain, offset) in SHIFTS.items()}


def image_sites(root: Path) -> dict[str, Path]:
    """Three small sites of pictures."""
    shifts = {"A": (1.0, 0.0), "B": (0.5, 20.0), "C": (1.4, -30.0)}
    return {site: make_image_site(root, site, gain=gain, offset=offset) for site, (gain, offset) in shifts.items()}


def told(scores: Sequence[float], *, share_cases: bool = True) -> Evaluation:
    """An evaluation whose Dice is over these cases."""
    spread = distribution(scores, seed=0, share_cases=share_cases)
    counts = [0] * 12 + [10, 10, 20]
    calibration = Calibration(
        ece=0.05, counts=counts, right=[c * 9 // 10 for c in counts], confidence=[0.0] * 12 + [0.83, 0.9, 0.97]
    )
    return Evaluation(scores={"dice": spread.mean}, distributions={"dice": spread}, calibration=calibration)


def evaluated(by_case: Mapping[str, Sequence[float]], *, classes: Sequence[str] = ("left", "right")) -> LabelledScans:
    """A model scored on these cases, with this Dice of each class; of the first case it misses the last class."""
    dice = np.array(list(by_case.values()))
    values = {f"dice {name}": dice[:, number] for number, name in enumerate(classes) if len(classes) > 1}
    values |= {"dice": dice.mean(1), "hd95": 10 * (1 - dice.mean(1))}
    values |= {f"hd95 {name}": 10 * (1 - dice[:, number]) for number, name in enumerate(classes) if len(classes) > 1}
    results = new_results(_job("fedfa", 0, ()), metric="dice")
    return LabelledScans(
        job=results.job,
        versions=results.versions,
        model="best_global_model.pt",
        sha256="cd" * 32,
        round=7,
        sites=["BIDMC", "HK"],
        kind="patients",
        statistics="site HK",
        tolerance=1.5,
        classes=list(classes),
        cases=list(by_case),
        subjects=len(by_case),
        not_scored=[],
        without_spacing=[],
        scores={name: distribution(of, seed=0, share_cases=True) for name, of in values.items()},
        one_sided={classes[-1]: OneSided(missed=1)},
        one_sided_cases={next(iter(by_case)): {classes[-1]: "missed"}},
    )


def record(
    by_site: Mapping[str, Sequence[float]],
    *,
    seed: int = 0,
    methods: str = "fedavg",
    kind: str = "patients",
    split: str = "case",
    share_cases: bool = True,
    best_round: int = 2,
    options: tuple[str, ...] = (),
) -> Results:
    """A finished run at these sites, with these Dice scores of single test cases."""
    results = new_results(_job(methods, seed, options), metric="dice").model_copy(deep=True)
    evaluations = {site: {"test": told(scores, share_cases=share_cases)} for site, scores in by_site.items()}
    means = {site: float(np.mean(scores)) for site, scores in by_site.items()}
    for site in by_site:
        results.data[site] = DataRecord.model_validate(
            {"kind": kind, "n": {"train": 9, "val": 3, "test": 3}, "manifest_sha256": "ab" * 32, "split_rule": split}
        )
    for number in (1, 2, 3):
        sites = {
            site: SiteRound(n=9, steps=4, train_loss=1 / number, val={"dice": 0.2 * number}, bytes_up=9, seconds=2.0)
            for site in by_site
        }
        results.rounds.append(RoundRecord(round=number, seconds=5.0, sites=sites))
    final = {site: {"val": {"dice": 0.6}, "test": {"dice": mean}} for site, mean in means.items()}
    results.final = Final(
        best=FinalScores(round=best_round, sites=final, evaluations=evaluations),
        last=FinalScores(round=3, sites=final),
    )
    return results


@functools.cache
def _job(methods: str, seed: int, options: tuple[str, ...]) -> JobSpec:
    sites = ["BIDMC", "HK", "UCL"] if any("robust" in option for option in options) else ["BIDMC", "HK"]
    return resolve("prostate", methods, sites=sites, seed=seed, options=["schedule.rounds=3", *options])


def written(results: Results, folder: Path) -> Path:
    """The record as a run's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    results.write(folder)
    return folder


def html_of(*folders: Path) -> str:
    """The report of these folders."""
    records: list[ReportInput] = [read(folder) for folder in folders]
    return page.render(page.chapters(records))


def page_of(*folders: Path) -> Page:
    """The report of these folders without what its figures show, which are composed and not drawn: half of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "markup", lambda drawn, key, description: Markup("<svg/>"))
        return Page(html_of(*folders))


class Page(HTMLParser):
    """What is on a page: all words, and those of each passage, section, fact, table row and command."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.commands: list[str] = []
        self._cells: list[list[list[str]]] = []
        self._words: dict[tuple[str, str], list[str]] = {("page", ""): []}
        self._within: list[tuple[str, tuple[str, str] | None]] = []
        self._term = ""
        self.feed(html)
        self.text = _joined(self._words["page", ""])
        self.rows = [[_joined(cell) for cell in row] for row in self._cells]
        """Of all tables, headings included."""
        self.passages = self._all("passage")
        """Key in ``sentences.j2`` -> its words; passages with one key follow each other."""
        self.sections = self._all("section")
        """Id within the chapter -> its words."""
        self.facts = self._all("fact")
        """Term of a list of facts -> what follows it."""

    def _all(self, kind: str) -> dict[str, str]:
        return {name: _joined(words) for (its_kind, name), words in self._words.items() if its_kind == kind}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        place = None
        if key := attributes.get("data-key"):
            place = ("passage", key)
        elif tag == "section":
            place = ("section", str(attributes["id"]).partition("-")[2])
        elif tag == "dd":
            place = ("fact", self._term)
        elif tag == "tr":
            self._cells.append([])
        elif tag in ("td", "th"):
            self._cells[-1].append([])
        self._within.append((tag, place))

    def handle_endtag(self, tag: str) -> None:
        if tag in (opened for opened, _ in self._within):
            while self._within.pop()[0] != tag:
                pass

    def handle_data(self, data: str) -> None:
        tags = {tag for tag, _ in self._within}
        if "style" in tags:
            return
        for place in {("page", ""), *(place for _, place in self._within if place)}:
            self._words.setdefault(place, []).append(data)
        if tags & {"td", "th"}:
            self._cells[-1][-1].append(data)
        if "dt" in tags:
            self._term = data
        if "pre" in tags:
            self.commands += data.splitlines()

    def ids(self) -> list[str]:
        """Of all elements."""
        return [value for _, attrs in self.tags if (value := attrs.get("id"))]


def _joined(words: Sequence[str]) -> str:
    return " ".join(" ".join(words).replace("\u00a0", " ").split())
