"""nnU-Net itself on the cases and splits of prepared sites, beside fedshift with its recipe at as many steps.

    make nnunet
    python benchmarks/nnunet_yardstick.py hippocampus --data DIR --work WORK --epochs 10 --steps 20

``DIR`` holds the task's prepared sites (``fedshift data prepare``). nnU-Net gets all training and validation cases of
all sites in one data set, plans by its own rules, and trains its default trainer on the training cases, for fewer
epochs. fedshift trains the task's protocol ``nnunet`` with the network, patch and batch of that plan: ``pooled`` on all
sites' images in one place, and ``fedavg`` where each site takes as many steps in a round as nnU-Net in an epoch. The
last model of each segments the sites' test cases, without mirror images; scores are MONAI's, by case, and differences
to nnU-Net are paired.
All use one thread of the processor (``--device`` for a GPU). What has ended below ``WORK`` is not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import frame
import numpy as np
import SimpleITK as sitk  # noqa: N813 - its customary name
import torch
from monai.metrics import compute_dice, compute_hausdorff_distance  # type: ignore[attr-defined]
from scipy import stats

from fedshift.data.splits import case_splits
from fedshift.schema.manifest import Manifest, Split, read_manifest
from fedshift.schema.results import LAST, read_results

ROOT = Path(__file__).resolve().parents[1]
NNUNET = ROOT / ".venv" / "nnunet" / "bin" / "python"
NUMBER = 501
ROWS = ("pooled", "fedavg")


def main() -> int:
    """Train, predict, score, and write the result and its page."""
    parser = frame.parser(__doc__, epochs=10, steps=20, seed=0)
    parser.add_argument("task")
    parser.add_argument("--data", type=Path, required=True, help="the task's prepared sites")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--configuration", choices=("2d", "3d_fullres"), default="3d_fullres")
    parser.add_argument("--batch", type=int, help="patches of a step, for all rows, in place of the plan's")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    parser.add_argument("--fold", type=int, help="of the cross-validation, in place of the split of preparation")
    parser.add_argument("--precision", choices=("fp32", "auto"), default="fp32", help="of fedshift; nnU-Net's is fp32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    paths = sorted(args.data.glob("*/manifest.json"))
    manifests = [dealt(read_manifest(path.parent), args.fold) for path in paths]
    yardstick = Yardstick(args, manifests)
    measured = {"nnU-Net": yardstick.nnunet(), **{row: yardstick.fedshift(row) for row in args.rows}}
    record: dict[str, Any] = {
        "command": " ".join(["python benchmarks/nnunet_yardstick.py", *map(frame._word, sys.argv[1:])]),
        "task": args.task,
        "configuration": args.configuration,
        "fold": args.fold,
        "epochs": args.epochs,
        "steps": args.epochs * args.steps,
        "batch_size": yardstick.plan["batch_size"],
        "planned_batch_size": args.batch is None,
        "precision": args.precision,
        "cases": {split: sum(len(m.by_split(split)) for m in manifests) for split in get_args(Split)},
        **frame.made_with("torch", "monai"),
        "nnunetv2": "2.8.1",
        "rows": measured,
    }
    out = args.out or frame.RESULTS / "nnunet" / f"yardstick_{args.task}_{args.configuration}.json"
    frame.write(out, record, frame.page("nnunet_yardstick", record=record, rows=compared(measured)))
    return 0


def dealt(manifest: Manifest, fold: int | None) -> Manifest:
    """The manifest with the cases' parts in a fold of the cross-validation."""
    parts = case_splits(manifest.cases, site=manifest.site, fold=fold)
    cases = [case.model_copy(update={"split": part}) for case, part in zip(manifest.cases, parts, strict=True)]
    return manifest.model_copy(update={"cases": cases})


