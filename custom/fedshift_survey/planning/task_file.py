"""A plan as a task file: YAML with the reason for each number in a comment above it, to be read and changed by hand."""

from __future__ import annotations

import hashlib
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from fedshift.data.tallies import add_intensities, merge, plain, quantile, spread, worded
from fedshift.schema.errors import ConfigError
from fedshift.schema.fingerprint import INSIDE, OUTSIDE, Fingerprint, Intensities, SurveySpec
from fedshift.schema.task import TaskSpec
from fedshift_survey.planning.plan import Plan

WIDTH = 100
ROUNDS = 100
CT = frozenset({"CT", "CTA", "CCTA", "CECT", "HRCT", "LDCT", "MDCT", "NCCT", "NECT"})
"""Words in the name of a sequence that is CT in Hounsfield units."""
NUCLEAR = frozenset({"PET", "SPECT"})
"""Words in the name of a sequence that is not CT, whatever else is in it."""
AS_IT_IS = "nonorm"
NAMED_WAYS = {
    AS_IT_IS: "leave {} as it is",
    "rescale_to_0_1": "bring each volume of {} to 0 to 1",
    "rgb_to_0_1": "divide {} by 255",
}
"""What nnU-Net does with channels of these names, in any case; all others but CT are brought to standard scores."""
LOW, HIGH = 0.005, 0.995
"""Quantiles of intensities inside the labels to which nnU-Net clips CT."""
SEAL, SEAL_LENGTH = "# Checksum of the lines above as they were written, so that a change by hand is seen: ", 16
"""Beginning of the last line, and how many digits of a hash follow it."""


@dataclass(frozen=True)
class Entry:
    """A key with its value, which may be entries, and the reason for it."""

    key: str
    value: Any
    reason: str = ""


OPTIMIZER = Entry(
    "optimizer",
    {
        "name": "adamw",
        "lr": 0.001,
        "weight_decay": 0.0001,
        "clip_norm": 12.0,
        "lr_schedule": {"name": "cosine"},
    },
    "Not nnU-Net's, whose SGD is made for 250,000 steps; but the limit of 12 for the gradient's norm is.",
)
"""The optimiser of all plans."""
FOREGROUND_ENTRIES = (
    Entry("foreground", 0.33, "nnU-Net's part of the patches of each batch that are centred on foreground."),
    Entry("foreground_guaranteed", True),
)


def loss_entry(*, batch_dice: bool, why: str, of_regions: bool) -> Entry:
    """nnU-Net's loss: cross-entropy, and Dice without background over the batch or of each patch.

    Args:
        batch_dice: over the batch.
        why: a sentence on that.
        of_regions: whether the task has regions, which have no background.
    """
    options = {"batch": batch_dice} | ({} if of_regions else {"include_background": False})
    what = "regions" if of_regions else "the classes without background"
    over = "over the patches of a batch together" if batch_dice else "of each patch"
    return Entry(
        "loss",
        {"name": "monai.DiceCELoss", "options": options},
        f"Cross-entropy, and Dice of {what}, {over}, as nnU-Net. {why}",
    )


def task_file(
    plan: Plan, fingerprints: Sequence[Fingerprint], spec: SurveySpec, *, name: str, nnunet: bool = False
) -> str:
    """The text of the file; what it holds is a valid task.

    Args:
        plan: the plan.
        fingerprints: of the sites that it is for.
        spec: the survey.
        name: the task's name.
        nnunet: whether volumes are prepared as nnU-Net does, for its own network (``fedshift export --nnunet``).

    Raises:
        ConfigError: pictures for ``nnunet``.
    """
    if nnunet and plan.pictures:
        raise ConfigError("wrong-task", "--nnunet plans for volumes, and the sites have pictures: leave it out")
    pooled = merge(fingerprints)
    return written(_heading(pooled, spec), _entries(plan, fingerprints, pooled, spec, name, nnunet=nnunet))


def written(heading: Sequence[str], entries: Sequence[Entry]) -> str:
    """The text of a task file, with a checksum at its end; what it holds is a valid task."""
    text = "".join(f"{line}\n" for line in _lines(entries))
    TaskSpec.parse(yaml.safe_load(text), where="the plan")
    text = f"{_comment(heading)}{text}\n"
    return f"{text}{SEAL}{_digest(text)}\n"


