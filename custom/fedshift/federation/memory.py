"""How much memory a run will need, before it begins. Arithmetic only: nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedshift.data.splits import about_counts
from fedshift.schema.errors import TooLittleMemory
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import read_manifest
from fedshift.tasks.machine import free_memory

PROCESS = 450 * 2**20
"""Bytes of Python, torch and MONAI."""
COPIES, SERVERS = 8, 6
"""Of the network's arrays: weights, gradients, optimiser, received, sent, state files; and at the server."""
SIMULATOR = 450 * 2**20
"""Bytes of the processes of ``fedshift run``, or of a party under FLARE, that train nothing."""
WORKER = 150 * 2**20
"""Bytes that a forked worker does not share with the others."""
CONTEXT, WORKER_WITH_GPU = 600 * 2**20, 1500 * 2**20
"""Bytes that CUDA takes for each process on a GPU and beside it: NVIDIA's usual ones, not measured here."""
SPARE = 0.9
"""A run that takes more than this part of the free memory is told to be tight."""
GIGA = 1e9


def training_bytes(network: int, activations: int, *, images: int, evaluation: int) -> int:
    """Bytes that a process needs to train a batch of ``images``, beside what it has imported; the rest: `Measured`."""
    return COPIES * network + int(1.3 * images * activations) + evaluation


@dataclass(frozen=True)
class Measured:
    """What a run's memory depends on, as `fedshift.federation.footprint` finds it.

    Bytes: what one image leaves for the backward pass, the network's arrays, the images that evaluation holds at once,
    and those free on each GPU that sites would use.
    """

    activations: int
    network: int
    evaluation: int
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class Need:
    """Bytes of a run in one kind of memory: ``base``, and for each process ``process`` and ``image`` times ``batch``.

    ``shared_by`` GPUs have as many processes each as it takes; ``where`` says whose memory it is.
    """

    base: int
    process: int
    image: int
    batch: int
    free: int
    where: str = ""
    shared_by: int = 1

    def bytes_for(self, workers: int) -> int:
        """With so many processes side by side; on several GPUs, of the one with most."""
        return self.base + -(-workers // self.shared_by) * (self.process + self.image * self.batch)

    def fits(self, workers: int) -> bool:
        """Whether that is there."""
        return self.bytes_for(workers) <= self.free


def needs_in_simulator(job: JobSpec, data: Mapping[str, Path], measured: Measured) -> list[Need]:
    """Of a run in FLARE's simulator: this machine's memory, and, where sites train on GPUs, theirs.

    ``data`` are the sites' folders: no batch is larger than the largest site.
    """
    batch, image, fixed = _parts(job, data, measured)
    base = SIMULATOR + SERVERS * measured.network
    if not measured.gpus:
        return [Need(base, WORKER + fixed, image, batch, free_memory())]
    gpus = Need(0, CONTEXT + fixed, image, batch, min(measured.gpus), "GPU ", shared_by=len(measured.gpus))
    return [Need(base, WORKER_WITH_GPU + fixed, 0, batch, free_memory()), gpus]


def needs_in_process(job: JobSpec, data: Mapping[str, Path], measured: Measured, *, together: int = 1) -> list[Need]:
    """Of a run in this process, which has imported all that it needs; ``together`` sites' batches are one."""
    batch, image, fixed = _parts(job, data, measured)
    if not measured.gpus:
        return [Need(SERVERS * measured.network, fixed, together * image, batch, free_memory())]
    gpu = Need(0, CONTEXT + fixed, together * image, batch, measured.gpus[0], "GPU ")
    return [Need(SERVERS * measured.network, WORKER_WITH_GPU + fixed, 0, batch, free_memory()), gpu]


def needs_at_site(job: JobSpec, folder: Path, measured: Measured) -> list[Need]:
    """Of one site under FLARE: the process of its job, beside the site's own."""
    batch, image, fixed = _parts(job, {"": folder}, measured)
    if not measured.gpus:
        return [Need(SIMULATOR + PROCESS, fixed, image, batch, free_memory())]
    gpu = Need(0, CONTEXT + fixed, image, batch, measured.gpus[0], "GPU ")
    return [Need(SIMULATOR + PROCESS, WORKER_WITH_GPU + fixed, 0, batch, free_memory()), gpu]


def need_at_server(measured: Measured) -> Need:
    """Of the server under FLARE: the process of a job, beside the server's own."""
    return Need(SIMULATOR + PROCESS, SERVERS * measured.network, 0, 1, free_memory())


def _parts(job: JobSpec, data: Mapping[str, Path], measured: Measured) -> tuple[int, int, int]:
    """Images in a batch, bytes for each of them, bytes besides."""
    largest = max(about_counts(read_manifest(folder), job.task.data)["train"] for folder in data.values())
    image = training_bytes(0, measured.activations, images=1, evaluation=0)
    fixed = training_bytes(measured.network, 0, images=0, evaluation=measured.evaluation)
    return min(job.task.schedule.batch_size, largest), image, fixed


def most_workers(needs: Sequence[Need], workers: int) -> int:
    """As many of them as memory has room for; 0 if not even one."""
    return next((n for n in range(workers, 0, -1) if all(need.fits(n) for need in needs)), 0)


def most_images(needs: Sequence[Need], workers: int) -> int:
    """The largest power of two below the batch size at which so many processes fit; 0 if there is none."""
    smaller = 1 << max(min(need.batch for need in needs) - 1, 0).bit_length() >> 1
    while smaller > 1:  # batch norms need two
        if all(replace(need, batch=smaller).fits(workers) for need in needs):
            return smaller
        smaller >>= 1
    return 0


def choose_workers(needs: Sequence[Need], *, wanted: int, asked: bool) -> tuple[int, str]:
    """How many processes may work side by side, and what there is to say about it.

    ``wanted`` is by the number of cores, or by the user; if ``asked`` says that, it is kept, or refused.

    Raises:
        TooLittleMemory: it does not fit; the sentence has a smaller suggestion that does.
    """
    tight = [need for need in needs if need.bytes_for(wanted) > SPARE * need.free]
    if not tight:
        return wanted, ""
    fitting = most_workers(needs, wanted)
    if fitting == wanted:
        return wanted, f"{_sentence(tight[0], wanted)}: it will be tight"
    over = next(need for need in needs if not need.fits(wanted))
    if fitting and not asked:
        return fitting, f"{_sentence(over, wanted)}: {fitting} at a time"
    images = most_images(needs, wanted if fitting else 1)
    remedies = [f"use -p {fitting}"] if fitting else []
    alone = "use -p 1 and " if wanted > 1 and not fitting else ""
    remedies += [f"{alone}make the job with --set schedule.batch_size={images}"] if images else []
    remedies += [] if remedies else ["take smaller images or a smaller network, or free some memory"]
    advice = f"{', or '.join(remedies)} (--ignore-memory tries it all the same)"
    raise TooLittleMemory("too-little-memory", f"{_sentence(over, wanted)}: {advice}")


def _sentence(need: Need, workers: int) -> str:
    who = "this run needs" if workers == 1 else f"{workers} workers at a time need"
    needed, free = need.bytes_for(workers) / GIGA, need.free / GIGA
    return f"{who} about {needed:.1f} GB of {need.where}memory and {free:.1f} GB are free"
