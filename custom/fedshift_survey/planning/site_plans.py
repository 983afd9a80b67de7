"""One plan from sites' own plans of nnU-Net: what they disagree on, and a site's with a patch that all of them have.

Nothing of the sites' data is needed for it. Plans are of medians of each site's own cases, though, and no plan of all
cases follows from them: `fedshift survey --nnunet` pools the sites' fingerprints instead.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedshift.data.labels import regions_of
from fedshift.data.layouts.dataset_json import read_description
from fedshift.data.nnunet_plans import Configuration, Plans, read_plans
from fedshift.schema.errors import ConfigError
from fedshift.schema.manifest import FILE_NAME, read_manifest
from fedshift.schema.regions import Regions
from fedshift.tasks.nnunet_networks import COMMON
from fedshift_survey.planning.network import GIGA, NetworkShape, Topology, topology_for
from fedshift_survey.planning.task_file import FOREGROUND_ENTRIES, OPTIMIZER, ROUNDS, Entry, loss_entry, written

NETWORKS = ("PlainConvUNet", "ResidualEncoderUNet")
PLAIN = NETWORKS[0]
LAYERS: Mapping[str, tuple[Any, ...]] = {
    "norm_op": ("InstanceNorm3d", "InstanceNorm2d"),
    "nonlin": ("LeakyReLU",),
    "conv_bias": (True,),
    "dropout_op": (None,),
}
"""What nnU-Net's planners write, and the task's network has by default, as it has those of `COMMON`."""
PROPOSED = (
    *("n_stages", "features_per_stage", "conv_op", "kernel_sizes", "strides"),
    *("n_conv_per_stage", "n_blocks_per_stage", "n_conv_per_stage_decoder"),
)
"""What of a plan's network a proposed one takes, or has of itself."""
DICE = "Dice in the loss is of"
SAMPLES = 4
"""Patches of a case in an epoch, with which a survey's plan begins."""


@dataclass(frozen=True)
class SitePlan:
    """A site's plan: its configuration, and what lies beside the plans: the classes and sequences of its data.

    ``regions``: of the classes. ``ignore``: whether masks have voxels to ignore.
    """

    site: str
    plans: Plans
    configuration: Configuration
    classes: tuple[str, ...]
    sequences: tuple[str, ...]
    regions: Regions | None = None
    ignore: bool = False

    @property
    def members(self) -> dict[str, list[str]]:
        """The classes of each region, in the order of the regions; empty without."""
        return {} if self.regions is None else self.regions.named(self.classes)

    @property
    def network(self) -> str:
        """The network's name, without its package."""
        return str(self.configuration.architecture.get("network_class_name", "")).rpartition(".")[2]

    @property
    def options(self) -> Mapping[str, Any]:
        """nnU-Net's options of the network."""
        options: Mapping[str, Any] = self.configuration.architecture.get("arch_kwargs", {})
        return options


@dataclass(frozen=True)
class Row:
    """What each site's plan says of one thing, and what is proposed."""

    what: str
    by_site: tuple[str, ...]
    proposed: str

    @property
    def agreed(self) -> bool:
        """Whether all sites say the same."""
        return len(set(self.by_site)) == 1


@dataclass(frozen=True)
class Proposal:
    """A plan for all: the site whose plan it is, with another patch where not all sites have that."""

    chosen: SitePlan
    patch: tuple[int, ...]
    batch: int
    topology: Topology
    need: float
    rows: tuple[Row, ...]


def read_site_plan(site: str, path: Path, configuration: str) -> SitePlan:
    """Read a site's plans, beside which lies its ``dataset.json`` or the manifest of a prepared site.

    Raises:
        ConfigError: no plans of nnU-Net 2, or nothing beside them that names the classes.
    """
    plans = read_plans(path)
    chosen = plans.configuration(configuration)
    if not chosen.architecture:
        raise ConfigError(
            "nnunet-plans", f"{path} says its network as nnU-Net did before 2.4: plan again with a newer one"
        )
    _check_network(chosen.architecture, path)
    if (path.parent / FILE_NAME).is_file():
        manifest = read_manifest(path.parent)
        preparation = manifest.preparation
        regions = regions_of(
            preparation.get("regions", {}), manifest.classes, preparation.get("regions_class_order", ())
        )
        return SitePlan(site, plans, chosen, manifest.classes, manifest.sequences, regions, ignore=manifest.ignore)
    described = read_description(path.parent)
    if described.labels is None:
        raise ConfigError(
            "labels-missing", f"{path.parent} has no dataset.json with labels beside the plans: copy it there"
        )
    labels = described.labels
    return SitePlan(
        site, plans, chosen, labels.classes, described.sequences, regions=labels.regions, ignore=bool(labels.ignored)
    )


