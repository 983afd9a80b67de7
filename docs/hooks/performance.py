"""The tables of the page on performance, from ``benchmarks/results/performance`` and its neighbours."""

from __future__ import annotations

from typing import Any

from results_files import NONE, load, percent, spread, table


def measured(name: str) -> Any:
    """The content of a file of ``benchmarks/results/performance``."""
    return load(f"performance/{name}")


def idle_round() -> str:
    """A round in which nothing is trained."""
    record = measured("flare_overhead")
    launch, worker = (
        record[key] for key in ("seconds_from_launch_to_first_training_task", "megabytes_of_the_largest_worker")
    )
    rows = [
        (
            name,
            spread(seconds, 2 if seconds["median"] > 0.1 else 3),
            spread(launch.get(name), 1),
            f"{worker[name]['median']:.0f}" if name in worker else "",
        )
        for name, seconds in record["seconds_a_round"].items()
    ]
    return table(["", "seconds a round", "from launch to the first training task, s", "largest worker, MB"], rows)


def whole_run() -> str:
    """A run with training, by how it is started."""
    rows = []
    for name, run in load("flare_round_cost")["runs"].items():
        memory = "" if run["peak_memory_mb"] is None else f"{run['peak_memory_mb'] / 1000:.1f}"
        seconds = (f"{run[key]:.1f}" for key in ("seconds_later_rounds", "seconds_first_round", "seconds_in_all"))
        rows.append((name, *seconds, memory))
    return table(["", "a round, s", "first round, s", "whole run of 6 rounds, s", "memory, GB"], rows)


def peers() -> str:
    """The same training with other frameworks."""
    record = measured("training_peers")
    plain = record["seconds_a_round"]["plain loop, one process"]["median"]
    rows = [
        (
            name,
            spread(seconds, 2),
            f"{seconds['median'] / plain:.2f}",
            spread(record["seconds_in_all"][name], 1),
            f"{record['largest_difference_of_a_weight_from_the_plain_loop'][name]:.0e}",
        )
        for name, seconds in record["seconds_a_round"].items()
    ]
    return table(["", "seconds a round", "of the plain loop's", "whole run, s", "farthest weight"], rows)


def patches() -> str:
    """A training round without some patches of NVFlare, divided by one with all."""
    workloads = {
        "demo": "the demo, `fedshift run`",
        "provisioned": "the demo, six provisioned sites",
        "bare": "the demo, `nvflare simulator -t 1`",
    }
    rows = [
        (
            heading,
            _left_out(name),
            *(f"{seen[figure]['ratio']:.2f}" for figure in ("round_cpu_seconds", "round_seconds")),
        )
        for workload, heading in workloads.items()
        for name, seen in measured(f"patches_{workload}")["variants"].items()
        if name != "all patches"
    ]
    return table(["training rounds", "without", "processor seconds of a round", "seconds of a round"], rows)


def _left_out(name: str) -> str:
    return "any" if name == "no patch" else ", ".join(f"`{part}`" for part in name.split(" and "))


def step_2d() -> str:
    """A training step in 2D."""
    record = measured("training_step")
    faster = record["times_faster_than_papers_loop"]
    rows = [(name, spread(seconds, 2), f"{faster[name]:.2f}") for name, seconds in record["seconds_a_step"].items()]
    return table(["2D", "seconds a step", "times as fast"], rows)


def step_3d() -> str:
    """A training step in 3D, with one thread and with two."""
    record = measured("step_3d")
    parts = [
        record[threads][what]
        for threads in ("1 thread", "2 threads")
        for what in ("seconds_a_step", "times_as_fast_as_the_plain_loop")
    ]
    rows = [(name, *(spread(part.get(name), 2) for part in parts)) for name in parts[0] if name != "FFA layers"]
    return table(["3D", "one thread, s", "times as fast", "two threads, s", "times as fast"], rows)


def on_top() -> str:
    """What methods, evaluation and reading cost on top of a step."""
    record = measured("training_step")
    shares = record["share_of_a_step"] | {name: v["median"] for name, v in record["share_of_an_epoch"].items()}
    return table(["on top, in 2D", "share"], [(name, percent(share)) for name, share in shares.items()])


def gpu(file: str) -> str:
    """A training step on a GPU, in milliseconds."""
    tasks = measured(file)["tasks"]
    names = next(iter(tasks.values()))["seconds_a_step"]
    rows = [(name, *(spread(task["seconds_a_step"][name], 0, 1000) for task in tasks.values())) for name in names]
    return table(["", *(f"{task}, ms" for task in tasks)], rows)


