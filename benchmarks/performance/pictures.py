"""Pictures to segment beside plain loops: preparation and check, an epoch of training, and a site's memory.

    OMP_NUM_THREADS=1 python -m benchmarks.performance.pictures

Pictures are made: 512 x 512, RGB, smooth with noise, as PNG, with a mask each.

- Preparation: processor seconds of ``fedshift data prepare own``, and of ``fedshift data check`` before it, beside a
  loop with Pillow that decodes every picture and mask and writes it again as PNG.
- An epoch: processor seconds of a site's epoch over whole pictures and over patches, beside a loop in PyTorch with the
  same network, loss and optimiser, whose pictures lie decoded and normalised in memory as float32.
- Memory: the most that a process takes for itself, without pages of mapped files, that prepares a quarter and all of
  the pictures, and reads an epoch of their patches.

Processor seconds, since other work on the machine does not count in them; the results say how loaded it was.
"""

from __future__ import annotations

import logging
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event, Thread

import numpy as np
import torch
from PIL import Image

from benchmarks import frame
from benchmarks.performance.plain_step import plain_step
from benchmarks.performance.training_step import Party
from data_prep.own_scans import prepare_own
from fedshift.data.check import check
from fedshift.federation.resolve import resolve
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import read_manifest
from fedshift.tasks.kinds import build_task

SIDE, CLASSES, COLOURS = 512, ("background", "disc"), ("red", "green", "blue")
PLAIN = "plain loop"
TASK = """
name: discs
kind: segmentation
dataset: discs
sites: [A]
classes: [background, disc]
data: {pictures: true, dims: 2, patch: [%d, %d], matrix: %s, sequences: [red, green, blue], samples_per_case: 1}
network: {name: monai.BasicUNet, options: {features: [16, 16, 32, 64, 128, 16]}}
loss: {name: monai.DiceCELoss}
optimizer: {name: adam, lr: 0.001}
schedule: {rounds: 1, local_epochs: 1, batch_size: 4, precision: fp32}
"""


