"""Real scan files for tests: small volumes with true geometry, in any format and orientation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import SimpleITK as sitk

from data_prep.prostate import plan_volumes
from data_prep.volumes import write_volumes

IDENTITY = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0)
SPACING = (0.7, 0.8, 3.0)
LIU_FOLDERS = ("BIDMC", "HK", "I2CVB", "ISBI", "ISBI_1.5", "UCL")


def volume(
    seed: int = 0,
    *,
    size: tuple[int, int, int] = (24, 20, 9),
    spacing: tuple[float, float, float] = SPACING,
    direction: tuple[float, ...] = IDENTITY,
    target: tuple[float, float, float] | None = None,
    radius: float = 3.6,
) -> tuple[sitk.Image, sitk.Image]:
    """An image with a bright ball and its mask.

    The ball lies ``target`` mm to the left, back and head of the volume's centre, which is always the world point
    (10, -20, 30); without a target it is near the centre, elsewhere for each seed. Size, spacing and direction are
    those of the file, in ITK's order and sense.
    """
    rng = np.random.default_rng(seed)
    target = target or tuple(rng.uniform(-3, 3, 3))
    matrix = np.reshape(direction, (3, 3)) * np.array(spacing)
    world_centre = np.array([10.0, -20.0, 30.0])
    origin = world_centre - matrix @ ((np.array(size) - 1) / 2)
    index = np.stack(np.meshgrid(*(np.arange(n) for n in size), indexing="ij"), axis=-1)
    points = index @ matrix.T + origin
    ball = ((points - world_centre - target) ** 2).sum(axis=-1) < radius**2
    noise = rng.integers(0, 100, ball.shape)
    voxels = (noise + 900 * ball).astype(np.int16).transpose(2, 1, 0)
    out = []
    for array in (voxels, ball.transpose(2, 1, 0).astype(np.uint8)):
        image = sitk.GetImageFromArray(np.ascontiguousarray(array))
        image.SetSpacing(spacing)
        image.SetDirection(direction)
        image.SetOrigin(tuple(float(v) for v in origin))
        out.append(image)
    return out[0], out[1]


def write_pair(
    folder: Path, case: str, seed: int = 0, *, suffix: str = ".nii.gz", ending: str = "_segmentation", **options: object
) -> tuple[Path, Path]:
    """Write one case; returns the paths of image and mask."""
    folder.mkdir(parents=True, exist_ok=True)
    image, mask = volume(seed, **options)  # type: ignore[arg-type]
    paths = folder / f"{case}{suffix}", folder / f"{case}{ending}{suffix}"
    for made, path in zip((image, mask), paths, strict=True):
        sitk.WriteImage(made, str(path))
    return paths


def write_liu(root: Path) -> Path:
    """The six prostate sites in Liu's folders, three cases each.

    Numbers restart at each site; the spelling of the ending varies, and one site labels two zones.
    """
    for k, folder in enumerate(LIU_FOLDERS):
        ending = "_Segmentation" if k % 2 else "_segmentation"
        for case in range(3):
            _, mask = write_pair(root / folder, f"Case{case:02d}", seed=10 * k + case, ending=ending)
            if folder == "ISBI":
                image = sitk.ReadImage(str(mask))
                image[:10, :, :] = image[:10, :, :] * 2
                sitk.WriteImage(image, str(mask))
    return root


def write_dicom(folder: Path, image: sitk.Image, *, series: int = 1, skip: tuple[int, ...] = ()) -> None:
    """Write a volume as one DICOM file a slice, with position and orientation."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = sitk.ImageFileWriter()
    writer.KeepOriginalImageUIDOn()
    d = image.GetDirection()
    for k in range(image.GetDepth()):
        if k in skip:
            continue
        cut = image[:, :, k]
        tags = {
            "0008|0060": "MR",
            "0020|000d": "1.2.826.0.1.3680043.2.1125.2",
            "0020|000e": f"1.2.826.0.1.3680043.2.1125.3.{series}",
            "0020|0013": str(k + 1),
            "0020|0052": "1.2.826.0.1.3680043.2.1125.4",
            "0020|0032": "\\".join(f"{v:.6f}" for v in image.TransformIndexToPhysicalPoint((0, 0, k))),
            "0020|0037": "\\".join(f"{v:.6f}" for v in (d[0], d[3], d[6], d[1], d[4], d[7])),
            "0018|0050": f"{image.GetSpacing()[2]:.3f}",
        }
        for tag, value in tags.items():
            cut.SetMetaData(tag, value)
        writer.SetFileName(str(folder / f"series{series}_slice{k:03d}.dcm"))
        writer.Execute(cut)