def same_scores() -> str:
    """Test Dice with samples drawn by a counter, and as they were drawn at an earlier commit."""
    record = load("same_scores")
    dice, gap = record["mean_test_dice"], record["difference"]
    pairs = zip(dice["this"], dice["other"], strict=True)
    rows = [(f"seed {seed}", f"{a:.3f}", f"{b:.3f}") for seed, (a, b) in enumerate(pairs)]
    rows.append(("**difference**", f"{gap['mean']:.3f} ± {gap['deviation']:.3f}", ""))
    return table(["mean test Dice", "counted", "by generators"], rows)


def checkouts() -> str:
    """Epochs and rounds on two cores beside those of an earlier commit."""
    rows = [
        (name, *(spread(row["seconds"][which], 1) for which in ("other", "this")), spread(row["this_to_other"], 2))
        for name, row in measured("checkouts").items()
        if isinstance(row, dict) and "this_to_other" in row
    ]
    return table(["on two cores", f"at {measured('checkouts')['other']}, s", "here, s", "ratio"], rows)


def ranks() -> str:
    """An epoch on two processor ranks beside one."""
    record = measured("ranks")
    rows = [(name, spread(seconds, 2)) for name, seconds in record["seconds_of_an_epoch"].items()]
    return table(["an epoch of the hippocampus", "s"], [*rows, ("ratio", spread(record["two_to_one"], 2))])


def step_profile() -> str:
    """What the kernels of a step do, in percent of their time."""
    jobs = {name: row for name, row in measured("step_profile").items() if "share_of_kernels" in row}
    kinds = next(iter(jobs.values()))["share_of_kernels"]
    rows = [(kind, *(percent(row["share_of_kernels"].get(kind, 0)) for row in jobs.values())) for kind in kinds]
    rows += [
        ("**a step, s**", *(spread(row["seconds_a_step"]["plain"], 2) for row in jobs.values())),
        ("by `torch.compile`, of that", *(spread(row["compiled_to_plain"], 2) for row in jobs.values())),
    ]
    return table(["one thread, bf16", *jobs], rows)


def augmentation() -> str:
    """The preset ``strong`` beside MONAI's transforms, and the presets for other scanners."""
    rows = []
    for kind, record in measured("augmentation").items():
        if kind not in ("2D", "3D"):
            continue
        seconds, ratios = record["seconds a batch"], record["ratios"]
        rows.append(
            (
                f"{kind}, {' x '.join(map(str, record['batch']))}",
                spread(seconds["own"], 3),
                spread(seconds["monai"], 3),
                percent(ratios["own of an epoch"]["median"]),
                percent(ratios["monai of an epoch"]["median"]),
                spread(seconds["scanner"], 3),
                spread(seconds["bigaug"], 3),
            )
        )
    columns = ["batch", "fedshift, s", "MONAI, s", "fedshift, of an epoch", "MONAI, of an epoch"]
    return table([*columns, "`scanner`, s", "`bigaug`, s"], rows)


def layout() -> str:
    """Channels last, contiguous, and what fedshift takes."""
    xeon, epyc = (measured(name)["networks"] for name in ("layout", "layout_epyc"))
    faster = "times_as_fast_as_channels_last"
    rows = [
        (
            name,
            *(spread(record["seconds_a_step"][way], 2) for way in ("channels last", "contiguous", "fedshift")),
            spread(record[faster]["fedshift"], 2),
            spread(epyc[name][faster]["fedshift"], 2) if name in epyc else NONE,
        )
        for name, record in xeon.items()
    ]
    return table(["", "channels last, s", "contiguous, s", "fedshift, s", "times as fast", "on an EPYC"], rows)


def freed() -> str:
    """Memory that is kept, and kept in huge pages."""
    rows = []
    for name, task in measured("freed_memory")["tasks"].items():
        for precision in ("fp32", "bf16"):
            record = task[precision]
            ways = list(record["seconds_a_step"])
            faster = (spread(record["times_as_fast"][way], 2) for way in ways[1:])
            rows.append((f"{name}, {precision}", *faster, *(record["peak_megabytes"][way] for way in ways)))
    head = ["", "kept, times as fast", "in huge pages, times as fast"]
    return table([*head, "returned, MB", "kept, MB", "in huge pages, MB"], rows)