def is_unchanged(path: Path) -> bool:
    """Whether a file is as `task_file` made it."""
    try:
        text, seal, digest = path.read_text(encoding="utf-8").rpartition(SEAL)
    except UnicodeDecodeError:
        return False
    return bool(seal) and digest.strip() == _digest(text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:SEAL_LENGTH]


def _heading(pooled: Fingerprint, spec: SurveySpec) -> list[str]:
    phantom = " These are simulated data, no patients." if pooled.kind == "phantom" else ""
    phantom += f" Simulated: {pooled.simulated}." if pooled.simulated else ""
    return [
        f"Planned by 'fedshift survey' from {pooled.surveyed} cases of {len(spec.sites)} sites, by nnU-Net v2's "
        "published rules (Isensee et al., Nature Methods 2021)." + phantom,
        "'fedshift job METHODS FILE' reads this file. Each number may be changed; its reason is above it.",
    ]


def _entries(
    plan: Plan,
    fingerprints: Sequence[Fingerprint],
    pooled: Fingerprint,
    spec: SurveySpec,
    name: str,
    *,
    nnunet: bool,
) -> list[Entry]:
    why = plan.reasons
    held_out = [Entry("held_out", list(spec.held_out), "On the map of the survey, not in its plan.")]
    network = plan.network.nnunet_options() if nnunet else plan.network.options()
    called, what = ("monai.DynUNet", "MONAI's version of nnU-Net's network.")
    if nnunet:
        called, what = ("nnunet.PlainConvUNet", "nnU-Net's own network.")
    return [
        Entry("name", name),
        Entry("kind", "segmentation"),
        Entry("dataset", spec.dataset),
        Entry("sites", list(spec.sites)),
        *(held_out if spec.held_out else []),
        Entry("classes", list(pooled.classes), _labels(pooled)),
        *_regions(pooled, spec),
        Entry("data", _data(plan, fingerprints, pooled, nnunet=nnunet)),
        Entry(
            "network",
            [
                Entry("name", called, f"{what} {_sentence(why['depth'])}"),
                Entry(
                    "options",
                    [Entry(key, value, _sentence(why.get(key, ""))) for key, value in network.items()],
                ),
            ],
        ),
        loss_entry(batch_dice=plan.batch_dice, why=_sentence(why["batch_dice"]), of_regions=bool(spec.regions)),
        OPTIMIZER,
        Entry(
            "schedule",
            [
                Entry(
                    "rounds", ROUNDS, f"By hand, from the time that there is: {_steps(plan, pooled, len(spec.sites))}."
                ),
                Entry("local_epochs", 1),
                Entry("batch_size", plan.batch, f"{_sentence(why['batch_size'])} {_sentence(why['memory'])}"),
                Entry("precision", "auto"),
                Entry("threads", "auto"),
            ],
        ),
    ]


def _data(plan: Plan, fingerprints: Sequence[Fingerprint], pooled: Fingerprint, *, nnunet: bool) -> list[Entry]:
    why = plan.reasons
    convention = [Entry("convention", "nnunet", "Volumes are cropped, resampled and predicted as nnU-Net does.")]
    spacing = None if plan.spacing is None else list(plan.spacing)
    context = [Entry("context", 1, "nnU-Net's; 3 adds the neighbouring slices as channels.")]
    context = context if plan.dims == 2 and not plan.pictures and not nnunet else []
    sequences = [Entry("sequences", list(pooled.sequences))] if pooled.sequences else []
    if plan.pictures:
        whole = (
            "Pictures keep their size, so that thin structures stay, and patches are cut from them. For whole pictures "
        )
        whole += "in one size set N here, and [N, N] as the patch."
        size = [Entry("pictures", True), Entry("matrix", None, f"{_sentence(why['shape'])} {whole}")]
    else:
        reason = f"In mm, of slices, rows and columns. {_sentence(why['spacing'])} {_sentence(why['shape'])}"
        size = [Entry("spacing", spacing, reason)]
    return [
        Entry("dims", plan.dims),
        *size,
        Entry("patch", list(plan.patch), _sentence(why["patch"])),
        *context,
        *sequences,
        *(convention if nnunet else []),
        *_normalisation(fingerprints, pooled),
        Entry("samples_per_case", plan.samples, _sentence(why["samples_per_case"])),
        *FOREGROUND_ENTRIES,
        Entry("augmentation", "strong", "nnU-Net's list."),
        Entry("overlap", 0.5, "Of the sliding window, as nnU-Net."),
    ]


