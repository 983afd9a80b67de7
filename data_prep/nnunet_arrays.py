"""Volumes that nnU-Net has prepared, as the arrays of a site that need not be made again.

nnU-Net 2 keeps a case as ``CASE.b2nd`` and ``CASE_seg.b2nd`` (Blosc2), and before 2.5 as ``CASE.npz``, beside a pickle
with where it was cropped, which is not read: it is found again in the scan. Axes are turned to slices, rows and columns
in RAS orientation, as all that fedshift trains on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import SimpleITK as sitk  # noqa: N813 - its customary name

from fedshift.data.cases import CaseFiles, CaseTable
from fedshift.data.labels import Labels
from fedshift.data.nnunet_plans import AXES, AXES_KEY, Configuration, Plans, read_plans
from fedshift.data.prepared import read_images, read_labels
from fedshift.data.resampled import Fixed, Preparation, build_volumes, volumes_dir
from fedshift.data.scans import ORIENTATION
from fedshift.runtime.grids import MOST_PLAIN
from fedshift.runtime.nnunet import Placement, certain_labels
from fedshift.runtime.regions import IGNORED
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.files import write_text
from fedshift.schema.manifest import Case, Manifest

OUTSIDE = -1
"""nnU-Net's label of voxels outside the body."""
MOST_DIFFERENT = 0.02
"""Of a voxel of the case that is prepared again, in normalised intensities; single precision gives a part of it."""
SITE_PLANS = "nnunet_plans.json"