def sgd() -> str:
    """SGD with momentum in one pass."""
    rows = []
    for name, task in measured("one_pass_sgd")["tasks"].items():
        for precision in ("fp32", "bf16"):
            faster = task[precision]["times_as_fast"]
            rows.append((f"{name}, {precision}", spread(faster["training step"], 2), spread(faster["optimiser"], 1)))
    return table(["", "step, times as fast", "optimiser alone, times as fast"], rows)


def prediction() -> str:
    """``fedshift predict`` beside the exported bundle."""
    record = measured("prediction")["prediction"]
    rows = [
        (name, spread(speed, 1), spread(record["seconds_to_the_first"][name], 1))
        for name, speed in record["volumes_a_minute"].items()
    ]
    return table(["", "volumes a minute", "seconds to the first"], rows)


def preparation() -> str:
    """Preparing volumes, beside a plain loop."""
    record = measured("preparation")
    rows = [(name, spread(seconds, 1)) for name, seconds in record["cpu_seconds"].items()]
    return table(["", "CPU seconds"], rows)


def pictures() -> str:
    """Preparing and training pictures, beside plain loops, and the memory that preparing takes."""
    record = measured("pictures")
    rows = [(f"{name}, {record['pictures']:,} pictures", spread(ratio, 2)) for name, ratio in record["ratios"].items()]
    rows += [(f"an epoch of {name}", spread(measures["ratio"], 2)) for name, measures in record["epochs"].items()]
    memory = [(f"{int(n):,} pictures", f"{peak:.0f}") for n, peak in record["peak_mb_of_preparing_and_opening"].items()]
    ratios = table(["", "processor time, plain loop = 1"], rows)
    return f"{ratios}\n\n{table(['preparing and opening', 'memory, MB'], memory)}"


def cold_start() -> str:
    """A command from its start to its end, beside another build."""
    record = measured("cold_start")
    rows = [
        (name, *(spread(builds[build], 2) for build in record["commits"]), spread(record["ratio"][name], 2))
        for name, builds in record["processor_seconds"].items()
    ]
    return table(["", "processor seconds", "of the build before", "ratio"], rows)


def many_rounds() -> str:
    """Seconds and memory over hundreds of rounds."""
    rows = [
        (part["up_to_round"], f"{part['seconds_a_round']:.2f}", part["memory_mb"], f"{part['files_mb']:.0f}")
        for part in measured("many_rounds")["parts"]
    ]
    return table(["up to round", "seconds a round", "memory, MB", "files, MB"], rows)


def growth() -> str:
    """What is done again and again, against the size of what it is about."""
    rows = []
    for name, row in measured("growth")["rows"].items():
        seconds, exponents, largest = row["sizes"], row["exponents"], row["sizes"][-1]
        rows.append(
            (
                name,
                *(f"{figures['cpu_seconds']:.2g}" for figures in seconds),
                " and ".join(f"{exponent:z.1f}" for exponent in exponents["cpu_seconds"]),
                *(f"{largest[key] / 1e6:.2f}" for key in ("bytes_read", "bytes_written")),
            )
        )
    sizes = [f"{figures['size']:,}" for figures in seconds]
    head = ["", f"CPU seconds at {sizes[0]}", *sizes[1:], "exponents", f"MB read at {sizes[-1]}", "MB written"]
    return table(head, rows)


def many_sites() -> str:
    """Complete runs of 50 to 200 sites."""
    rows = []
    for run in measured("many_sites")["runs"]:
        flare = run["fedshift run"]
        rows.append(
            (
                f"{run['task']}, {run['sites']} sites",
                spread(flare["seconds"], 0),
                spread(run["one process"]["seconds"], 0),
                f"{flare['memory_mb']['median']:.0f}",
            )
        )
    return table(["", "fedshift run, s", "one process, s", "memory of fedshift run, MB"], rows)


def server_memory() -> str:
    """The server's peak, in models."""
    rows = [(run["sites"], f"{run['models_above']:.1f}") for run in measured("server_memory")["runs"]]
    return table(["sites", "models above idle"], rows, words=0)


def slow_line() -> str:
    """A large model over a line that stalls and is cut."""
    rows = []
    for file in ("slow_line", "slow_line_weights_as"):
        for run in load(file)["runs"]:
            sites = [value for party, value in run["models_above"].items() if party != "localhost"]
            rows.append(
                (
                    f"{run['model_mb']:.0f} MB, {run['weights_as']}",
                    f"{max(run['megabytes_down'].values()):.0f}",
                    f"{max(run['megabytes_up'].values()):.0f}",
                    f"{run['seconds'] / 60:.1f}",
                    f"{run['models_above']['localhost']:.1f}",
                    f"{max(sites):.1f}",
                )
            )
    return table(["", "MB down", "MB up", "minutes", "server, models above", "a site, models above"], rows)


