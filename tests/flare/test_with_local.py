"""With local models: the same numbers under FLARE as in one process, and nothing of them on the wire but scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import small_image_job

from fedshift.federation.in_process import run_in_process
from fedshift_testing.serialised import Federation, Message
from fedshift_testing.wire import assert_nothing_else


def content(messages: list[Message]) -> list[tuple[object, ...]]:
    """What sites sent and received, without times of day and of training."""
    told = []
    for message in messages:
        for path, value in message.content.items():
            if path[-1] != "seconds" and path[1:2] != ("meta:against_local",):
                plain = (str(value.dtype), value.tobytes()) if isinstance(value, np.ndarray) else value
                told.append((message.site, message.task, message.round, message.up, path, plain))
    return told


@pytest.mark.slow
def test_the_messages_are_the_same_but_for_the_comparison(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    options = ("schedule.rounds=2", "optimizer.keep=true")
    plain = Federation(small_image_job("fedbn", *options), three_image_sites, tmp_path / "plain")
    local = Federation(small_image_job("fedbn", *options, "evaluation.local=true"), three_image_sites, tmp_path / "a")
    plain.run()
    told = local.run().results
    assert content(plain.messages) == content(local.messages)
    added = {
        (message.task, *path[1:])
        for message in local.messages
        for path in message.content
        if message.up and path[1:2] == ("meta:against_local",)
    }
    names = (
        "score",
        "n",
        "subjects",
        "federated",
        "local",
        "round",
        "verdict",
        "test",
        "p",
        "interval",
        "std",
        "quantiles",
    )
    assert added == {("validate", "meta:against_local", name) for name in (*names, "needed", "cases")}
    for message in local.messages:
        if message.up:
            assert_nothing_else(message)
    # Every task above met a new executor: all that the own models need was on disk.
    beside = run_in_process(local.job, three_image_sites, tmp_path / "one_process").results
    assert told.final is not None and beside.final is not None
    assert told.final.against_local == beside.final.against_local != {}
