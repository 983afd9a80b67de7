"""What sites tell of final models: scores of cases in millimetres, intervals, calibration; and what stays there."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_image_site, make_site, small_image_job, small_job
from errors import raises
from monai.metrics import DiceMetric, compute_average_surface_distance, compute_hausdorff_distance, compute_surface_dice
from volumesites import blob_job, make_volume_site

from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.federation.resolve import resolve
from fedshift.federation.server.score_check import check_scores
from fedshift.federation.server.update_check import Rejected
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.federation.tensors import read_weights
from fedshift.runtime.grids import radiological, resize_images, restore
from fedshift.schema.evaluation import QUANTILES, Distribution, Evaluation, OneSided
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Broadcast, Scores
from fedshift.schema.policy import Policy
from fedshift.schema.results import BEST, Results, read_results
from fedshift.tasks.evaluation.by_class import count_one_sided, one_sided
from fedshift.tasks.evaluation.calibration import Calibration
from fedshift.tasks.evaluation.spread import ENOUGH, FEWEST, bootstrap_interval, distribution
from fedshift.tasks.evaluation.surfaces import surface_distances, surface_scores
from fedshift.tasks.kinds import build_task
from fedshift.tasks.segmentation.slices import Slices, volumes


def ball(
    shape: tuple[int, int, int], centre: tuple[float, ...], radius: float, spacing: tuple[float, ...]
) -> np.ndarray:
    z, y, x = np.ogrid[: shape[0], : shape[1], : shape[2]]
    squares = [((axis - c) * s) ** 2 for axis, c, s in zip((z, y, x), centre, spacing, strict=True)]
    inside: np.ndarray = sum(squares) <= radius**2
    return inside


def finished(job: JobSpec, sites: dict[str, Path], folder: Path, **options: object) -> Results:
    run_in_process(job, sites, folder, device="cpu", **options)  # type: ignore[arg-type]
    return read_results(folder)


def test_distances_are_millimetres_of_an_uneven_grid() -> None:
    spacing = (3.0, 0.5, 0.5)
    reference = ball((20, 80, 80), (10, 40, 40), 15, spacing)
    shifted = np.roll(reference, 1, axis=0)
    hd95, asd = surface_distances(shifted, reference, spacing)
    assert hd95 == pytest.approx(3.0, abs=0.2), "one slice of 3 mm"
    assert 0 < asd < hd95
    sideways = surface_distances(np.roll(reference, 4, axis=2), reference, spacing)
    assert sideways[0] == pytest.approx(2.0, abs=0.2), "four pixels of half a millimetre"
    assert surface_distances(reference, reference, spacing) == (0.0, 0.0)


def test_a_missed_organ_is_as_far_away_as_can_be_and_two_empty_masks_agree() -> None:
    spacing, nothing = (3.0, 1.0, 1.0), np.zeros((10, 40, 30), bool)
    there = ball((10, 40, 30), (5, 20, 15), 9, spacing)
    diagonal = math.sqrt(30**2 + 40**2 + 30**2)
    for found, reference in ((nothing, there), (there, nothing)):
        assert surface_distances(found, reference, spacing) == pytest.approx((diagonal, diagonal))
    assert surface_distances(nothing, nothing, spacing) == (0.0, 0.0)


def test_a_class_that_one_mask_only_has_is_counted_by_who_has_it() -> None:
    numbers = {"left": 1, "right": 2}
    both, left, right = np.array([[[1, 2, 0]]]), np.array([[[1, 0, 0]]]), np.array([[[0, 2, 0]]])
    cases = [one_sided(*pair, numbers) for pair in ((both, both), (left, both), (both, left), (right, left))]
    assert cases == [{}, {"right": "missed"}, {"right": "invented"}, {"left": "missed", "right": "invented"}]
    assert count_one_sided(cases) == {"right": OneSided(missed=1, invented=2), "left": OneSided(missed=1, invented=0)}


@pytest.mark.parametrize(("rows", "columns", "matrix"), [(128, 128, 96), (100, 60, 32), (60, 101, 96), (48, 48, 96)])
def test_what_the_network_sees_comes_back_to_the_scans_own_grid(rows: int, columns: int, matrix: int) -> None:
    spacing = (1.0, 1.0, 1.0)
    mask = ball((3, rows, columns), (1, rows * 0.55, columns * 0.45), min(rows, columns) * 0.3, spacing)
    seen = resize_images((mask * 255).astype(np.uint8), matrix) / 255
    back = restore(seen, rows, columns) > 0.5
    overlap = 2 * (back & mask).sum() / (back.sum() + mask.sum())
    assert overlap > 0.97
    for found, true in zip(np.argwhere(back).mean(0), np.argwhere(mask).mean(0), strict=True):
        assert found == pytest.approx(true, abs=0.3), "moved"


def test_volumes_are_given_out_when_their_last_slice_is_there() -> None:
    case_of = np.array([0, 0, 0, 1, 1, 2])
    index = [np.array([4, 0]), np.array([2, 5, 3])]
    batches = iter([torch.tensor([4.0, 0.0]), torch.tensor([2.0, 5.0, 3.0])])
    told = list(volumes(batches, iter(index), case_of, {0: 2, 1: 2, 2: 1}))
    assert [(case, slices.tolist(), values.tolist()) for case, slices, values in told] == [
        (0, [0, 2], [0.0, 2.0]),
        (2, [5], [5.0]),
        (1, [3, 4], [3.0, 4.0]),
    ]


def test_the_interval_holds_the_mean_and_shrinks_with_more_cases() -> None:
    rng = np.random.default_rng(1)
    few, many = rng.normal(0.8, 0.1, 12), rng.normal(0.8, 0.1, 1200)
    narrow, wide = bootstrap_interval(many, seed=0), bootstrap_interval(few, seed=0)
    assert narrow is not None and wide is not None
    assert wide[0] < few.mean() < wide[1] and narrow[1] - narrow[0] < (wide[1] - wide[0]) / 3
    half = 1.96 * many.std() / math.sqrt(len(many))
    assert narrow == pytest.approx((many.mean() - half, many.mean() + half), abs=half / 5)
    assert bootstrap_interval(few[: ENOUGH - 1], seed=0) is None
    assert bootstrap_interval(few, seed=0) == wide


def test_the_interval_draws_subjects_with_all_their_scans() -> None:
    rng = np.random.default_rng(1)
    of_subject = rng.normal(0.8, 0.1, 12)
    scans, whose = np.repeat(of_subject, 9), [f"sub-{number}" for number in range(12) for _ in range(9)]
    told = distribution(scans, subjects=whose, seed=0, share_cases=True)
    assert told.interval == pytest.approx(bootstrap_interval(of_subject, seed=0)), "copies add nothing"
    assert told.n == 108
    alone = [str(number) for number in range(12)]
    assert bootstrap_interval(of_subject, seed=0, subjects=alone) == bootstrap_interval(of_subject, seed=0)
    assert bootstrap_interval(scans[:36], seed=0, subjects=whose[:36]) is None, "of 4 subjects"


def test_few_cases_are_not_told_by_way_of_their_spread() -> None:
    scores = np.linspace(0.5, 0.9, FEWEST - 1)
    kept = distribution(scores, seed=0, share_cases=False)
    assert kept == Distribution(n=FEWEST - 1, mean=float(scores.mean()))
    enough = distribution(np.linspace(0.5, 0.9, FEWEST), seed=0, share_cases=False)
    assert enough.interval is not None and enough.quantiles is not None and enough.cases is None
    assert distribution(scores, seed=0, share_cases=True).cases == scores.tolist()


@pytest.mark.parametrize("n", [FEWEST, 11, 21, 41])
def test_no_quantile_is_a_single_cases_score(n: int) -> None:
    scores = np.random.default_rng(n).uniform(size=n)
    kept = distribution(scores, seed=0, share_cases=False)
    assert kept.quantiles is not None and not set(kept.quantiles) & set(scores.tolist())
    assert kept.quantiles == pytest.approx(np.quantile(scores, QUANTILES), abs=0.15)


def test_calibration_does_not_tell_how_sure_the_model_was_of_a_single_picture() -> None:
    sure, right = np.array([0.55, 0.69, 0.8, *[0.93] * FEWEST]), np.array([True, False, True, *[True] * FEWEST])
    filled = Calibration()
    filled.add(sure, right)
    told = filled.record(fewest=FEWEST)
    assert told is not None
    shown = [mean for mean, n in zip(told.confidence, told.counts, strict=True) if n]
    assert shown == pytest.approx([8.5 / 15, 10.5 / 15, 11.5 / 15, 0.93])
    gaps = [abs(hit - n * c) for hit, n, c in zip(told.right, told.counts, told.confidence, strict=True)]
    assert told.ece == pytest.approx(sum(gaps) / len(sure)), "of what is shown, or it would give away the rest"


def test_few_pictures_are_not_told_by_way_of_the_confusion_matrix(tmp_path: Path) -> None:
    data = make_image_site(tmp_path, "A", images=18)
    task = build_task(small_image_job("fedavg"))
    pictures = task.open(data, "A")
    assert pictures.count("test") < FEWEST
    batches = [torch.full((len(index), 3), 1 / 3) for index in pictures.eval_index("test")]
    hidden, shown = (
        task.evaluate(iter(batches), pictures, "test", seed=0, share_cases=share) for share in (False, True)
    )
    assert hidden.confusion is None and hidden.calibration is None and hidden.distributions["accuracy"].cases is None
    assert shown.confusion is not None and shown.calibration is not None


@pytest.mark.parametrize("dims", [2, 3])
def test_few_volumes_are_not_told_by_way_of_the_calibration(dims: int, tmp_path: Path) -> None:
    """Its bins would add up to a single volume's size and wrong voxels."""
    make, job = (make_site, small_job("fedavg")) if dims == 2 else (make_volume_site, blob_job(tmp_path))
    site = job.task.sites[0]
    task = build_task(job)
    for cases in (FEWEST - 1, FEWEST):
        data = task.open(make(tmp_path / str(cases), site, cases=cases), site)
        shapes = [data.labels(index).shape for index in data.eval_index("all")]
        batches = [torch.full((n, len(job.task.classes), *sides), 0.5) for n, *sides in shapes]
        kept, told = (task.evaluate(iter(batches), data, "all", seed=0, share_cases=share) for share in (False, True))
        assert told.calibration is not None and (kept.calibration is None) == (cases < FEWEST)


