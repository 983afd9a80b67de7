"""FRAug's motivating study (its Table 1): what does tuning only the head on more embeddings bring?

Every site alone, without any federation: a model is trained on a tenth of the site's training images; then its
feature extractor is fixed and only the head goes on, with the embeddings of all training images. Both are scored
on the site's validation and test images, none of which trained or selected anything::

    python benchmarks/fraug_head_tuning.py --task digits --data ROOT [--out benchmarks/results/fraug_head_tuning.json]

ROOT holds ``<dataset>/<site>``, as prepared for the task. Both stages take the task's optimiser (begun anew for the
head) and batch size, and the same number of epochs; embeddings are of un-augmented images, in evaluation mode.
The JSON is written only with ``--out``.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedshift.federation.resolve import resolve
from fedshift.federation.site import local_training
from fedshift.methods import method_set
from fedshift.methods.base import Run
from fedshift.methods.chain import ClientChain
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import Split
from fedshift.schema.seeding import generator
from fedshift.tasks.base import SiteData, Task
from fedshift.tasks.kinds import build_task
from fedshift.tasks.precision import prepare, use_threads

HELD_OUT: tuple[Split, ...] = ("val", "test")


def accuracy(task: Task, data: SiteData, chain: ClientChain, net: nn.Module, job: JobSpec) -> float:
    """Of all held-out images of a site."""
    right = total = 0.0
    for split in HELD_OUT:
        if data.count(split):
            predictions = local_training.predict(task, data, chain, net, split, job.task.schedule)
            right += data.count(split) * task.scores(predictions, data, split)["accuracy"]
            total += data.count(split)
    return right / total


@torch.no_grad()
def embeddings(net: nn.Module, data: SiteData, device: torch.device) -> tuple[Tensor, Tensor]:
    """Of all training images, (n, d), and their labels, (n,)."""
    net.eval()
    parts = [(net.embed(x.to(device)), y.to(device)) for x, y in data.chunks()]  # type: ignore[operator]
    return torch.cat([u for u, _ in parts]), torch.cat([y for _, y in parts])


def head_batches(n: int, job: JobSpec, site: str) -> Iterator[Tensor]:
    """Numbers of embeddings, epoch after epoch; the last, smaller batch is left out."""
    order, size = generator(job.seed, site, 1, "head"), min(job.task.schedule.batch_size, n)
    for _ in range(job.task.schedule.local_epochs):
        yield from (part for part in torch.randperm(n, generator=order).split(size) if len(part) == size)


def tune(few: JobSpec, everything: JobSpec, folder: Path, site: str, *, device: torch.device) -> tuple[float, float]:
    """Accuracy at one site without and with tuning of the head."""
    task = build_task(few)
    net = prepare(task.network(), few.task.schedule.precision, device)
    head = getattr(net, "head", None)
    if not isinstance(head, nn.Linear):
        raise ConfigError(
            "method-needs", f"network {few.task.network.name} has no linear head to tune: choose a classification task"
        )
    run = Run(
        seed=few.seed,
        site=site,
        round=1,
        rounds=1,
        sites=few.task.sites,
        net=net,
        objective=task.loss,
        n_classes=len(few.task.classes),
    )
    run.optimizer = local_training.make_optimizer(net, few.task.optimizer)
    chain = ClientChain(method_set.load(few.methods), run, {})
    data = task.open(folder, site)
    local_training.train(task, data, chain, run, few.task.schedule)
    without = accuracy(task, data, chain, net, few)

    u, y = embeddings(net, build_task(everything).open(folder, site), device)
    optimizer = local_training.make_optimizer(head, few.task.optimizer)
    for index in head_batches(len(u), few, site):
        optimizer.zero_grad()
        task.loss(head(u[index]), y[index]).backward()
        optimizer.step()
    return without, accuracy(task, data, chain, net, few)


def measure(
    task: str,
    root: Path,
    *,
    sites: Sequence[str] | None = None,
    fraction: float = 0.1,
    epochs: int = 50,
    seed: int = 0,
    options: Sequence[str] = (),
    device: str = "cpu",
) -> dict[str, Any]:
    """The whole result as plain data."""
    few, everything = (
        resolve(
            task,
            "fedavg",
            sites=sites,
            seed=seed,
            options=[*options, f"schedule.local_epochs={epochs}", f"data.fraction={part}"],
        )
        for part in (fraction, 1.0)
    )
    use_threads(few.task.schedule.threads)
    folders = {site: root / few.task.dataset / site for site in few.task.sites}
    n = {site: build_task(everything).open(folder, site).n_train for site, folder in folders.items()}
    kinds = {site: build_task(few).open(folder, site).manifest.kind for site, folder in folders.items()}
    scores = {site: tune(few, everything, folders[site], site, device=torch.device(device)) for site in folders}
    return {
        "metric": "accuracy over a site's validation and test images",
        "task": few.task.model_dump(mode="json"),
        "seed": seed,
        "fraction": fraction,
        "epochs": epochs,
        "kind": kinds,
        "n_train": n,
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "without": {site: pair[0] for site, pair in scores.items()},
        "with": {site: pair[1] for site, pair in scores.items()},
    }


def table(result: dict[str, Any]) -> str:
    """The result as the paper prints it, in percent."""
    sites = list(result["without"])
    lines = ["| head tuned | " + " | ".join(sites) + " | mean |", "|---|" + "---:|" * (len(sites) + 1)]
    for name in ("without", "with"):
        row = [result[name][site] for site in sites]
        lines.append(f"| {name} | " + " | ".join(f"{100 * value:.2f}" for value in [*row, np.mean(row)]) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", required=True, help="a classification task, or the path of one's own, *.yaml")
    parser.add_argument("--data", type=Path, required=True, help="folder with <dataset>/<site>")
    parser.add_argument("--sites", type=lambda text: text.split(","), help="a part of the task's sites, by commas")
    parser.add_argument("--fraction", type=float, default=0.1, help="part of the images that trains the whole model")
    parser.add_argument("--epochs", type=int, default=50, help="of each stage")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="as for 'fedshift job'")
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    args = parser.parse_args(arguments)
    result = measure(
        args.task,
        args.data,
        sites=args.sites,
        fraction=args.fraction,
        epochs=args.epochs,
        seed=args.seed,
        options=args.set,
        device=args.device,
    )
    print(table(result))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
