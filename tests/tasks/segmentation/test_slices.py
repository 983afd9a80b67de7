"""Slices, losses and scores of segmentation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import golden, make_site, small_job, train_batches
from errors import raises
from monai.metrics import DiceMetric

from fedshift.data.draws import sample_seeds
from fedshift.data.splits import legacy_split
from fedshift.tasks.evaluation.overlap import dice, papers_dice
from fedshift.tasks.kinds import build_task
from fedshift.tasks.segmentation.slices import DataSpec, Slices, rotate_and_flip


def slices(folder: Path, **options: object) -> Slices:
    return Slices(folder, DataSpec(matrix=32, **options), site="BIDMC")


def counts(p: torch.Tensor, r: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return (p & r).sum((1, 2)).numpy(), p.sum((1, 2)).numpy(), r.sum((1, 2)).numpy()


def test_the_metric_is_the_authors() -> None:
    g = golden("dice")
    logits, label = torch.from_numpy(g["logits"]), torch.from_numpy(g["label"])[:, 0].long()
    p, r = logits.argmax(1).bool(), label.bool()
    per_class = np.stack([papers_dice(*counts(a, b)) for a, b in ((~p, ~r), (p, r))])
    np.testing.assert_allclose(per_class, g["per_class_per_slice_dice"], rtol=1e-10)
    assert per_class.mean() == pytest.approx(float(g["dice_func"]), rel=1e-6)


def test_case_dice_is_monais(tmp_path: Path) -> None:
    data = slices(make_site(tmp_path, "BIDMC", cases=5))
    task = build_task(small_job("fedavg", sites=("BIDMC",)))
    members = data.members("test")
    predicted = (torch.rand(len(members), 32, 32, generator=torch.Generator().manual_seed(0)) > 0.7).to(torch.uint8)
    reference = data.labels(members)
    scores = task.scores(iter([predicted]), data, "test")
    volume = lambda t: torch.nn.functional.one_hot(t.long(), 2).movedim(-1, 0)[None]  # noqa: E731
    expected = DiceMetric(include_background=False)(volume(predicted), volume(reference))
    assert scores["dice"] == pytest.approx(float(expected.mean()), rel=1e-6)


def test_dice_is_of_cases_that_have_the_structure_as_monais() -> None:
    predicted, reference = (torch.zeros(4, 1, 2, 3, dtype=torch.bool) for _ in range(2))
    predicted[1:3, 0, 0], reference[2:, 0, :, 0] = True, True
    counts = [mask.flatten(1).sum(1).numpy().astype(float) for mask in (predicted & reference, predicted, reference)]
    expected = DiceMetric(ignore_empty=True, reduction="none")(predicted, reference)[:, 0]
    assert expected.isnan().tolist() == [True, True, False, False]
    np.testing.assert_allclose(dice(*counts), expected.numpy())


def test_a_sample_is_a_slice_with_its_neighbours_in_the_same_case(tmp_path: Path) -> None:
    folder = make_site(tmp_path, "BIDMC", cases=3, depth=8)
    data = slices(folder, scale=255.0)
    raw = np.load(folder / "arrays" / "32" / "images.npy").astype(np.float32)
    x = data.images(np.array([3, 8, 15])).numpy()
    for sample, window in zip(x, ([2, 3, 4], [8, 8, 9], [14, 15, 15]), strict=True):
        np.testing.assert_array_equal(sample, raw[window])
    assert slices(folder).images(np.array([3])).max() <= 1.0


def test_case_split_follows_the_manifest_and_slice_legacy_has_the_papers_counts(tmp_path: Path) -> None:
    folder = make_site(tmp_path, "BIDMC", cases=6, depth=30)
    data = slices(folder)
    assert [data.count(s) for s in ("train", "val", "test")] == [120, 30, 30]
    assert not set(data.case_of[data.members("train")]) & set(data.case_of[data.members("test")])
    legacy = slices(folder, split="slice-legacy")
    n = int(legacy.countable.sum())
    assert [legacy.count(s) for s in ("train", "val", "test")] == [int(0.6 * n), int(0.2 * n), int(0.2 * n)]
    sixth = slices(folder, split="slice-legacy", fraction=1 / 6)
    assert sixth.count("train") == 32 and sixth.count("test") == legacy.count("test")
    assert set(legacy.case_of[legacy.members("train")]) & set(legacy.case_of[legacy.members("test")])
    members = np.concatenate([legacy.members(s) for s in ("train", "val", "test")])
    assert len(np.unique(members)) == len(members)


def test_the_slices_of_a_fraction_do_not_depend_on_the_jobs_seed(tmp_path: Path) -> None:
    folder = make_site(tmp_path, "BIDMC", cases=6, depth=30)

    def drawn(*options: str, seed: int = 0) -> list[int]:
        job = small_job("fedavg", "data.fraction=0.5", *options, sites=("BIDMC",), seed=seed)
        return list(build_task(job).open(folder, "BIDMC").members("train"))

    assert len(drawn()) == 60 and drawn(seed=1) == drawn() != drawn("data.seed=1")


@pytest.mark.parametrize(("n", "train"), [(261, 156), (157, 94), (468, 280), (384, 230), (411, 246), (175, 105)])
def test_slice_legacy_counts_are_fedfas_table_13(n: int, train: int) -> None:
    parts = legacy_split(np.arange(n), fraction=1.0, site="A")
    assert (len(parts["train"]), len(parts["val"])) == (train, int(0.2 * n))
    # Table 2's row for 1/6 of the training data, with the floor of 32.
    assert len(legacy_split(np.arange(n), fraction=1 / 6, site="A")["train"]) == max(int(n / 10), 32)


def test_an_epoch_shows_every_slice_once_and_leaves_out_the_last_batch(tmp_path: Path) -> None:
    data = slices(make_site(tmp_path, "BIDMC", cases=4, depth=9))

    def epoch(seed: int, batch_size: int) -> list[torch.Tensor]:
        order = torch.Generator().manual_seed(seed)
        return [x for x, _ in train_batches(data, batch_size=batch_size, order=order)]

    assert [len(x) for x in epoch(0, 8)] == [8, 8]
    assert [len(x) for x in epoch(0, 64)] == [18], "fewer slices than a batch make one batch"
    flat = torch.cat(epoch(0, 9))
    assert len(torch.unique(flat.flatten(1), dim=0)) == 18
    assert torch.equal(flat, torch.cat(epoch(0, 9))) and not torch.equal(flat, torch.cat(epoch(1, 9)))


def test_rotations_move_image_and_mask_together() -> None:
    x = torch.rand(64, 1, 8, 8)
    moved, mask = rotate_and_flip(x, (x[:, 0] > 0.5).long(), seeds=sample_seeds(0, torch.arange(64)))
    assert torch.equal((moved[:, 0] > 0.5).long(), mask)
    still = int((x == moved).flatten(1).all(1).sum())
    assert 0 < still < 30, "1 in 10 stays as it was: turns of 0 or 4, no flip"
    torch.testing.assert_close(moved.flatten(1).sort(1).values, x.flatten(1).sort(1).values)


@pytest.mark.parametrize(
    ("option", "code", "name"),
    [("data.matrx=64", "unknown-key", "'matrix'"), ("loss=focal", "unknown-loss", "'focal'")],
)
def test_bad_options_are_named(option: str, code: str, name: str) -> None:
    with raises(code, naming=name):
        build_task(small_job("fedavg", option))
