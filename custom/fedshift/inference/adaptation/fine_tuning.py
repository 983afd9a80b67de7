"""Fine-tuning on a few labelled cases, whose setting is chosen by cross-validation over these cases.

Loss, patches and augmentation are the task's own. The weights that training starts from are an anchor: L2-SP (Li,
Grandvalet & Davoine, "Explicit inductive bias for transfer learning with convolutional networks", ICML 2018) adds

    a / 2 · ‖w − w₀‖²

to the loss, over the parameters that are trained. The model then goes a part b of the way (`SHARE`), w₀ + b (w - w₀):
between the weights before and after fine-tuning models hold better on what neither has seen (Wortsman et al., "Robust
fine-tuning of zero-shot models", CVPR 2022, who take b = 0.5).

Up to `LEAVE_ONE_OUT` subjects each is left out in turn; more are dealt to as many folds. In each fold a part of the
network is trained, and after each of `STOPS` steps the cases that are left out are scored as ``fedshift evaluate``
scores them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from data_prep.volumes import SitePlan, write_site
from fedshift.data.cases import CaseFiles
from fedshift.data.draws import sample_seeds
from fedshift.data.samples import Samples
from fedshift.federation.site.local_training import make_optimizer
from fedshift.inference import scoring
from fedshift.inference.adaptation.parts import copied_weights, keys_of, trained
from fedshift.inference.model import Model
from fedshift.inference.ready import ReadyModel
from fedshift.schema.adaptation import Part
from fedshift.schema.codes import WITHOUT_STRUCTURE
from fedshift.schema.errors import DataError
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import TRUE_SPACING, read_manifest
from fedshift.schema.seeding import derive_seed, generator, seeded_global
from fedshift.tasks.base import SiteData, Task
from fedshift.tasks.kinds import build_task

SITE = "adapted"
LEAVE_ONE_OUT = 5
"""Subjects up to which each is left out in turn; the number of folds beyond."""
RATE = 0.3
"""The learning rate, as a part of the job's."""
STOPS = (80, 160)
"""Numbers of steps after which cases that are left out are scored."""
SHARE = 0.5
"""``b``: how far of the way from the weights before to those after training the model goes."""
BATCH_SIZE = 8
"""Most samples of a step: with few cases more of them are no more different."""
ANCHOR = 0.01
"""``a`` of L2-SP; its authors have 0.1 for the layers that are kept, with SGD. With Adam, whose steps do not shrink
with the gradient, that holds weights harder."""
CLIP = 1.0
"""Largest L2 norm of a step's gradient."""
Progress = Callable[[str, int, int], None]
"""Called with what is done, and how many steps of how many it has made; of how many is 0 where it has no steps."""
SPLITS = ("split", "fraction", "fold", "seed")
"""Keys of ``data`` that leave cases or slices out of training; here all of them are trained on."""


@dataclass(frozen=True)
class Setting:
    """``rate``: the learning rate."""

    part: Part
    rate: float
    steps: int


@dataclass(frozen=True)
class LabelledCases:
    """Cases as training reads them, and as they are scored.

    ``subjects``: whose each is. ``task`` is that of the masks, which may leave out classes.
    """

    cases: Sequence[CaseFiles]
    subjects: Sequence[str]
    task: Task
    data: SiteData
    true_spacing: bool

    def samples(self, chosen: Set[str]) -> Samples:
        """Training samples of some subjects."""
        return _Part(self.data, np.flatnonzero(np.isin(self.data.cases("train"), self._numbers(chosen))))

    def _numbers(self, chosen: Set[str]) -> list[int]:
        subject = dict(zip((case.id for case in self.cases), self.subjects, strict=True))
        return [k for k, case in enumerate(self.data.manifest.cases) if subject[case.id] in chosen]

    def dice(self, ready: ReadyModel, chosen: Set[str]) -> dict[str, float]:
        """Mean Dice of each of some subjects; those whose masks have no structure are left out."""
        values: dict[str, list[float]] = {}
        for case, subject in zip(self.cases, self.subjects, strict=True):
            if subject in chosen:
                decoded, _ = scoring.decode(case)
                values.setdefault(subject, []).append(
                    scoring.dice(ready, case, decoded, true_spacing=self.true_spacing)
                )
        return {s: float(np.nanmean(each)) for s, each in values.items() if not np.isnan(each).all()}