def _steps(plan: Plan, pooled: Fingerprint, sites: int) -> str:
    steps = max(1, round(pooled.surveyed / sites * plan.samples / plan.batch))
    return f"a round is about {steps} steps at a site with the mean number of cases, nnU-Net makes 250,000 in all"


def _labels(pooled: Fingerprint) -> str:
    """How large each class is and how often it occurs."""
    sentences = []
    for name, volume in pooled.volumes.items():
        size = f", median {quantile(volume.values, 0.5):g} ml" if volume.values else ""
        sentences.append(f"{name} in {volume.cases} of {volume.surveyed} cases{size}")
    return "; ".join(sentences) + "." if sentences else ""


def _regions(pooled: Fingerprint, spec: SurveySpec) -> list[Entry]:
    """The regions of the task or sites that were asked for, and how many cases have one, as far as classes tell it."""
    counted = []
    for name, members in spec.regions.items():
        counts = [pooled.volumes[member] for member in members if member in pooled.volumes]
        if len(counts) == len(members) and len({volume.surveyed for volume in counts}) == 1:
            most = max(counts, key=lambda volume: volume.cases)
            exactly = "" if len(members) == 1 or most.cases == most.surveyed else "at least "
            counted.append(f"{name} in {exactly}{most.cases} of {most.surveyed} cases")
    why = "As in the task, or the prepared sites, that were asked for." + (f" {'; '.join(counted)}." if counted else "")
    regions = [Entry("regions", {name: list(members) for name, members in spec.regions.items()}, why)]
    order = [Entry("regions_class_order", list(spec.regions_class_order))]
    return [
        *(regions if spec.regions else []),
        *(order if spec.regions_class_order else []),
        *([Entry("ignore", True)] if spec.ignore else []),
    ]


def _normalisation(fingerprints: Sequence[Fingerprint], pooled: Fingerprint) -> list[Entry]:
    """How intensities are normalised, and how they are stored."""
    stored = _as_stored(pooled)
    fixed = _of_foreground(fingerprints) if len(pooled.channels) == 1 and is_ct(pooled.channels[0]) else None
    if fixed is not None:
        inside = [fingerprint.site for fingerprint in fingerprints if _foreground(fingerprint) is not None]
        others = [fingerprint.site for fingerprint in fingerprints if fingerprint.site not in inside]
        where = f" at {', '.join(inside)}, since {', '.join(others)} told no intensities there" if others else ""
        why = (
            f"CT has a unit, so all volumes are clipped to the 0.5 and 99.5 percentiles inside the labels{where}, and "
            f"normalised by the mean and standard deviation there (nnU-Net's rule for CT). {stored}"
        )
        return [Entry("normalise", "fixed", why.strip()), Entry("fixed", fixed)]
    if {name.lower() for name in pooled.channels} == {AS_IT_IS}:
        why = f"As stored (nnU-Net's rule for a channel of the name {pooled.channels[0]}). {stored}"
        return [Entry("normalise", "none", why.strip())]
    note = unlike_nnunet(fingerprints)
    why = worded("Each volume to mean 0 and standard deviation 1", pictures=pooled.of_pictures)
    why += ", in each colour" if pooled.of_pictures and len(pooled.channels) > 1 else ""
    why += f". {note}" if note else " (nnU-Net's rule for everything but CT)."
    return [Entry("normalise", "volume", f"{why} {stored}".strip())]


