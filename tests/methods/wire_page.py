"""What goes over the wire is what the page on what leaves a site says, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from flare.serialised import Federation, Message

from fedshift.flare import codec
from fedshift.reporting.leaves import leaves_section
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import PhantomOptions
from fedshift.tasks.kinds import build_task


def table(text: str) -> dict[str, list[str]]:
    """Rows of a section's tables: name -> [shape and type, bytes, when]."""
    rows = (line.split(" | ") for line in text.splitlines() if line.startswith("| `"))
    return {cells[0].removeprefix("| "): cells[1:4] for cells in rows}


def assert_told(sent: Mapping[str, np.ndarray], told: Mapping[str, list[str]], when: str) -> None:
    """Arrays of a message against the rows of a table."""
    rest = dict(sent)
    for name, (shape, size, often) in told.items():
        if often != when:
            continue
        if "…" in name:  # many arrays in one row
            count, dtype = re.fullmatch(r"(\d+) arrays, (\w+)", shape).groups()  # type: ignore[union-attr]
            several = {key: value for key, value in rest.items() if f"`{key}`" not in told and value.dtype == dtype}
            assert len(several) == int(count)
            assert sum(value.nbytes for value in several.values()) == int(size)
            rest = {key: value for key, value in rest.items() if key not in several}
            continue
        array = rest.pop(name.strip("`"))
        extent, dtype = shape.rsplit(" ", 1)
        assert str(array.dtype) == dtype, name
        sizes = [] if extent == "scalar" else extent.split("x")
        assert len(sizes) == array.ndim, name
        assert all(word == str(have) or not word.isdigit() for word, have in zip(sizes, array.shape, strict=True)), name
        factors = {word: have for word, have in zip(sizes, array.shape, strict=True) if not word.isdigit()}
        assert array.nbytes == np.prod([factors.get(part) or int(part) for part in size.split(" x ")]), name
    assert not rest, f"not on the page: {sorted(rest)}"


def of(messages: list[Message], task: str, *, up: bool) -> Message:
    """The first site's last message of a task."""
    return [m for m in messages if m.task == task and m.up is up][-1]


def assert_on_the_page(name: str, job: JobSpec, federation: Federation) -> None:
    """All messages of a finished run of one method."""
    section = leaves_section(name, job)
    up, _, down = section.partition("The server sends to every site")
    statistics, trained = (of(federation.messages, task, up=True) for task in (codec.STATISTICS, codec.TRAIN))
    for message, when in ((statistics, "once"), (trained, "every round")):
        arrays = {path[1]: value for path, value in message.arrays("arrays").items() if path[0] == name}
        assert len(arrays) == len(message.arrays("arrays")), "nothing of another method"
        assert_told(arrays, table(up), when)
    received = of(federation.messages, codec.TRAIN, up=False).arrays("arrays")
    assert_told({path[1]: value for path, value in received.items()}, table(down), "every round")

    weights = trained.arrays("weights")
    network = build_task(job).network().state_dict()
    assert {path[0] for path in weights} <= set(network)
    if weights:
        told = re.search(r"(\d+) tensors, (\d+) bytes", section)
        assert told is not None
        assert [int(n) for n in told.groups()] == [len(weights), sum(w.nbytes for w in weights.values())]
    else:
        assert "stays at the site." in section
    assert not statistics.arrays("weights")
    for message in federation.messages:
        if message.up:
            assert_nothing_else(message)


def only_numbers(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(only_numbers, value))
    return value is None or isinstance(value, int | float) or value == {}


def assert_nothing_else(message: Message) -> None:
    """Besides arrays: counts, scores and what the page lists for every job; no path and no case."""
    others = {path: value for path, value in message.content.items() if not isinstance(value, np.ndarray)}
    own = {path[1:] for path in others if path[0] == message.site}
    info = {("meta:info", n) for n in ("site", "kind", "n_train", "n_val", "n_test", "manifest_sha256", "split_rule")}
    info |= {("meta:info", n) for n in ("device", "precision", "threads", "unknown_spacing", "simulated")}
    info |= {("meta:info", "cases", split) for split in ("train", "val", "test")}
    info |= {("meta:info", "phantom"), *(("meta:info", "phantom", option) for option in PhantomOptions.model_fields)}
    counts = {(f"meta:{n}",) for n in ("n_samples", "n_steps", "kind", "round")}
    names = ("dice", "dice_papers", "hd95", "asd", "accuracy", "macro_accuracy", "train_loss", "seconds")
    scores = {path for path in own if path[0] in ("metrics", "values", "personal") and path[-1] in names}
    final = {path for path in own if path[0] in ("meta:evaluations", "meta:personal_evaluation")}
    compared = {path for path in own if path[0] == "meta:against_local"}
    assert own <= counts | info | scores | final | compared  # a simulated site has no ledger to tell of
    for path in final | {path for path in compared if path[1] not in ("score", "test", "verdict")}:
        assert only_numbers(others[message.site, *path]), path
    assert {path for path in others if path[0] != message.site} == {
        ("meta:fedshift", "version"),
        ("meta:fedshift", "source"),
    }
    for text in (value for value in others.values() if isinstance(value, str)):
        assert "/" not in text and "Case" not in text