class _Part(Samples):
    """Some of a site's training samples, by their places."""

    def __init__(self, data: SiteData, places: np.ndarray) -> None:
        self._data, self._places, self.in_threads = data, places, data.in_threads

    @property
    def n_train(self) -> int:
        return len(self._places)

    def train_samples(self, index: np.ndarray) -> tuple[Tensor, Tensor]:
        return self._data.train_samples(self._places[index])

    def train_batch(self, index: np.ndarray, *, seeds: Tensor) -> tuple[Tensor, Tensor]:
        return self._data.train_batch(self._places[index], seeds=seeds)


def open_cases(
    model: Model, cases: Sequence[CaseFiles], subjects: Sequence[str], root: Path, *, true_spacing: bool
) -> LabelledCases:
    """Prepare cases below ``root`` as a site does, all of them for training.

    Raises:
        DataError: a case cannot be used; the sentence names it and says why.
    """
    job, labels = model.header.job, cases[0].labels
    assert labels is not None
    with _errors_only():
        plan = SitePlan(
            site=SITE,
            cases=tuple(replace(case, split="train") for case in cases),
            source="own",
            licence="",
            citation="",
            preparation={TRUE_SPACING: True} if true_spacing else None,
        )
        folder = write_site(plan, root, dataset=job.task.dataset, labels=labels, sequences=model.sequences)
    without = WITHOUT_STRUCTURE in read_manifest(folder).preparation
    task = build_task(_whole(job, empty=without))
    data = task.open(folder, SITE)
    return LabelledCases(cases, subjects, task.at(data), data, true_spacing)


@contextmanager
def _errors_only() -> Iterator[None]:
    """Without the warnings of a site, whose folder is not there for long and needs no split but one.

    Those of a case are what ``fedshift evaluate`` says of the same files.
    """
    log = logging.getLogger(write_site.__module__)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _whole(job: JobSpec, *, empty: bool) -> JobSpec:
    """The job with every case in training; ``empty``: some lack the structure, and have no slice with foreground."""
    left_out = (*SPLITS, "train_slices") if empty else SPLITS
    data = {key: value for key, value in job.task.data.items() if key not in left_out}
    if empty:
        data["empty"] = True
    return job.model_copy(update={"task": job.task.model_copy(update={"data": data})})


def settings(job: JobSpec, part: Part) -> list[Setting]:
    """The settings that are tried, in the order of their steps; none if the network has no such part."""
    return [Setting(part, RATE * job.task.optimizer.lr, steps) for steps in STOPS] if keys_of(job, part) else []


def cross_validate(
    ready: ReadyModel,
    labelled: LabelledCases,
    trials: Sequence[Setting],
    *,
    seed: int,
    progress: Progress = lambda what, done, total: None,
) -> tuple[np.ndarray, np.ndarray]:
    """Dice of subjects before (subjects,), and after each setting by models that have not seen them.

    The latter is (settings, subjects). ``trials``: of one part and rate, by steps. The model is as before when it ends.
    Subjects whose masks have no structure are left out; if fewer than two have it, nothing is trained.

    Raises:
        DataError: the others of a fold have nothing to train on.
    """
    net = ready.predictor.net
    start = copied_weights(net)
    progress("scoring the model as it is", 0, 0)
    before = labelled.dice(ready, set(labelled.subjects))
    names = sorted(before)
    after = np.full((len(trials), len(names)), np.nan)
    folds, stops = folds_of(names, seed=seed) if len(names) > 1 else [], [setting.steps for setting in trials]
    for number, fold in enumerate(folds):
        samples = labelled.samples(set(labelled.subjects) - fold)
        if not samples.n_train:
            fault = f"without {', '.join(sorted(fold))} the labelled cases have nothing to train on"
            raise DataError("no-images", f"{fault}: give masks of more patients")
        seeded, what = _seed(seed, number), f"cross-validation, training {number + 1} of {len(folds)}"
        steps_before, total = number * max(stops), len(folds) * max(stops)
        progress(what, steps_before, total)
        for steps in fine_tune(ready, labelled.task, samples, trials[0], stops=range(1, max(stops) + 1), seed=seeded):
            progress(what, steps_before + steps, total)
            if steps not in stops:
                continue
            trained_weights = copied_weights(net)
            net.load_state_dict(_part_way(start, trained_weights))
            for name, value in labelled.dice(ready, fold).items():
                after[stops.index(steps), names.index(name)] = value
            net.load_state_dict(trained_weights)
        net.load_state_dict(start)
    return np.array([before[name] for name in names]), after