def unlike_nnunet(fingerprints: Sequence[Fingerprint]) -> str:
    """Why the plan has standard scores though nnU-Net normalises a sequence of this name otherwise; empty if none."""
    channels = fingerprints[0].channels
    ways = [NAMED_WAYS[name.lower()].format(name) for name in channels if name.lower() in NAMED_WAYS]
    if ways and [name.lower() for name in channels] != [AS_IT_IS]:
        return (
            f"By the names of sequences nnU-Net would {' and '.join(ways)}, which a task cannot do or not beside "
            "others: give 'normalise' by hand if that is what is meant."
        )
    named = [name for name in channels if is_ct(name)]
    if len(channels) > 1 and named:
        return (
            f"nnU-Net would clip {', '.join(named)} by its rule for CT, and fedshift has one normalisation for all "
            "sequences of a task."
        )
    if named and _of_foreground(fingerprints) is None:
        return (
            f"nnU-Net would clip {named[0]} by what is inside the labels, and no site told enough of that: give "
            "'normalise: fixed' and its numbers by hand."
        )
    like = [name for name in channels if name not in named and any(map(_like_ct, _words(name)))]
    if like:
        return (
            f"{', '.join(like)} has CT in its name and is not taken for CT: if it is in Hounsfield units, name it CT "
            "when scans are prepared, or give 'normalise: fixed' and its numbers by hand."
        )
    return ""


def is_ct(sequence: str) -> bool:
    """Whether a sequence's name says that it is CT in Hounsfield units."""
    words = _words(sequence)
    return bool(words & CT) and not words & NUCLEAR


def _words(sequence: str) -> set[str]:
    return set(re.split(r"[\W\d_]+", sequence.upper()))


def _like_ct(word: str) -> bool:
    return word.startswith("CT") or (word.endswith("CT") and word not in NUCLEAR)


def _as_stored(pooled: Fingerprint) -> str:
    """Intensities as they are stored, inside each class and outside."""
    sentences = []
    for sequence, places in pooled.intensities.items():
        inside = {place: intensities for place, intensities in places.items() if place in pooled.classes}
        if inside and OUTSIDE in places:
            of_classes = ", ".join(
                f"{place} {plain(spread(values).mean)} ± {plain(spread(values).deviation)} (the cases' means ± "
                f"{plain(spread(values).between)})"
                for place, values in inside.items()
            )
            sentences.append(f"{sequence}, as stored: {of_classes}; outside {plain(spread(places[OUTSIDE]).mean)}.")
    return " ".join(sentences)


def _of_foreground(fingerprints: Sequence[Fingerprint]) -> dict[str, float] | None:
    """Percentiles, mean and standard deviation inside the labels of all sites; None if no site told them."""
    outlined = [inside for fingerprint in fingerprints if (inside := _foreground(fingerprint)) is not None]
    if not outlined:
        return None
    inside = reduce(add_intensities, outlined)
    low, high = quantile(inside.values, LOW), quantile(inside.values, HIGH)
    statistics = spread(inside)
    if low >= high or not statistics.deviation:
        return None
    numbers = {"low": low, "high": high, "mean": statistics.mean, "std": statistics.deviation}
    return {key: float(f"{value:.4g}") for key, value in numbers.items()}


def _foreground(fingerprint: Fingerprint) -> Intensities | None:
    """What a site told of the inside of its labels: of all together, else of each class; None if of neither.

    A site that outlines one class tells of that class alone, and so does one that withholds the sum over all labels,
    whose difference from its classes would be that of a few cases. Nothing but what sites told is added up.
    """
    (places,) = fingerprint.intensities.values() or ({},)
    classes = [intensities for place, intensities in places.items() if place in fingerprint.classes]
    inside = places.get(INSIDE) or (reduce(add_intensities, classes) if classes else None)
    return inside if inside is not None and inside.values else None


def _sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    return f"{text[0].upper()}{text[1:].removesuffix('.')}." if text else ""


def _lines(entries: Sequence[Entry], indent: int = 0) -> Iterator[str]:
    space = " " * indent
    for entry in entries:
        if indent == 0 and (entry.reason or _is_section(entry.value)):
            yield ""
        yield from (f"{space}{line}" for line in _comment([entry.reason], WIDTH - indent).splitlines())
        if _is_section(entry.value):
            yield f"{space}{entry.key}:"
            yield from _lines(entry.value, indent + 2)
        else:
            value = yaml.safe_dump(entry.value, default_flow_style=True, width=sys.maxsize, sort_keys=False)
            yield f"{space}{entry.key}: {value.removesuffix('...' + chr(10)).strip()}"


def _is_section(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Entry)


def _comment(paragraphs: Sequence[str], width: int = WIDTH) -> str:
    lines = [line for text in paragraphs if text for line in textwrap.wrap(text, width - 2)]
    return "".join(f"# {line}\n" for line in lines)
