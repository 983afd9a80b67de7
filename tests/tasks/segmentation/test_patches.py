"""Patches: where they are cut, what depends on what, and how cases are scored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import train_batches
from errors import raises
from volumesites import CLASSES, make_volume_site

from fedshift.data.draws import sample_seeds
from fedshift.data.resampled import ResampledVolumes
from fedshift.data.samples import Union
from fedshift.runtime.segmentation import network_images
from fedshift.schema.evaluation import OneSided
from fedshift.schema.job import JobSpec
from fedshift.schema.seeding import generator
from fedshift.tasks.base import Everything, Task
from fedshift.tasks.kinds import build_task
from fedshift.tasks.segmentation.patches import Patches, cut


def job(data: dict[str, object], **evaluation: object) -> JobSpec:
    return JobSpec.parse(
        {
            "schema": 1,
            "name": "blobs",
            "task": {
                "name": "blobs",
                "kind": "segmentation",
                "dataset": "blobs",
                "sites": ["A"],
                "classes": CLASSES,
                "data": data,
                "network": {"name": "unet", "options": {"features": 2}},
                "loss": "ce_dice",
                "optimizer": {"name": "sgd", "lr": 0.01},
                "schedule": {"rounds": 1, "batch_size": 2},
            },
            "methods": {},
            "federation": {"min_sites": 1},
            "evaluation": evaluation,
        },
        where="test",
    )


def task(data: dict[str, object], **evaluation: object) -> Task:
    return build_task(job(data, **evaluation))


IN_3D = {"patch": [8, 16, 16], "samples_per_case": 3}
IN_2D = {"dims": 2, "patch": [16, 12], "context": 3, "samples_per_case": 3}
SCANNER: dict[str, object] = {"patch": [16, 16, 16], "augmentation": "scanner"}


@pytest.mark.parametrize(
    "data", [IN_3D, IN_2D, {**IN_3D, "augmentation": "strong"}, {**IN_2D, "augmentation": "light"}]
)
def test_a_patch_depends_on_its_seeds_alone(tmp_path: Path, data: dict[str, object]) -> None:
    opened = task(data).open(make_volume_site(tmp_path, "A", cases=5), "A")

    def epoch() -> list[tuple[torch.Tensor, torch.Tensor]]:
        order = generator(0, "A", 1, "order")
        return list(train_batches(opened, batch_size=3, order=order, drop_last=False))

    first, again = epoch(), epoch()
    assert sum(len(x) for x, _ in first) == opened.n_train == 9
    for (x, y), (same_x, same_y) in zip(first, again, strict=True):
        assert torch.equal(x, same_x) and torch.equal(y, same_y) and y.dtype == torch.int64
        assert x.shape[2:] == y.shape[1:] == tuple(data["patch"])  # type: ignore[arg-type]
    pooled = Union([opened])
    batch = next(train_batches(pooled, batch_size=3, order=generator(0, "A", 1, "order")))
    assert torch.equal(batch[0], first[0][0]), "as one of the sites that are pooled"


def test_patches_for_statistics_are_the_same_every_time_and_have_no_place_in_common_with_the_order(
    tmp_path: Path,
) -> None:
    opened = task(IN_3D).open(make_volume_site(tmp_path, "A"), "A")
    x = torch.cat([x for x, _ in opened.chunks()])
    one, _ = opened.train_samples(np.array([4]))
    assert torch.equal(x[4], one[0]) and len(x) == opened.n_train
    every = Everything(opened)
    assert every.n_train == 12 and every.train_samples(np.arange(12))[0].shape == (12, 1, 8, 16, 16)


WIDE_3D = {"patch": [8, 16, 16], "normalise": "none", "foreground": 1.0}
WIDE_2D = {"dims": 2, "patch": [16, 12], "context": 3, "normalise": "none", "foreground": 1.0}


@pytest.mark.parametrize("data", [WIDE_3D, WIDE_2D, {**WIDE_3D, "patch": [16, 24, 32]}])
def test_images_for_statistics_are_the_windows_of_inference(tmp_path: Path, data: dict[str, object]) -> None:
    """So a site that trained and one that has scans alone (``predict --statistics own``) measure the same."""
    made = task(data)
    opened = made.open(make_volume_site(tmp_path, "A", cases=5), "A")
    windows, cases = torch.cat(list(opened.images_alone())), opened.window_cases("train")
    assert opened.n_images == len(windows) == len(cases) and set(cases) == set(opened.members("train"))
    for case in opened.members("train").tolist():
        volume = np.array(opened.volumes.images(case))
        seen = torch.cat(network_images(volume, opened.manifest.cases[case].spacing, made.spec))
        torch.testing.assert_close(windows[cases == case], seen, rtol=0, atol=0)
    shuffled = torch.cat(list(opened.images_alone(torch.Generator().manual_seed(3))))
    assert not torch.equal(shuffled, windows)
    assert torch.equal(shuffled.flatten(1).sum(1).sort()[0], windows.flatten(1).sum(1).sort()[0])


def test_labels_decide_nothing_of_images_for_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the score of a site that only evaluates would depend on its masks, by way of FedRDN's normalisation."""
    opened = task(WIDE_3D).open(make_volume_site(tmp_path, "A"), "A")
    before, drawn = torch.cat(list(opened.images_alone())), torch.cat([x for x, _ in opened.chunks()])
    every = torch.cat(list(Everything(opened).images_alone()))
    without = lambda _, cases, __: (np.zeros((len(cases), 3), int), cases < 0)  # noqa: E731
    monkeypatch.setattr(ResampledVolumes, "foreground", without)
    assert torch.equal(torch.cat(list(opened.images_alone())), before)
    assert torch.equal(torch.cat(list(Everything(opened).images_alone())), every) and len(every) > len(before)
    assert not torch.equal(torch.cat([x for x, _ in opened.chunks()]), drawn)


