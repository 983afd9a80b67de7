"""The scores of a model at a site: in every round, of final models, and beside a model that the site trained alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from torch import Tensor, nn

from fedshift.federation.site import local_training
from fedshift.methods.chain import ClientChain
from fedshift.schema.evaluation import MAX_NUMBER, Evaluation
from fedshift.schema.files import write_text
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import TEST_PREFIX
from fedshift.schema.paired import LocalComparison
from fedshift.schema.seeding import derive_seed
from fedshift.tasks.base import CaseScores, ScanTask, SiteData, Subset, Task

log = logging.getLogger("fedshift")

SCORED: tuple[Subset, ...] = ("val", "test")
"""What a site that trains scores a final model on."""
SCORED_IF_HELD_OUT: tuple[Subset, ...] = ("all", "test")
"""The same of a site that takes no part in training."""


class Scoring:
    """Scores the job's network at one site. Its weights and the methods' parts are those of the session in progress."""

    def __init__(
        self, job: JobSpec, site: str, *, task: Task, data: SiteData, net: nn.Module, share_cases: bool, own_file: Path
    ) -> None:
        """Prepare; nothing is scored yet.

        Args:
            job: the resolved job.
            site: the site's name.
            task: the job's task at this site.
            data: the site's data.
            net: the network that the sessions load a model into.
            share_cases: whether scores of single cases may leave.
            own_file: where the site keeps the scores of its cases if they may not.
        """
        self._job, self._site, self._task, self._data, self._net = job, site, task, data, net
        self._share_cases, self._own_file = share_cases, own_file
        self._subsets = SCORED_IF_HELD_OUT if site in job.task.held_out else SCORED
        self._seed = derive_seed(job.seed, site, 0, "bootstrap")

    def scores(self, chain: ClientChain, subset: Subset) -> dict[str, float]:
        """Scores on one subset; none if it has no samples."""
        if not self._data.count(subset):
            return {}
        schedule = self._job.task.schedule
        predictions = local_training.predict(self._task, self._data, chain, self._net, subset, schedule)
        return self._task.scores(predictions, self._data, subset)

    def of_round(self, chain: ClientChain, scored: int) -> dict[str, float]:
        """Validation scores of the aggregate of round ``scored``, and test scores if the job has them of this round.

        Round 0 is the weights that the run starts from, which are scored if the job asks for it.
        """
        if not scored and not self._job.evaluation.start:
            return {}
        found, every = self.scores(chain, "val"), self._job.evaluation.every
        if every is not None and scored and scored % every == 0:
            found |= {f"{TEST_PREFIX}{name}": value for name, value in self.scores(chain, "test").items()}
        return found

    def final(self, chain: ClientChain, cases: CaseScores) -> tuple[dict[str, dict[str, float]], dict[str, Evaluation]]:
        """Scores of a final model on each subset, and full evaluations of all but validation, which only selects.

        ``cases`` gets the scores of single test cases, which stay here.
        """
        values: dict[str, dict[str, float]] = {}
        evaluations: dict[str, Evaluation] = {}
        norm = self._job.evaluation.gradient_norm
        for subset in self._subsets:
            if not self._data.count(subset):
                continue
            if subset != "val":
                evaluations[subset] = self.evaluate(chain, subset, cases)
                values[subset] = dict(evaluations[subset].scores)
            else:
                values[subset] = self.scores(chain, subset)
                if norm:
                    evaluations[subset] = Evaluation(scores=values[subset])
            if norm and subset != "test":
                length = local_training.gradient_norm(self._task, self._data, chain, self._net, subset)
                evaluations[subset] = evaluations[subset].model_copy(
                    update={"gradient_norm": length if length <= MAX_NUMBER else None}
                )
        return values, evaluations

    def evaluate(self, chain: ClientChain, subset: Subset, cases: CaseScores | None = None) -> Evaluation:
        """Evaluate on one subset, which must have samples; ``cases`` gets the scores of single cases."""
        return self._task.evaluate(
            self.probabilities(chain, subset),
            self._data,
            subset,
            seed=self._seed,
            share_cases=self._share_cases,
            keep=cases,
        )

    def probabilities(self, chain: ClientChain, subset: Subset) -> Iterator[Tensor]:
        """Yield class probabilities for one subset, by batches, (B, K, …) on the CPU."""
        return local_training.probabilities(self._task, self._data, chain, self._net, subset, self._job.task.schedule)

    def confidences(self, chain: ClientChain) -> list[float | None]:
        """How sure the model is of each validation case. Only tasks of scans have it; other jobs never ask."""
        return list(cast("ScanTask", self._task).confidences(self.probabilities(chain, "val"), self._data, "val"))

    def gradient(self, chain: ClientChain, subset: Subset) -> list[Tensor]:
        """Gradient of the mean loss over one subset, which must have samples: see `local_training.gradient`."""
        return local_training.gradient(self._task, self._data, chain, self._net, subset)

    def compare(self, federated: CaseScores, local: CaseScores, *, round_: int) -> LocalComparison:
        """The federated model's scores of the test cases against those of the site's own model of round ``round_``.

        If scores of single cases may not leave, the comparison with them is written to the site's own file.
        """
        from fedshift.tasks.evaluation.paired import compare  # imports scipy, needed by this only

        score = self._task.per_case[0]
        whole, found = (
            compare(
                federated.values[score],
                local.values[score],
                subjects=federated.subjects,
                score=score,
                is_binary=not self._task.dense,
                round_=round_,
                seed=self._seed,
                share_cases=share_cases,
            )
            for share_cases in (True, self._share_cases)
        )
        if whole != found:
            self._own_file.parent.mkdir(parents=True, exist_ok=True)
            write_text(self._own_file, whole.model_dump_json(indent=1))
            log.info("site %s: the scores of its single cases are in %s, and stay here", self._site, self._own_file)
        log.info(
            "site %s: %s of %d test cases: federated %.4f, trained alone %.4f (round %d): %s",
            *(self._site, score, found.n, found.federated, found.local, round_, found.verdict),
        )
        return found
