"""Losses of a classification: identities with plain cross-entropy, and what is unknown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from errors import raises
from torch import Tensor
from torch.nn import functional

from fedshift.schema.task import LossSpec
from fedshift.tasks.classification.losses import Loss, balanced_draw


def loss(name: str, options: Mapping[str, Any] | None = None, *, findings: bool = False) -> Loss:
    return Loss(LossSpec(name=name, options=dict(options or {})), n_classes=3, findings=findings, where="task t")


def batch(n: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, classes, and findings of which none is unknown."""
    rng = torch.Generator().manual_seed(0)
    return torch.randn(n, 3, generator=rng), torch.arange(n) % 3, (torch.rand(n, 3, generator=rng) < 0.4).float()


def test_without_weights_and_focus_all_are_cross_entropy() -> None:
    x, classes, findings = batch()
    plain = functional.cross_entropy(x, classes)
    assert torch.equal(loss("ce")(x, classes), plain)
    torch.testing.assert_close(loss("weighted_ce", {"weights": [1, 1, 1]})(x, classes), plain)
    torch.testing.assert_close(loss("monai.FocalLoss", {"gamma": 0})(x, classes), plain)
    binary = functional.binary_cross_entropy_with_logits(x, findings)
    torch.testing.assert_close(loss("ce", findings=True)(x, findings), binary)
    torch.testing.assert_close(loss("weighted_ce", {"weights": [1, 1, 1]}, findings=True)(x, findings), binary)
    torch.testing.assert_close(loss("monai.FocalLoss", {"gamma": 0}, findings=True)(x, findings), binary)


@pytest.mark.parametrize("name", ["ce", "weighted_ce", "monai.FocalLoss"])
def test_what_is_unknown_has_no_part_in_the_loss(name: str) -> None:
    x, _, y = batch()
    x.requires_grad_()
    y[::2, 1] = torch.nan
    y[3] = torch.nan
    value = loss(name, findings=True)(x, y)
    value.backward()
    assert value.isfinite() and x.grad is not None and x.grad.isfinite().all()
    assert (x.grad[y.isnan()] == 0).all() and (x.grad[~y.isnan()] != 0).all()


@pytest.mark.parametrize("findings", [False, True])
@pytest.mark.parametrize("name", ["ce", "weighted_ce", "monai.FocalLoss"])
def test_parts_of_a_batch_add_up(name: str, findings: bool) -> None:
    x, classes, several = batch()
    several[::3, 0] = torch.nan
    y = several if findings else classes
    labels = y.numpy()[2:]
    chosen = loss(name, findings=findings).at(labels)
    torch.testing.assert_close((4 * chosen(x[:4], y[:4]) + 8 * chosen(x[4:], y[4:])) / 12, chosen(x, y))


def test_weights_by_frequency_make_classes_weigh_the_same() -> None:
    labels = np.array([0] * 8 + [1] * 3 + [2])
    x, y = torch.zeros(12, 3), torch.from_numpy(labels)
    weighted = loss("weighted_ce").at(labels)
    of_class = [float(weighted(x[y == k], y[y == k])) * int((y == k).sum()) for k in range(3)]
    assert of_class == pytest.approx([of_class[0]] * 3)
    torch.testing.assert_close(weighted(x, y), functional.cross_entropy(x, y))  # the mean weight is 1


def test_weights_by_frequency_make_those_with_a_finding_weigh_as_those_without() -> None:
    labels = np.array([[1.0, 0, np.nan]] * 2 + [[0, 0, np.nan]] * 6)
    logits = torch.zeros(8, 3, requires_grad=True)
    loss("weighted_ce", findings=True).at(labels)(logits, torch.from_numpy(labels).float()).backward()
    assert logits.grad is not None
    with_it, without = logits.grad[:2, 0].sum(), logits.grad[2:, 0].sum()
    assert float(with_it) == pytest.approx(-float(without)) and float(with_it) != 0
    plain = torch.zeros(8, 3, requires_grad=True)
    loss("ce", findings=True)(plain, torch.from_numpy(labels).float()).backward()
    assert plain.grad is not None and torch.equal(plain.grad[:, 1:], logits.grad[:, 1:]), "nothing to be weighed"


@pytest.mark.parametrize("findings", [False, True])
def test_balanced_draws_show_classes_equally(findings: bool) -> None:
    labels = np.array([0] * 80 + [1] * 15 + [2] * 5)
    given = np.eye(3)[labels] if findings else labels
    weights = balanced_draw(given, findings=findings)
    drawn = labels[np.random.default_rng(0).choice(100, 6000, p=weights / weights.sum())]
    shares = np.bincount(drawn) / 6000
    if not findings:
        assert shares == pytest.approx([1 / 3] * 3, abs=0.03)
    else:
        assert shares[2] > 0.2 and shares[0] < 0.55


def test_balanced_draws_leave_out_findings_of_one_kind() -> None:
    labels = np.array([[1, 0], [1, 0], [1, np.nan], [0, 0]])
    weights = balanced_draw(labels, findings=True)
    assert weights == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1])
    assert balanced_draw(labels[:3], findings=True) == pytest.approx([1, 1, 1])


@pytest.mark.parametrize(
    ("name", "options", "code", "names"),
    [
        ("dice", {}, "loss-unfit", "'dice'"),
        ("ce", {"gamma": 1}, "unknown-option", "loss ce"),
        ("weighted_ce", {"weights": [1, 2]}, "invalid-value", "3 numbers"),
        ("weighted_ce", {"weights": [1, 2, 0]}, "invalid-value", "weights"),
        ("weighted_ce", {"weight": [1, 2, 3]}, "unknown-key", "weights"),
        ("monai.FocalLoss", {"alpha": 0.3}, "invalid-value", "alpha"),
        ("monai.FocalLoss", {"gamma": -1}, "invalid-value", "gamma"),
        ("monai.FocalLoss", {"to_onehot_y": True}, "unknown-key", "to_onehot_y"),
    ],
)
def test_options_that_do_not_fit_are_refused(name: str, options: dict[str, Any], code: str, names: str) -> None:
    with raises(code, naming=names):
        loss(name, options)


def test_every_option_changes_the_loss() -> None:
    x, classes, findings = batch()
    for name, options, several in (
        ("weighted_ce", {"weights": [1, 2, 3]}, False),
        ("weighted_ce", {"weights": [1, 2, 3]}, True),
        ("monai.FocalLoss", {"gamma": 1}, False),
        ("monai.FocalLoss", {"alpha": [0.2, 0.3, 0.5]}, False),
        ("monai.FocalLoss", {"weight": [1, 2, 3]}, True),
        ("monai.FocalLoss", {"alpha": 0.25}, True),
    ):
        y = findings if several else classes
        assert loss(name, options, findings=several)(x, y) != loss(name, findings=several)(x, y), (name, options)