def test_a_guaranteed_share_of_a_batch_is_centred_on_the_foreground(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[np.ndarray | None] = []
    starts = Patches._starts
    monkeypatch.setattr(Patches, "_starts", lambda self, c, s, last: (seen.append(last), starts(self, c, s, last))[1])
    folder = make_volume_site(tmp_path, "A", shape=(16, 40, 40))
    for size, share, centred in ((2, 0.33, 1), (9, 0.33, 3), (6, 1.0, 6), (3, 0.0, 0)):
        opened = task(
            {"patch": [5, 7, 7], "foreground": share, "foreground_guaranteed": True, "samples_per_case": 30}
        ).open(folder, "A")
        opened.train_batch(np.arange(size), seeds=torch.arange(size))
        last = seen.pop()
        assert last is not None and last.sum() == centred and last[size - centred :].all()


def test_with_foreground_1_the_patch_has_a_voxel_of_a_class_in_its_middle(tmp_path: Path) -> None:
    folder = make_volume_site(tmp_path, "A", shape=(16, 40, 40))
    opened = task({"patch": [5, 7, 7], "foreground": 1, "samples_per_case": 30}).open(folder, "A")
    _, y = opened.train_samples(np.arange(60))
    middle = y[:, 2, 3, 3]
    assert (middle > 0).all() and 15 < (middle == 1).sum() < 45, "each class equally often"


def test_a_volume_smaller_than_the_patch_is_padded_around(tmp_path: Path) -> None:
    opened = task({"patch": [16, 24, 32], "samples_per_case": 1}).open(make_volume_site(tmp_path, "A"), "A")
    x, y = opened.train_samples(np.array([0]))
    case = int(opened.members("train")[0])
    inside = (slice(2, 14), slice(2, 22), slice(4, 28))
    np.testing.assert_array_equal(y[0][inside], opened.labels(np.array([case]))[0])
    torch.testing.assert_close(x[0, 0][inside], opened.images(np.array([case]))[0, 0])
    assert x[0, 0, :2].abs().sum() == 0 and y.sum() == y[0][inside].sum()


def test_slices_of_2d_have_their_neighbours_and_the_same_place_in_image_and_label(tmp_path: Path) -> None:
    folder = make_volume_site(tmp_path, "A", sequences=("T2", "ADC"))
    data = {**IN_2D, "sequences": ["T2", "ADC"], "patch": [20, 24]}
    opened = task(data).open(folder, "A")
    whole = opened.images(np.array([1]))
    assert whole.shape == (12, 6, 20, 24)
    torch.testing.assert_close(whole[4, 1], whole[5, 0])
    torch.testing.assert_close(whole[0, 3], whole[0, 4])
    x, y = opened.train_samples(np.arange(6))
    for case, image, label in zip(opened.cases("train"), x, y, strict=True):
        index = np.array([case])
        at = next(z for z, one in enumerate(opened.images(index)) if torch.equal(one, image))
        assert torch.equal(opened.labels(index)[at], label)


def test_augmentation_begins_from_the_patch_that_is_there_without_it(tmp_path: Path) -> None:
    folder = make_volume_site(tmp_path, "A", shape=(16, 40, 40))
    plain, mirrored = (
        task({**IN_3D, "augmentation": spec}).open(folder, "A")
        for spec in ("none", [{"name": "monai.RandFlip", "options": {"prob": 1, "spatial_axis": [0, 1]}}])
    )
    (x, y), (flipped_x, flipped_y) = (
        one.train_batch(np.arange(6), seeds=sample_seeds(0, torch.arange(6))) for one in (plain, mirrored)
    )
    assert torch.equal(flipped_x, x.flip((2, 3))) and torch.equal(flipped_y, y.flip((1, 2)))
    strong = task({**IN_3D, "augmentation": "strong"}).open(folder, "A")
    changed, _ = strong.train_batch(np.arange(6), seeds=sample_seeds(0, torch.arange(6)))
    assert changed.shape == x.shape and not torch.equal(changed, x)


def test_cut_fills_with_0() -> None:
    volume = np.arange(1, 25).reshape(2, 3, 4)
    np.testing.assert_array_equal(cut(volume, (0, 1, 1), (2, 2, 2)), volume[:, 1:, 1:3])
    part = cut(volume, (-1, 2, 3), (3, 2, 2))
    assert part.shape == (3, 2, 2) and part[0].sum() == 0 and part[1, 0, 0] == volume[0, 2, 3] and part.sum() == 36


@pytest.mark.parametrize("data", [IN_3D, IN_2D])
def test_a_perfect_network_scores_perfectly_on_the_scans_own_grid(tmp_path: Path, data: dict[str, object]) -> None:
    folder = make_volume_site(tmp_path, "A", shape=(14, 40, 48), cases=5)
    built = task({**data, "spacing": [2.0, 1.0, None]})
    opened = built.open(folder, "A")
    index = [np.array([case]) for case in opened.members("train")]
    perfect = [torch.nn.functional.one_hot(opened.labels(one), 3).movedim(-1, 1).float() for one in index]
    evaluation = built.evaluate(iter(perfect), opened, "train", seed=0, share_cases=True)
    of_others = {name for name in built.metrics if name.startswith("false_positives")}  # than these, which have all
    assert set(evaluation.scores) == set(built.metrics) - of_others == set(evaluation.distributions)
    assert evaluation.scores["dice"] == pytest.approx(1) and evaluation.scores["surface_dice left"] == 1
    assert evaluation.scores["hd95"] == evaluation.scores["volume_difference right"] == evaluation.empty == 0
    assert evaluation.distributions["dice left"].n == 3
    scores = built.scores((p.argmax(1).to(torch.uint8) for p in perfect), opened, "train")
    assert scores == {"dice": 1, "dice left": 1, "dice right": 1}
    nothing = [torch.cat([torch.ones_like(p[:, :1]), torch.zeros_like(p[:, 1:])], 1) for p in perfect]
    empty = built.evaluate(iter(nothing), opened, "train", seed=0, share_cases=True)
    assert empty.scores["dice"] == empty.scores["surface_dice"] == 0 and empty.empty == 3
    assert empty.one_sided == {"left": OneSided(missed=3), "right": OneSided(missed=3)} and evaluation.one_sided == {}


def test_classes_that_a_site_does_not_outline_are_neither_learned_nor_scored(tmp_path: Path) -> None:
    folder = make_volume_site(tmp_path, "A", annotated=("left",))
    built = task(IN_3D)
    opened = built.open(folder, "A")
    there = built.at(opened)
    x, y = opened.train_samples(np.arange(4))
    logits = torch.randn(4, 3, *x.shape[2:], generator=torch.Generator().manual_seed(0))
    swapped = logits[:, [2, 1, 0]]
    assert float(there.loss(logits, y)) == pytest.approx(float(there.loss(swapped, y)), rel=1e-6)
    assert float(built.loss(logits, y)) != pytest.approx(float(built.loss(swapped, y)), rel=1e-3)
    case = opened.members("test")
    perfect = torch.nn.functional.one_hot(opened.labels(case), 3).movedim(-1, 1).float()
    also_right = perfect[:, [2, 1, 0]]
    for probability in (perfect, also_right):
        scores = built.evaluate(iter([probability]), opened, "test", seed=0, share_cases=True).scores
        assert scores["dice"] == scores["dice left"] == 1 and "dice right" not in scores
    none = make_volume_site(tmp_path / "none", "A", annotated=())
    with raises("no-outlines", naming="site A"):
        built.at(built.open(none, "A"))


@pytest.mark.parametrize(
    ("data", "code", "names"),
    [
        ({"patch": [16, 16]}, "invalid-value", "'patch'"),
        ({"patch": [16, 16, 16], "context": 3}, "invalid-value", "'context'"),
        ({"patch": [16, 16], "dims": 2, "context": 2}, "invalid-value", "context"),
        ({"patch": [16, 16, 16], "normalise": "fixed"}, "invalid-value", "'fixed'"),
        ({"patch": [16, 16, 16], "spacing": [1, 1]}, "invalid-value", "spacing"),
        ({"patch": [16, 16, 16], "mirror": [0, 3]}, "invalid-value", "'mirror'"),
        ({"patch": [16, 16, 16], "mirror": [0, 1, 0]}, "invalid-value", "twice"),
        ({"patch": [16, 16, 16], "augmentation": "stong"}, "unknown-transform", "'strong'"),
        ({**SCANNER, "augmentation_without": ["gost"]}, "unknown-option", "'ghost'"),
        ({**SCANNER, "augmentation_only": ["gost"]}, "unknown-option", "'ghost'"),
    ],
)
def test_mistakes_are_named(data: dict[str, object], code: str, names: str) -> None:
    with raises(code, naming=names):
        task(data)


def test_mirror_images_along_no_axis_are_refused() -> None:
    data: dict[str, object] = {"patch": [16, 16, 16], "mirror": []}
    assert build_task(job(data)).metric == "dice", "training may do without"
    with raises("options-clash", naming=("evaluation.mirror", "data.mirror")):
        build_task(job(data, mirror=True))


def test_options_of_patches_are_refused_with_slices() -> None:
    two = job({"matrix": 32}, mirror=True)
    two = two.model_copy(update={"task": two.task.model_copy(update={"classes": CLASSES[:2]})})
    with raises("options-clash", naming="evaluation.mirror=false"):
        build_task(two)


@pytest.mark.parametrize("cache", ["host", "device"])
@pytest.mark.parametrize(
    "data",
    [
        {**IN_3D, "augmentation": "strong"},
        {**IN_2D, "augmentation": "scanner"},
        {**IN_3D, "patch": [24, 16, 48], "sequences": ["T2", "ADC"]},  # larger than the volumes
        {**IN_2D, "augmentation": "strong", "sequences": ["ADC", "T2"]},
        {**IN_2D, "patch": [48, 48], "context": 5},
    ],
)
def test_batches_have_the_same_bits_wherever_the_volumes_lie(
    tmp_path: Path, data: dict[str, object], cache: str
) -> None:
    sequences = {"sequences": ("T2", "ADC")} if "sequences" in data else {}
    folder = make_volume_site(tmp_path, "A", cases=5, shape=(7, 32, 40), **sequences)
    on_disk, held = (task({**data, "cache": where}).open(folder, "A") for where in ("disk", cache))
    held.hold(torch.device("cpu"))
    if cache == "host":
        assert held.arrays[0].flags.owndata and not on_disk.arrays[0].flags.owndata
    for index in (np.arange(9), np.array([4, 4, 0])):
        seeds = sample_seeds(1, torch.from_numpy(index))
        (x, y), (same_x, same_y) = (opened.train_batch(index, seeds=seeds) for opened in (on_disk, held))
        assert torch.equal(x, same_x) and torch.equal(y, same_y) and y.dtype == same_y.dtype == torch.int64
