"""nnU-Net itself on a prepared data set, run by a Python that has it (``make nnunet``), without fedshift.

``nnunet_trainer.py plan NUMBER``: fingerprint, plan and preparation, as ``nnUNetv2_plan_and_preprocess`` makes them.
``nnunet_trainer.py train DATASET CONFIGURATION EPOCHS STEPS SEED DEVICE MEASURED``: its default trainer for so many
epochs of so many steps, with patches made in the same process; writes what it took to ``MEASURED``.
``nnunet_trainer.py predict MODEL IMAGES OUT DEVICE``: masks, without mirror images.

The environment variables ``nnUNet_raw``, ``nnUNet_preprocessed`` and ``nnUNet_results`` name its folders.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def plan(number: str) -> None:
    """Fingerprint, plan and both configurations' volumes."""
    from nnunetv2.experiment_planning import plan_and_preprocess_api as api

    api.extract_fingerprints([int(number)], num_processes=2, check_dataset_integrity=True, show_progress_bar=False)
    identifier = api.plan_experiments([int(number)])
    api.preprocess([int(number)], identifier, ("2d", "3d_fullres"), (2, 2), show_progress_bar=False)


def train(dataset: str, configuration: str, epochs: str, steps: str, seed: str, device: str, measured: str) -> None:
    """Train fold 0; nothing but the length differs from nnU-Net's default."""
    os.environ.update({"nnUNet_n_proc_DA": "0", "nnUNet_compile": "f"})  # patches are made in the process that trains
    import numpy as np
    import torch
    from nnunetv2.run.run_training import get_trainer_from_args

    torch.set_num_threads(1)
    np.random.seed(int(seed))
    torch.manual_seed(int(seed))
    trainer = get_trainer_from_args(dataset, configuration, 0, device=torch.device(device))
    trainer.num_epochs = int(epochs)
    trainer.num_iterations_per_epoch = int(steps)
    trainer.num_val_iterations_per_epoch = 1
    started, ended = trainer.on_train_epoch_start, trainer.on_train_epoch_end
    seconds: list[float] = []

    def start() -> None:
        seconds.append(-time.monotonic())
        started()

    def end(outputs: object) -> None:
        ended(outputs)
        seconds[-1] += time.monotonic()

    trainer.on_train_epoch_start, trainer.on_train_epoch_end = start, end
    trainer.run_training()
    Path(measured).write_text(json.dumps({"seconds": round(sum(seconds), 1), "steps": int(epochs) * int(steps)}))


def predict(model: str, images: str, out: str, device: str) -> None:
    """Predict a folder with the model of fold 0."""
    import torch
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

    torch.set_num_threads(1)
    predictor = nnUNetPredictor(device=torch.device(device), use_mirroring=False, allow_tqdm=False)
    predictor.initialize_from_trained_model_folder(model, (0,))
    Path(out).mkdir(exist_ok=True)
    predictor.predict_from_files_sequential(images, out)


if __name__ == "__main__":
    {"plan": plan, "train": train, "predict": predict}[sys.argv[1]](*sys.argv[2:])