class Yardstick:
    """One data set of nnU-Net's, its plan, and the trainings that are compared."""

    def __init__(self, args: argparse.Namespace, manifests: Sequence[Manifest]) -> None:
        self.args = args
        self.manifests = manifests
        self.work: Path = args.work.resolve()
        self.dataset = f"Dataset{NUMBER}_{args.task}"
        folders = {name: self.work / name for name in ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results")}
        self.environment = {
            **os.environ,
            **{name: str(folder) for name, folder in folders.items()},
            "OMP_NUM_THREADS": "1",
            "FEDSHIFT_DATA": str(args.data.resolve().parent),
        }
        self.raw = folders["nnUNet_raw"] / self.dataset
        self.prepared = folders["nnUNet_preprocessed"] / self.dataset
        self.trained = folders["nnUNet_results"] / self.dataset / f"nnUNetTrainer__nnUNetPlans__{args.configuration}"
        self._write_raw()
        self._plan()
        path = self.prepared / "nnUNetPlans.json"
        plans = json.loads(path.read_text())
        self.plan: dict[str, Any] = plans["configurations"][args.configuration]
        if args.batch is not None:
            self.plan["batch_size"] = args.batch
            frame.write(path, plans)

    def nnunet(self) -> dict[str, Any]:
        """Train and score nnU-Net."""
        length = (str(self.args.epochs), str(self.args.steps), str(self.args.seed), self.args.device)
        measured = self.work / "nnunet.json"
        if not measured.is_file():
            usage = self._run(*self._trainer("train", self.dataset, self.args.configuration, *length, str(measured)))
            record = json.loads(measured.read_text())
            frame.write(measured, record | {"memory_mib": usage})
        masks = self.work / "masks_nnunet"
        if not masks.is_dir():
            self._run(
                *self._trainer("predict", str(self.trained), str(self.raw / "imagesTs"), str(masks), self.args.device)
            )
        return json.loads(measured.read_text()) | self._scores(lambda case: masks / f"{case}.nii.gz")

    def fedshift(self, row: str) -> dict[str, Any]:
        """Train and score fedshift's protocol with the plan's numbers."""
        settings = {
            "data.dims": len(self.plan["patch_size"]),
            "data.patch": [*map(int, self.plan["patch_size"])],
            "data.spacing": [*[None] * (3 - len(self.plan["spacing"])), *self.plan["spacing"]],
            "data.matrix": None,  # nnU-Net believes every voxel size
            "data.convention": "nnunet",
            "data.fold": self.args.fold,
            "network.options.n_stages": self.plan["architecture"]["arch_kwargs"]["n_stages"],
            "loss.options.batch": bool(self.plan["batch_dice"]),
            "schedule.batch_size": int(self.plan["batch_size"]),
            "schedule.rounds": self.args.epochs,
            "schedule.local_steps": self.args.steps,
            "schedule.precision": self.args.precision,
            "schedule.threads": 1,
            "evaluation.every": self.args.epochs,
            "evaluation.mirror": False,
        }
        folder, measured = self.work / row, self.work / f"{row}.json"
        if not measured.is_file():
            words = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
            sites = ",".join(manifest.site for manifest in self.manifests)
            described = (self.args.task, "--protocol", "nnunet", "--sites", sites)
            described += ("--seed", str(self.args.seed), "--set", *words)
            where = ("--workspace", str(folder), "--force", "--device", self.args.device)
            if row == "pooled":
                usage = self._run("fedshift", "pooled", "all", *described, *where)
            else:
                self._run("fedshift", "job", row, *described, "--out", str(self.work / "jobs"), "--force")
                job = self.work / "jobs" / f"{row}_{self.args.task}"
                usage = self._run("fedshift", "run", str(job), "--in-process", *where)
            rounds = read_results(folder).rounds
            record: dict[str, Any] = {"memory_mib": usage}
            if row == "pooled":  # its one training is in the record of every site; sites of a federation also validate
                trained = [next(iter(each.sites.values())) for each in rounds]
                seconds, steps = sum(site.seconds for site in trained), sum(site.steps for site in trained)
                record |= {"seconds": round(seconds, 1), "steps": steps}
            frame.write(measured, record)
        masks = self.work / f"masks_{row}"
        if not masks.is_dir():
            model = str(folder / LAST)
            images = str(self.raw / "imagesTs")
            self._run(
                "fedshift",
                "predict",
                model,
                images,
                "--out",
                str(masks),
                "--true-spacing",
                "--device",
                self.args.device,
            )
        return json.loads(measured.read_text()) | self._scores(lambda case: masks / f"{case}_0000_mask.nii.gz")

    def _write_raw(self) -> None:
        """``nnUNet_raw``: links to the scans and masks of the sites."""
        labels = {name: value for value, name in enumerate(self.manifests[0].classes)}
        split: dict[str, list[str]] = {"train": [], "val": []}
        for manifest in self.manifests:
            for case in manifest.cases:
                name, part = f"{manifest.site}_{case.id}", "Ts" if case.split == "test" else "Tr"
                volumes = self.args.data.resolve() / manifest.site / "volumes"
                _link(volumes / f"{case.id}.nii.gz", self.raw / f"images{part}" / f"{name}_0000.nii.gz")
                _link(volumes / f"{case.id}_mask.nii.gz", self.raw / f"labels{part}" / f"{name}.nii.gz")
                if case.split != "test":
                    split[case.split].append(name)
        described = {"channel_names": {"0": "MRI"}, "labels": labels, "file_ending": ".nii.gz"}
        frame.write(self.raw / "dataset.json", described | {"numTraining": sum(map(len, split.values()))})
        frame.write(self.prepared / "splits_final.json", [split])

    def _plan(self) -> None:
        if not (self.work / "planned").is_file():
            self._run(*self._trainer("plan", str(NUMBER)))
            (self.work / "planned").touch()

    def _trainer(self, *words: str) -> tuple[str, ...]:
        return (str(NNUNET), str(ROOT / "benchmarks" / "nnunet_trainer.py"), *words)

    def _run(self, *words: str) -> int:
        """Run a command; returns the most memory that it took, in MiB."""
        print("$", shlex.join(words), flush=True)
        process = subprocess.Popen(words, env=self.environment)
        _, status, usage = os.wait4(process.pid, 0)
        if status != 0:
            raise SystemExit(f"{words[0]} has failed")
        return round(usage.ru_maxrss / 1024)

    def _scores(self, mask_of: Callable[[str], Path]) -> dict[str, Any]:
        """Dice and HD95 in mm, mean of the classes, of each test case."""
        classes = len(self.manifests[0].classes)
        cases: dict[str, list[float]] = {}
        for truth_file in sorted((self.raw / "labelsTs").glob("*.nii.gz")):
            name = truth_file.name.removesuffix(".nii.gz")
            truth, guess = sitk.ReadImage(str(truth_file)), sitk.ReadImage(str(mask_of(name)))
            spacing = truth.GetSpacing()[::-1]
            guessed, true = (
                torch.nn.functional.one_hot(torch.from_numpy(sitk.GetArrayFromImage(image).astype(np.int64)), classes)
                .movedim(-1, 0)
                .unsqueeze(0)
                for image in (guess, truth)
            )
            dice = compute_dice(guessed, true, include_background=False).nanmean()
            distance = compute_hausdorff_distance(guessed, true, percentile=95, spacing=spacing)
            cases[name] = [round(float(dice), 4), round(float(distance.mean()), 3)]
        return {"cases": cases}


def _link(source: Path, link: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(source)


def compared(measured: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Means of each row, and its differences to nnU-Net by case."""
    rows = []
    reference = measured["nnU-Net"]
    for name, row in measured.items():
        dice, distance = np.array([*row["cases"].values()]).T
        difference = 100 * (dice - np.array([*reference["cases"].values()])[:, 0])
        known = distance[np.isfinite(distance)]
        half = stats.t.ppf(0.975, len(dice) - 1) * stats.sem(difference)
        rows.append(
            {
                "name": name,
                "dice": 100 * dice.mean(),
                "hd95": float(known.mean()) if len(known) else None,
                "lost": int(np.sum(~np.isfinite(distance))),
                "difference": difference.mean(),
                "low": difference.mean() - half,
                "high": difference.mean() + half,
                "p": float(stats.wilcoxon(difference).pvalue) if difference.any() else None,
                "speed": row["steps"] / row["seconds"] if "seconds" in row else None,
                "memory": row["memory_mib"],
            }
        )
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