@dataclass(frozen=True)
class Preprocessed:
    """What nnU-Net has prepared of a data set.

    ``folder`` of the data set, ``arrays`` of its configuration; ``directions`` of the files of each case, 9 cosines.
    """

    folder: Path
    arrays: Path
    plans: Plans
    configuration: Configuration
    labels: Labels
    directions: Mapping[str, tuple[float, ...]]

    @property
    def recorded(self) -> dict[str, Any]:
        """What the site's manifest says of it."""
        return {"plans": self.plans.name, "configuration": self.configuration.name}

    def preparation(self, manifest: Manifest) -> Preparation:
        """How a task has to prepare volumes to get these."""
        data = self.configuration.data()
        fixed = data.get("fixed")
        return Preparation(
            spacing=self.configuration.spacing,
            normalise=data["normalise"],
            nonzero=data.get("nonzero", False),
            fixed=None if fixed is None else Fixed(**fixed),
            sequences=manifest.sequences,
            convention="nnunet",
        )

    def write(self, site_dir: Path, manifest: Manifest) -> dict[str, str]:
        """Write the arrays and the plans into a site's folder.

        Raises:
            DataError: a case is missing or damaged, was prepared by other plans or another version, or of another mask.
        """
        preparation = self.preparation(manifest)
        first = manifest.cases[0]

        def ready(case: Case, placement: Placement) -> tuple[np.ndarray, np.ndarray]:
            images, labels = self._case(case.id, placement)
            self._check_range(case, images)
            if case is first:
                voxels = read_images(site_dir, manifest, case)
                self._compare(case, images, preparation.volume(voxels, manifest.known_spacing(case)))
            self._compare_labels(case, labels, certain_labels(read_labels(site_dir, case), placement))
            return images.astype(np.float16), labels

        digest = build_volumes(site_dir, manifest, preparation, ready)
        content = {**self.plans.content, AXES_KEY: list(self.plans.axes)}
        write_text(site_dir / SITE_PLANS, json.dumps(content, indent=2) + "\n")
        return {volumes_dir(site_dir, manifest, preparation).name: digest}

    def _check_range(self, case: Case, images: np.ndarray) -> None:
        if not (most := float(np.abs(images).max(initial=0))) <= MOST_PLAIN:
            raise DataError(
                "intensities",
                f"{self.arrays}: case {case.id} has intensities up to {most:g}, and a task takes at most "
                f"{MOST_PLAIN:g}: plan with another normalisation, or leave out --preprocessed",
            )

    def _compare(self, case: Case, images: np.ndarray, again: np.ndarray) -> None:
        most = float(np.abs(images - again.astype(np.float32)).max(initial=0))
        if not most <= MOST_DIFFERENT * max(1.0, float(np.abs(images).max(initial=0))):
            raise self._other(case.id, f"differs by up to {most:.2g} from what these plans make of the scan")

    def _compare_labels(self, case: Case, labels: np.ndarray, certain: np.ndarray) -> None:
        wrong = int(((labels != certain) & (certain >= 0)).sum())
        if wrong:
            raise DataError(
                "nnunet-other-masks",
                f"{self.arrays}: case {case.id} has another class than its mask has now in {wrong:,} voxels: prepare "
                "it again with nnU-Net, or leave out --preprocessed",
            )

    def _case(self, case: str, placement: Placement) -> tuple[np.ndarray, np.ndarray]:
        """Images (S, z, y, x) float32 and labels (z, y, x) uint8 of a case."""
        data, seg = self._read(case)
        back = np.argsort(self.plans.forward)
        axes = [0, *(int(axis) + 1 for axis in back)]
        volumes = [self._turned(volume, case) for volume in (*data.transpose(axes), seg.transpose(axes)[0])]
        for volume in volumes:
            if volume.shape != placement.shape:
                had, wanted = (" x ".join(map(str, shape)) for shape in (volume.shape, placement.shape))
                raise self._other(case, f"has {had} voxels, and these plans make {wanted} of the scan")
        *images, labels = volumes
        return np.stack(images).astype(np.float32), self._classes(labels, case)

    def _other(self, case: str, why: str) -> DataError:
        return DataError(
            "nnunet-other-plans",
            f"{self.arrays}: case {case} was not prepared by the plans {self.plans.name} of {self.plans.path}, "
            f"configuration {self.configuration.name}: it {why}: prepare it again with nnU-Net, or leave out "
            "--preprocessed",
        )

    def _turned(self, volume: np.ndarray, case: str) -> np.ndarray:
        """In RAS orientation, from that of the case's files."""
        if self.plans.axes_known:
            return volume
        image = sitk.GetImageFromArray(np.ascontiguousarray(volume, np.float32))
        image.SetDirection(self.directions[case])
        return np.asarray(sitk.GetArrayFromImage(sitk.DICOMOrient(image, ORIENTATION)))

    def _classes(self, values: np.ndarray, case: str) -> np.ndarray:
        classes = np.zeros(values.shape, np.uint8)
        for value in np.unique(values).astype(int).tolist():
            if value in self.labels.ignored:
                classes[values == value] = IGNORED
            elif value not in (0, OUTSIDE):
                if value not in self.labels.class_of:
                    raise self._other(case, f"has the label {value}, which dataset.json does not name")
                classes[values == value] = self.labels.class_of[value]
        return classes

    def _read(self, case: str) -> tuple[np.ndarray, np.ndarray]:
        """Arrays (S, …) and (1, …) as nnU-Net has stored them."""
        blosc, zipped = self.arrays / f"{case}.b2nd", self.arrays / f"{case}.npz"
        try:
            if blosc.is_file():
                data, seg = _blosc(blosc), _blosc(self.arrays / f"{case}_seg.b2nd")
            elif zipped.is_file():
                with np.load(zipped, allow_pickle=False) as stored:
                    data, seg = stored["data"], stored["seg"]
            else:
                raise DataError("nnunet-incomplete", f"{self.arrays} has no case {case}: prepare it with nnU-Net")
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            what = f"{self.arrays}: case {case} cannot be read ({error}): prepare it again with nnU-Net"
            raise DataError("file-damaged", what) from None
        if data.ndim != AXES + 1 or seg.shape != (1, *data.shape[1:]):
            raise self._other(case, f"has arrays of {data.shape} and {seg.shape}")
        return data, seg