def rotation(degrees: float, axis: int) -> tuple[float, ...]:
    """Direction cosines turned about one axis."""
    angle = np.deg2rad(degrees)
    matrix = np.eye(3)
    i, j = [k for k in range(3) if k != axis]
    matrix[i, i] = matrix[j, j] = np.cos(angle)
    matrix[i, j], matrix[j, i] = -np.sin(angle), np.sin(angle)
    return tuple(float(v) for v in matrix.ravel())


def zones(mask: sitk.Image, values: tuple[int, int] = (1, 2)) -> sitk.Image:
    """A mask of two structures: the right and the left part of a ball."""
    voxels = sitk.GetArrayFromImage(mask)
    middle = int(np.flatnonzero(voxels.any((0, 1))).mean())
    voxels[..., : middle + 1] *= values[0]
    voxels[..., middle + 1 :] *= values[1]
    image = sitk.GetImageFromArray(voxels)
    image.CopyInformation(mask)
    return image


def other_sequence(image: sitk.Image) -> sitk.Image:
    """The same anatomy on the same grid in another contrast: what is bright is dark."""
    return sitk.Cast(1100 - image, image.GetPixelID())


def write_described(
    folder: Path,
    *,
    sequences: Sequence[str] = ("MRI",),
    classes: Sequence[str] = ("ball",),
    style: str = "msd",
    cases: int = 3,
    seed: int = 0,
    name: str = "Ball",
) -> Path:
    """A data set in the Decathlon's layout (4D for several sequences) or in nnU-Net's (``style`` nnunet)."""
    for part in ("imagesTr", "labelsTr"):
        (folder / part).mkdir(parents=True)
    training = []
    for k in range(cases):
        image, mask = volume(seed + k)
        images = [image, other_sequence(image)][: len(sequences)]
        if style == "nnunet":
            for number, each in enumerate(images):
                sitk.WriteImage(each, str(folder / "imagesTr" / f"case_{k}_{number:04d}.nii.gz"))
        else:
            sitk.WriteImage(
                sitk.JoinSeries(images) if len(images) > 1 else image, str(folder / "imagesTr" / f"case_{k}.nii.gz")
            )
        sitk.WriteImage(zones(mask) if len(classes) > 1 else mask, str(folder / "labelsTr" / f"case_{k}.nii.gz"))
        training.append({"image": f"./imagesTr/case_{k}.nii.gz", "label": f"./labelsTr/case_{k}.nii.gz"})
    all_classes = ("background", *classes)
    description: dict[str, object] = {"name": name, "numTraining": cases}
    if style == "nnunet":
        description |= {
            "channel_names": {str(number): name for number, name in enumerate(sequences)},
            "labels": {name: number for number, name in enumerate(all_classes)},
            "file_ending": ".nii.gz",
        }
    else:
        description |= {
            "modality": {str(number): name for number, name in enumerate(sequences)},
            "labels": {str(number): name for number, name in enumerate(all_classes)},
            "licence": "CC-BY-SA 4.0",
            "training": training,
        }
    (folder / "dataset.json").write_text(json.dumps(description), encoding="utf-8")
    return folder


def prepare_prostate(
    source: Path,
    root: Path,
    *,
    sites: Sequence[str] | None = None,
    matrices: Sequence[int] = (),
    trust_voxels: bool = False,
) -> list[Path]:
    """Prepare a distribution as ``fedshift data prepare prostate`` does; the folders ``root/prostate/<site>``."""
    plan = plan_volumes(source, sites=sites)
    return write_volumes(plan, root, matrices=matrices, trust_voxels=trust_voxels)
