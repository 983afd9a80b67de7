"""Local training and prediction of one site: the loops that the methods hook into."""

from __future__ import annotations

import copy
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import count, islice, starmap
from queue import Queue
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from fedshift.data.draws import sample_seeds
from fedshift.data.samples import Samples
from fedshift.federation.site.checkpoint import Loop
from fedshift.federation.site.passes import Passes
from fedshift.methods.base import Batch, Run
from fedshift.methods.chain import ClientChain
from fedshift.methods.shared.passes import Replayed
from fedshift.schema.errors import Stopped
from fedshift.schema.job import JobSpec
from fedshift.schema.optimizer import OptimizerSpec
from fedshift.schema.seeding import derive_seed, generator, seeded_global
from fedshift.schema.task import ScheduleSpec
from fedshift.tasks import optimizers
from fedshift.tasks.base import ClassifyingTask, SiteData, Subset, Task
from fedshift.tasks.cache import PART
from fedshift.tasks.machine import own_cores
from fedshift.tasks.out_of_memory import batch_out_of_memory
from fedshift.tasks.precision import autocast

if TYPE_CHECKING:
    from fedshift.federation.site.ranks.group import Group

log = logging.getLogger("fedshift")

Result = TypeVar("Result")


def optimizer_of_round(
    net: nn.Module, job: JobSpec, round_: int, state: Mapping[str, Any] | None = None
) -> torch.optim.Optimizer:
    """The optimiser of a round; it goes on from the ``state`` of an earlier one, if given, and leaves that as it is."""
    spec = job.task.optimizer.at(round_, job.task.schedule.rounds)
    optimizer = make_optimizer(net, spec)
    if state is not None:
        optimizer.load_state_dict(copy.deepcopy(dict(state)))  # torch would take the tensors and step in place
        for group in optimizer.param_groups:
            group["lr"] = spec.lr
    return optimizer


def make_optimizer(net: nn.Module, spec: OptimizerSpec) -> torch.optim.Optimizer:
    """The optimiser of a round (`OptimizerSpec.at`)."""
    if spec.name == "sgd":
        chosen = spec.model_dump(include={"lr", "momentum", "weight_decay", "nesterov"})
        return optimizers.SGD(net.parameters(), **chosen)
    make = torch.optim.AdamW if spec.name == "adamw" else torch.optim.Adam
    fused = next(net.parameters()).is_cuda or None  # one kernel for all parameters; None is torch's own choice
    return make(net.parameters(), lr=spec.lr, betas=spec.betas, weight_decay=spec.weight_decay, fused=fused)


def train(
    task: Task,
    data: Samples,
    chain: ClientChain,
    run: Run,
    schedule: ScheduleSpec,
    loop: Loop | None = None,
    group: Group | None = None,
) -> tuple[int, float]:
    """Train for one round. Returns the number of optimiser steps and the mean training loss per step.

    With ``schedule.minutes`` the round ends after so many minutes of steps, and at least one step, or with the planned
    number of steps. The ``chain`` has begun the round; ``loop`` keeps checkpoints and goes on from one, if given;
    ``group`` are the ranks that share each batch, if several do.

    Raises:
        BatchTooLarge: the passes of a batch ran out of memory.
        Stopped: the job was aborted.
    """
    net, optimizer = run.net, run.optimizer
    assert optimizer is not None
    device = next(net.parameters()).device
    loop = loop or Loop()
    limit = math.inf if schedule.minutes is None else 60 * schedule.minutes
    net.train()
    run.steps = planned_steps(data, schedule)
    passes = Passes(task, chain, run, schedule, group)
    if group is not None:
        run.rank, run.ranks = group.rank, group.size
    with seeded_global(run.seed_of("layers")):
        total = loop.resume(run, chain).get("loss", torch.zeros(())).to(device)
        passes.capture(data)
        for x, y in batches(data, run, schedule):
            if run.stop():
                raise Stopped("stopped", f"site {run.site}, round {run.round}: stopped before it was done")
            if run.step and loop.seconds >= limit:
                break
            if group is not None:
                group.begin_step()
            batch = chain.batch(Batch(x.to(device, non_blocking=True), y.to(device, non_blocking=True)))
            with batch_out_of_memory(run.site, run.round):
                total += chain.step(Replayed(run, partial(passes.gradients, batch)), optimizer.step)
            run.step += 1
            loop.keep(run, chain, {"loss": total})
    if run.step < run.steps:
        log.info(
            "site %s, round %d: schedule.minutes (%g) ended training after step %d of %d",
            *(run.site, run.round, schedule.minutes, run.step, run.steps),
        )
    return run.step, float(total) / max(run.step, 1)


