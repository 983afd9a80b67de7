"""One cell of a ``cells.json``: its labels, what it ran, and its scores."""

from __future__ import annotations

from typing import Any, Literal

from fedshift.schema.results import DataRecord, Metrics
from fedshift.schema.strict import Strict
from fedshift_bench.spec import ModelName, ScoredPart, cell_name

State = Literal["done", "failed", "missing"]
Scores = dict[str, dict[str, dict[str, Metrics]]]
"""ModelName (best, last, personal, own_best) or image_free -> part (test, val, held_out) -> site -> metrics."""
IMAGE_FREE = "image_free"
"""Where the image-free guess is among a cell's scores, beside its models."""
ByCase = dict[str, dict[str, dict[str, list[float]]]]
"""ModelName -> part -> site -> the score of each case, in the order of the site's manifest and without ids."""


class LeftOutSite(Strict):
    """A site whose answers were rejected or missing in some rounds, and the last reason.

    ``rounds`` are rounds of training; in files from before the others were counted apart, all three together.
    """

    site: str
    rounds: int
    statistics: int = 0
    """Rounds before training, one in each run."""
    evaluations: int = 0
    """Evaluations of the last and the best model."""
    reason: str

    @property
    def left_out_of(self) -> str:
        """What the site has no part in: ``1 statistics round, 2 rounds, 1 evaluation``."""
        counts = {"statistics round": self.statistics, "round": self.rounds, "evaluation": self.evaluations}
        return ", ".join(f"{n} {what}{'s' if n > 1 else ''}" for what, n in counts.items() if n)


class CellRecord(Strict):
    """A cell. ``curve`` is the mean validation score (``metric``) of each round's aggregate; None if unknown.

    ``test_curve`` is that on test samples, if the job has it of rounds (``evaluation.every``), otherwise empty.

    ``selected_by`` is the score that selected the best round; empty in files from before it was recorded.
    """

    labels: dict[str, str]
    seed: int
    fold: int | None = None
    """Of a cross-validation, if the comparison has folds; None for the mean over them (`Comparison.of`)."""
    draw: int = 0
    """The number of its setting; 0 is the row's own, the others are drawn (`Tuning`)."""
    drawn: dict[str, Any] = {}
    """The options of that setting."""
    validation: float | None = None
    """The mean validation score over sites, and over runs, of the model that the table shows; it selects settings.

    None if a site's is missing.
    """
    state: State
    reason: str = ""
    commands: list[str]
    key: str = ""
    how: str = ""
    device: str = ""
    precision: str = ""
    """What the sites computed in; empty in files from before it was recorded."""
    seconds: float | None = None
    rounds: int = 0
    selected: dict[str, int] = {}
    """The round of the best model, by held-out site, or under "" for a single run."""
    metric: str = ""
    selected_by: str = ""
    curve: list[float | None] = []
    test_curve: list[float | None] = []
    scores: Scores = {}
    by_case: ByCase = {}
    """The comparison's metric; empty where cases have none of their own, and in files from before it was recorded."""
    shown: dict[ScoredPart, list[str]] = {}
    """The sites of its columns, by scored part; ``A > B`` is the model of A at B."""
    newcomers: list[str] = []
    left_out: list[LeftOutSite] = []
    data: dict[str, DataRecord] = {}
    initial_weights: str = ""
    departures: list[str] = []
    """What the cell's protocol has and its job has not."""
    minutes: float | None = None
    """After which its rounds ended by the clock."""
    version: str = ""
    source: str = ""
    versions: dict[str, str] = {}

    @property
    def name(self) -> str:
        """The labels, the seed, the fold and the draw: ``FedFA, 0.17, seed 2, fold 3, draw 1``."""
        return cell_name(self.labels, self.seed, self.fold, self.draw)

    def site_scores(self, model: ModelName, part: ScoredPart, metric: str) -> dict[str, float]:
        """The score at each site. If the cell has no such model, the best model is used, then the last.

        Cells without personal models use the best one; local models at other sites exist only as last models. For each
        site's own best round, cells that fine-tune use their personal models, which exist of one round only.
        """
        sites = self.scores.get(self._shown_model(model, part), {}).get(part, {})
        return {site: values[metric] for site, values in sites.items() if metric in values}

    def case_scores(self, model: ModelName, part: ScoredPart) -> dict[str, list[float]]:
        """As `site_scores`, the score of each case at each site."""
        return self.by_case.get(self._shown_model(model, part), {}).get(part, {})

    def _shown_model(self, model: ModelName, part: ScoredPart) -> str:
        others = ("personal", "best", "last") if model == "own_best" else ("best", "last")
        return next((name for name in (model, *others) if self.scores.get(name, {}).get(part)), model)
