"""The committed specs of the papers' tables and figures, and the printed numbers beside them."""

from __future__ import annotations

import copy
import csv
import functools
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedshift import cli
from fedshift.federation import resolve
from fedshift.methods import method_set
from fedshift_bench import cells as comparison_cells
from fedshift_bench import compare, estimate
from fedshift_bench.cells import Cell, make_cells
from fedshift_bench.collect import Collector
from fedshift_bench.published import COLUMNS
from fedshift_bench.significance import Paired, printed_p
from fedshift_bench.spec import Spec, read_spec
from fedshift_bench.store import Store

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SPECS = sorted((BENCHMARKS / "papers").glob("*.yaml"))
PUBLISHED = sorted((BENCHMARKS / "published").glob("*.csv"))
SCALES = ("paper", "quick")
SHOWN = (
    [f"fedfa_table{number}" for number in (*range(1, 9), 16)]
    + [f"fedfa_figure{number}" for number in (1, 2, 3)]
    + [f"fedrdn_table{number}" for number in (1, 2, 3, 4, 5, 7, 8)]
    + [f"fedrdn_figure{number}" for number in (1, 2, 3)]
    + [f"fraug_table{number}" for number in (1, 2, 3)]
    + ["fraug_figure2"]
    + [f"augmentation_table{number}" for number in range(3, 10)]
    + [f"augmentation_figure{number}" for number in (3, 4, 5)]
)
"""Tables and figures of the four papers that the project repeats."""


SHARED: dict[tuple[str, str], set[str]] = {
    ("augmentation_figure3_rotated_mnist", "augmentation_table3"): {"60 rotation"},
    ("augmentation_figure3_pacs", "augmentation_table4"): set(),
    ("augmentation_figure3_officehome", "augmentation_table5"): set(),
    ("augmentation_figure4_rotated_mnist", "augmentation_table7"): set(),
    ("augmentation_figure4_pacs", "augmentation_table8"): set(),
    ("augmentation_figure4_officehome", "augmentation_table9"): set(),
    ("augmentation_figure5_gap", "augmentation_table3"): {"60 rotation"},
    ("augmentation_figure5_steps", "augmentation_table6"): set(),
    ("fedrdn_figure1_office", "fedrdn_table1_office"): set(),
    ("fedrdn_figure1_domainnet", "fedrdn_table1_domainnet"): set(),
    ("fedrdn_figure1_prostate", "fedrdn_table2"): set(),
    ("fedrdn_figure3", "fedrdn_table3"): set(),
    ("fedrdn_table4_office", "fedrdn_table1_office"): {"FedAvg + FedRDN-V"},
    ("fedrdn_table4_domainnet", "fedrdn_table1_domainnet"): {"FedAvg + FedRDN-V"},
    ("fedrdn_table4_prostate", "fedrdn_table2"): {"FedAvg + FedRDN-V"},
    ("fedrdn_table7_office", "fedrdn_table1_office"): set(),
    ("fedrdn_table7_domainnet", "fedrdn_table1_domainnet"): set(),
    ("fedrdn_table8", "fedrdn_table2"): set(),
}
"""What shows runs of another table, that table, and the labels that are the former's alone. Of seed 0."""


@pytest.fixture(scope="module")
def _read_once() -> Iterator[None]:
    """A task is read once: over a thousand cells differ in little else."""
    tasks, names = functools.cache(resolve.read_task), functools.cache(method_set.available)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resolve, "read_task", lambda task: copy.deepcopy(tasks(task)))
        patch.setattr(method_set, "available", names)
        yield


