"""A site that trains in a plain PyTorch loop, for `training_peers`: no hooks, no state, no files."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch

from fedshift.federation.site import local_training
from fedshift.methods.base import Run
from fedshift.schema.job import FILE_NAME, read_job
from fedshift.tasks.kinds import build_task

Weights = dict[str, np.ndarray]


@cache
def party(job: Path, data: Path, site: str) -> Party:
    """One that stays in this process, with its data."""
    return Party(job, data, site)


class Party:
    """One site of a job folder, with its data below ``data``."""

    def __init__(self, job: Path, data: Path, site: str) -> None:
        """Open the data."""
        torch.set_num_threads(1)
        self._job = read_job(next(job.rglob(FILE_NAME)))
        self._task = build_task(self._job)
        self._data = self._task.open(data / site, site)
        self._net = self._task.network()
        self._site = site
        self.keys = list(self._net.state_dict())

    @property
    def initial(self) -> Weights:
        """The job's first model."""
        return {key: value.numpy().copy() for key, value in self._task.network().state_dict().items()}

    def train(self, weights: Weights, round_: int) -> tuple[Weights, int, dict[str, float]]:
        """Score the received weights on the validation part, but not the first, and train an epoch.

        Returns the weights, the number of training samples, and the scores.
        """
        job, net = self._job, self._net
        net.load_state_dict({key: torch.tensor(value) for key, value in weights.items()})
        scores = self._scores() if round_ > 1 else {}
        schedule = job.task.schedule
        classes = len(job.task.classes)
        run = Run(job.seed, self._site, round_, schedule.rounds, job.task.sites, net, self._task.loss, classes)
        options = job.task.optimizer
        optimizer = torch.optim.SGD(net.parameters(), lr=options.lr, momentum=options.momentum)
        net.train()
        for x, y in local_training.batches(self._data, run, schedule):
            optimizer.zero_grad()
            self._task.loss(net(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return {k: v.numpy().copy() for k, v in net.state_dict().items()}, self._data.n_train, scores

    @torch.inference_mode()
    def _scores(self) -> dict[str, float]:
        self._net.eval()
        predicted = (self._net(x).argmax(1).to(torch.uint8) for x in self._data.eval_images("val"))
        return self._task.scores(predicted, self._data, "val")


def average(answers: list[tuple[Weights, int, dict[str, float]]]) -> Weights:
    """By number of training samples; counters are the first site's."""
    total = sum(n for _, n, _ in answers)
    first = answers[0][0]
    return {
        key: np.asarray(sum(w[key] * np.float32(n / total) for w, n, _ in answers), value.dtype)
        if value.dtype == np.float32
        else value
        for key, value in first.items()
    }
