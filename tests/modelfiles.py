"""Model files of two runs that must be alike."""

from __future__ import annotations

from pathlib import Path

import torch

from fedshift.federation.model_files import read_model_file


def assert_same_model(ours: Path, theirs: Path) -> None:
    """Weights in their order, methods' arrays and scores, bit for bit."""
    one, two = read_model_file(ours), read_model_file(theirs)
    assert one["scores"] == two["scores"]
    assert list(one["weights"]) == list(two["weights"])
    for key, value in one["weights"].items():
        assert torch.equal(value, two["weights"][key]), key
    assert one["methods"].keys() == two["methods"].keys()
    for method, named in one["methods"].items():
        for key, value in named.items():
            assert torch.equal(value, two["methods"][method][key]), key