def batches(data: Samples, run: Run, schedule: ScheduleSpec) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of a round from step ``run.step`` on, of as many shuffled epochs as needed; ``run.epoch`` counts.

    Of a batch that several ranks share, this rank's share; ``run.share`` is how large it is. Order and samples do not
    depend on the number of ranks.

    Where a core is free, or a GPU trains, the next batch is made by another thread while the present one trains.
    """
    order = generator(run.seed, run.site, run.round, "order")
    seed = derive_seed(run.seed, run.site, run.round, "samples")

    def epochs() -> Iterator[tuple[int, np.ndarray]]:
        for number in count():
            each = data.epoch(batch_size=schedule.batch_size, order=order, drop_last=schedule.drop_last)
            yield from ((number, index) for index in each)

    def planned() -> Iterator[tuple[int, np.ndarray, Tensor, float]]:
        place = 0
        for step, (number, index) in enumerate(islice(epochs(), planned_steps(data, schedule))):
            if step >= run.step:
                seeds = sample_seeds(seed, torch.arange(place, place + len(index)))
                samples, share = share_of(len(index), rank=run.rank, ranks=run.ranks)
                yield number, index[samples], seeds[samples], share
            place += len(index)

    on_gpu = run.device.type == "cuda"

    def make(number: int, index: np.ndarray, seeds: Tensor, share: float) -> tuple[int, float, Tensor, Tensor]:
        x, y = data.train_batch(index, seeds=seeds)
        if on_gpu and not x.is_cuda:  # so that the copy need not be waited for
            x, y = x.pin_memory(), y.pin_memory()
        return number, share, x, y

    beside = can_work_beside(run.device, ranks=run.ranks) and data.in_threads
    for number, share, x, y in (ahead if beside else starmap)(make, planned()):
        run.epoch, run.share = number, share
        yield x, y


def can_work_beside(device: torch.device, *, ranks: int = 1) -> bool:
    """Whether another thread makes things faster while the network computes on a device, of one of so many ranks."""
    return device.type == "cuda" or own_cores() // ranks > torch.get_num_threads()


def share_of(size: int, *, rank: int, ranks: int) -> tuple[slice, float]:
    """A rank's share of a batch of so many samples, in their order, and its part of the batch.

    A rank for which there is no sample takes the first, as a part of 0, so that all do the same passes.
    """
    each, more = divmod(size, ranks)
    start = rank * each + min(rank, more)
    count = each + (rank < more)
    return slice(start, start + count) if count else slice(0, 1), count / size


def ahead(make: Callable[..., Result], calls: Iterable[tuple[Any, ...]]) -> Iterator[Result]:
    """What ``make`` gives for each call, in order, the next one in a thread while the last is used."""
    with ThreadPoolExecutor(1, thread_name_prefix="batches") as thread:
        coming: deque[Future[Result]] = deque()
        for call in calls:
            coming.append(thread.submit(make, *call))
            if len(coming) > 1:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


def planned_steps(data: Samples, schedule: ScheduleSpec) -> int:
    """Optimiser steps that a round has at a site."""
    return schedule.steps(data.n_batches(batch_size=schedule.batch_size, drop_last=schedule.drop_last))


def predict(
    task: Task, data: SiteData, chain: ClientChain, net: nn.Module, subset: Subset, schedule: ScheduleSpec
) -> Iterator[Tensor]:
    """What a task's scores are made of, for a subset of a site, batch by batch on the CPU (`Task.predicted`)."""
    for logits in _logits(task, data, chain, net, subset, schedule, final=False):
        yield task.predicted(logits)


def probabilities(
    task: Task,
    data: SiteData,
    chain: ClientChain,
    net: nn.Module,
    subset: Subset,
    schedule: ScheduleSpec,
    *,
    apart: bool = False,
) -> Iterator[Tensor]:
    """Probabilities of the classes or regions for a subset of a site, batch by batch (`Task.probabilities`).

    ``apart`` is as in `Task.logits`.
    """
    for logits in _logits(task, data, chain, net, subset, schedule, final=True, apart=apart):
        yield task.probabilities(logits)


