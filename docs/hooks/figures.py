"""Tables of single pages, from committed results."""

from __future__ import annotations

from statistics import fmean

from results_files import RESULTS, copied, link, load, table


def shown(path: str, at: str = "0") -> str:
    """A table of a Markdown file that a benchmark or a comparison has written, as it is."""
    return copied(path, at=int(at))


def robust() -> str:
    """What a poisoned site does to the honest ones, by rule."""
    runs = load("poisoned_site")["runs"]["the phantom"]
    attacks = ("none", "sign", "noise")
    rows = [
        (
            f"`{rule.partition(',')[0]}`" if "limits" not in rule else rule,
            *(_points(scores, attack) for attack in attacks),
        )
        for rule, scores in runs.items()
    ]
    return table(["rule", "no attack", "its change turned round, 5 times as long", "noise, 10 times as long"], rows)


def _points(scores: dict[str, dict[str, float]], attack: str) -> str:
    return f"{100 * scores[attack]['honest']:.0f}" if attack in scores else ""


def slow_lines() -> str:
    """A round of provisioned sites behind lines of their own."""
    rows = []
    for run in load("networks")["runs"][1:]:
        kind = run["network"]
        if isinstance(kind, dict):
            kind = f"{kind['delay_ms']} ms one way, {kind['loss_percent']:g} % lost, {kind['rate_mbit']:g} Mbit/s"
        rows.append((kind, f"{run['seconds_a_round']['median']:.0f}"))
    return table(["line", "seconds a round"], rows)


def false_alarms() -> str:
    """How often a scan is flagged, of the same site and of others."""
    rows = []
    for file in sorted((RESULTS / "drift").glob("*.json")):
        measured = load(f"drift/{file.stem}")
        parts = [measured[part]["all"] for part in ("unchanged", "others")]
        rows.append(
            (link(f"drift/{file.name}", file.stem), *(f"{part['flagged']} of {part['cases']}" for part in parts))
        )
    return table(["data", "flagged, unchanged", "flagged, another site"], rows)


def lets_through() -> str:
    """How much of the outputs' own variation methods change, by recipe."""
    record = load("perturbations")
    rows = record["made_up"] | {
        "prostate, the default recipe (small), four real sites, untrained": record["real"]["untrained"],
        "the same, trained": record["real"]["trained"],
    }
    columns = {
        "FedRDN's pairs": ("fedrdn", "normalised images"),
        "FedFA: means": ("fedfa", "shifted means of features"),
        "FedFA: deviations": ("fedfa", "scaled deviations of features"),
        "MixStyle": ("mixstyle", "exchanged statistics of features"),
    }
    cells = [(name, *(_effect(row[method][what]) for method, what in columns.values())) for name, row in rows.items()]
    return table(["task, network, normalisation", *columns], cells)


def _effect(effect: float) -> str:
    return f"{100 * effect:.2f}" if effect < 0.1 else f"{100 * effect:.0f}"


def guarantee() -> str:
    """What comes of levels that are pooled, each site's alone, or shrunk towards the others'."""
    rows = []
    for run in load("guarantee")["sites"]:
        ways = run["ways"]
        if run["shift"]:
            missed = (
                f"{100 * ways[way]['missed']:.0f} %, {100 * ways[way]['worst']:.1f}" for way in ("pooled", "shrunk")
            )
            covered = (f"{100 * ways[way]['covered']:.0f} %" for way in ("local", "shrunk"))
            rows.append((str(run["sites"]), f"{run['shift']:g}", *missed, *covered))
    columns = ["one level for all: sites missed, worst", "evaluation.guarantee: sites missed, worst"]
    return table(["sites", "shift", *columns, "covered by own cases alone", "covered"], rows)


def landmarks() -> str:
    """How far four prostate sites are from each other, by how scans are normalised."""
    columns = {
        "histograms of two sites, mean": ("histograms", "mean"),
        "largest": ("histograms", "largest"),
        "of a new site from the others": ("new_site", "mean"),
        "prostate's median, between sites": ("prostate", "between_sites"),
        "within": ("prostate", "within_sites"),
    }
    ways = load("landmarks")["normalised by"].items()
    return table(
        ["scans normalised by", *columns],
        [(name, *(f"{parts[part][key]:.2f}" for part, key in columns.values())) for name, parts in ways],
    )


def phantom_shift() -> str:
    """Dice of models that were trained at one site of the phantom, at all of them, and of thresholds."""
    record = load("phantom_shift")
    sites = list(record["single"])
    best = max(sites, key=lambda site: _others(record["threshold"][site], site))
    named = [(site, row, f"{_others(row, site):.1f}") for site, row in record["single"].items()]
    named += [
        ("**all six, pooled**", record["pooled"], f"**{100 * fmean(record['pooled'].values()):.1f}** (all six)"),
        (f"best threshold (of {best})", record["threshold"][best], f"{_others(record['threshold'][best], best):.1f}"),
        (
            "threshold fitted to the tested cases",
            record["threshold_bound"],
            f"{100 * fmean(record['threshold_bound'].values()):.1f} (all six)",
        ),
    ]
    rows = [(name, *(f"{100 * row[site]:.1f}" for site in sites), last) for name, row, last in named]
    return table(["trained at", *sites, "other sites, mean"], rows)


def _others(row: dict[str, float], site: str) -> float:
    return 100 * fmean(dice for other, dice in row.items() if other != site)


def adapters() -> str:
    """What adapters send and reach beside all weights, for equally many steps."""
    rows = [
        (
            way["way"],
            f"{way['bytes up'] / 1000:,.0f}",
            f"{way['validation dice of the base']:.1f}",
            f"{way['validation dice']:.1f}",
            f"{way['dice']:.1f}",
            f"{way['seconds a step']:.2f}",
        )
        for way in load("adapters")["ways"]
    ]
    heads = ["", "KB a site sends in a round", "Dice of the base, validation", "after training, validation"]
    return table([*heads, "after training, test", "seconds a step"], rows)
