"""The figures of docs/performance.md are those of the committed results."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
OVERHEAD: dict[str, Any] = json.loads((RESULTS / "performance" / "flare_overhead.json").read_text(encoding="utf-8"))
WIRE: dict[str, Any] = json.loads((RESULTS / "performance" / "wire_bytes.json").read_text(encoding="utf-8"))
PRECISION: dict[str, Any] = json.loads((RESULTS / "performance" / "precision.json").read_text(encoding="utf-8"))
ROUNDED: dict[str, Any] = json.loads((RESULTS / "performance" / "rounded_models.json").read_text(encoding="utf-8"))
OTHERS: dict[str, Any] = json.loads((RESULTS / "performance" / "training_peers.json").read_text(encoding="utf-8"))
STEP: dict[str, Any] = json.loads((RESULTS / "performance" / "training_step.json").read_text(encoding="utf-8"))
ROUNDS: dict[str, Any] = json.loads((RESULTS / "performance" / "many_rounds.json").read_text(encoding="utf-8"))
MEMORY: dict[str, Any] = json.loads((RESULTS / "performance" / "server_memory.json").read_text(encoding="utf-8"))
SITES: dict[str, Any] = json.loads((RESULTS / "performance" / "many_sites.json").read_text(encoding="utf-8"))
RUNS: dict[str, Any] = json.loads((RESULTS / "flare_round_cost.json").read_text(encoding="utf-8"))["runs"]
AUGMENTATION: dict[str, Any] = json.loads((RESULTS / "performance" / "augmentation.json").read_text(encoding="utf-8"))
VOLUMES: dict[str, Any] = json.loads((RESULTS / "performance" / "step_3d.json").read_text(encoding="utf-8"))
FREED: dict[str, Any] = json.loads((RESULTS / "performance" / "freed_memory.json").read_text(encoding="utf-8"))
ONE_PASS: dict[str, Any] = json.loads((RESULTS / "performance" / "one_pass_sgd.json").read_text(encoding="utf-8"))
LAYOUT, LAYOUT_EPYC = (
    json.loads((RESULTS / "performance" / f"{name}.json").read_text(encoding="utf-8"))["networks"]
    for name in ("layout", "layout_epyc")
)
PREDICTION_MEMORY: dict[str, Any] = json.loads(
    (RESULTS / "performance" / "prediction_memory.json").read_text(encoding="utf-8")
)
PREDICTION: dict[str, Any] = json.loads((RESULTS / "performance" / "prediction.json").read_text(encoding="utf-8"))
TWO_THREADS: dict[str, Any] = json.loads(
    (RESULTS / "performance" / "augmentation_2_threads.json").read_text(encoding="utf-8")
)
SLOW_LINE: list[dict[str, Any]] = [
    run
    for file in ("slow_line", "slow_line_weights_as")
    for run in json.loads((RESULTS / f"{file}.json").read_text(encoding="utf-8"))["runs"]
]
GPU: dict[str, Any] = json.loads((RESULTS / "performance" / "gpu_step.json").read_text(encoding="utf-8"))["tasks"]
H100: dict[str, Any] = json.loads((RESULTS / "performance" / "gpu_step_h100.json").read_text(encoding="utf-8"))["tasks"]
PEERS = ("Flower simulation", "NVFlare FedAvgRecipe")


def row(name: str, section: str) -> list[str]:
    """The cells of the table row of a section that begins with ``name``."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    (found,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in found.strip("|").split("|")][1:]


