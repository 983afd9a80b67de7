"""Model files of two runs that must be alike."""

from __future__ import annotations

from pathlib import Path

import torch

from fedshift.federation.model_files import read_model_file


def assert_same_weights(ours: Path, theirs: Path) -> None:
    one, two = (read_model_file(path)["weights"] for path in (ours, theirs))
    assert list(one) == list(two)
    for key, value in one.items():
        assert torch.equal(value, two[key]), key


def assert_same_model(ours: Path, theirs: Path) -> None:
    """Weights in their order, methods' arrays and scores, bit for bit."""
    one, two = read_model_file(ours), read_model_file(theirs)
    assert one["scores"] == two["scores"]
    assert_same_weights(ours, theirs)
    assert one["methods"].keys() == two["methods"].keys()
    for method, named in one["methods"].items():
        for key, value in named.items():
            assert torch.equal(value, two["methods"][method][key]), key
