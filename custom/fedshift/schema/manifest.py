"""``manifest.json`` of a prepared site (schema 1): its cases, where they came from, and their splits."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from fedshift.runtime import DIRECTION_TOLERANCE as DIRECTION_TOLERANCE
from fedshift.runtime import SPACING_TOLERANCE as SPACING_TOLERANCE
from fedshift.runtime import is_dummy_geometry as is_dummy_geometry
from fedshift.schema.errors import DataError
from fedshift.schema.files import write_text
from fedshift.schema.names import ClassName, Name, Stratum, few_names
from fedshift.schema.reading import Reading
from fedshift.schema.strict import Sparse, Strict

Split = Literal["train", "val", "test"]
Stored = Literal["nifti", "png"]
FILE_NAME = "manifest.json"
_READING = b'"reading"'
ORDER, LISTED = "order", "of the list"
"""Key and value in ``preparation`` of pictures that are in the order of a published list, training part first."""
TRUE_SPACING, BY_HEADERS = "true_spacing", "as headers say"
"""Key in ``preparation`` of volumes whose voxels of 1 x 1 x 1 mm are no placeholder, and its value where no person has
said so, but nnU-Net takes them so; otherwise it is True."""
DEPTH = "depth"
"""Key in ``preparation`` of pictures of which some are grey with more than 8 bits: how these were read, in words."""
SIMULATED = "simulated"
"""Key in ``preparation`` of volumes of patients that were changed as by another scanner: what was simulated."""
PHANTOM = "phantom"
"""Key in ``preparation`` of simulated scans: the `PhantomOptions` that they were made with."""
Counts = dict[Split, dict[str, int]]
"""Split -> class -> number of pictures, including zeros; of findings, of those that have it."""


class Case(Sparse):
    """One volume of a site, with a mask; or to be classified, with a ``label`` or ``findings`` as a `Picture` has them.

    ``sha256_*``: hash of the decoded voxels, so that the same content under another name or compression
    is recognised; ``sha256_label`` is empty without a mask. ``shape`` is (slices, rows, columns), ``spacing``
    millimetres in that order.
    ``array`` names the folder of cached arrays below the site, ``offset`` the case's first slice there.
    ``reading``: how its files were read, under ``image`` or the names of the sequences, and ``mask``; it stays at the
    site. ``subject``: whose scan it is, "" where its id alone says so. ``strata``: what the site's table says of it, by
    column, for `fedshift.schema.validation`.
    """

    RARE = ("reading", "subject", "label", "findings", "strata")

    id: str
    sha256_image: str
    sha256_label: str
    split: Split
    shape: tuple[int, int, int]
    spacing: tuple[float, float, float]
    direction: tuple[float, ...]
    array: str
    offset: int
    reading: dict[str, Reading] = {}
    subject: str = ""
    label: str = ""
    findings: dict[str, bool] = {}
    strata: dict[Name, Stratum] = {}


class Picture(Sparse):
    """One picture of a site. Its position in the manifest is its row in the cached arrays.

    ``sha256`` hashes the decoded RGB pixels before they are resized, or of a grey picture with more than 8 bits its
    values. ``label`` names one of the site's classes; or ``findings`` says of some of them whether the picture has it,
    and those that it does not name are unknown. ``subject``: whose picture it is, "" where it is its own. ``strata``:
    as of a `Case`.
    """

    RARE = ("label", "findings", "subject", "strata")

    id: str
    sha256: str
    label: str = ""
    split: Split
    findings: dict[str, bool] = {}
    subject: str = ""
    strata: dict[Name, Stratum] = {}


def classes_of(entry: Case | Picture) -> tuple[str, ...]:
    """The classes that a labelled picture or volume has: its label, or the findings that are true."""
    return (entry.label,) if entry.label else tuple(name for name, has in entry.findings.items() if has)


def count(entries: Iterable[Case | Picture], classes: Iterable[str]) -> Counts:
    """Number of labelled pictures or volumes by split and class; one with several findings counts for each."""
    numbers = Counter((entry.split, name) for entry in entries for name in classes_of(entry))
    classes = tuple(classes)
    return {split: {label: numbers[split, label] for label in classes} for split in get_args(Split)}


class PhantomOptions(Strict):
    """What ``fedshift data phantom`` made a site's scans with; ``matrices`` are those whose slices it cached.

    ``task``: which phantom it is. The last three are of the prostate's.
    """

    cases: int = Field(strict=True, ge=1, le=10**6)
    seed: int = Field(strict=True, ge=0)
    task: Literal["prostate", "fundus"] = "prostate"
    matrices: tuple[Annotated[int, Field(strict=True, ge=1, le=10**4)], ...] = Field(default=(), max_length=16)
    zones: bool = False
    sequences: Literal[1, 2] = 1


class Manifest(Strict):
    """Description of a prepared site, written once by data_prep.

    A site has either volumes (``cases``) or ``pictures``. Pictures, and volumes without masks, have one label each, or
    findings each. ``counts``: number of them by split and class (`count`).
    ``arrays``: for each folder of arrays that preparation wrote, by its name below ``arrays/``, the hash of its
    ``hashes.json`` (`fedshift.data.blocks`). Slices of volumes may also be cached later and are not listed then.
    ``sequences``: names of the image sequences of each case, such as T2 and ADC, in the order of their files; empty for
    one unnamed sequence. ``annotated``: the foreground classes that the site's masks outline; None for all of them.
    ``stored``: the format of a case's files; ``png`` for pictures, which are volumes of one slice whose sequences are
    their colours.
    ``ignore``: whether masks have voxels to ignore (`fedshift.runtime.regions.IGNORED`).
    """

    schema_: Literal[1] = Field(default=1, alias="schema")
    dataset: str
    site: str
    kind: Literal["patients", "images", "phantom"]
    preparation: dict[str, Any]
    classes: tuple[ClassName, ...]
    sequences: tuple[ClassName, ...] = ()
    annotated: tuple[ClassName, ...] | None = None
    ignore: bool = False
    counts: Counts | None = None
    cases: tuple[Case, ...] = ()
    pictures: tuple[Picture, ...] = ()
    arrays: dict[str, str] = {}
    stored: Stored = "nifti"
    licence: str
    citation: str

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if bool(self.cases) == bool(self.pictures):
            raise ValueError("either 'cases' or 'pictures' must be filled: prepare the site again")
        return self

    @model_validator(mode="after")
    def _one_way_of_labels(self) -> Self:
        ways = {(bool(entry.label), bool(entry.findings)) for entry in self.entries}
        if len(ways) > 1 or (True, True) in ways or (self.pictures and (False, False) in ways):
            raise ValueError("all have either one label each, or findings each: prepare the site again")
        named = {name for entry in self.entries for name in (entry.label, *entry.findings)} - {""}
        if unknown := named - set(self.classes):
            raise ValueError(f"a picture's label {min(unknown)!r} is none of the classes: prepare the site again")
        return self

    @model_validator(mode="after")
    def _annotated_are_classes(self) -> Self:
        other = set(self.annotated or ()) - set(self.classes[1:])
        if other:
            raise ValueError(f"'annotated' names {min(other)!r}, which is no foreground class: prepare the site again")
        return self

    @model_validator(mode="after")
    def _counted(self) -> Self:
        if self.counts is None:
            return self
        listed = count(self.entries, self.classes)
        for split, of_class in listed.items():
            stated = self.counts.get(split, {})
            for label in dict.fromkeys((*of_class, *stated)):
                if stated.get(label, 0) != of_class.get(label, 0):
                    raise ValueError(
                        f"'counts' says {stated.get(label, 0)} {split} picture(s) of {label!r}, 'pictures' lists "
                        f"{of_class.get(label, 0)}: prepare the site again"
                    )
        return self

    @property
    def pictured(self) -> bool:
        """Whether its cases are pictures to segment."""
        return self.stored == "png"

    @property
    def has_unknown_spacing(self) -> bool:
        """Whether any volume has a dummy geometry, so that distances and volumes in mm mean nothing."""
        return not self.pictured and any(self.known_spacing(case) is None for case in self.cases)

    def known_spacing(self, case: Case) -> tuple[float, float, float] | None:
        """A case's voxel size in mm along z, y, x; None if its header holds a placeholder."""
        is_placeholder = is_dummy_geometry(case.spacing, case.direction) and not self.has_true_spacing
        return None if is_placeholder else case.spacing

    @property
    def has_true_spacing(self) -> bool:
        """Whether voxels of 1 x 1 x 1 mm are no placeholder, as whoever prepared the site or its layout says."""
        return bool(self.preparation.get(TRUE_SPACING))

    @property
    def is_spacing_unsaid(self) -> bool:
        """Whether voxels of 1 x 1 x 1 mm are taken as true because nnU-Net does, and no person has said so."""
        return self.preparation.get(TRUE_SPACING) == BY_HEADERS

    @property
    def simulated(self) -> str | None:
        """What was simulated of a site's scans, such as its scanner; None for scans as they were taken."""
        stated = self.preparation.get(SIMULATED)
        return str(stated) if stated else None

    @property
    def phantom(self) -> PhantomOptions | None:
        """What simulated scans were made with; None for others, and for a phantom of an earlier version."""
        options = self.preparation.get(PHANTOM)
        return None if options is None else PhantomOptions.parse(options, where="preparation.phantom")

    @property
    def has_findings(self) -> bool:
        """Whether its pictures or volumes have findings, of which several may be true at once, and not one label."""
        return any(entry.findings for entry in self.entries)

    @property
    def has_masks(self) -> bool:
        """Whether it has volumes with masks, and not something to classify."""
        return any(not (case.label or case.findings) for case in self.cases)

    @property
    def strata(self) -> tuple[str, ...]:
        """The columns of the site's table that were kept, in their order."""
        return tuple(dict.fromkeys(column for entry in self.entries for column in entry.strata))

    @property
    def entries(self) -> tuple[Case, ...] | tuple[Picture, ...]:
        """The cases or the pictures, whichever the site has."""
        return self.cases or self.pictures

    def by_split(self, split: Split) -> tuple[Case | Picture, ...]:
        """The cases or pictures of one split, in file order."""
        return tuple(entry for entry in self.entries if entry.split == split)

    def check_is(self, folder: Path, *, dataset: str, site: str, classes: tuple[str, ...]) -> None:
        """Compare with what a job expects in ``folder``.

        Raises:
            DataError: the folder is another site's, or of another data set or other classes.
        """
        for what, have, want in (
            ("dataset", self.dataset, dataset),
            ("site", self.site, site),
        ):
            if have != want:
                raise DataError(
                    "other-data",
                    f"{folder}: its manifest says {what} {have}, the job wants {want}: name the right folder",
                )
        if self.classes != classes:
            raise DataError(
                "other-classes",
                f"{folder}: {self.site} was prepared with the classes {', '.join(self.classes)}, the job has "
                f"{', '.join(classes)}: correct the task's classes, or delete the folder and prepare it again, own "
                "scans with --task NAME",
            )

    def write(self, folder: Path) -> None:
        absent = {"pictures" if self.cases else "cases", *(("counts",) if self.counts is None else ())}
        absent |= {key for key in ("arrays", "sequences") if not getattr(self, key)}
        absent |= {"annotated"} if self.annotated is None else set()
        absent |= {"stored"} if self.stored == "nifti" else set()
        absent |= set() if self.ignore else {"ignore"}
        content = self.model_dump(by_alias=True, exclude=absent)
        write_text(folder / FILE_NAME, _text(content))


def read_manifest(folder: Path) -> Manifest:
    """Read ``folder/manifest.json``.

    Raises:
        DataError: no manifest there, or one that does not parse.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        sites = sorted(below.parent.name for below in folder.glob(f"*/{FILE_NAME}") if below.parent.name[0] != ".")
        if sites:
            raise DataError("several-sites", f"{folder} holds the sites {few_names(sites)}: name one of them")
        raise DataError("not-prepared", f"{path} does not exist: prepare the site with 'fedshift data prepare' first")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError("not-json", f"{path} is not valid JSON ({error}): prepare the site again") from None
    except RecursionError:
        raise DataError("too-deep", f"{path} is nested too deeply: prepare the site again") from None
    return Manifest.parse(raw, where=str(path))


def manifest_sha256(folder: Path) -> str:
    """Fingerprint of a site's manifest, as results.json records it.

    It is that of the file without the record of how scans were read: another sentence there makes no other data.
    """
    content = (folder / FILE_NAME).read_bytes()
    if _READING in content:
        manifest = json.loads(content)
        for case in manifest.get("cases", ()):
            case.pop("reading", None)
        content = _text(manifest).encode()
    return hashlib.sha256(content).hexdigest()


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1) + "\n"