def open_preprocessed(
    folder: Path, raw: Path, table: CaseTable, labels: Labels, *, plans: str, configuration: str
) -> Preprocessed:
    """Find what nnU-Net has prepared of a data set, and see that it is of these scans.

    Args:
        folder: of the data set in ``nnUNet_preprocessed``.
        raw: of the data set in ``nnUNet_raw``.
        table: its cases.
        labels: what its masks' values mean.
        plans: their name.
        configuration: of the plans.

    Raises:
        ConfigError: no such plans or configuration, or volumes of other plans.
        DataError: prepared from another data set, or files of a case that lie otherwise than the others'.
    """
    path = folder / f"{plans}.json"
    if not path.is_file():
        names = sorted(file.stem for file in folder.glob("*lans*.json"))
        old = sorted(file.name for file in folder.glob("*.pkl"))
        fault = f"the plans {', '.join(names)}" if names else f"{old[0]}, of nnU-Net 1" if old else "no plans"
        raise ConfigError("nnunet-plans", f"{folder} has {fault}, and {plans} is asked for: name others with --plans")
    _same_data(folder / "dataset.json", raw / "dataset.json")
    directions = {case.id: _direction(case) for case in table.cases}
    known = read_plans(path)
    if not known.axes_known:
        known = known.turned(_axes(directions))
    chosen = known.configuration(configuration)
    arrays = folder / chosen.identifier
    if not arrays.is_dir():
        names = sorted(place.name for place in folder.iterdir() if place.is_dir() and place.name != "gt_segmentations")
        raise ConfigError(
            "nnunet-other-plans",
            f"{folder} has volumes of {', '.join(names) or 'no plans'}, and {plans}, configuration {configuration}, "
            f"takes those of {chosen.identifier}: prepare them with nnU-Net, or name others with --plans and "
            "--configuration",
        )
    return Preprocessed(folder, arrays, known, chosen, labels, directions)


def _same_data(copied: Path, raw: Path) -> None:
    """See that channels and labels are those with which volumes were prepared."""
    if not copied.is_file():
        return
    try:
        before, now = (json.loads(path.read_text(encoding="utf-8")) for path in (copied, raw))
        changed = [key for key in ("channel_names", "labels", "regions_class_order") if before.get(key) != now.get(key)]
    except (ValueError, AttributeError, RecursionError) as error:
        raise DataError("not-json", f"{copied} cannot be read ({error}): prepare it again with nnU-Net") from None
    if changed:
        raise DataError(
            "nnunet-other-plans",
            f"{copied} and {raw} have different {changed[0]}: prepare the data set again with nnU-Net, or leave out "
            "--preprocessed",
        )


def _direction(case: CaseFiles) -> tuple[float, ...]:
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(case.image))
    try:
        reader.ReadImageInformation()
    except RuntimeError:
        raise DataError("file-damaged", f"{case.image} cannot be read: copy it again") from None
    direction = tuple(reader.GetDirection())
    if len(direction) != AXES**2:
        raise DataError(
            "kind-of-data", f"{case.image} is no volume in 3D, and prepared volumes are: leave out --preprocessed"
        )
    return direction


def _axes(directions: Mapping[str, tuple[float, ...]]) -> tuple[int, int, int]:
    """Which of slices, rows and columns each axis of an array is; of all cases the same."""
    case_of_axes: dict[tuple[int, int, int], str] = {}
    for case, direction in directions.items():
        image = sitk.Image(1, 1, 1, sitk.sitkUInt8)
        image.SetDirection(direction)
        image.SetSpacing((3.0, 2.0, 1.0))  # of the array's axes, backwards: 1, 2 and 3
        z, y, x = (round(mm) for mm in reversed(sitk.DICOMOrient(image, ORIENTATION).GetSpacing()))
        order = [z - 1, y - 1, x - 1]  # the array's axis of slices, rows and columns
        case_of_axes.setdefault((order.index(0), order.index(1), order.index(2)), case)
    if len(case_of_axes) > 1:
        first, other, *_ = case_of_axes.values()
        raise DataError(
            "nnunet-axes",
            f"the files of {first} and {other} lie along other axes of the body, so that nnU-Net's plans have no one "
            "voxel size for both: leave out --preprocessed",
        )
    (axes,) = case_of_axes
    return axes


def _blosc(path: Path) -> np.ndarray:
    try:
        import blosc2
    except ImportError:
        message = f"{path} needs blosc2, which is not installed: pip install 'fedshift[nnunet]'"
        raise ConfigError("package-missing", message) from None
    return np.asarray(blosc2.open(urlpath=str(path), mode="r")[:])