@pytest.fixture(scope="module")
def cells_of(_read_once: None) -> Callable[[Path, str], tuple[Spec, list[Cell]]]:
    """A spec at a scale and its cells, made once."""

    @functools.cache
    def make(path: Path, scale: str) -> tuple[Spec, list[Cell]]:
        spec, _ = read_spec(path, scale)
        return spec, make_cells(spec, folder=path.parent)

    return make


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What lies on the machine must not matter."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)
    monkeypatch.delenv("FEDSHIFT_WEIGHTS", raising=False)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_papers_spec_resolves_and_finds_the_printed_numbers(
    path: Path, scale: str, cells_of: Callable[[Path, str], tuple[Spec, list[Cell]]], tmp_path: Path
) -> None:
    """All cells, and without any data on this machine."""
    spec, cells = cells_of(path, scale)
    assert spec.name == path.stem
    assert len(cells) == math.prod(len(values) for values in spec.axes.values()) * len(spec.seeds)
    assert spec.tuning, "says nothing of the rows' tuning budget"
    assert spec.differences, "says nothing of what differs from the paper"
    comparison = Collector(spec, scale, cells, Store(tmp_path), folder=path.parent).collect()
    assert bool(comparison.published) is (spec.published is not None)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_the_score_of_a_table_selects_its_rounds(
    path: Path, scale: str, cells_of: Callable[[Path, str], tuple[Spec, list[Cell]]]
) -> None:
    """As far as a table is of the best round."""
    spec, cells = cells_of(path, scale)
    if spec.model != "last" and spec.metric is not None:
        assert {cell.plan.metric for cell in cells} == {spec.metric}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_centralised_references_have_the_images_and_splits_of_the_federation_beside_them(
    path: Path, scale: str, cells_of: Callable[[Path, str], tuple[Spec, list[Cell]]]
) -> None:
    by_column: dict[tuple[str, ...], set[str]] = {}
    for cell in cells_of(path, scale)[1]:
        task = cell.plan.job.task
        images = json.dumps([task.dataset, task.sites, task.held_out, task.data])
        by_column.setdefault(tuple(cell.labels.values())[1:], set()).add(images)
    pooled = any(cell.plan.is_pooled for cell in cells_of(path, scale)[1])
    assert not pooled or all(len(images) == 1 for images in by_column.values())


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ["fraug_table2_pacs", "fraug_table2_officehome", "fraug_table2_digits"])
def test_all_sees_as_many_images_a_round_as_the_federation(
    name: str, scale: str, cells_of: Callable[[Path, str], tuple[Spec, list[Cell]]]
) -> None:
    seen = {}
    for cell in cells_of(BENCHMARKS / "papers" / f"{name}.yaml", scale)[1]:
        task = cell.plan.job.task
        assert task.schedule.local_steps is not None
        trainers = 1 if cell.plan.is_pooled else len(task.sites)
        seen[cell.labels["method"]] = trainers * task.schedule.local_steps * task.schedule.batch_size
    assert "All" in seen and len(set(seen.values())) == 1, seen


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_at_the_papers_scale_a_cell_is_its_protocol(
    path: Path, cells_of: Callable[[Path, str], tuple[Spec, list[Cell]]]
) -> None:
    """But for starting weights that the spec names and this machine does not have."""
    for cell in cells_of(path, "paper")[1]:
        absent = cell.settings.weights is not None
        assert not [lack for lack in cell.plan.job.task.departures if not absent or "weights" not in lack]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ["fedrdn_table7_office", "fedrdn_table7_domainnet", "fedrdn_table8"])
