"""The prostate phantom: six simulated sites written as NIfTI scans and prepared like real scans.

Nothing here comes from a patient. ``phantom_anatomy`` draws a pelvis, ``phantom_scanner`` simulates its scan at each
of six sites, and this module writes ``CaseXX.nii.gz`` and ``CaseXX_segmentation.nii.gz`` (the layout of the public
six-site set) and passes them to ``volumes.write_site``. All random numbers are derived from (seed, site, case): the
same seed gives the same bytes with the same versions and processor type, and a case does not depend on which other
cases are made.

By default a mask is the whole gland and a case has one T2 image. ``zones`` tells the peripheral from the transition
zone; a second sequence is the same patient on the same grid, in the contrast of a diffusion map. These are data sets of
their own (``prostate_zones``, ``prostate_sequences``, ``prostate_zones_sequences``) with the same T2 images.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from data_prep.phantom_anatomy import Field, Grid, Patient, draw_patient, render
from data_prep.phantom_scanner import SCANNERS, Scanner, acquire, diffusion, vary
from data_prep.prostate import GLAND, MERGED
from data_prep.volumes import CaseFiles, SitePlan, write_site
from fedshift.data.labels import Labels
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.manifest import FILE_NAME, PHANTOM, PhantomOptions, read_manifest
from fedshift.schema.strict import nearest

DATASET = "prostate"
SEQUENCES = ("T2", "ADC")
ZONES = Labels.named({"peripheral zone": (1,), "transition zone": (2,)})
CASES = 8  # per site
NOTE = """SIMULATED, NOT PATIENTS

The scans below this folder are the fedshift phantom: drawn and scanned by a program
(seed {seed}), for trying the software out. They come from no patient, their site names
stand for invented scanner settings, and scores on them say nothing about real scans.
"""

Volume = NDArray[np.float32] | NDArray[np.int16]


def make_phantom(
    root: Path,
    *,
    seed: int = 0,
    sites: Sequence[str] | None = None,
    cases: int | None = None,
    matrices: Sequence[int] = (96,),
    zones: bool = False,
    sequences: int = 1,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Write the phantom's sites to ``root/prostate/<site>`` (see `dataset_of`) and return ``root``.

    Args:
        root: the phantom's own folder; it must not contain prepared sites of patients.
        seed: seed of all random numbers.
        sites: names of the sites to make; default all six.
        cases: patients per site, default 8.
        matrices: sizes whose slices are cached now; with ``zones`` none are.
        zones: two classes in place of the whole gland.
        sequences: 1 or 2 images of each case.
        progress: called with ``SITE CaseXX`` before each case is made.

    Raises:
        ConfigError: an unknown site, a negative seed, fewer than one case, or another number of sequences.
        DataError: ``root`` contains sites that are not a phantom, or cannot be written.
    """
    chosen = chosen_sites(sites, tuple(SCANNERS))
    count = CASES if cases is None else cases
    check_numbers(cases=count, seed=seed)
    if sequences not in (1, 2):
        raise ConfigError("invalid-value", f"the phantom has 1 or 2 sequences, not {sequences}")
    dataset = dataset_of(zones=zones, sequences=sequences)
    begin(root, dataset, seed=seed)
    made_with = PhantomOptions(
        cases=count,
        seed=seed,
        matrices=() if zones else tuple(matrices),
        zones=zones,
        sequences=2 if sequences > 1 else 1,
    )
    for site in chosen:
        with TemporaryDirectory(prefix="fedshift-phantom-") as scratch:
            files = write_scans(
                Path(scratch), site=site, seed=seed, cases=count, zones=zones, sequences=sequences, progress=progress
            )
            plan = SitePlan(
                site=site,
                cases=tuple(files),
                source=f"simulated by fedshift data phantom, seed {seed}",
                licence="Apache-2.0 (simulated, not patients)",
                citation=f"fedshift prostate phantom, seed {seed}",
                preparation={**({} if zones else MERGED), PHANTOM: made_with.model_dump(mode="json", exclude={"task"})},
            )
            write_site(
                plan,
                root,
                dataset=dataset,
                kind="phantom",
                labels=ZONES if zones else GLAND,
                sequences=SEQUENCES if sequences > 1 else (),
                matrices=made_with.matrices,
            )
    return root


