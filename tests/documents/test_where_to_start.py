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
    with (RESULTS / "claims" / "prostate_by_case" / "table.csv").open(encoding="utf-8", newline="") as file:
        values = {(row["method"], row["column"]): f"{float(row['value']):.1f}" for row in csv.DictReader(file)}
    means = {name: values[name, "average"] for name, column in values if column == "average"}
    assert f"FedAvg {means['FedAvg']} was highest; FedFA {means['FedFA']} (p = 0.82)" in PAGE
    assert f"FedRDN {means['FedRDN']}, FedBN {means['FedBN']}, FedFA + FedRDN {means['FedFA + FedRDN']}." in PAGE
    assert f"{values['FedFA + FedRDN', 'BIDMC']} and {values['FedAvg', 'BIDMC']}. That is one test patient" in PAGE


def test_the_figures_on_pictures_are_those_of_the_table() -> None:
    with (RESULTS / "claims" / "office_caltech" / "table.csv").open(encoding="utf-8", newline="") as file:
        values = {(row["method"], row["column"]): float(row["value"]) for row in csv.DictReader(file)}
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
    with (RESULTS / "recipes" / "hippocampus_basic_unet" / "table.csv").open(encoding="utf-8", newline="") as file:
        means = {
            row["method"]: f"{float(row['value']):.1f}" for row in csv.DictReader(file) if row["column"] == "average"
        }
    told = ", ".join(f"{name} {means[name]}" for name in ("FedBN", "FedRDN", "FedFA"))
    assert f"{means['FedAvg']}; {told}, both {means['FedFA+FedRDN']}; one seed" in PAGE
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    in_order = ("Single", "FedAvg", "FedBN", "FedRDN", "FedFA", "FedFA+FedRDN", "All")
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
    assert f"FedAvg was at {longer:.1f} with `BasicUNet`" in told and f"FedAvg is at {taken['mean']['test']}." in told
    assert f"| mean of four sites | {' | '.join(means[name] for name in in_order)} |" in results


def test_every_recommendation_without_a_settled_figure_says_so() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("|")][2:]
    compared = [row for row in rows if re.search(r"FedAvg \d|one seed|highest", row)]
    assert len(compared) >= 3 and all(re.search("Undecided|one seed|one test patient", row) for row in compared)


def _final(name: str) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    content = json.loads((RESULTS / "prostate_patients" / f"{name}.json").read_text(encoding="utf-8"))
    best: dict[str, dict[str, dict[str, dict[str, float]]]] = content["final"]["best"]
    return best