def test_a_model_that_gives_no_numbers_is_scored_all_the_same(
    three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    job = small_image_job("fedavg")
    site = Site(job, "A", three_image_sites["A"], SiteOptions(tmp_path / "state", device="cpu"))
    site.statistics()
    weights = {name: np.full_like(value, np.nan) for name, value in read_weights(site.network).items()}
    with site.loaded(Broadcast(3, 0, weights)) as model:
        told = model.evaluate("test")
    assert 0 <= told.scores["accuracy"] <= 1 and told.calibration is not None


def test_a_site_without_its_masks_is_refused_before_training_and_not_after(
    three_sites: dict[str, Path], tmp_path: Path
) -> None:
    lost = three_sites["HK"] / "volumes" / "Case01_mask.nii.gz"
    lost.unlink()
    with raises("mask-missing", naming=("volumes", "Case01")):
        Site(small_job("fedavg"), "HK", three_sites["HK"], SiteOptions(tmp_path / "s", device="cpu"))


def test_distances_are_those_of_monais_metrics() -> None:
    spacing = [3.0, 0.8, 0.6]
    rng = np.random.default_rng(0)
    balls = [ball((12, 40, 50), rng.uniform((5, 18, 22), (7, 22, 28)), 9, tuple(spacing)) for _ in range(2)]
    at_the_border = [mask[6:, 15:25] for mask in balls]
    scattered = [rng.uniform(size=(4, 9, 7)) < density for density in (0.1, 0.7)]
    for a, b in (balls, at_the_border, scattered):
        p, r = (torch.from_numpy(mask)[None, None] for mask in (a, b))
        hd95 = compute_hausdorff_distance(p, r, include_background=True, percentile=95, spacing=spacing)
        asd = compute_average_surface_distance(p, r, include_background=True, symmetric=True, spacing=spacing)
        within = compute_surface_dice(p, r, [1.0], include_background=True, spacing=spacing)
        told = surface_scores(a, b, spacing, tolerance=1.0)
        assert told == pytest.approx((float(hd95), float(asd), float(within)), rel=1e-5)


@pytest.mark.parametrize("step", [0.3, 0.4, 0.5, 0.6, 0.625, 0.7, 0.8, 0.9, 1.1, 1.2, 1.5, 1.6, 2.2, 3.3])
@pytest.mark.parametrize("voxels", [1, 2, 3, 5, 10])
def test_a_distance_of_just_the_tolerance_is_within_it_as_in_monai(step: float, voxels: int) -> None:
    spacing, tolerance = [3.0, step, step], round(step * voxels, 6)
    one = np.zeros((8, 30, 30), bool)
    one[2:6, 5:15, 5:15] = True
    other = np.roll(one, voxels, axis=2)
    a, b = (torch.from_numpy(mask)[None, None] for mask in (one, other))
    within = compute_surface_dice(a, b, [tolerance], include_background=True, spacing=spacing)
    assert surface_scores(one, other, spacing, tolerance=tolerance)[2] == pytest.approx(float(within), rel=1e-6)


def test_a_calibrated_model_has_no_error_and_a_boaster_has_its_excess() -> None:
    rng = np.random.default_rng(0)
    sure = rng.uniform(0.5, 1, 60_000)
    honest, boaster = Calibration(), Calibration()
    honest.add(sure, rng.uniform(size=len(sure)) < sure)
    boaster.add(np.full(1000, 0.9), np.arange(1000) < 600)
    told, excess = honest.record(), boaster.record()
    assert told is not None and told.ece < 0.01 and sum(told.counts) == len(sure)
    assert excess is not None and excess.ece == pytest.approx(0.3)
    assert Calibration().record() is None


def test_a_segmentation_is_told_case_by_case_as_monai_scores_it(tmp_path: Path) -> None:
    data = make_site(tmp_path, "BIDMC", cases=6, depth=8)
    job = small_job("fedavg", sites=("BIDMC",))
    task = build_task(job)
    slices = task.open(data, "BIDMC")
    assert isinstance(slices, Slices)
    noise = torch.rand(slices.count("all"), 2, 32, 32, generator=torch.Generator().manual_seed(0)).softmax(1)
    batches = [noise[index] for index in slices.eval_index("all")]
    told = task.evaluate(iter(batches), slices, "all", seed=0, share_cases=True)
    one_hot = lambda mask: torch.nn.functional.one_hot(mask.long(), 2).movedim(-1, 0)  # noqa: E731
    predicted = (noise[:, 1] > 0.5).reshape(6, 8, 32, 32)
    reference = torch.stack([torch.from_numpy(slices.reference(number)) for number in range(6)])
    expected = DiceMetric(include_background=False)(
        torch.stack([one_hot(p) for p in predicted]), torch.stack([one_hot(r) for r in reference])
    )
    spread = told.distributions["dice"]
    assert spread.cases == pytest.approx(expected[:, 0].tolist(), rel=1e-6)
    assert told.scores["dice"] == spread.mean
    quick = task.scores(iter([batch.argmax(1) for batch in batches]), slices, "all")
    assert told.scores["dice"] == pytest.approx(quick["dice"]), "the scan's grid is the network's here"
    assert told.scores["dice_papers"] == pytest.approx(quick["dice_papers"])
    assert told.distributions["hd95"].n == 6 and told.scores["hd95"] > 0 and told.empty == 0
    assert told.one_sided == {}


def test_a_perfect_and_an_empty_segmentation(tmp_path: Path) -> None:
    data = make_site(tmp_path, "BIDMC", cases=5, depth=8)
    task = build_task(small_job("fedavg", sites=("BIDMC",)))
    slices = task.open(data, "BIDMC")
    labels = slices.labels(slices.members("all"))
    right = torch.nn.functional.one_hot(labels, 2).movedim(-1, 1).float()
    split = lambda values: (values[index] for index in slices.eval_index("all"))  # noqa: E731
    best = task.evaluate(split(right), slices, "all", seed=0, share_cases=True)
    assert best.scores == pytest.approx({"dice": 1, "hd95": 0, "asd": 0, "dice_papers": 1}, abs=1e-5)
    assert best.calibration is not None and best.calibration.ece == 0
    nothing = torch.zeros_like(right)
    nothing[:, 0] = 1
    worst = task.evaluate(split(nothing), slices, "all", seed=0, share_cases=True)
    assert worst.empty == 5 and worst.scores["dice"] == 0
    assert worst.one_sided == {"prostate": OneSided(missed=5)} and best.one_sided == {}
    assert worst.scores["hd95"] == pytest.approx(math.sqrt(24**2 + 32**2 + 32**2))


def test_a_split_of_single_slices_has_no_distances(tmp_path: Path) -> None:
    data = make_site(tmp_path, "BIDMC", cases=6, depth=30)
    job = small_job("fedavg", "data.split=slice-legacy", sites=("BIDMC",))
    task = build_task(job)
    slices = task.open(data, "BIDMC")
    halves = torch.full((slices.count("test"), 2, 32, 32), 0.5)
    told = task.evaluate(
        (halves[: len(i)] for i in slices.eval_index("test")), slices, "test", seed=0, share_cases=True
    )
    assert set(told.scores) == {"dice", "dice_papers"}, "slices of a volume, not the volume"


def test_a_run_tells_of_its_final_models_what_its_predictions_say(three_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_job("fedfa+fedrdn")
    results = finished(job, three_sites, tmp_path / "run")
    assert results.final is not None
    best = results.final.best
    content = read_model_file(tmp_path / "run" / BEST)
    model = Broadcast(
        round=best.round + 1,
        best_round=0,
        weights={key: value.numpy() for key, value in content["weights"].items()},
        arrays={
            name: {key: value.numpy() for key, value in named.items()} for name, named in content["methods"].items()
        },
    )
    for name, folder in three_sites.items():
        site = Site(job, name, folder, SiteOptions(tmp_path / "run" / "site_state", device="cpu"))
        with site.loaded(model) as loaded:
            again = loaded.evaluate("test")
        assert again == best.evaluations[name]["test"]
        assert best.sites[name]["test"] == again.scores
        batches = list(site.predictions(model, "test"))
        assert sum(map(len, batches)) == results.data[name].n["test"]
        torch.testing.assert_close(torch.cat(batches).sum(1), torch.ones(8, 32, 32))


def test_pictures_are_told_with_confusion_and_interval(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    results = finished(small_image_job("fedavg"), three_image_sites, tmp_path / "run")
    assert results.final is not None
    for site, by_part in results.final.last.evaluations.items():
        told = by_part["test"]
        assert told.confusion is not None and told.calibration is not None
        confusion = np.array(told.confusion)
        assert confusion.sum() == results.data[site].n["test"] == told.distributions["accuracy"].n
        assert told.scores["accuracy"] == confusion.trace() / confusion.sum()
        assert told.scores["macro_accuracy"] == pytest.approx((confusion.diagonal() / confusion.sum(1)).mean())


def test_the_gradient_norm_is_that_of_the_mean_loss(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_image_job("fedavg", "evaluation.gradient_norm=true", "optimizer.lr=0.05")
    results = finished(job, three_image_sites, tmp_path / "run")
    assert results.final is not None
    told = results.final.last.evaluations["B"]["val"].gradient_norm
    task = build_task(job)
    data = task.open(three_image_sites["B"], "B")
    net = task.network().eval()
    net.load_state_dict(read_model_file(tmp_path / "run" / "last_global_model.pt")["weights"])
    members = data.members("val")
    task.loss(net(data.images(members)), data.labels(members)).backward()
    length = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None]).double().norm()
    assert told == pytest.approx(float(length), rel=1e-5)
    assert results.final.last.evaluations["B"]["test"].gradient_norm is None
    plain = small_image_job("fedavg")
    assert "evaluation" not in plain.dump(), "jobs that do not ask stay as they were"
    with pytest.raises(Exception, match="gradient_norm"):
        resolve("prostate", "fedavg", options=["evaluation.gradient_norms=true"])


def test_single_scores_stay_unless_the_policy_lets_them_out(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    rules = {"A": Policy(), "B": Policy(case_scores=True)}
    results = finished(small_image_job("fedavg"), three_image_sites, tmp_path / "run", privacy=rules)
    assert results.final is not None
    cases = {
        site: told["test"].distributions["accuracy"].cases for site, told in results.final.best.evaluations.items()
    }
    assert cases["A"] is None
    assert cases["B"] is not None and len(cases["B"]) == results.data["B"].n["test"]
    text = json.dumps(results.model_dump(mode="json")["final"]["best"]["evaluations"]["A"])
    assert '"cases": null' in text


GOOD = Evaluation(
    scores={"accuracy": 0.5},
    distributions={"accuracy": Distribution(n=4, mean=0.5, cases=[0, 1, 0, 1])},
    confusion=[[1, 1], [1, 1]],
)


@pytest.mark.parametrize(
    ("split", "told", "said"),
    [
        ("test", GOOD.model_copy(update={"scores": {"accuracy": 0.6}}), "differ from the scores"),
        (
            "test",
            GOOD.model_copy(update={"distributions": {"ids": GOOD.distributions["accuracy"]}}),
            "ids: is not expected",
        ),
        ("test", GOOD.model_copy(update={"distributions": {"accuracy": Distribution(n=5, mean=0.5)}}), "has 5 cases"),
        ("test", GOOD.model_copy(update={"distributions": {"accuracy": Distribution(n=4, mean=0.4)}}), "another mean"),
        (
            "test",
            GOOD.model_copy(update={"distributions": {"accuracy": Distribution(n=2, mean=0.5, cases=[-1, 2])}}),
            "allowed is 0 to 1",
        ),
        ("test", GOOD.model_copy(update={"confusion": [[9]]}), "1 classes"),
        ("test", GOOD.model_copy(update={"confusion": [[2, 0], [0, 2]]}), "another accuracy"),
        ("test", GOOD.model_copy(update={"empty": 9}), "empty: is 9"),
        ("test", GOOD.model_copy(update={"gradient_norm": 1.0}), "does not ask for it"),
        ("val", GOOD, "details of validation cases"),
        ("train", GOOD, "not a split"),
    ],
)
def test_the_guard_refuses_evaluations_that_do_not_fit(split: str, told: Evaluation, said: str) -> None:
    job = small_image_job("fedavg")
    task = build_task(job)
    job = job.model_copy(update={"task": job.task.model_copy(update={"classes": ("disc", "square")})})

    def check(values: dict[str, dict[str, float]], evaluations: dict[str, Evaluation]) -> None:
        scores = Scores("A", 3, values, evaluations=evaluations)
        check_scores(scores, job=job, task=task, round_=3, counts={"test": 4})

    check({"test": {"accuracy": 0.5}}, {"test": GOOD})
    with pytest.raises(Rejected, match=said):
        check({"val" if split == "val" else "test": {"accuracy": 0.5}}, {split: told})


@pytest.mark.parametrize(
    "broken",
    [
        {"n": 2, "mean": 0.5, "cases": [0.5]},
        {"n": 2, "mean": 0.9, "cases": [0.5, 0.5]},
        {"n": 2, "mean": float("nan")},
        {"n": 2, "mean": 0.5, "interval": (0.9, 0.1)},
        {"n": 0, "mean": 0.5},
        {"n": 2, "mean": 0.5, "ids": ["Case01"]},
    ],
)
def test_a_spread_that_contradicts_itself_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        Distribution.model_validate(broken)


def test_masks_are_read_as_the_arrays_are_seen(tmp_path: Path) -> None:
    data = make_site(tmp_path, "BIDMC", cases=3, depth=8)
    slices = build_task(small_job("fedavg", sites=("BIDMC",))).open(data, "BIDMC")
    assert isinstance(slices, Slices)
    np.testing.assert_array_equal(slices.reference(1), slices.labels(np.arange(8, 16)).numpy() > 0)
    assert radiological(np.arange(8).reshape(2, 2, 2))[0].tolist() == [[3, 2], [1, 0]]
