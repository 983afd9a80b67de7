"""The page "Where to start": its figures are those of committed results, and it says what they do not decide."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = (ROOT / "docs" / "where-to-start.md").read_text(encoding="utf-8")


def test_the_figures_on_patients_are_those_of_the_runs() -> None:
    means = json.loads((RESULTS / "prostate_patients" / "summary.json").read_text(encoding="utf-8"))
    best, fedavg = (f"{means[name]['best_mean']:.1f}" for name in ("fedfa+fedrdn", "fedavg"))
    assert f"{best}, FedAvg {fedavg}" in PAGE
    at_bidmc = {
        name: [
            f"{100 * _final(f'{name}_seed{seed}')['sites']['BIDMC']['test']['dice']:.1f}"  # the odd scanner's site
            for seed in (0, 1)
        ]
        for name in ("fedfa_fedrdn", "fedavg")
    }
    both, alone = (" and ".join(of) for of in at_bidmc.values())
    assert f"{both} with both, {alone} with FedAvg" in PAGE


def test_the_figures_of_three_seeds_are_those_of_the_table() -> None:
    values = {place: f"{value:.1f}" for place, value in _table("claims/prostate_by_case").items()}
    means = {name: values[name, "average"] for name, column in values if column == "average"}
    assert f"FedAvg {means['FedAvg']} was highest; FedFA {means['FedFA']} (p = 0.82)" in PAGE
    assert f"FedRDN {means['FedRDN']}, FedBN {means['FedBN']}, FedFA + FedRDN {means['FedFA + FedRDN']};" in PAGE
    assert f"{values['FedFA + FedRDN', 'BIDMC']} and {values['FedAvg', 'BIDMC']}. That is one test patient" in PAGE


def test_the_figures_on_pictures_are_those_of_the_table() -> None:
    values = _table("claims/office_caltech")
    rdn, bn, fa, avg = (f"{values[name, 'average']:.1f}" for name in ("FedRDN", "FedBN", "FedFA", "FedAvg"))
    p_rdn, p_bn, p_fa = (values[name, "p-value against FedAvg"] for name in ("FedRDN", "FedBN", "FedFA"))
    assert f"[{rdn}, {bn} and {avg}](" in PAGE and f"p = {p_rdn:.3f} and {p_bn:.3f} |" in PAGE
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"[FedRDN {rdn}, FedBN {bn} and FedFA {fa}]" in readme and f"above FedAvg's {avg}" in readme
    assert max(p_rdn, p_bn, p_fa) < 0.03 and "p < 0.03" in readme


def test_the_figures_of_a_new_hospital_are_those_of_the_table() -> None:
    table = (RESULTS / "new_site_statistics.md").read_text(encoding="utf-8")
    told = PAGE.partition("## A new hospital and FedRDN")[2].partition("\n## ")[0]
    figures = re.findall(r"[-+]?\d+\.\d", told)
    assert figures and [figure for figure in figures if f" {figure} " not in table] == []


def test_the_figures_on_the_hippocampus_are_those_of_the_table() -> None:
    values = _table("recipes/hippocampus")
    means = {name: f"{value:.1f}" for (name, column), value in values.items() if column == "average"}
    told = ", ".join(f"{name} {means[name]}" for name in ("FedAvg", "FedBN", "FedRDN", "FedFA")).replace(",", ";", 1)
    both, alone, pooled = (means[name] for name in ("FedFA+FedRDN", "Single", "All"))
    assert f"{told}, both {both}; each site alone {alone}, pooled {pooled}; three seeds" in PAGE
    methods = ("FedBN", "FedFA", "FedRDN", "FedFA+FedRDN")
    p = {name: values[name, "p-value against FedAvg"] for name in (*methods, "All")}
    assert all(p[name] > 0.05 for name in methods), "pages say that none is told apart"
    assert all(values["FedAvg", site] > values["Single", site] for site in ("sim_a", "sim_b", "sim_c", "sim_d")), (
        "results.md says that FedAvg is above the site's own model at each site"
    )
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    recipes = " ".join((RESULTS / "recipes" / "README.md").read_text(encoding="utf-8").split())
    in_order = ("Single", "FedAvg", "FedBN", "FedRDN", "FedFA", "FedFA+FedRDN", "All")
    gained, possible = (values[name, "average"] - values["Single", "average"] for name in ("FedAvg", "All"))
    assert f"Federating is worth {gained:.1f} of the {possible:.1f} points" in " ".join(results.split())
    before = _table("recipes/hippocampus_basic_unet")
    shown = [f"{before[name, 'average']:.1f}" for name in ("Single", "FedAvg", "All")]
    assert f"{shown[0]}, {shown[1]} and {shown[2]} (" in " ".join(results.split())
    final = json.loads((RESULTS / "recipes" / "hippocampus_fedavg_60.json").read_text(encoding="utf-8"))["final"][
        "best"
    ]
    longer = fmean(100 * scores["test"]["dice"] for scores in final["sites"].values())
    networks = json.loads((RESULTS / "recipes" / "hippocampus_networks.json").read_text(encoding="utf-8"))["runs"]
    mirrored = networks.pop()
    taken = max(networks, key=lambda run: run["mean"]["val"])
    assert taken["changed"] == "nothing else" and taken["network"].startswith("monai.DynUNet")
    task = (ROOT / "apps" / "hippocampus.yaml").read_text(encoding="utf-8")
    assert mirrored["changed"] == "mirror images" and mirrored["network"] == taken["network"]
    assert f"mirror images: {mirrored['mean']['val']} in place of {taken['mean']['val']} on validation cases" in task
    told = " ".join(results.split())
    assert f"and {longer:.1f} on test cases, so 60 rounds" in recipes and f"{taken['mean']['test']} on test" in recipes
    assert f"where it had {taken['mean']['val']} in place of" in told
    spreads = _table("recipes/hippocampus", "std")
    shown = [f"{means[name]} ± {spreads[name, 'average']:.1f}" for name in in_order]
    assert f"| mean of four sites | {' | '.join(shown)} |" in results
    for name in p:
        label = "pooled" if name == "All" else name.replace("+", " + ")
        difference, low, high = (
            f"{values[name, f'difference to FedAvg{end}']:+z.2f}" for end in ("", " (low)", " (high)")
        )
        smallest = f"{values[name, 'smallest detectable difference to FedAvg']:.2f}"
        assert f"| {label} | {difference} | {p[name]:.2f} | {low} to {high} | {smallest} |" in results
        if name in methods:
            assert f"{label} {means[name]} ({difference}, {low} to {high}, p = {p[name]:.2f})" in recipes


def test_every_recommendation_without_a_settled_figure_says_so() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("|")][2:]
    compared = [row for row in rows if re.search(r"FedAvg \d|one seed|highest", row)]
    assert len(compared) >= 3 and all(re.search("Undecided|one seed|one test patient", row) for row in compared)


def _table(folder: str, key: str = "value") -> dict[tuple[str, str], float]:
    """Values of a comparison's table by (method, column); a test of too few pairs has none."""
    with (RESULTS / folder / "table.csv").open(encoding="utf-8", newline="") as file:
        return {(row["method"], row["column"]): float(row[key]) for row in csv.DictReader(file) if row[key]}


def _final(name: str) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    content = json.loads((RESULTS / "prostate_patients" / f"{name}.json").read_text(encoding="utf-8"))
    best: dict[str, dict[str, dict[str, dict[str, float]]]] = content["final"]["best"]
    return best
