"""The scores of a model at a site: in every round, of final models, and beside a model that the site trained alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from torch import Tensor, nn

from fedshift.federation.site import local_training
from fedshift.methods.chain import ClientChain
from fedshift.schema.evaluation import MAX_NUMBER, Evaluation
from fedshift.schema.files import write_text
from fedshift.schema.guarantee import Curve, RiskCurves
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import TEST_PREFIX
from fedshift.schema.paired import LocalComparison
from fedshift.schema.seeding import derive_seed
from fedshift.tasks.base import ScanTask, SiteData, Subset, Task
from fedshift.tasks.evaluation.case_scores import CaseScores
from fedshift.tasks.evaluation.spread import FEWEST

log = logging.getLogger("fedshift")

SCORED: tuple[Subset, ...] = ("val", "test")
"""What a site that trains scores a final model on."""
SCORED_IF_HELD_OUT: tuple[Subset, ...] = ("all", "test")
"""The same of a site that takes no part in training."""


@dataclass(frozen=True)
class Scoring:
    """Scores the model that is loaded in the job's network, for as long as it is loaded.

    ``share_cases``: whether scores of single cases may leave; ``cases_file``: where the site keeps them if not.
    """

    job: JobSpec
    site: str
    task: Task
    data: SiteData
    net: nn.Module
    chain: ClientChain
    share_cases: bool
    cases_file: Path

    def scores(self, subset: Subset) -> dict[str, float]:
        """Scores on one subset; none if it has no samples."""
        if not self.data.count(subset):
            return {}
        schedule = self.job.task.schedule
        predicted = local_training.predict(self.task, self.data, self.chain, self.net, subset, schedule)
        return local_training.score_beside(
            predicted, lambda classes: self.task.scores(classes, self.data, subset), self.net
        )

    def of_round(self, round_: int) -> dict[str, float]:
        """Validation scores of the aggregate of a round, and test scores if the job has them of this round.

        Round 0 is the weights that the run starts from.
        """
        every = self.job.evaluation.every
        scores = self.scores("val")
        if every is not None and round_ and round_ % every == 0:
            scores |= {f"{TEST_PREFIX}{name}": value for name, value in self.scores("test").items()}
        return scores

    def final(self, cases: CaseScores) -> tuple[dict[str, dict[str, float]], dict[str, Evaluation]]:
        """Scores of a final model on each subset, and full evaluations of all but validation, which only selects.

        ``cases`` gets the scores of single test cases, which stay here.
        """
        values: dict[str, dict[str, float]] = {}
        evaluations: dict[str, Evaluation] = {}
        norm = self.job.evaluation.gradient_norm
        for subset in SCORED_IF_HELD_OUT if self.site in self.job.task.held_out else SCORED:
            if not self.data.count(subset):
                continue
            whole = Evaluation(scores=self.scores("val")) if subset == "val" else self.evaluate(subset, cases)
            values[subset] = dict(whole.scores)
            if norm and subset != "test":
                length = local_training.gradient_norm(self.task, self.data, self.chain, self.net, subset)
                whole = whole.model_copy(update={"gradient_norm": length if length <= MAX_NUMBER else None})
            if norm or subset != "val":
                evaluations[subset] = whole
        return values, evaluations

    def evaluate(self, subset: Subset, cases: CaseScores | None = None) -> Evaluation:
        """Evaluate on one subset, which must have samples; ``cases`` gets the scores of single cases."""
        seed, share = derive_seed(self.job.seed, self.site, 0, "bootstrap"), self.share_cases
        task = local_training.deciding(self.task, self.data, self.chain, self.net, self.job.task.schedule)
        return local_training.score_beside(
            self.probabilities(subset),
            lambda values: task.evaluate(values, self.data, subset, seed=seed, share_cases=share, keep=cases),
            self.net,
        )

    def probabilities(self, subset: Subset, *, apart: bool = False) -> Iterator[Tensor]:
        """Yield class probabilities for one subset, by batches, (B, K, …) on the CPU; ``apart`` as in `Task.logits`."""
        schedule = self.job.task.schedule
        return local_training.probabilities(self.task, self.data, self.chain, self.net, subset, schedule, apart=apart)

    def confidences(self) -> list[float | None]:
        """How sure the model is of each validation case. Only tasks of scans have it; other jobs never ask."""
        task = cast("ScanTask", self.task)
        return local_training.score_beside(
            self.probabilities("val"), lambda values: list(task.confidences(values, self.data, "val")), self.net
        )

    def risks(self, *, least: int) -> RiskCurves:
        """Mean risk curves of a final model: over validation cases and, to look at what came of it, over test cases.

        A site that is held out has the second alone, over all its cases. Structures that fewer than ``least`` subjects
        have are left out.
        """
        held_out = self.site in self.job.task.held_out
        tested = self._curves("all" if held_out else "test", least)
        return RiskCurves(calibration={} if held_out else self._curves("val", least), tested=tested)

    def _curves(self, subset: Subset, least: int) -> dict[str, Curve]:
        if not self.data.count(subset):
            return {}
        cases = local_training.score_beside(
            self.probabilities(subset), lambda values: self.task.risks(values, self.data, subset), self.net
        )
        return cases.curves(least=least)

    def gradient(self, subset: Subset) -> list[Tensor]:
        """Gradient of the mean loss over one subset (`local_training.gradient`), which a site never sends."""
        return local_training.gradient(self.task, self.data, self.chain, self.net, subset)

    def compare(self, federated: CaseScores, local: CaseScores, *, round_: int) -> LocalComparison:
        """The federated model's scores of the test cases against those of the site's own model of round ``round_``.

        If scores of single cases may not leave, the comparison with them is written to the site's own file.
        """
        from fedshift.tasks.evaluation.delong import compare_classes
        from fedshift.tasks.evaluation.paired import compare

        score = self.task.per_case[0]
        complete, shared = (
            compare(
                federated.values[score],
                local.values[score],
                subjects=federated.subjects,
                score=score,
                is_binary=not (self.task.dense or self.task.findings),
                round_=round_,
                seed=derive_seed(self.job.seed, self.site, 0, "bootstrap"),
                share_cases=share_cases,
            )
            for share_cases in (True, self.share_cases)
        )
        of_classes = compare_classes(federated, local, self.job.task.classes)
        complete = complete.model_copy(update={"classes": of_classes})
        if self.share_cases or complete.n >= FEWEST:
            shared = shared.model_copy(update={"classes": of_classes})
        if complete != shared:
            self.cases_file.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.cases_file, complete.model_dump_json(indent=1))
            log.info("site %s: the scores of its single cases are in %s, and stay here", self.site, self.cases_file)
        log.info(
            "site %s: %s of %d test cases: federated %.4f, trained alone %.4f (round %d): %s",
            *(self.site, score, shared.n, shared.federated, shared.local, round_, shared.verdict),
        )
        return shared