def test_a_checkpoint_within_a_round() -> None:
    """Its figures are on the page on running a job."""
    made = json.loads((RESULTS / "performance" / "checkpoint.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
    assert (
        f"For a network of {made['megabytes_of_weights']:.0f} MB trained by Adam the file has "
        f"{made['megabytes_of_a_checkpoint']:.0f} MB and takes {made['seconds']['write']['median']:.1f} s to write on "
        f"a busy machine with two cores, {made['percent_of_the_time']:.2f} % of the time"
    ) in page
    assert round(made["microseconds_to_ask"]["median"]) == 1 and made["minutes_between_checkpoints"] == 10


def told(values: dict[str, Any], digits: int) -> str:
    return f"{values['median']:.{digits}f} ({values['low']:.{digits}f}-{values['high']:.{digits}f})"


@pytest.mark.parametrize("name", OVERHEAD["seconds_a_round"])
def test_a_round_without_training(name: str) -> None:
    launch = OVERHEAD["seconds_from_launch_to_first_training_task"].get(name)
    worker = OVERHEAD["megabytes_of_the_largest_worker"].get(name)
    values = OVERHEAD["seconds_a_round"][name]
    assert row(name, "A round under FLARE") == [
        told(values, 2 if values["median"] > 0.1 else 3),
        told(launch, 1) if launch else "",
        f"{worker['median']:.0f}" if worker else "",
    ]


def test_the_peers_ratios() -> None:
    ours = OVERHEAD["seconds_a_round"]["fedshift run"]["median"]
    flower, recipe = (ours / OVERHEAD["seconds_a_round"][peer]["median"] for peer in PEERS)
    said = f"takes {flower:.2f} of the time of Flower's simulation and {recipe:.2f} of that of NVFlare's recipe"
    assert said in " ".join(PAGE.split())


@pytest.mark.parametrize("name", OTHERS["seconds_a_round"])
def test_the_same_training_with_others(name: str) -> None:
    rounds = OTHERS["seconds_a_round"]
    apart = OTHERS["largest_difference_of_a_weight_from_the_plain_loop"][name]
    assert row(name, "The same training with others") == [
        told(rounds[name], 2),
        f"{rounds[name]['median'] / rounds['plain loop, one process']['median']:.2f}",
        told(OTHERS["seconds_in_all"][name], 1),
        f"{apart:.0e}",
    ]
    assert apart < 1e-3, "or the comparison is void"


@pytest.mark.parametrize("name", RUNS)
def test_a_whole_run(name: str) -> None:
    run = RUNS[name]
    memory = "" if run["peak_memory_mb"] is None else f"{run['peak_memory_mb'] / 1000:.1f} GB"
    first, later, whole = run["seconds_first_round"], run["seconds_later_rounds"], run["seconds_in_all"]
    assert row(name, "A whole run") == [f"{later:.1f} s", f"{first:.1f} s", f"{whole:.0f} s", memory]


@pytest.mark.parametrize("name", WIRE["bytes_a_round"])
def test_bytes_of_a_round(name: str) -> None:
    told_bytes = WIRE["bytes_a_round"][name]
    assert all(values["up"] == values["down"] for values in told_bytes.values()), "the table has one figure for both"
    full = told_bytes["fp32"]["up"]
    assert row(name, "Fewer bytes a round") == [
        f"{values['up'] / 1e6:.2f} MB" + ("" if form == "fp32" else f" ({values['up'] / full:.3f})")
        for form, values in told_bytes.items()
    ]


@pytest.mark.parametrize(("methods", "form"), [(m, f) for m, forms in WIRE["accuracy"].items() for f in forms])
def test_scores_by_format(methods: str, form: str) -> None:
    cells = []
    for score in ("test_last", "test_best", "val_last_rounds"):
        values = WIRE["accuracy"][methods][form][score]
        apart = "" if form == "fp32" else f" ({', '.join(f'{value:+.2f}' for value in values['from_fp32'])})"
        cells.append(f"{values['mean']:.2f}{apart}")
    assert row(f"{methods}, {form}", "Fewer bytes a round") == cells


def test_what_is_said_of_the_formats_is_so() -> None:
    said = "Every mean over the seeds is within 0.2 points of that of `fp32`, and every seed's test score within 0.3"
    assert said in PAGE
    for forms in WIRE["accuracy"].values():
        for told_scores in forms.values():
            for score, values in told_scores.items():
                assert abs(values["mean"] - forms["fp32"][score]["mean"]) < 0.2
                assert "val" in score or max(map(abs, values["from_fp32"])) < 0.3


def summed_up(score: dict[str, Any]) -> str:
    return f"{score['mean']:.2f} ± {score['sd']:.2f}"


@pytest.mark.parametrize("arm", PRECISION["summary"])
def test_what_fewer_bits_do(arm: str) -> None:
    summary, scores = PRECISION["summary"][arm], ("test_dice_best", "test_dice_last", "val_dice_last_rounds")
    seconds = f"{summary['processor_seconds_a_round']:.2f}"
    assert row(arm, "Precision") == [*(summed_up(summary[score]) for score in scores), seconds]
    if arm == "fp32":
        return
    apart = [", ".join(f"{value:+.2f}" for value in summary[score]["difference"]) for score in scores]
    assert row(f"{arm} less {summary['test_dice_best']['less']}", "Precision") == [*apart, ""]


def test_what_is_said_of_fewer_bits_is_so() -> None:
    text = " ".join(PAGE.partition("\n## Precision\n")[2].partition("\n## ")[0].split())
    assert f"`auto` is {PRECISION['auto_is']}" in text and "four seeds" in text
    assert len({run["seed"] for run in PRECISION["runs"]}) == 4
    assert all(run["kinds"] == ["patients"] for run in PRECISION["runs"])
    wires = [PRECISION["summary"][f"bf16, weights as {form}"] for form in ("bf16", "int8")]
    last = [wire["test_dice_last"]["difference"] for wire in wires]
    assert "lower in every seed" in text and all(value < 0 for values in last for value in values)
    assert f"by {-fmean(last[0]):.1f} and {-fmean(last[1]):.1f} points on average" in text
    best = [abs(fmean(wire["test_dice_best"]["difference"])) for wire in wires]
    assert f"The best models differ by {best[0]:.1f} and {best[1]:.1f}" in text
    shared = ROUNDED["largest_difference_of_the_mean"]
    assert f"by at most {abs(shared['bf16']):.2f} points as bf16 and {abs(shared['int8']):.2f} as int8" in text


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


@pytest.mark.parametrize("name", STEP["seconds_a_step"])
def test_a_training_step(name: str) -> None:
    faster = STEP["times_faster_than_papers_loop"][name]
    assert row(name, "A training step") == [told(STEP["seconds_a_step"][name], 2), f"{faster:.2f}"]


def test_what_comes_on_top_of_a_step() -> None:
    shares = {**STEP["share_of_a_step"], **{name: v["median"] for name, v in STEP["share_of_an_epoch"].items()}}
    for name, share in shares.items():
        assert row(name, "A training step") == [percent(share)]
    limits = {kind: v["median"] for kind, v in STEP["gigaflop_a_second_of_a_matrix_product"].items()}
    times = limits["bf16"] / limits["fp32"]
    said = f"({limits['fp32']:.0f} and {limits['bf16']:.0f} billion a second, {times:.1f} times as many)"
    assert said in " ".join(PAGE.split())


@pytest.mark.parametrize("name", VOLUMES["1 thread"]["times_as_fast_as_the_plain_loop"])
def test_a_training_step_in_3d(name: str) -> None:
    cells = [
        told(VOLUMES[threads][what][name], 2)
        for threads in ("1 thread", "2 threads")
        for what in ("seconds_a_step", "times_as_fast_as_the_plain_loop")
    ]
    assert row(name, "A training step in 3D") == cells
    shares = [percent(VOLUMES[threads]["share_of_FFA_layers"]["median"]) for threads in ("1 thread", "2 threads")]
    shares += [percent(TWO_THREADS[dims]["ratios"]["own of an epoch"]["median"]) for dims in ("2D", "3D")]
    said = " ".join(PAGE.split())
    assert f"take {shares[0]} of a step with one thread and {shares[1]} with two" in said
    assert f"takes {shares[2]} of an epoch in 2D and {shares[3]} in 3D" in said


@pytest.mark.parametrize("name", FREED["tasks"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_memory_of_freed_features(name: str, precision: str) -> None:
    found = FREED["tasks"][name][precision]
    ways = list(found["seconds_a_step"])
    assert row(f"{name}, {precision}", "Memory of freed features") == [
        *(told(found["seconds_a_step"][way], 2) for way in ways),
        *(told(found["times_as_fast"][way], 2) for way in ways[1:]),
        *(str(found["peak_megabytes"][way]) for way in ways),
    ]


@pytest.mark.parametrize("name", ONE_PASS["tasks"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_sgd_over_large_layers(name: str, precision: str) -> None:
    found = ONE_PASS["tasks"][name][precision]
    assert found["same_bits"]
    assert row(f"{name}, {precision}", "SGD over large layers") == [
        *(told(found["seconds_a_training_step"][kind], 2) for kind in ("torch", "fedshift")),
        told(found["times_as_fast"]["training step"], 2),
        told(found["times_as_fast"]["optimiser"], 1),
    ]


@pytest.mark.parametrize("name", PREDICTION["prediction"]["volumes_a_minute"])
def test_prediction_of_volumes(name: str) -> None:
    found = PREDICTION["prediction"]
    cells = [told(found[what][name], 1) for what in ("volumes_a_minute", "seconds_to_the_first")]
    assert row(name, "Prediction of volumes") == cells
    said = " ".join(PAGE.split())
    assert f"fedshift is {told(found['times_as_fast_as_the_bundle'], 2)} times as fast, and no mask differs" in said
    assert found["masks_that_differ"] == 0


@pytest.mark.parametrize("name", PREDICTION_MEMORY["classes"])
def test_memory_of_predictions(name: str) -> None:
    found = PREDICTION_MEMORY["classes"][name]
    least, most = sorted(found["bytes_a_voxel"].values())
    cells = [f"{least:.0f} to {most:.0f}", str(found["bytes_of_the_probabilities_of_a_voxel"])]
    assert row(name, "Prediction of volumes") == cells


def test_many_rounds() -> None:
    for part in ROUNDS["parts"]:
        cells = [f"{part['seconds_a_round']:.2f}", str(part["memory_mb"]), f"{part['files_mb']:.0f}"]
        assert row(str(part["up_to_round"]), "Many rounds") == cells


def test_a_long_run_does_not_grow() -> None:
    assert "Neither seconds nor memory grow." in PAGE
    for key, most in (("seconds_a_round", 1.1), ("memory_mb", 1.05)):
        told = [part[key] for part in ROUNDS["parts"]]
        assert sum(told[5:]) < most * sum(told[:5])


def test_many_sites() -> None:
    for run in SITES["runs"]:
        flare, alone = run["fedshift run"], run["one process"]
        assert row(f"{run['task']}, {run['sites']} sites", "Many sites") == [
            told(flare["seconds"], 0),
            told(alone["seconds"], 0),
            f"{run['seconds_ratio']:.2f}",
            f"{run['processor_seconds_ratio']:.2f}",
            f"{flare['memory_mb']['median']:.0f}",
        ]


def test_the_servers_memory() -> None:
    for run in MEMORY["runs"]:
        assert row(str(run["sites"]), "The server's memory") == [f"{run['models_above']:.1f}"]


def test_scale_on_paper() -> None:
    a_round, sent = OVERHEAD["seconds_a_round"]["fedshift run"]["median"], 6 * 2 * 4.382e-3
    seconds = a_round / sent
    assert f"{seconds:.1f} s of two cores for a gigabyte" in PAGE
    int8 = WIRE["bytes_a_round"]["unet, 32 features"]
    share = int8["int8"]["up"] / int8["fp32"]["up"]
    large, small = 2 * 20 * 1.0, 2 * 1000 * 4.382e-3
    section = "Scale, on paper"
    assert row("bytes in and out of the server in a round", section) == ["40 GB", f"{large * share:.0f} GB", "8.8 GB"]
    link = [f"{gigabytes * 8:.0f} s" for gigabytes in (large, large * share, small)]
    assert row("through the server's link", section) == link
    site = [f"{2 * 80:.0f} s", f"{2 * 80 * share:.0f} s", f"{2 * 4.382e-3 * 80:.1f} s"]
    assert row("through a site's link", section) == site
    assert row("FLARE and the coordinator", section) == [f"{large * seconds:.0f} s", "", f"{small * seconds:.0f} s"]


@pytest.mark.parametrize("kind", ["2D", "3D"])
def test_augmentation(kind: str) -> None:
    found = AUGMENTATION[kind]
    seconds, ratios = found["seconds a batch"], found["ratios"]
    assert row(kind, "Augmentation") == [
        " x ".join(map(str, found["batch"])),
        told(seconds["own"], 3),
        told(seconds["monai"], 3),
        told(seconds["step"], 2),
        told(ratios["monai to own"], 1),
        f"{ratios['own of an epoch']['median']:.1%}",
        f"{ratios['monai of an epoch']['median']:.1%}",
    ]
    assert ratios["monai to own"]["low"] > 1 and ratios["own of an epoch"]["high"] < 0.15


@pytest.mark.parametrize("run", SLOW_LINE)
def test_a_slow_line(run: dict[str, Any]) -> None:
    sites = [value for party, value in run["models_above"].items() if party != "localhost"]
    found = row(f"{run['model_mb']:.0f} MB, {run['weights_as']}", "A large model over a slow line")
    assert found == [
        f"{max(run['megabytes_down'].values()):.0f}",
        f"{max(run['megabytes_up'].values()):.0f}",
        f"{run['seconds'] / 60:.1f}",
        f"{run['models_above']['localhost']:.1f}",
        f"{max(sites):.1f}",
    ]


@pytest.mark.parametrize("name", LAYOUT)
def test_the_layout_of_features(name: str) -> None:
    faster = [
        networks[name]["times_as_fast_as_channels_last"]["fedshift"]
        for networks in (LAYOUT, LAYOUT_EPYC)
        if name in networks
    ]
    assert row(name, "The layout of features") == [
        *(told(LAYOUT[name]["seconds_a_step"][way], 2) for way in ("channels last", "contiguous", "fedshift")),
        *([told(values, 2) for values in faster] + ["not measured"])[:2],
    ]
    assert all(values["median"] > 0.95 for values in faster), "slower than channels last"
    if "instance norm" in name or "SegResNet" in name:
        assert max(values["median"] for values in faster) > 1.3, "or the change is worth nothing"


@pytest.mark.parametrize("name", GPU["prostate"]["seconds_a_step"])
@pytest.mark.parametrize(("card", "heading"), [(GPU, "## On a GPU"), (H100, "### On an H100")])
def test_a_step_on_a_gpu(name: str, card: dict[str, Any], heading: str) -> None:
    values = [task["seconds_a_step"][name] for task in card.values()]
    in_ms = [{key: 1000 * one[key] for key in ("median", "low", "high")} for one in values]
    below = PAGE.partition(f"\n{heading}\n")[2].partition("\n##")[0]
    (cells,) = [line.strip("|").split("|")[1:] for line in below.splitlines() if line.startswith(f"| {name} |")]
    assert [cell.strip() for cell in cells] == [told(one, 0) for one in in_ms]


def test_what_reading_and_augmenting_takes_beside_a_gpu() -> None:
    shares = [GPU[name]["input_of_an_epoch"]["median"] for name in ("FedFA's U-Net", "prostate")]
    quoted = "{:.0%} of an epoch with the U-Net's turns and flips and {:.0%} with".format(*shares).replace("%", " %")
    assert quoted in " ".join(PAGE.split())
    ratios = [
        task["seconds_a_step"]["fedshift, bf16"]["median"] / task["seconds_a_step"]["plain, bf16"]["median"]
        for task in GPU.values()
    ]
    assert round(min(ratios)) == 2 and max(ratios) < 4