def _check_network(architecture: Mapping[str, Any], path: Path) -> None:
    """Refuse a network that is described otherwise than nnU-Net's planners do, or made of other layers than here."""
    arguments = architecture.get("arch_kwargs")
    options: Mapping[str, Any] = arguments if isinstance(arguments, dict) else {}
    for key in ("strides", "kernel_sizes", "features_per_stage"):
        if not isinstance(options.get(key), list):
            raise ConfigError(
                "nnunet-plans", f"{path} is no plans file of nnU-Net 2 (its network has no list of {key}): plan again"
            )
    for key, value in options.items():
        if key in LAYERS:
            usual, fits = LAYERS[key][0], str(value).rpartition(".")[2] in map(str, LAYERS[key])
        else:
            usual, fits = COMMON.get(key, "none"), key in PROPOSED or value == COMMON.get(key)
        if not fits:
            raise ConfigError(
                "nnunet-plans",
                f"{path} has a network with {key} {value}, and a proposed one has {usual}: plan with nnU-Net's default "
                "planner",
            )


def propose(sites: Sequence[SitePlan], *, proposed_site: str, memory: float) -> Proposal:
    """Propose one site's plan to all.

    Args:
        sites: the plans.
        proposed_site: whose plan is proposed.
        memory: gigabytes that a training step may take.

    Raises:
        ConfigError: sites with other classes, sequences or dimensions, a network that is not nnU-Net's, or a step that
            takes more memory.
    """
    chosen = next(site for site in sites if site.site == proposed_site)
    for what, value in _SAME:
        for site in sites:
            if value(site) != value(chosen):
                raise ConfigError(
                    "nnunet-plans-differ",
                    f"{site.plans.path} has the {what} {value(site)}, and {chosen.plans.path} {value(chosen)}: one "
                    f"task needs the same at all sites{_reordered(site, chosen) if what == 'classes' else ''}",
                )
    if chosen.network not in NETWORKS:
        raise ConfigError(
            "unknown-network",
            f"{chosen.plans.path} has the network {chosen.network}, and only {' and '.join(NETWORKS)} are made here: "
            "propose another site's plan",
        )
    configuration = chosen.configuration
    common = tuple(map(min, *(site.configuration.patch for site in sites))) if len(sites) > 1 else configuration.patch
    lengths = [mm for mm in configuration.spacing if mm is not None]
    planned = Topology(tuple(map(tuple, chosen.options["kernel_sizes"])), tuple(map(tuple, chosen.options["strides"])))
    topology = planned if common == configuration.patch else topology_for(common, lengths)
    patch = topology.padded(common)
    batch = min(site.configuration.batch for site in sites)
    shape = NetworkShape(topology, max(len(chosen.sequences), 1), len(chosen.classes))
    need = shape.bytes_of_step(patch, batch) / GIGA
    if need > memory:
        raise ConfigError(
            "memory-short",
            f"batches of {batch} patches of {' x '.join(map(str, patch))} need about {need:.1f} GB, and there are "
            f"{memory:g}: give more with --memory, or propose another site's plan with --propose",
        )
    proposed = {"patch": _shown(patch), "batch": str(batch), "stages": str(topology.depth)}
    rows = tuple(
        Row(what, tuple(value(site) for site in sites), proposed.get(what, value(chosen))) for what, value in _COMPARED
    )
    return Proposal(chosen, patch, batch, topology, need, rows)


def _reordered(site: SitePlan, chosen: SitePlan) -> str:
    """What to do about a site that has the same classes in another order."""
    if sorted(site.classes) != sorted(chosen.classes) or site.regions is not None:
        return ""
    order = shlex.quote(",".join(chosen.classes[1:]))
    return (
        f": prepare {site.site} by 'fedshift data prepare nnunet --preprocessed' with --classes {order}, and name the "
        "nnunet_plans.json of the prepared site"
    )


def _shown(values: Sequence[Any]) -> str:
    return " x ".join("own" if value is None else f"{value:g}" for value in values)


def _range(site: SitePlan) -> str:
    """Intensities inside the labels, of each channel; by name, since sites may have them in another order."""
    keys = ("percentile_00_5", "mean", "percentile_99_5")
    spans = [" / ".join(f"{channel[key]:.4g}" for key in keys) for channel in site.configuration.intensities if channel]
    if len(spans) == len(site.sequences) > 1:
        spans = sorted(f"{name}: {numbers}" for name, numbers in zip(site.sequences, spans, strict=True))
    return "; ".join(spans)


