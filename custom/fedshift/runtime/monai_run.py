"""What the configuration of an exported MONAI bundle calls: its scans, one by one, to masks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import is_dummy_geometry
from .segmentation import PatchSpec, Precision, Spec, autocast, segment, written_as_classes

WITHOUT_SPACING = (
    "voxels of 1 x 1 x 1 mm and no rotation are taken for a lost header, and the scan is resampled by its matrix and "
    "not by 1 mm; if they are real, add --true_spacing True"
)


class ScanInferer:
    """A MONAI inferer: maps the sequences of a scan (1, S, X, Y, Z) in RAS orientation to classes (1, 1, X, Y, Z)."""

    def __init__(self, *, spec: Spec, precision: Precision, sequences: int = 1) -> None:
        self.spec, self._precision, self._sequences = spec, precision, sequences

    def __call__(
        self,
        inputs: Tensor,
        spacing: Sequence[float] | None,
        network: Callable[[Tensor], Tensor],
        device: torch.device,
    ) -> Tensor:
        """``spacing`` in mm along x, y, z, None if it is not known; ``network`` is on ``device``."""
        if inputs.dim() != 5 or inputs.shape[:2] != (1, self._sequences):
            raise ValueError(f"expected one scan (1, {self._sequences}, X, Y, Z), got {tuple(inputs.shape)}")
        if not torch.isfinite(inputs).all():
            raise ValueError("the scan contains NaN or infinite voxels")

        def forward(x: Tensor) -> Tensor:
            with autocast(self._precision, device):
                return network(x.to(device))

        voxels = inputs[0].cpu().numpy().transpose(0, 3, 2, 1)
        segmented = segment(voxels, None if spacing is None else tuple(spacing)[::-1], forward, self.spec)
        classes = written_as_classes(segmented, self.spec)
        return torch.from_numpy(np.ascontiguousarray(classes.transpose(2, 1, 0)).astype(np.float32))[None, None]


def segment_pictures(
    files: list[str],
    network: Callable[[Tensor], Tensor],
    inferer: ScanInferer,
    output_dir: str,
    device: torch.device,
    *,
    colours: Sequence[int] = (),
    structures: int = 1,
) -> None:
    """Segment pictures one by one and save the masks as PNG, 255 or the number of the structure.

    ``colours``: which of red, green and blue the network takes; none for the intensity of pictures in grey.
    """
    from PIL import Image, ImageOps

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    if not files:
        raise ValueError("no pictures found: set dataset_dir to a folder of them, or datalist to a list of files")
    os.makedirs(output_dir, exist_ok=True)  # noqa: PTH103 - a bundle has its paths as texts
    for file in files:
        with Image.open(file) as stored:
            picture = ImageOps.exif_transpose(stored)
        if picture.mode not in ("L", "RGB", "I;16") or (picture.mode == "RGB" and not colours):
            wanted = "8-bit RGB" if colours else "8 or 16 bits of grey"
            raise ValueError(f"{file} is a picture of the form {picture.mode}: save it as {wanted}")
        pixels = np.asarray(picture)
        planes = [pixels[..., k] if pixels.ndim == 3 else pixels for k in colours] or [pixels]
        # Columns count to the right and rows down, and scans to the patient's right and front.
        turned = np.stack([plane[::-1, ::-1].T for plane in planes])[None, ..., None].astype(np.float64)
        classes = inferer(torch.from_numpy(turned), None, network, device)[0, 0, ..., 0].numpy().T[::-1, ::-1]
        mask = (classes * (255 if structures == 1 else 1)).astype(np.uint8)
        stem = os.path.splitext(os.path.basename(file))[0]  # noqa: PTH119, PTH122
        Image.fromarray(np.ascontiguousarray(mask)).save(os.path.join(output_dir, f"{stem}_mask.png"))  # noqa: PTH118
        print(f"{file}: {int((classes > 0).sum())} pixels")  # noqa: T201


def segment_files(
    files: list[str] | list[list[str]],
    preprocessing: Callable[[Any], Any],
    network: Callable[[Tensor], Tensor],
    inferer: ScanInferer,
    postprocessing: Callable[[Any], Any],
    device: torch.device,
    true_spacing: bool = False,
) -> None:
    """Segment the scans one by one and save the masks.

    ``true_spacing``: whether voxels of 1 x 1 x 1 mm are real, not a header's placeholder.
    """
    # Float32 as in training: by itself a GPU's convolutions take TF32.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    if not isinstance(true_spacing, bool):
        raise ValueError(f"true_spacing must be True or False, not {true_spacing!r}")
    if not files:
        raise ValueError("no scans found: set dataset_dir to a folder of .nii.gz files, or datalist to a list of files")
    for file in files:
        data = preprocessing({"image": file})
        image = data["image"]
        spacing = [float(length) for length in image.pixdim]
        direction = (image.affine[:3, :3].cpu().numpy() / spacing).ravel().tolist()
        known = None if is_dummy_geometry(spacing, direction) and not true_spacing else spacing
        if known is None and isinstance(inferer.spec, PatchSpec) and inferer.spec.resamples_by_matrix:
            print(f"{file}: {WITHOUT_SPACING}")  # noqa: T201 - a bundle speaks on the terminal
        classes = inferer(torch.as_tensor(image)[None], known, network, device)[0]
        data["image"] = image[:1]
        data["pred"] = data["image"].clone()
        data["pred"][:] = classes
        postprocessing(data)
        print(f"{file}: {int((classes > 0).sum())} voxels")  # noqa: T201