def chosen_sites(sites: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """The phantom's sites to make, each once; all if none are named.

    Raises:
        ConfigError: an unknown one.
    """
    for site in sites or ():
        if site not in known:
            raise ConfigError("site-unknown", f"the phantom has no site {site!r}{nearest(site, known)}")
    return list(known) if sites is None else list(dict.fromkeys(sites))


def check_numbers(*, cases: int, seed: int) -> None:
    if cases < 1 or seed < 0:
        raise ConfigError("invalid-value", f"the phantom needs cases >= 1 and seed >= 0, not {cases} and {seed}")


def begin(root: Path, dataset: str, *, seed: int) -> None:
    """Make the phantom's own folder, with a note that says what it is.

    Raises:
        DataError: it holds prepared scans of patients, or cannot be written.
    """
    _refuse_patients(root / dataset)
    try:
        root.mkdir(parents=True, exist_ok=True)
        (root / "PHANTOM.txt").write_text(NOTE.format(seed=seed), encoding="utf-8")
    except OSError as error:
        raise DataError(
            "folder-unwritable", f"{root} cannot be written ({error.strerror}): give another folder"
        ) from None


def dataset_of(*, zones: bool, sequences: int) -> str:
    """The name of the phantom's data set."""
    return "_".join([DATASET, *(["zones"] if zones else []), *(["sequences"] if sequences > 1 else [])])


def write_scans(
    folder: Path,
    *,
    site: str,
    seed: int,
    cases: int,
    zones: bool = False,
    sequences: int = 1,
    progress: Callable[[str], None] | None = None,
) -> list[CaseFiles]:
    """Write a site's scans and masks as a scanner would export them; returns their paths."""
    written = []
    for number in range(cases):
        name = f"Case{number:02d}"
        if progress:
            progress(f"{site} {name}")
        image, mask, affine = draw_case(site=site, seed=seed, number=number, zones=zones)
        volumes: list[Volume] = [image]
        if sequences > 1:
            volumes.append(draw_diffusion(site=site, seed=seed, number=number))
        endings = [""] if sequences == 1 else [f"_{name}" for name in SEQUENCES]
        files = tuple(folder / f"{name}{ending}.nii.gz" for ending in endings)
        case = CaseFiles(
            id=name,
            images=files,
            mask=folder / f"{name}_segmentation.nii.gz",
            sequences=SEQUENCES if sequences > 1 else (),
        )
        for volume, file in zip(volumes, files, strict=True):
            _write_nifti(volume, affine, file)
        _write_nifti(mask, affine, case.mask)
        written.append(case)
    return written


def draw_case(
    *, site: str, seed: int, number: int, zones: bool = False
) -> tuple[Volume, NDArray[np.uint8], NDArray[np.float64]]:
    """Make one case: image and mask ``[columns, rows, slices]`` as NIfTI stores them, and the affine (RAS, mm)."""
    scanner = SCANNERS[site]
    rng = np.random.default_rng([seed, zlib.crc32(site.encode()), number])
    grid, patient, signal, mask = _draw(scanner, rng)
    mask[[0, -1]] = 0
    image = acquire(signal, patient, grid, scanner, rng)
    affine = _affine(scanner, rng)
    step = -1 if scanner.head_first else 1
    return image[::step].T, (mask if zones else np.minimum(mask, 1))[::step].T, affine


def draw_diffusion(*, site: str, seed: int, number: int) -> Volume:
    """The second sequence of a case: the same patient and grid as in `draw_case`."""
    scanner = diffusion(SCANNERS[site])
    name = zlib.crc32(site.encode())
    grid, patient, signal, _ = _draw(scanner, np.random.default_rng([seed, name, number]))
    image = acquire(signal, patient, grid, scanner, np.random.default_rng([seed, name, number, 1]))
    return image[:: -1 if scanner.head_first else 1].T


def _draw(scanner: Scanner, rng: np.random.Generator) -> tuple[Grid, Patient, Field, NDArray[np.uint8]]:
    """A patient, and signal and zones before they are scanned; the contrast has no part in who it is."""
    grid = Grid.centred(
        shape=(scanner.slices, scanner.matrix, scanner.matrix),
        spacing=(scanner.thickness, scanner.spacing, scanner.spacing),
    )
    # Half the stack minus 1.5 slices and 3 mm, the largest shift by the gland's position and bend.
    headroom = (scanner.slices / 2 - 1.5) * scanner.thickness - 3
    patient = draw_patient(rng, endorectal=scanner.endorectal, headroom=headroom)
    signal, zones = render(patient, grid, vary(scanner.contrast, rng), rng, soft=scanner.spacing)
    return grid, patient, signal, zones


def _affine(scanner: Scanner, rng: np.random.Generator) -> NDArray[np.float64]:
    """Affine from voxel (column, row, slice) to RAS mm: rows run posterior, columns left, slightly oblique."""
    turn = np.eye(3)
    for axis, degrees in enumerate(scanner.tilt):
        a, b = [k for k in range(3) if k != axis]
        angle = np.deg2rad(degrees + rng.uniform(-1, 1) * (degrees != 0))
        step = np.eye(3)
        step[[a, a, b, b], [a, b, a, b]] = np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)
        turn = turn @ step
    up = -1.0 if scanner.head_first else 1.0
    affine = np.eye(4)
    affine[:3, :3] = turn @ np.diag([-scanner.spacing, -scanner.spacing, up * scanner.thickness])
    middle = (np.array([scanner.matrix, scanner.matrix, scanner.slices]) - 1) / 2
    affine[:3, 3] = rng.uniform(-15, 15, 3) - affine[:3, :3] @ middle
    return affine


def _write_nifti(voxels: NDArray[np.generic], affine: NDArray[np.float64], path: Path) -> None:
    image = nib.Nifti1Image(voxels, affine)
    image.header.set_xyzt_units("mm")
    image.set_qform(affine, code=1)
    image.set_sform(affine, code=1)
    nib.save(image, path)


def _refuse_patients(folder: Path) -> None:
    """Refuse a folder with prepared scans of patients, so that they are never mixed with or replaced by the phantom."""
    for path in sorted(folder.glob(f"*/{FILE_NAME}")):
        if read_manifest(path.parent).kind != "phantom":
            raise DataError(
                "folder-in-use",
                f"{path.parent} holds prepared scans that are no phantom: choose another folder for the phantom",
            )