_SAME: tuple[tuple[str, Callable[[SitePlan], object]], ...] = (
    ("dimensions", lambda site: site.configuration.dims),
    ("classes", lambda site: ", ".join(site.classes)),
    (
        "regions",
        lambda site: ", ".join(f"{name} of {' + '.join(members)}" for name, members in site.members.items()) or "none",
    ),
    ("voxels to ignore", lambda site: "yes" if site.ignore else "no"),
    ("sequences", lambda site: ", ".join(sorted(site.sequences)) or "one"),  # a task takes them by name
    ("normalisation", lambda site: site.configuration.data()["normalise"]),
)
_COMPARED: tuple[tuple[str, Callable[[SitePlan], str]], ...] = (
    ("spacing", lambda site: _shown(site.configuration.spacing)),
    ("patch", lambda site: _shown(site.configuration.patch)),
    ("batch", lambda site: str(site.configuration.batch)),
    (DICE, lambda site: "the batch" if site.configuration.batch_dice else "each patch"),
    ("zeros left out", lambda site: "yes" if any(site.configuration.masks) else "no"),
    ("intensities (0.5 %, mean, 99.5 %)", _range),
    ("network", lambda site: site.network),
    ("stages", lambda site: str(len(site.options["strides"]))),
    ("widths", lambda site: _shown(site.options["features_per_stage"])),
)


def _regions(site: SitePlan) -> list[Entry]:
    order = [] if site.regions is None else [site.classes[number] for number in site.regions.order]
    return [
        *([Entry("regions", site.members)] if site.members else []),
        *([Entry("regions_class_order", order)] if order else []),
        *([Entry("ignore", True)] if site.ignore else []),
    ]


def proposed_task(proposal: Proposal, sites: Sequence[SitePlan], *, dataset: str, name: str) -> str:
    """The text of a task file; what it holds is a valid task."""
    chosen, of_chosen = proposal.chosen, f"Of the plan of {proposal.chosen.site}."
    configuration = chosen.configuration
    data = configuration.data() | {"patch": [*proposal.patch]}
    differing = {
        row.what: dict(zip((site.site for site in sites), row.by_site, strict=True))
        for row in proposal.rows
        if not row.agreed
    }

    def reason(what: str, why: str = of_chosen) -> str:
        values = "; ".join(f"{site}: {value}" for site, value in differing.get(what, {}).items())
        return f"The sites' plans differ: {values}. {why}" if values else ""

    patch = reason("patch", "The largest that all have, as far as the halvings divide it.")
    options = {
        key: value
        for key, value in chosen.options.items()
        if key in ("n_conv_per_stage", "n_blocks_per_stage", "n_conv_per_stage_decoder")
    }
    depth = proposal.topology.depth
    lists = {key: value if isinstance(value, list) else [value] * depth for key, value in options.items()}
    options = {key: value[: depth - key.endswith("decoder")] for key, value in lists.items()}
    features = [*chosen.options["features_per_stage"]]
    network_options = {
        "features_per_stage": (features + [features[-1]] * depth)[:depth],
        "kernel_sizes": [list(kernel) for kernel in proposal.topology.kernels],
        "strides": [list(stride) for stride in proposal.topology.strides],
        **options,
    }
    notes = {"patch": patch, "spacing": reason("spacing"), "nonzero": reason("zeros left out")}
    notes["fixed"] = reason("intensities (0.5 %, mean, 99.5 %)")
    sequences = [Entry("sequences", [*chosen.sequences])] if chosen.sequences else []
    unknown = [site.site for site in sites if not site.plans.axes_known]
    names = ", ".join(site.site for site in sites)
    heading = [
        f"Proposed by 'fedshift plans' from the plans of nnU-Net of {names}: {of_chosen}",
        *(
            [
                f"The files of {', '.join(unknown)} are taken to lie along slices, rows and columns, since their plans "
                "do not say; plans that are kept with a prepared site (nnunet_plans.json) do."
            ]
            if unknown
            else []
        ),
    ]
    entries = [
        Entry("name", name),
        Entry("kind", "segmentation"),
        Entry("dataset", dataset),
        Entry("sites", [site.site for site in sites]),
        Entry("classes", [*chosen.classes]),
        *_regions(chosen),
        Entry(
            "data",
            [
                *(Entry(key, value, notes.get(key, "")) for key, value in data.items()),
                *sequences,
                Entry("samples_per_case", SAMPLES),
                *FOREGROUND_ENTRIES,
                Entry("augmentation", "strong"),
                Entry("overlap", 0.5),
            ],
        ),
        Entry(
            "network",
            [
                Entry("name", f"nnunet.{chosen.network}", reason("network")),
                Entry("options", [Entry(key, value) for key, value in network_options.items()]),
            ],
        ),
        loss_entry(batch_dice=configuration.batch_dice, why=reason(DICE) or of_chosen, of_regions=bool(chosen.members)),
        OPTIMIZER,
        Entry(
            "schedule",
            [
                Entry("rounds", ROUNDS, "By hand, from the time that there is."),
                Entry("local_epochs", 1),
                Entry("batch_size", proposal.batch, reason("batch", "The smallest.")),
                Entry("precision", "auto"),
                Entry("threads", "auto"),
            ],
        ),
    ]
    return written(heading, entries)
