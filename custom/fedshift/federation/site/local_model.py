"""A site's own model, trained beside the federation on the site's data alone (``evaluation.local``).

It is what the method `fedshift.methods.single` trains at the site: the same network and initial weights, in every round
in which the site trains the same batches and number of steps, and of all rounds the one with the best score on the
site's validation samples (of equals the earlier one). The job's methods have no part in it. It shares the federation's
network object, which keeps nothing from one training to the next, and none of its random numbers. Of this model only
the scores of the comparison leave the site (`fedshift.schema.paired`).

Its state is in the site's one file per round, so a task that is repeated gives the same model again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor, nn

from fedshift.data.samples import Samples
from fedshift.federation.refusals import ALONE
from fedshift.federation.site import local_training
from fedshift.federation.site.checkpoint import Loop
from fedshift.federation.tensors import copied, load_weights, read_weights, to_arrays
from fedshift.methods import method_set
from fedshift.methods.base import Run
from fedshift.methods.chain import ClientChain
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Weights
from fedshift.schema.seeding import derive_seed
from fedshift.tasks.base import SiteData, Task
from fedshift.tasks.evaluation.case_scores import CaseScores
from fedshift.tasks.out_of_memory import training_out_of_memory

log = logging.getLogger("fedshift")

State = dict[str, Any]
"""``weights`` after training round ``round`` (0: the initial ones), ``optimizer`` if the job keeps it, and ``best``:
``weights``, ``round`` and validation ``score`` of the best round so far. Empty if the site has no such model yet."""


class LocalModel:
    """Trains and scores the model that a site would have without the federation."""

    def __init__(
        self,
        job: JobSpec,
        site: str,
        *,
        net: nn.Module,
        task: Task,
        data: SiteData,
        training: Samples,
        run: Callable[[int, Weights], Run],
    ) -> None:
        """``training`` are the samples, ``net`` the federation's; ``run`` makes the context of a round from weights."""
        self._job, self._site, self._net, self._task, self._run = job, site, net, task, run
        self._data, self._training = data, training
        self._methods = method_set.load({ALONE: {}})
        self._tested: tuple[int, CaseScores] | None = None

    def train(
        self, round_: int, state: State, *, received: Weights, stop: Callable[[], bool], loop: Loop | None = None
    ) -> State:
        """Score the model so far, then train it for a round. Returns the new state; ``state`` is not changed.

        If training diverges, the model stays as it was, and the log says so: the federation is not disturbed.
        ``received`` are the weights that the site received for this round; ``stop`` is as in `Site.train`, ``loop`` as
        in `local_training.train`.
        """
        started = time.monotonic()
        if not state:
            start = self._initial(round_, received)
            if start is None:
                return {}
            state = {"weights": copied(start), "round": 0}
        else:
            state = self.scored(state)
        with self._loaded(state["weights"], round_) as (run, chain):
            run.stop = stop
            run.optimizer = local_training.optimizer_of_round(self._net, self._job, round_, state.get("optimizer"))
            chain.begin(self._training)
            _, loss = local_training.train(self._task, self._training, chain, run, self._job.task.schedule, loop)
            chain.end(self._training)
            weights = read_weights(self._net)
        if not np.isfinite(loss) or not all(np.isfinite(value).all() for value in weights.values()):
            log.warning(
                "site %s, round %d: training its own model diverged (loss %s): it stays as it was before the round",
                *(self._site, round_, loss),
            )
            return state
        best = state.get("best")
        log.info(
            "site %s, round %d: its own model (evaluation.local) took %.1f s more%s",
            *(self._site, round_, time.monotonic() - started),
            "" if best is None or best["score"] is None else f"; so far it validates at {best['score']:.4f} at best",
        )
        trained: State = {"weights": copied(weights), "round": round_}
        if self._job.task.optimizer.keep:
            trained["optimizer"] = run.optimizer.state_dict()
        return trained if best is None else {**trained, "best": best}

    def scored(self, state: State) -> State:
        """The state with the last round's model considered as the best one. Without validation samples it is."""
        last, best = state["round"], state.get("best")
        if not last or (best is not None and best["round"] == last):
            return state
        with self._loaded(state["weights"], last + 1) as (_, chain):
            schedule = self._job.task.schedule
            scores = local_training.score_beside(
                local_training.predict(self._task, self._data, chain, self._net, "val", schedule),
                lambda classes: self._task.scores(classes, self._data, "val"),
                self._net,
            )
        score = scores.get(self._task.metric)
        if best is not None and best["score"] is not None and (score is None or score <= best["score"]):
            return state
        return {**state, "best": {"weights": state["weights"], "round": last, "score": score}}

    def test(self, state: State) -> tuple[int, CaseScores] | None:
        """The round of the best model, and its scores of every test case; None without a model or test samples."""
        if not state or not self._data.count("test"):
            return None
        best = self.scored(state).get("best")
        if best is None:
            return None
        if self._tested is None or self._tested[0] != best["round"]:  # the same for the last and for the best aggregate
            cases, seed = CaseScores(), derive_seed(self._job.seed, self._site, 0, "bootstrap")
            schedule = self._job.task.schedule
            with self._loaded(best["weights"], best["round"] + 1) as (_, chain):
                task = local_training.deciding(self._task, self._data, chain, self._net, schedule)
                local_training.score_beside(
                    local_training.probabilities(self._task, self._data, chain, self._net, "test", schedule),
                    lambda values: task.evaluate(values, self._data, "test", seed=seed, share_cases=False, keep=cases),
                    self._net,
                )
            self._tested = best["round"], cases
        return self._tested

    def _initial(self, round_: int, received: Weights) -> Weights | None:
        """The weights that the run starts from, which only round 1 sends."""
        if round_ == 1:
            return received
        if self._job.task.network.weights is None:
            return read_weights(self._task.network())
        log.warning(
            "site %s: it has no model of its own to compare with, because it missed round 1, in which the server sends "
            "the starting weights",
            self._site,
        )
        return None

    @contextmanager
    def _loaded(self, weights: Mapping[str, Tensor], round_: int) -> Iterator[tuple[Run, ClientChain]]:
        load_weights(self._net, to_arrays(weights))
        run = self._run(round_, {})
        chain = ClientChain(self._methods, run, {})
        with training_out_of_memory(self._site, round_):
            chain.receive({})
            yield run, chain
