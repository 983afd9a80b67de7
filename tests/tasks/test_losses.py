"""Losses: the authors', MONAI's, several outputs, classes that a site has not outlined."""

from __future__ import annotations

import monai.losses
import pytest
import torch
from conftest import golden
from errors import raises
from torch.nn import functional

from fedshift.federation.resolve import resolve
from fedshift.methods.shared import features
from fedshift.schema.regions import Regions, make_regions
from fedshift.schema.task import LossSpec
from fedshift.tasks import losses
from fedshift.tasks.losses import ce_dice_loss, dice_loss, make_loss

MONAI = [name for name in losses.available() if name.startswith("monai.")]


def example(*size: int, classes: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, classes, *size, generator=rng, dtype=torch.float64)
    return logits.requires_grad_(), torch.randint(classes, (2, *size), generator=rng)


def test_the_papers_losses_are_the_authors() -> None:
    g = golden("dice")
    logits, label = torch.from_numpy(g["logits"]), torch.from_numpy(g["label"])[:, 0].long()
    assert float(dice_loss(logits, label)) == pytest.approx(float(g["dice_loss"]), rel=1e-10)
    assert float(ce_dice_loss(logits, label)) == pytest.approx(float(g["joint_loss"]), rel=1e-10)


def test_a_volume_that_repeats_a_slice_has_the_slices_loss() -> None:
    logits, label = example(8, 8)
    for name in ("ce_dice", "dice"):
        loss = make_loss(name, {}, n_classes=3)
        deep = loss(logits[:, :, None].expand(-1, -1, 4, -1, -1), label[:, None].expand(-1, 4, -1, -1))
        torch.testing.assert_close(deep, loss(logits, label), rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", losses.available())
@pytest.mark.parametrize("size", [(8, 6), (6, 8, 4)])
def test_shares_of_one_class_are_that_class(name: str, size: tuple[int, ...]) -> None:
    logits, label = example(*size)
    loss = make_loss(name, {}, n_classes=3)
    value = loss(logits, label)
    (slope,) = torch.autograd.grad(value, logits)
    assert value.shape == () and torch.isfinite(value) and slope.abs().max() > 0
    soft = functional.one_hot(label, 3).movedim(-1, 1).double()
    if loss.soft:
        torch.testing.assert_close(loss(logits, soft).double(), value.double(), rtol=1e-5, atol=1e-7)
    else:
        with raises("loss-unfit", naming=name):
            loss(logits, soft)


def test_monais_losses_are_monais() -> None:
    logits, label = example(8, 8)
    options = {"lambda_ce": 0.5, "include_background": False, "weight": [1.0, 2.0, 3.0]}
    loss = make_loss("monai.DiceCELoss", options, n_classes=3)(logits, label)
    weight = torch.tensor([1.0, 2.0, 3.0])
    theirs = monai.losses.DiceCELoss(
        softmax=True, to_onehot_y=True, lambda_ce=0.5, include_background=False, weight=weight.double()
    )
    torch.testing.assert_close(loss, theirs(logits, label[:, None]))


@pytest.mark.parametrize("name", ["ce_dice", "monai.DiceCELoss"])
def test_logits_of_reduced_precision_are_computed_in_float32(name: str) -> None:
    logits, label = example(8, 8)
    low = logits.detach().bfloat16()
    assert torch.equal(
        make_loss(name, {}, n_classes=3)(low, label), make_loss(name, {}, n_classes=3)(low.float(), label)
    )


def test_deep_supervision_weighs_outputs_by_halves() -> None:
    fine, label = example(8, 8)
    coarse, coarsest = example(4, 4, seed=1)[0], example(2, 2, seed=2)[0]
    loss = make_loss("ce_dice", {}, n_classes=3)
    expected = (
        4 * loss(fine, label) + 2 * loss(coarse, label[:, 1::2, 1::2]) + loss(coarsest, label[:, 2::4, 2::4])
    ) / 7
    torch.testing.assert_close(loss([fine, coarse, coarsest], label), expected)
    torch.testing.assert_close(loss([fine], label), loss(fine, label))
    soft = functional.one_hot(label, 3).movedim(-1, 1).double()
    torch.testing.assert_close(loss([fine, coarse, coarsest], soft), expected)


def test_what_is_not_annotated_counts_as_background() -> None:
    """Swapping background and a class that is not annotated changes nothing; the annotated one learns."""
    logits, label = example(8, 8, classes=4)
    logits = logits.detach()
    label = torch.where(label == 3, 0, label)
    for name, options in (("ce_dice", {}), ("monai.DiceCELoss", {"weight": [1.0, 2.0, 3.0, 4.0]})):
        loss = make_loss(name, options, n_classes=4, annotated=[1, 2])
        value = loss(logits, label)
        assert torch.equal(loss(logits[:, [3, 1, 2, 0]], label), value)
        probability = logits.softmax(1)
        merged = torch.stack([probability[:, 0] + probability[:, 3], probability[:, 1], probability[:, 2]], 1)
        if name == "ce_dice":
            picked = merged.gather(1, label[:, None]).log().mean()
            hot = functional.one_hot(label, 3).movedim(-1, 1)
            dice = (2 * (merged * hot).sum((0, 2, 3)) / (merged.sum((0, 2, 3)) + hot.sum((0, 2, 3)))).mean()
            torch.testing.assert_close(value, (1 - dice - picked) / 2, rtol=1e-5, atol=1e-6)
            soft = functional.one_hot(label, 4).movedim(-1, 1).double()
            torch.testing.assert_close(loss(logits, soft), value)
        everything = make_loss(name, options, n_classes=4, annotated=[3, 1, 2])
        assert torch.equal(everything(logits, label), make_loss(name, options, n_classes=4)(logits, label))


@pytest.mark.parametrize(
    ("name", "options", "annotated", "code", "names"),
    [
        ("monai.DiceCE", {}, None, "unknown-loss", "'monai.DiceCELoss'"),
        ("monai.DiceCELoss", {"lambda_c": 1}, None, "unknown-option", "'lambda_ce'"),
        ("monai.DiceCELoss", {"softmax": True}, None, "option-fixed", "softmax"),
        ("monai.TverskyLoss", {"ignor_index": 2}, None, "unknown-option", "'ignor_index'"),
        *(
            (f"monai.{name}", {"ignore_index": 2}, annotated, "option-fixed", "ignore_index")
            for name in ("DiceLoss", "DiceCELoss", "FocalLoss", "TverskyLoss")
            for annotated in (None, [1])
        ),
        ("monai.FocalLoss", {"include_background": False}, None, "options-clash", "monai.DiceFocalLoss"),
        ("monai.FocalLoss", {"include_background": False, "weight": [1, 2]}, [1], "options-clash", "weight"),
        ("monai.DiceCELoss", {"weight": [1, 2]}, None, "invalid-value", "weight"),
        ("monai.DiceCELoss", {"lambda_ce": -1}, None, "loss-unmade", "lambda_ce"),
        ("monai.DiceCELoss", {"lambda_ce": float("nan")}, None, "loss-unmade", "nan"),
        ("monai.TverskyLoss", {"alpha": {"a": 1}}, None, "invalid-value", "alpha"),
        ("ce_dice", {"weight": 1}, None, "unknown-option", "weight"),
        ("monai.DiceFocalLoss", {}, [1], "loss-unfit", "monai.DiceCELoss"),
        ("ce_dice", {}, [], "invalid-value", "none"),
        ("ce_dice", {}, [3], "invalid-value", "[3]"),
    ],
)
def test_what_is_refused(
    name: str, options: dict[str, object], annotated: list[int] | None, code: str, names: str
) -> None:
    with raises(code, naming=(name, names)):
        make_loss(name, options, n_classes=3, annotated=annotated)


IMPOSSIBLE: list[tuple[str, dict[str, object]]] = [
    ("FocalLoss", {"gamma": "two"}),
    ("FocalLoss", {"gamma": -1}),
    ("TverskyLoss", {"alpha": "a"}),
    ("HausdorffDTLoss", {"alpha": "x"}),
    ("HausdorffDTLoss", {"alpha": [1, 2, 3, 4]}),
    ("LogHausdorffDTLoss", {"alpha": -1}),
    ("DiceCELoss", {"label_smoothing": 2}),
    ("DiceCELoss", {"weight": [0, 0, 0, 0]}),
    *(
        (name, {"weight": [-1, 2, 3, 4]})
        for name in ("DiceLoss", "DiceCELoss", "DiceFocalLoss", "FocalLoss", "GeneralizedDiceFocalLoss")
    ),
]


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize(("name", "options"), IMPOSSIBLE)
def test_an_impossible_value_is_found_when_the_loss_is_made(
    name: str, options: dict[str, object], dims: int, device: str
) -> None:
    for annotated in (None, [2]) if losses.ALLOWED[name].marginal else (None,):
        with torch.device(device), raises("loss-unmade", naming=f"monai.{name}") as e:
            make_loss(f"monai.{name}", options, n_classes=4, annotated=annotated, dims=dims)
        assert "\n" not in str(e.value)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("name", losses.available())
def test_a_loss_that_is_made_without_memory_has_values(name: str, dims: int) -> None:
    """Jobs are checked on the meta device. What is tried there draws no random numbers."""
    logits, label = example(*[6, 8, 4][:dims], classes=2)
    options = {"weight": [1.0, 2.0]} if name == "monai.DiceCELoss" else {}
    state = torch.random.get_rng_state()
    with torch.device("meta"):
        loss = make_loss(name, options, n_classes=2, dims=dims)
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(loss(logits, label), make_loss(name, options, n_classes=2)(logits, label))


def test_numbers_for_each_class_are_tried_where_classes_are_left_out() -> None:
    logits, label = example(8, 8, classes=4)
    for name, options in (
        ("FocalLoss", {"alpha": [0.1, 0.2, 0.3, 0.4], "weight": [1, 2, 3, 4]}),
        ("DiceLoss", {"include_background": False, "weight": [2, 3, 4], "batch": True, "smooth_nr": 0, "smooth_dr": 0}),
        ("TverskyLoss", {"alpha": 0.3, "beta": 0.7}),
    ):
        for annotated in (None, [2], [1, 3]):
            loss = make_loss(f"monai.{name}", options, n_classes=4, annotated=annotated)
            assert torch.isfinite(loss(logits, label))


def test_a_job_with_an_impossible_loss_is_refused() -> None:
    for option, code in (
        ("ignore_index: 1", "option-fixed"),
        ("gamma: two", "loss-unmade"),
        ("include_background: false", "options-clash"),
    ):
        with raises(code, naming="monai.FocalLoss"):
            resolve("prostate", "fedavg", options=[f"loss={{name: monai.FocalLoss, options: {{{option}}}}}"])


def test_a_method_that_mixes_is_refused_with_a_loss_of_one_class_each() -> None:
    assert losses.takes_soft_targets("monai.DiceCELoss") and losses.takes_soft_targets("ce")
    with raises("method-needs", naming=("mixup", "monai.HausdorffDTLoss")):
        resolve("prostate", "mixup", options=["loss=monai.HausdorffDTLoss"])


def test_a_loss_without_options_is_its_name_in_a_job() -> None:
    assert LossSpec.parse("ce_dice", where="x").model_dump() == "ce_dice"
    full = {"name": "monai.DiceCELoss", "options": {"lambda_ce": 0.5}}
    spec = LossSpec.parse(full, where="x")
    assert spec.model_dump() == full and str(spec) == "monai.DiceCELoss (lambda_ce 0.5)"
    with raises("unknown-key", naming=("'option'", "'options'")):
        LossSpec.parse({"name": "dice", "option": {}}, where="x")


# --- regions and voxels to ignore ---------------------------------------------------------------------------


def nested() -> Regions:
    """Whole, core and the last class."""
    members = {"whole": ("1", "2", "3"), "core": ("2", "3"), "last": ("3",)}
    made = make_regions(members, ["0", "1", "2", "3"])
    assert made is not None
    return made


@pytest.mark.parametrize("name", losses.available())
@pytest.mark.parametrize("size", [(8, 6), (6, 8, 4)])
def test_regions_are_learned_each_by_itself(name: str, size: tuple[int, ...]) -> None:
    logits, label = example(*size, classes=3)
    label = torch.randint(4, label.shape, generator=torch.Generator().manual_seed(1))
    loss = make_loss(name, {}, n_classes=4, regions=nested())
    value = loss(logits, label)
    (slope,) = torch.autograd.grad(value, logits)
    assert value.isfinite() and all(slope[:, number].abs().max() > 0 for number in range(3))
    if loss.soft:
        soft = functional.one_hot(label, 4).movedim(-1, 1).double()
        torch.testing.assert_close(loss(logits, soft), value)
    perfect = 40 * losses.in_regions(label, torch.from_numpy(nested().table).double()) - 20
    assert loss(perfect, label) < loss(-perfect, label)


def test_a_region_that_is_one_class_has_the_loss_of_a_binary_head() -> None:
    logits, label = example(8, 6, classes=2)
    regions = make_regions({"1": ("1",)}, ["0", "1"])
    one = logits[:, 1:] - logits[:, :1]
    binary = functional.binary_cross_entropy_with_logits(one[:, 0], label.double())
    torch.testing.assert_close(binary, functional.cross_entropy(logits, label))
    dice = monai.losses.DiceLoss(sigmoid=True)(one, label[:, None])
    loss = make_loss("monai.DiceCELoss", {"lambda_ce": 0.5}, n_classes=2, regions=regions)(one, label)
    torch.testing.assert_close(loss, dice + 0.5 * binary)


def test_mixed_labels_are_shares_of_regions() -> None:
    """Which are linear in those of classes."""
    logits, _ = example(8, 6, classes=3)
    rng = torch.Generator().manual_seed(0)
    a, b = (functional.one_hot(torch.randint(4, (2, 8, 6), generator=rng), 4).movedim(-1, 1).double() for _ in range(2))
    loss = make_loss("monai.DiceCELoss", {"lambda_dice": 0}, n_classes=4, regions=nested())
    torch.testing.assert_close(loss(logits, 0.3 * a + 0.7 * b), 0.3 * loss(logits, a) + 0.7 * loss(logits, b))


def test_regions_that_a_site_does_not_outline_have_no_part_in_its_loss() -> None:
    logits, _ = example(8, 6, classes=3)
    label = torch.randint(4, (2, 8, 6), generator=torch.Generator().manual_seed(0))
    options = {"weight": [1.0, 2.0, 3.0]}
    part = make_loss("monai.DiceCELoss", options, n_classes=4, regions=nested(), annotated=(2, 3))
    (slope,) = torch.autograd.grad(part(logits, label), logits)
    assert not slope[:, 0].any() and slope[:, 1:].any()
    moved = torch.where(label == 1, 0, label)
    torch.testing.assert_close(part(logits, moved), part(logits, label))


@pytest.mark.parametrize("options", [{"include_background": False}, {"label_smoothing": 0.1}])
def test_options_that_regions_do_not_have_are_refused(options: dict[str, object]) -> None:
    with raises("option-fixed", naming=next(iter(options))):
        make_loss("monai.DiceCELoss", options, n_classes=4, regions=nested())


EVERYWHERE = [losses.PREFIX + name for name, allowed in losses.ALLOWED.items() if allowed.everywhere]


@pytest.mark.parametrize("name", EVERYWHERE)
def test_losses_that_need_all_voxels_are_refused_where_some_are_ignored(name: str) -> None:
    make_loss(name, {}, n_classes=4)
    with raises("loss-unfit", naming=name):
        make_loss(name, {}, n_classes=4, ignores=True)


@pytest.mark.parametrize("name", [name for name in losses.available() if name not in EVERYWHERE])
@pytest.mark.parametrize("of_regions", [False, True])
def test_ignored_voxels_have_no_part_in_a_loss(name: str, of_regions: bool) -> None:
    regions = nested() if of_regions else None
    logits, label = example(8, 6, classes=3 if of_regions else 4)
    loss = make_loss(name, {}, n_classes=4, regions=regions, ignores=True)
    same = make_loss(name, {}, n_classes=4, regions=regions)
    assert torch.equal(loss(logits, label), same(logits, label)), "the same bits where nothing is ignored"
    label[0, :5], label[1, 3:] = 255, 255
    (slope,) = torch.autograd.grad(loss(logits, label), logits)
    assert not slope[0, :, :5].any() and not slope[1, :, 3:].any() and slope[1, :, :3].any()
    soft = features.soft(label, 4).double()
    torch.testing.assert_close(loss(logits, soft), loss(logits, label))
    assert loss(logits, torch.full_like(label, 255)) == 0
    cut = torch.stack([logits[0, :, 5:], logits[1, :, :3]])
    torch.testing.assert_close(loss(logits, label), same(cut, torch.stack([label[0, 5:], label[1, :3]])))


def test_ignored_voxels_and_classes_that_are_not_outlined_go_together() -> None:
    logits, label = example(8, 6, classes=4)
    whole, known = (make_loss("ce_dice", {}, n_classes=4, annotated=(1, 3), ignores=i) for i in (True, False))
    cut = label.clone()
    cut[:, 4:] = 255
    torch.testing.assert_close(whole(logits, cut), known(logits[:, :, :4], label[:, :4]))


@pytest.mark.parametrize("name", ["monai.HausdorffDTLoss", "monai.LogHausdorffDTLoss"])
def test_losses_of_distances_need_all_voxels(name: str) -> None:
    with raises("loss-unfit", naming=name):
        make_loss(name, {}, n_classes=3, ignores=True)