def deciding(task: Task, data: SiteData, chain: ClientChain, net: nn.Module, schedule: ScheduleSpec) -> Task:
    """The task as a final model is evaluated: a classifier's may have the site's validation part choose thresholds."""
    if task.dense:
        return task
    values = probabilities(task, data, chain, net, "val", schedule)
    return cast("ClassifyingTask", task).decided(values, data)


def score_beside(predicted: Iterator[Tensor], score: Callable[[Iterator[Tensor]], Result], net: nn.Module) -> Result:
    """What ``score`` makes of a network's predictions, in a thread, while the next one is made here.

    One after the other where `can_work_beside` says that a thread would not help. An error of either ends both.
    """
    if not can_work_beside(next(net.parameters()).device):
        return score(predicted)
    ready: Queue[Tensor | None] = Queue()
    ended = Event()

    def batches() -> Iterator[Tensor]:
        while (batch := ready.get()) is not None:
            ready.task_done()
            yield batch

    def read() -> Result:
        unread = batches()
        try:
            return score(unread)
        finally:
            ended.set()
            deque(unread, 0)  # so that nobody waits for it to be read

    with ThreadPoolExecutor(1, thread_name_prefix="scores") as thread:
        scored = thread.submit(read)
        try:
            for batch in predicted:
                ready.put(batch)
                ready.join()  # no more than one is ahead: they may be large
                if ended.is_set():
                    break
        finally:
            ready.put(None)
    return scored.result()


@torch.inference_mode()
def _logits(
    task: Task,
    data: SiteData,
    chain: ClientChain,
    net: nn.Module,
    subset: Subset,
    schedule: ScheduleSpec,
    *,
    final: bool,
    apart: bool = False,
) -> Iterator[Tensor]:
    device = next(net.parameters()).device
    net.eval()

    def forward(x: Tensor) -> Tensor:
        x = chain.inputs(x.to(device), training=False)
        with autocast(schedule.precision, device):
            logits: Tensor = net(x)
        return logits

    def images() -> Iterator[Tensor]:
        for x in data.eval_images(subset):
            yield x.to(device) if _fits(x, device, task.sizes["classes"][0]) else x

    yield from task.logits(forward, images(), final=final, apart=apart)


def _fits(x: Tensor, device: torch.device, n_classes: int) -> bool:
    """Whether a GPU has room for images with their logits and what becomes of them, of `PART` of its memory."""
    if device.type != "cuda":
        return True
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free = torch.cuda.mem_get_info(device)[0] + unused
    return 4 * (x.numel() + 3 * n_classes * x[:, 0].numel()) <= PART * free


def gradient_norm(task: Task, data: SiteData, chain: ClientChain, net: nn.Module, subset: Subset) -> float:
    """L2 norm of the gradient of the mean loss over a subset of a site's images, over all parameters.

    It measures how far the site's optimum is from the model ("Mitigating Data Heterogeneity…", Eq. 5, which averages
    its square over sites).
    """
    parts = gradient(task, data, chain, net, subset)
    return float(torch.stack([part.square().sum() for part in parts]).sum().sqrt())


def gradient(task: Task, data: SiteData, chain: ClientChain, net: nn.Module, subset: Subset) -> list[Tensor]:
    """Gradient of the mean loss over a subset of a site's images, for each parameter that has one, in float64.

    In evaluation mode, without augmentation, and computed in float32 whatever the precision of training.
    """
    device = next(net.parameters()).device
    net.eval()
    net.zero_grad(set_to_none=True)
    total = data.n_samples(subset)
    for start in range(0, total, data.eval_batch):
        images, labels = data.samples(np.arange(start, min(start + data.eval_batch, total)), subset)
        loss = task.loss(net(chain.inputs(images.to(device), training=False)), labels.to(device))
        (loss * (len(images) / total)).backward()  # type: ignore[no-untyped-call]
    parts = [p.grad.double() for p in net.parameters() if p.grad is not None]
    net.zero_grad(set_to_none=True)
    return parts
