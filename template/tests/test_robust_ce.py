"""The loss against the formula's two ends, and as fedshift makes it."""

from __future__ import annotations

import pytest
import torch
from fedshift_template.robust_ce import loss
from torch.nn import functional

from fedshift.schema.components import choose
from fedshift.schema.errors import ConfigError
from fedshift.tasks.losses import make_loss

NAME = "fedshift-template:robust_ce"


def test_it_is_cross_entropy_and_absolute_error_at_its_ends() -> None:
    logits = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = torch.arange(32).reshape(2, 4, 4) % 3
    shares = functional.one_hot(target, 3).movedim(-1, 1).double()
    torch.testing.assert_close(
        loss(logits, shares, q=1e-6), functional.cross_entropy(logits, target), rtol=1e-5, atol=0
    )
    error = (logits.softmax(1) - shares).abs().sum(1).mean() / 2
    torch.testing.assert_close(loss(logits, shares, q=1.0), error)


def test_fedshift_makes_it_for_classes_that_a_site_has_not_outlined() -> None:
    choose([NAME])
    made = make_loss(NAME, {"q": 0.5}, n_classes=3, annotated=(1,))
    assert made(torch.zeros(1, 3, 4, 4), torch.zeros(1, 4, 4, dtype=torch.int64)).isfinite()
    with pytest.raises(ConfigError, match="unknown option"):
        make_loss(NAME, {"power": 2}, n_classes=3)
    with pytest.raises(ConfigError, match="at most 1"):
        make_loss(NAME, {"q": 2}, n_classes=3)