def wire_bytes() -> str:
    """Bytes of a round by format."""
    rows = []
    for name, forms in measured("wire_bytes")["bytes_a_round"].items():
        full = forms["fp32"]["up"]
        rows.append((name, *(f"{form['up'] / 1e6:.2f} MB ({form['up'] / full:.3f})" for form in forms.values())))
    return table(["", "fp32", "bf16", "int8"], rows)


def wire_scores() -> str:
    """Scores by format, and each seed's difference from fp32."""
    rows = []
    for methods, forms in measured("wire_bytes")["accuracy"].items():
        for form, scores in forms.items():
            cells = []
            for score in ("test_last", "test_best", "val_last_rounds"):
                apart = ", ".join(f"{value:+.2f}" for value in scores[score].get("from_fp32", []))
                cells.append(f"{scores[score]['mean']:.2f}" + (f" ({apart})" if form != "fp32" else ""))
            rows.append((f"{methods}, {form}", *cells))
    return table(["", "test, last model", "test, best model", "validation, last rounds"], rows)


def precision() -> str:
    """Scores and time by precision, and each seed's difference from the arm that differs in one setting."""
    scores = ("test_dice_best", "test_dice_last", "val_dice_last_rounds")
    summary = measured("precision")["summary"]
    rows = []
    for arm, record in summary.items():
        cells = (f"{record[score]['mean']:.2f} ± {record[score]['sd']:.2f}" for score in scores)
        rows.append((arm, *cells, f"{record['processor_seconds_a_round']:.2f}"))
    for arm, record in summary.items():
        if arm != "fp32":
            apart = (", ".join(f"{value:+.2f}" for value in record[score]["difference"]) for score in scores)
            rows.append((f"{arm} less {record['test_dice_best']['less']}", *apart, ""))
    head = ["", "test, best model", "test, last model", "validation, last 5 rounds", "processor's seconds a round"]
    return table(head, rows)


def mailbox() -> str:
    """A round by mailbox in which nobody trains."""
    record = measured("mailbox")
    seconds, demo = (part["seconds_a_round"] for part in (record, record["demo"]))
    many = record["many_rounds"]
    (early, late), (files, later_files) = many["seconds_a_round"].items(), many["files"].values()
    megabytes, later_megabytes = many["megabytes"].values()
    ends = record["peak_of_a_large_model_in_models"]
    rows = [
        *((f"a round without training, {name}, s", spread(value, 2)) for name, value in seconds.items()),
        ("the second as a multiple of the first", spread(record["mailbox_to_one_process"], 1)),
        *((f"a round of the demo, which trains, {name}, s", spread(value, 2)) for name, value in demo.items()),
        ("the second as a multiple of the first", spread(record["demo"]["mailbox_to_one_process"], 2)),
        (
            "a step of a process of its own that finds nothing to do, s",
            spread(record["seconds_of_a_process_that_waits"], 1),
        ),
        (f"a round of a small model, rounds {early[0]} and {late[0]}, s", f"{early[1]:.2f} and {late[1]:.2f}"),
        (
            f"files, and MB of memory, after {' and '.join(many['files'])} rounds",
            f"{files} and {later_files}, {megabytes} and {later_megabytes}",
        ),
        ("memory to write and to read a model of 1 GB, in models", f"{ends['write']:.2f} and {ends['read']:.2f}"),
    ]
    return table(["", ""], rows)


def on_paper() -> str:
    """What a round of large federations would take: calculated."""
    overhead, wire = measured("flare_overhead"), measured("wire_bytes")["bytes_a_round"]["unet, 32 features"]
    gigabytes = {"20 sites, 1 GB": (20, 1.0), "20 sites, 1 GB, int8": (20, wire["int8"]["up"] / wire["fp32"]["up"])}
    gigabytes["1,000 sites, 4.4 MB"] = (1000, 4.382e-3)
    a_gigabyte = overhead["seconds_a_round"]["fedshift run"]["median"] / (6 * 2 * 4.382e-3)
    rows = [
        (
            name,
            f"{2 * sites * size:.1f}",
            f"{2 * sites * size * 8:.0f}",
            f"{2 * size * 80:.1f}",
            f"{2 * sites * size * a_gigabyte:.0f}",
        )
        for name, (sites, size) in gigabytes.items()
    ]
    head = ["", "GB in and out of the server", "server's link, s", "a site's link, s", "FLARE and coordinator, s"]
    return table(head, rows)