def _part_way(start: Mapping[str, Tensor], end: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights `SHARE` of the way; what has no places between, such as counts of batches, is that of the end."""
    return {
        key: torch.lerp(start[key], value, SHARE) if value.is_floating_point() else value for key, value in end.items()
    }


def folds_of(subjects: Sequence[str], *, seed: int) -> list[set[str]]:
    """Each subject by itself up to `LEAVE_ONE_OUT`; else as many folds, dealt by seed."""
    n = len(subjects)
    order = range(n) if n <= LEAVE_ONE_OUT else np.random.default_rng(_seed(seed, 0)).permutation(n).tolist()
    folds: list[set[str]] = [set() for _ in range(min(n, LEAVE_ONE_OUT))]
    for place, number in enumerate(order):
        folds[place % len(folds)].add(subjects[number])
    return folds


def _seed(seed: int, fold: int) -> int:
    return derive_seed(seed, SITE, fold, "fine-tuning")


def fine_tune(
    ready: ReadyModel, task: Task, samples: Samples, setting: Setting, *, stops: Sequence[int], seed: int
) -> Iterator[int]:
    """Train the part of a setting, in place; yields after each of ``stops``, when the model can be used and scored.

    Args:
        ready: the model; its inputs are normalised as it predicts.
        task: whose loss it is.
        samples: the training samples.
        setting: the part and the learning rate.
        stops: numbers of steps, ascending.
        seed: of the order of the samples, of their patches and augmentation.
    """
    job, net = ready.model.header.job, ready.predictor.net
    keys = keys_of(job, setting.part)
    optimizer = make_optimizer(net, job.task.optimizer.model_copy(update={"lr": setting.rate, "weight_decay": 0.0}))
    parameters = [parameter for name, parameter in net.named_parameters() if name in keys]
    anchors = [parameter.detach().clone() for parameter in parameters]
    feed = batches(samples, batch_size=min(BATCH_SIZE, job.task.schedule.batch_size), seed=seed)
    for step in range(1, max(stops) + 1):
        with trained(net, keys):
            x, y = next(feed)
            optimizer.zero_grad(set_to_none=True)
            loss = task.loss(ready.logits(x), y.to(ready.device))
            loss.backward()  # type: ignore[no-untyped-call]
            for parameter, anchor in zip(parameters, anchors, strict=True):
                if parameter.grad is not None:
                    parameter.grad.add_(parameter.detach() - anchor, alpha=ANCHOR)
            torch.nn.utils.clip_grad_norm_(parameters, CLIP)
            optimizer.step()
        if step in stops:
            yield step


def batches(samples: Samples, *, batch_size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of one shuffled epoch after another, as training has them; every number comes from ``seed``."""
    order, first = generator(seed, SITE, 0, "order"), 0
    for epoch in count():
        for number, index in enumerate(samples.epoch(batch_size=batch_size, order=order, drop_last=False)):
            seeds = sample_seeds(seed, torch.arange(first, first + len(index)))
            with seeded_global(derive_seed(seed, SITE, epoch, f"batch {number}")):  # some transforms draw from it
                batch = samples.train_batch(index, seeds=seeds)
            yield batch
            first += len(index)


def fine_tune_on_all(
    ready: ReadyModel,
    labelled: LabelledCases,
    setting: Setting,
    *,
    seed: int,
    progress: Progress = lambda what, done, total: None,
) -> None:
    """Fine-tune the model on all cases, in place, and go `SHARE` of the way."""
    net, samples, stops = ready.predictor.net, labelled.samples(set(labelled.subjects)), range(1, setting.steps + 1)
    start = copied_weights(net)
    for steps in fine_tune(ready, labelled.task, samples, setting, stops=stops, seed=_seed(seed, LEAVE_ONE_OUT)):
        progress("training on all cases", steps, setting.steps)
    net.load_state_dict(_part_way(start, copied_weights(net)))
