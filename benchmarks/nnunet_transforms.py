"""nnU-Net's own augmentation of an image, drawn many times, run by a Python that has it (``make nnunet``).

``nnunet_transforms.py IMAGE PATCH DRAWS SEED OUT``: the transforms of its default trainer for patches (``32,32``),
without deep supervision, each one alone and all together; writes arrays (draws, C, *patch) by name to ``OUT`` (.npz).
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

ORDER = ("noise", "blur", "brightness", "contrast", "low", "inverted", "gamma")
"""Between moves and mirror images, as the trainer lists them."""


def main(image: str, patch: str, draws: str, seed: str, out: str) -> None:
    """Draw each and write them."""
    torch.set_num_threads(1)
    source, size = torch.from_numpy(np.load(image)), [*map(int, patch.split(","))]
    patches: dict[str, np.ndarray] = {}
    for name in ("rotate", "scale", *ORDER, "mirror", "all"):
        np.random.seed(int(seed))
        torch.manual_seed(int(seed))
        patches[name] = np.stack([augmented(source, size, name) for _ in range(int(draws))])
    np.savez(out, **patches)


def augmented(source: torch.Tensor, size: list[int], name: str) -> np.ndarray:
    """One patch; ``name``: the only change that is made, or ``all``."""
    change = transforms(size, name)
    labels = torch.zeros((1, *source.shape[1:]), dtype=torch.int16)
    return change(image=source.clone(), segmentation=labels)["image"].numpy()


def transforms(size: list[int], name: str) -> Any:
    """nnU-Net's list for 2D and 3D patches with equal sides, of which all but one are taken out."""
    turn = np.pi if len(size) == 2 else np.pi / 6
    composed = nnUNetTrainer.get_training_transforms(
        np.array(size), (-turn, turn), None, tuple(range(len(size))), False, use_mask_for_norm=[False]
    )
    moves, *others = composed.transforms
    if name != "all":
        moves.p_rotation *= name == "rotate"
        moves.p_scaling *= name == "scale"
        kept = {"mirror": len(ORDER)} | {each: place for place, each in enumerate(ORDER)}
        others = [others[kept[name]]] if name in kept else []
    composed.transforms = [moves, *others]
    return composed


if __name__ == "__main__":
    main(*sys.argv[1:])