def main() -> None:
    args = frame.parser(__doc__, pictures=1000, trained=40, repeats=5).parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        source = make_pictures(root / "source", args.pictures)
        seconds = frame.in_turn(
            {
                PLAIN: lambda: timed(lambda out: plain(source, out)),
                "prepare": lambda: timed(lambda out: prepare(source, out)),
                "check and prepare": lambda: timed(lambda out: checked(source, out)),
            },
            args.repeats,
        )
        epochs = measure_epochs(make_pictures(root / "trained", args.trained), root, args.repeats)
        quarter = make_pictures(root / "quarter", args.pictures // 4)
        memory = {
            str(number): alone(peak_of_preparation, folder, root / f"memory{number}")
            for number, folder in ((args.pictures // 4, quarter), (args.pictures, source))
        }
    ratios = {name: frame.ratios(told, seconds[PLAIN]) for name, told in seconds.items() if name != PLAIN}
    content = {"pictures": args.pictures, "cpu_seconds": seconds, "ratios": ratios, "epochs": epochs}
    frame.write_measured("pictures", content | {"peak_mb_of_preparing_and_opening": memory})


def make_pictures(folder: Path, count: int) -> Path:
    """Pictures and masks in ``images`` and ``masks``."""
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    y, x = np.mgrid[:SIDE, :SIDE]
    for number in range(count):
        rng = np.random.default_rng(number)
        coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize(
            (SIDE, SIDE), Image.Resampling.BICUBIC
        )
        inside = (y - rng.uniform(150, 350)) ** 2 + (x - rng.uniform(150, 350)) ** 2 < rng.uniform(60, 140) ** 2
        noise = rng.integers(-6, 7, (SIDE, SIDE, 3))
        pixels = np.clip(np.asarray(coarse) * 0.6 + 40 * inside[..., None] + noise, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"p{number:05d}.png")
        Image.fromarray(np.uint8(255) * inside).save(folder / "masks" / f"p{number:05d}.png")
    return folder


def timed(work: Callable[[Path], object]) -> float:
    """Processor seconds of work that writes to a folder."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        work(Path(folder))
        return time.process_time() - started


def plain(source: Path, out: Path) -> None:
    """Decode and write every picture and mask."""
    for name in ("images", "masks"):
        (out / name).mkdir()
        for file in sorted((source / name).iterdir()):
            pixels = np.asarray(Image.open(file))
            Image.fromarray(pixels).save(out / name / file.name)


def prepare(source: Path, out: Path) -> Path:
    """What ``fedshift data prepare own`` does."""
    return prepare_own(None, None, "A", out, dataset="discs", source=source, classes=CLASSES, wanted=COLOURS)


def checked(source: Path, out: Path) -> None:
    """``fedshift data check`` and then the same."""
    assert check(source, classes=CLASSES, wanted=COLOURS) == []
    prepare(source, out)


# --- an epoch ---------------------------------------------------------------------------------------------------------


def measure_epochs(source: Path, root: Path, repeats: int) -> dict[str, object]:
    site = prepare(source, root / "prepared")
    told: dict[str, object] = {}
    for name, side, matrix in (("whole pictures", SIDE, str(SIDE)), ("patches of 256", 256, "null")):
        file = root / "discs.yaml"
        file.write_text(TASK % (side, side, matrix), encoding="utf-8")
        job = resolve(str(file), "fedavg")
        party = Party(job, root / "prepared" / "discs", root / name, device="cpu", now=time.process_time)
        steps = -(-len(read_manifest(site).by_split("train")) // job.task.schedule.batch_size)
        ours = partial(lambda party, steps: party.seconds_a_step() * steps, party, steps)
        seconds = frame.in_turn({f"{name}, {PLAIN}": plain_epoch(job, site, side), f"{name}, fedshift": ours}, repeats)
        told[name] = {**seconds, "ratio": frame.ratios(seconds[f"{name}, fedshift"], seconds[f"{name}, {PLAIN}"])}
    return told


def plain_epoch(job: JobSpec, site: Path, side: int) -> Callable[[], float]:
    """Seconds of an epoch of a loop by hand, with the pictures in memory."""
    task = build_task(job)
    data = task.open(site, "A")
    images = [data.images(np.array([case]))[0] for case in data.members("train")]
    labels = [data.labels(np.array([case]))[0] for case in data.members("train")]
    net = task.network()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.001)
    size = job.task.schedule.batch_size

    def epoch() -> float:
        started = time.process_time()
        order = torch.randperm(len(images)).tolist()
        for start in range(0, len(order), size):
            pairs = []
            for case in order[start : start + size]:
                rows, columns = (int(torch.randint(0, SIDE - side + 1, ())) for _ in range(2))
                box = np.s_[rows : rows + side, columns : columns + side]
                pairs.append((images[case][:, box[0], box[1]], labels[case][box]))
            x, y = (torch.stack(parts) for parts in zip(*pairs, strict=True))
            plain_step(task, net, optimizer, x, y, precision="fp32")()
        return time.process_time() - started

    return epoch


# --- memory -----------------------------------------------------------------------------------------------------------


def alone(work: Callable[[Path, Path], float], source: Path, out: Path) -> float:
    """What work returns in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, source, out).result()


def peak_of_preparation(source: Path, out: Path) -> float:
    """MB of a process that prepares a site, and reads its training patches."""
    logging.disable(logging.WARNING)
    sizes, ended = [0.0], Event()
    watch = Thread(target=lambda: [sizes.append(own_memory()) for _ in iter(lambda: ended.wait(0.05), True)])
    watch.start()
    site = prepare(source, out)
    out.joinpath("discs.yaml").write_text(TASK % (256, 256, "null"), encoding="utf-8")
    data = build_task(resolve(str(out / "discs.yaml"), "fedavg")).open(site, "A")
    for start in range(0, data.n_train, 4):
        data.train_samples(np.arange(start, min(start + 4, data.n_train)))
    ended.set()
    watch.join()
    return max(sizes)


def own_memory() -> float:
    """MB that are not of mapped files."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("RssAnon:")[2].split()[0]) / 1000


if __name__ == "__main__":
    main()