def test_every_paired_test_of_a_paper_finds_the_printed_p_value(
    name: str, scale: str, cells_of: Callable[[Path, str], tuple[Spec, list[Cell]]], tmp_path: Path
) -> None:
    path = BENCHMARKS / "papers" / f"{name}.yaml"
    spec, cells = cells_of(path, scale)
    comparison = Collector(spec, scale, cells, Store(tmp_path), folder=path.parent).collect()
    with (BENCHMARKS / "published" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        printed = {line["row"]: line["value"] for line in csv.DictReader(file) if line["column"] == "p-value"}
    assert spec.tests
    for row, against in spec.tests:
        test = Paired(row, against, "", n=2, difference=0.0, p=None)
        assert printed_p(test, comparison) == printed[against]


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_the_quick_scale_is_less_work_than_the_papers(
    path: Path, cells_of: Callable[[Path, str], tuple[Spec, list[Cell]]]
) -> None:
    """In rounds of all cells."""

    def rounds(scale: str) -> int:
        return sum(job.task.schedule.rounds for cell in cells_of(path, scale)[1] for job in cell.plan.jobs.values())

    assert rounds("quick") < rounds("paper")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_dry_run_tells_of_every_spec_what_it_takes_and_what_lacks(
    path: Path,
    scale: str,
    cells_of: Callable[[Path, str], tuple[Spec, list[Cell]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the cells resolved once, without a trial of effects; the times of a step and of a start are made up."""
    spec, cells = cells_of(path, scale)
    monkeypatch.setattr(comparison_cells, "make_cells", lambda *args, **options: cells)
    made_up = estimate.Step(train=0.01, evaluate=0.005, activations=2**20, network=2**22)
    monkeypatch.setattr(estimate, "measure_step", lambda job, device: made_up)
    monkeypatch.setattr(estimate, "measure_start", lambda: 2.0)
    monkeypatch.setattr(compare, "without_effect", lambda job: [])
    monkeypatch.chdir(tmp_path)
    assert cli.main(["compare", str(path), "--scale", scale, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert f"{len(cells)} of {len(cells)} cells" in told
    for label in spec.rows:
        assert re.search(rf"^{re.escape(label)} +\d+ +0 +\S.* \d+\.\d GiB$", told, re.MULTILINE), label
    assert re.search(r"^time: .*[1-9].* with \d+ in parallel", told, re.MULTILINE)
    (most,) = re.findall(r"^memory: up to (\d+\.\d) GiB per cell", told, re.MULTILINE)
    assert float(most) > 0
    # What is lacking, without the folder where it was looked for, which every test has of its own.
    lacking = {re.split(" \\(|: ", sentence)[0] for cell in cells for sentence in cell.missing_inputs}
    named = [line.removeprefix("missing: ") for line in told.splitlines() if line.startswith("missing: ")]
    assert {re.split(" \\(|: ", sentence)[0] for sentence in named} == lacking
    assert {cell.plan.job.task.dataset for cell in cells} == {
        found for sentence in lacking for found in re.findall(r"^data of (\S+) at ", sentence)
    }
    assert "for sites without data" in told
    assert not (tmp_path / "runs" / f"{spec.name}_{scale}").exists()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("shows", "table"), SHARED)
def test_what_shows_a_tables_runs_has_the_very_cells_of_the_table(
    shows: str, table: str, scale: str, cells_of: Callable[[Path, str], tuple[Spec, list[Cell]]]
) -> None:
    """So that they are run once: the same labels are the same cell, whatever the order of the axes."""

    def keys(name: str) -> dict[frozenset[str], str]:
        _, cells = cells_of(BENCHMARKS / "papers" / f"{name}.yaml", scale)
        return {frozenset(cell.labels.values()): cell.work_on({}).key for cell in cells if cell.seed == 0}

    own, others = keys(shows), keys(table)
    alone = {labels for labels in own if labels & SHARED[shows, table]}
    assert own.keys() - others.keys() == alone
    assert {labels: own[labels] for labels in own.keys() - alone} == {
        labels: others[labels] for labels in own.keys() - alone
    }


@pytest.mark.parametrize("shown", SHOWN)
def test_a_table_or_figure_of_the_papers_has_a_spec(shown: str) -> None:
    """One, or one for each part (``fedfa_table1_office``)."""
    assert [path for path in SPECS if path.stem == shown or path.stem.startswith(f"{shown}_")]


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_a_published_table_has_each_number_once(path: Path) -> None:
    """Long form, numbers that are numbers, labels without stray blanks, and no row shorter than the others."""
    with path.open(encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file)
    assert tuple(header) == COLUMNS
    assert all(len(line) == len(COLUMNS) for line in lines)
    places = [(row, column) for row, column, *_ in lines]
    assert len(places) == len(set(places))
    for line in lines:
        assert all(text == text.strip() for text in line)
        for number in line[2:4]:
            assert not number or math.isfinite(float(number))


@pytest.mark.parametrize(
    "path", [p for p in PUBLISHED if p.stem.startswith(("fedfa", "fraug", "fedrdn"))], ids=lambda path: path.stem
)
def test_a_printed_average_fits_its_columns_or_a_note_says_that_it_does_not(path: Path) -> None:
    """Within what rounding of the average and of its columns can explain."""
    rows: dict[tuple[str, str], dict[str, tuple[str, str]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            block, _, column = line["column"].rpartition("/")
            rows.setdefault((line["row"], block), {})[column] = line["value"], line["note"]
    for place, columns in rows.items():
        for name in columns.keys() & {"Average", "Avg.", "Avg", "avg"}:
            printed, note = columns[name]
            mean = sum(float(value) for key, (value, _) in columns.items() if key != name) / (len(columns) - 1)
            step = 10.0 ** -len(printed.partition(".")[2])
            fits = abs(mean - float(printed)) <= step + 1e-9
            assert fits is ("the columns' mean is" not in note), (place, printed, mean)
