"""What goes over the wire is what the methods' specifications say, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedshift.flare import codec
from fedshift.methods.base import ArraySpec
from fedshift.methods.method_set import MethodSet
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import PhantomOptions
from fedshift.tasks.kinds import build_task
from fedshift_testing.serialised import Federation, Message


def assert_specified(sent: Mapping[str, np.ndarray], specs: Mapping[str, ArraySpec], when: str) -> None:
    """Arrays of a message against what the methods declare of them."""
    due = {name: spec for name, spec in specs.items() if spec.when == when}
    assert set(sent) == set(due)
    for name, spec in due.items():
        array = sent[name]
        assert str(array.dtype) == spec.dtype and array.ndim == len(spec.shape), name
        assert all(isinstance(size, str) or size == have for size, have in zip(spec.shape, array.shape, strict=True))


def last_message(messages: list[Message], task: str, *, up: bool) -> Message:
    """The first site's last message of a task."""
    return [m for m in messages if m.task == task and m.up is up][-1]


def assert_as_specified(name: str, job: JobSpec, federation: Federation) -> None:
    """All messages of a finished run of one method."""
    net = build_task(job).network()
    methods = MethodSet(job, net)
    statistics, trained = (last_message(federation.messages, task, up=True) for task in (codec.STATISTICS, codec.TRAIN))
    for message, when in ((statistics, "once"), (trained, "round")):
        arrays = {path[1]: value for path, value in message.arrays("arrays").items() if path[0] == name}
        assert len(arrays) == len(message.arrays("arrays")), "nothing of another method"
        assert_specified(arrays, methods.up[name], when)
    received = last_message(federation.messages, codec.TRAIN, up=False).arrays("arrays")
    assert_specified({path[1]: value for path, value in received.items()}, methods.down[name], "round")
    assert {path[0] for path in trained.arrays("weights")} == set(net.state_dict()) - methods.withheld
    assert not statistics.arrays("weights")
    for message in federation.messages:
        if message.up:
            assert_nothing_else(message)


def only_numbers(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(only_numbers, value))
    return value is None or isinstance(value, int | float) or value == {}


def assert_nothing_else(message: Message) -> None:
    """Besides arrays: counts, scores and what leaves with every job; no path and no case."""
    others = {path: value for path, value in message.content.items() if not isinstance(value, np.ndarray)}
    site_paths = {path[1:] for path in others if path[0] == message.site}
    info: set[tuple[str, ...]]
    info = {("meta:info", n) for n in ("site", "kind", "n_train", "n_val", "n_test", "manifest_sha256", "split_rule")}
    info |= {("meta:info", n) for n in ("device", "precision", "threads", "unknown_spacing", "simulated")}
    info |= {("meta:info", "cases", split) for split in ("train", "val", "test")}
    info |= {("meta:info", "phantom"), *(("meta:info", "phantom", option) for option in PhantomOptions.model_fields)}
    counts = {(f"meta:{n}",) for n in ("n_samples", "n_steps", "kind", "round")}
    names = ("dice", "dice_papers", "hd95", "asd", "accuracy", "macro_accuracy", "train_loss", "seconds", "parts")
    scores = {path for path in site_paths if path[0] in ("metrics", "values", "personal") and path[-1] in names}
    final = {path for path in site_paths if path[0] in ("meta:evaluations", "meta:personal_evaluation")}
    compared = {path for path in site_paths if path[0] == "meta:against_local"}
    assert site_paths <= counts | info | scores | final | compared  # a simulated site has no ledger to tell of
    for path in final | {path for path in compared if path[1] not in ("score", "test", "verdict")}:
        assert only_numbers(others[message.site, *path]), path
    assert {path for path in others if path[0] != message.site} == {
        ("meta:fedshift", "version"),
        ("meta:fedshift", "source"),
    }
    for text in (value for value in others.values() if isinstance(value, str)):
        assert "/" not in text and "Case" not in text
