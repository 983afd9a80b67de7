"""The table of cases: which files are a case's images and its mask, whoever says so, a layout, a list or a person.

Layouts are recognised in `fedshift.data.layouts`, and `fedshift.data.cases_csv` writes and reads the table as a file.
Checks and preparation read the table and look at no folder again.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from fedshift.data.labels import Labels
from fedshift.data.picture_files import is_picture
from fedshift.data.scan_file import Finding, as_compared
from fedshift.data.scans import volumes_in
from fedshift.schema.errors import ConfigError
from fedshift.schema.manifest import Split
from fedshift.schema.names import Name
from fedshift.schema.reading import Reading
from fedshift.schema.strict import nearest

_SITE: TypeAdapter[str] = TypeAdapter(Name)
UNNAMED = re.compile(r"\d{4}")  # the number of a sequence that nothing names
SIDE = re.compile(r"(.*?[^a-zA-Z])(left|right|O[DS]|[LR])", re.IGNORECASE)
"""An id that ends with a side of the body, or with an eye as ophthalmologists write it (oculus dexter, sinister)."""
Layout = Literal["beside", "folders", "described", "case folders", "patterns", "studies", "table"]


@dataclass(frozen=True)
class CaseFiles:
    """A case: a file for each sequence, of any kind that `fedshift.data.scans` reads, and its mask.

    The mask may be DICOM or a segmentation of 3D Slicer, too (`fedshift.data.named_masks`).

    Attributes:
        images: in the order of the sequences; a 4D file is named once for each of its volumes that is used.
        channels: which volume to take from each image file, for 4D files; None for 3D files.
        sequences: their names, empty for one unnamed.
        labels: what the mask's values mean; without them every whole number from 0 to 255 is accepted.
        volume: which volume to take, from 1, of images with several for which ``channels`` says none.
        trust_voxels: take the first image's geometry for the other files of the same shape, whatever their headers say.
        interpolate: fill slices between two contours of a structure set (`fedshift.data.contours`).
        reading: of a prepared case, how the files were read that it was prepared from.
        may_be_empty: whether the mask may have no voxel of the structure.
        subject: whose scan it is, "" where its id alone says so (`fedshift.data.splits.subject_of`).
        strata: what a table says of it by column, such as the scanner's vendor (`fedshift.schema.validation`).
        split: that somebody has chosen; None to deal one.
        mask_channel: which volume to take from the mask's file, if it is 4D.
    """

    id: str
    images: tuple[Path, ...]
    mask: Path
    channels: tuple[int | None, ...] = ()
    sequences: tuple[str, ...] = ()
    labels: Labels | None = None
    volume: int | None = None
    trust_voxels: bool = False
    interpolate: bool = False
    reading: Mapping[str, Reading] | None = None
    may_be_empty: bool = False
    subject: str = ""
    strata: Mapping[str, str] = field(default_factory=dict)
    split: Split | None = None
    mask_channel: int | None = None

    @property
    def image(self) -> Path:
        return self.images[0]

    def named(self, number: int) -> str:
        """A sequence in a sentence: ``(ADC of case P1) ``; nothing if there is only one."""
        if len(self.images) < 2:
            return ""
        name = self.sequences[number] if self.sequences else f"sequence {number + 1}"
        return f"({name} of case {self.id}) "

    def with_sequences(self, picked: Sequence[int], names: tuple[str, ...]) -> CaseFiles:
        """Some of its sequences, by their numbers, under these names."""
        channels = tuple(self.channels[number] for number in picked) if self.channels else ()
        images = tuple(self.images[number] for number in picked)
        return replace(self, images=images, channels=channels, sequences=names)


@dataclass(frozen=True)
class CaseTable:
    """The cases of one folder, usually one site.

    Attributes:
        name: the folder's name, or that of the data set or the site where a file says it.
        layout: how they lie there; ``described`` is the Decathlon's and nnU-Net's, with imagesTr and labelsTr.
        findings: missing, extra or duplicate files.
        sequences: names of a case's images, or their numbers (``0000``) where nothing names them; empty for one.
        labels: what the masks' values mean, where a file says it; ``licence`` likewise.
        unusable_labels: why what a file says of the masks' values cannot be used, which then has to be given.
        unusable_names: the same of the names of the sequences, which then have numbers.
        site: the site that the cases are of, where a table in a file says it.
    """

    name: str
    folder: Path
    layout: Layout
    cases: tuple[CaseFiles, ...]
    findings: tuple[Finding, ...]
    sequences: tuple[str, ...] = ()
    labels: Labels | None = None
    licence: str = ""
    unusable_labels: Finding | None = None
    unusable_names: Finding | None = None
    site: str = ""

    @property
    def of_pictures(self) -> bool:
        """Whether its cases are pictures."""
        return any(is_picture(case.image) for case in self.cases)

    def described_labels(self, label_values: Mapping[str, object]) -> Labels | None:
        """`labels`, for somebody who has named some ``label_values`` or none."""
        if self.unusable_labels is not None and not label_values:
            raise self.unusable_labels.as_error()
        return self.labels

    def with_options(self, **options: bool) -> CaseTable:
        """The same with options of `CaseFiles` for all cases."""
        return replace(self, cases=tuple(replace(case, **options) for case in self.cases))  # type: ignore[arg-type]

    def with_subjects(self, pattern: str) -> CaseTable:
        """Whose scan each case is, by its id, unless the table says it; ``pattern`` as of `subject_pattern`.

        Raises:
            ConfigError: an id that the pattern does not fit.
        """
        expression, cases = subject_pattern(pattern), []
        for case in self.cases:
            match = expression.fullmatch(case.id)
            if match is None and not case.subject:
                what = f"--subject {pattern!r} does not fit the case {case.id!r} in {self.folder}"
                raise ConfigError("subject-unmatched", f"{what}: write one that fits all, or the subjects in a table")
            cases.append(replace(case, subject=case.subject or match[1] if match else case.subject))
        return replace(self, cases=tuple(cases))

    def with_volume(self, volume: int) -> CaseTable:
        """Take one volume, from 1, of images that have several."""
        if not any(case.channels for case in self.cases):
            return replace(self, cases=tuple(replace(case, volume=volume) for case in self.cases))
        if not all(UNNAMED.fullmatch(name) for name in self.sequences):
            raise ConfigError(
                "volume-named",
                f"{self.folder} has the sequences {', '.join(self.sequences)} as volumes of its files: choose one with "
                "--sequence, without --volume",
            )
        if volume > len(self.sequences):
            what = f"{self.folder} has files of {len(self.sequences)} volumes: --volume {volume} is none"
            raise ConfigError("volume-missing", what)
        return replace(self, cases=tuple(case.with_sequences([volume - 1], ()) for case in self.cases), sequences=())

    def with_sequences(self, names: Sequence[str]) -> CaseTable:
        """Take some of the sequences, in the order of ``names``; or give names to sequences that have numbers only."""
        names = tuple(names)
        if not names and self.unusable_names is not None:
            raise self.unusable_names.as_error()
        if not names or names == self.sequences:
            return self
        if not self.sequences:
            return self._with_named_volumes(names)
        if all(UNNAMED.fullmatch(name) for name in self.sequences):
            if len(names) != len(self.sequences):
                raise ConfigError(
                    "sequence-count",
                    f"{self.folder} has {len(self.sequences)} sequences without names: name all of them in their "
                    f"order, not {len(names)}",
                )
            return replace(self, cases=tuple(replace(case, sequences=names) for case in self.cases), sequences=names)
        known = [as_compared(name) for name in self.sequences]
        for name in names:
            if as_compared(name) not in known:
                what = f"{self.folder} has no sequence {name!r}{nearest(name, self.sequences)}"
                raise ConfigError("sequence-unknown", what)
        picked = [known.index(as_compared(name)) for name in names]
        chosen = tuple(self.sequences[number] for number in picked)
        return replace(self, cases=tuple(case.with_sequences(picked, chosen) for case in self.cases), sequences=chosen)

    def _with_named_volumes(self, names: tuple[str, ...]) -> CaseTable:
        """Name the volumes of 4D files or the colours of pictures; files with more are errors, with fewer when read."""
        channels = tuple(range(len(names))) if len(names) > 1 else ()
        cases, findings = [], list(self.findings)
        for case in self.cases:
            count = 1 if is_picture(case.image) else volumes_in(case.image)
            if channels and count > len(names):
                what = f"has {count} volumes, and --sequence names {len(names)} ({', '.join(names)})"
                remedy = "name every volume in their order, or save those that are used without the others"
                findings.append(Finding("error", "volumes-extra", case.image, what, remedy, case.id))
                continue
            cases.append(replace(case, images=case.images * len(names), channels=channels, sequences=names))
        return replace(self, cases=tuple(cases), findings=tuple(findings), sequences=names)


def subject_pattern(text: str) -> re.Pattern[str]:
    """What ``--subject`` says of ids: a regular expression with one group, or a pattern in which * is the subject.

    In the latter ? is any character, and [LR] one of these: ``Image_*[LR]`` has both eyes in one subject.

    Raises:
        ConfigError: it is neither.
    """
    stars = text.count("*")
    escaped = re.escape(text).replace(r"\*", "(.+)").replace(r"\?", ".").replace(r"\[", "[").replace(r"\]", "]")
    try:
        pattern = re.compile(text if "(" in text else escaped)
    except re.error as error:
        raise ConfigError(
            "option-form", f"--subject {text!r} is no pattern ({error}): write one such as 'P*_?'"
        ) from None
    if pattern.groups != 1 or ("(" not in text and stars != 1):
        what = f"--subject {text!r} has {pattern.groups if '(' in text else stars} parts that are the subject"
        raise ConfigError(
            "option-form", f"{what}: write one *, as in 'Image_*[LR]', or one group, as in '(P[0-9]+)_.*'"
        )
    return pattern


def both_sides(table: CaseTable) -> list[Finding]:
    """One warning for pictures whose ids differ only in left and right, such as Image_01L, and have no subject."""
    return sides_of([case.id for case in table.cases if table.of_pictures and not case.subject], table.folder)


def sides_of(ids: Sequence[str], where: Path, remedy: str | None = None) -> list[Finding]:
    """`both_sides` of ids whose subject nothing says; ``remedy``: in place of ``--subject``."""
    sides: dict[str, list[str]] = {}
    for each in ids:
        if side := SIDE.fullmatch(each):
            sides.setdefault(side[1], []).append(side[2])
    pairs = {start: ends for start, ends in sides.items() if len({end.upper() for end in ends}) == 2}
    if not pairs:
        return []
    start, (one_side, other_side) = next(iter(pairs.items()))
    how = f"--subject '*[{one_side}{other_side}]'" if len(one_side + other_side) == 2 else "--subject, or a table"
    what = (
        f"has {len(pairs)} pair(s) of pictures such as {start}{one_side} and {start}{other_side}, which look like two "
        "sides of one person, and nothing says so: one may train the model that the other tests"
    )
    return [Finding("warning", "subject-unsaid", where, what, remedy or f"say whose they are with {how}")]


def parse_sequences(texts: Sequence[str]) -> dict[str, str]:
    """Sequence -> pattern or "", from texts such as ``T2``, ``T2,ADC`` and ``T2=*_T2.nii.gz``.

    Raises:
        ConfigError: a name given twice or not at all.
    """
    patterns: dict[str, str] = {}
    for text in texts:
        name, equals, pattern = (part.strip() for part in text.partition("="))
        for each in [name] if equals else [part.strip() for part in name.split(",")]:
            if not each or (equals and not pattern):
                what = f"--sequence takes a name, or a name and a pattern such as T2='*_T2.nii.gz', not {text!r}"
                raise ConfigError("option-form", what)
            if each in patterns:
                raise ConfigError("option-twice", f"--sequence names {each} twice: write it once")
            patterns[each] = pattern
    return patterns


def spelled_as(names: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    spelling = {as_compared(name): name for name in known}
    return tuple(spelling.get(as_compared(name), name) for name in names)


def sequences_fault(known: Sequence[str], wanted: Sequence[str]) -> tuple[str, str] | None:
    """Why a site with the ``known`` sequences cannot train for a task that wants others, and the remedy."""
    has = f"has the sequence(s) {', '.join(known)}" if known else "has one sequence without a name"
    if not wanted and len(known) > 1:
        return (
            f"{has}, and the task takes one",
            f"choose it, as in --sequence {known[0]}, or name those that the task takes in its data.sequences",
        )
    if not set(wanted) <= set(known):
        named = " ".join(f"--sequence {shlex.quote(name)}" for name in wanted)
        return f"{has}, and the task takes {', '.join(wanted)}", f"prepare it with {named}"
    return None


def name_fault(name: str, *, several: bool = False) -> tuple[str, str] | None:
    """Why a name cannot be that of a case's files, possibly on a case-insensitive file system, and the remedy.

    ``several``: whether the case has several sequences, whose files have numbers.
    """
    if not re.fullmatch(r"\w[\w .+-]*", name) or name.endswith(("_mask", ".", " ")):
        return "cannot be a file name here", "use letters, digits, '-', '_' and '.', and no '_mask' at the end"
    if several and re.search(r"_\d{4}$", name):
        return "ends like the number of a sequence", "rename the case"
    return None


def site_fault(name: str) -> tuple[str, str] | None:
    """Why a name cannot be that of a site or a data set in any job, and how to remedy it."""
    try:
        _SITE.validate_python(name)
    except ValidationError:
        return (
            "cannot be in a job",
            "use the letters A to Z and a to z, digits, '_', '-' and '.', with a letter, a digit or '_' first, as the "
            "task writes it",
        )
    return None
