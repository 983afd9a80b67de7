"""A model is adapted if the evidence says so, and only what was to change has changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
import torch
from conftest import small_job
from errors import raises

from fedshift.inference.adaptation import fine_tuning, unlabelled
from fedshift.inference.adaptation.decision import with_masks, without_masks
from fedshift.inference.adaptation.parts import keys_of
from fedshift.inference.model import open_model
from fedshift.inference.ready import Choice, ReadyModel, make_ready
from fedshift.inference.sequences import find_cases
from fedshift.methods.shared.norms import norm_keys
from fedshift.schema.adaptation import Part

from ..conftest import Run, save_model
from .conftest import Hospital, keep_slices, mean_dice, opened, write_scans


@pytest.fixture
def one_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """One setting for each part of the network."""
    monkeypatch.setattr(fine_tuning, "STOPS", (20,))
    monkeypatch.setattr(fine_tuning, "RATE", 1.0)


def scans_of(ready: ReadyModel, folder: Path) -> list[torch.Tensor]:
    cases = find_cases(sorted((folder / "images").iterdir()), ready.model.sequences)
    return unlabelled.windows_of(ready.model, cases, true_spacing=False)


def quiet(*_: object) -> None:
    """Instead of printing progress."""


@pytest.mark.slow
@pytest.mark.usefixtures("one_training")
def test_fine_tuning_helps_on_shifted_scans_and_patients_not_seen_say_so(hospital: Hospital, tmp_path: Path) -> None:
    shifted = mean_dice(hospital.model, hospital.labelled, tmp_path / "before")
    ready, given = opened(hospital.model, hospital.labelled, tmp_path / "given")
    outcome = with_masks(ready, given, part="norm", progress=quiet)
    record = outcome.adaptation
    assert (record.decision, record.means, record.part, record.labelled) == ("adapted", "fine-tuning", "norm", 4)
    evidence = record.evidence
    assert evidence is not None and evidence.interval is not None
    assert evidence.before == pytest.approx(shifted) and evidence.gain > 0.03 and evidence.interval[0] > 0
    unseen, others = write_scans(tmp_path / "unseen", 3, hospital.curve, first=30), tmp_path / "others"
    _, cases = opened(hospital.model, unseen, others)
    before = mean_dice(hospital.model, unseen, tmp_path / "again")
    assert np.mean(list(cases.dice(ready, set(cases.subjects)).values())) > before + 0.03


@pytest.mark.slow
@pytest.mark.usefixtures("one_training")
def test_masks_of_other_patients_teach_nothing_and_the_model_is_kept(hospital: Hospital, tmp_path: Path) -> None:
    shuffled = tmp_path / "shuffled"
    shutil.copytree(hospital.labelled, shuffled)
    masks = sorted((shuffled / "masks").iterdir())
    read = [sitk.GetArrayFromImage(sitk.ReadImage(str(mask))) for mask in masks]
    for number, mask in enumerate(masks):  # the next patient's, upside down
        image = sitk.ReadImage(str(mask))
        wrong = sitk.GetImageFromArray(np.roll(read[number - 1], (5 * number, -7), (1, 2)))
        wrong.CopyInformation(image)
        sitk.WriteImage(wrong, str(mask))
    ready, given = opened(hospital.model, shuffled, tmp_path / "given")
    outcome = with_masks(ready, given, progress=quiet)
    assert outcome.adaptation.decision == "kept" and outcome.adaptation.reason.startswith("kept: ")
    assert all(np.array_equal(outcome.weights[key], value) for key, value in ready.model.weights.items())
    asked = with_masks(ready, given, part="norm", anyway=True, progress=quiet).adaptation
    assert asked.decision == "asked" and "because it was asked for" in asked.reason


def test_a_single_case_shows_nothing_and_the_model_is_kept(hospital: Hospital, tmp_path: Path) -> None:
    single = write_scans(tmp_path / "single", 1, hospital.curve)
    ready, given = opened(hospital.model, single, tmp_path / "given")
    outcome = with_masks(ready, given, progress=quiet)
    assert (outcome.adaptation.decision, outcome.adaptation.evidence) == ("kept", None)
    assert "a single labelled patient" in outcome.adaptation.reason


def test_others_without_a_slice_to_train_on_are_refused(hospital: Hospital, tmp_path: Path) -> None:
    """The papers' ``train_slices: foreground`` takes no first and no last slice."""
    few = write_scans(tmp_path / "few", 2, hospital.curve)
    keep_slices(few / "masks" / "case01.nii.gz", slice(0, 1))
    foreground = small_job("fedavg", "data.matrix=32", "data.train_slices=foreground")
    model = save_model(tmp_path / "foreground.pt", foreground, open_model(hospital.model).weights)
    with raises("no-images", naming="case00"):
        with_masks(*opened(model, few, tmp_path / "given"), progress=quiet)


@pytest.mark.parametrize("part", ["norm", "decoder", "all"])
def test_only_the_part_changes_and_a_seed_gives_the_same_bytes(part: Part, hospital: Hospital, tmp_path: Path) -> None:
    trained, setting = [], fine_tuning.Setting(part, 0.01, 3)
    for seed in (5, 5, 6):
        ready, given = opened(hospital.model, hospital.labelled, tmp_path / f"given{len(trained)}")
        fine_tuning.fine_tune_on_all(ready, given, setting, seed=seed)
        trained.append({key: value.clone() for key, value in ready.predictor.net.state_dict().items()})
    first, again, other = trained
    start, keys = ready.model.weights, keys_of(ready.model.header.job, part)
    assert all(torch.equal(first[key], again[key]) for key in start)
    assert any(not torch.equal(first[key], other[key]) for key in start)
    changed = {key for key in start if not torch.equal(start[key], first[key])}
    assert changed == keys  # running statistics and counts of batches of the part too


def test_the_parts_are_the_norm_layers_and_what_follows_the_bottleneck(hospital: Hospital) -> None:
    model = open_model(hospital.model)
    net = model.task.network()
    assert keys_of(model.header.job, "norm") == norm_keys(net, "all")
    modules = {key.partition(".")[0] for key in keys_of(model.header.job, "decoder")}
    up = {f"{name}{level}" for name in ("upconv", "decoder") for level in range(1, 5)}
    assert modules == {*up, "conv"}


def test_an_anchor_holds_the_weights_where_they_were(
    hospital: Hospital, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = []
    for number, anchor in enumerate((0.0, 10.0)):
        monkeypatch.setattr(fine_tuning, "ANCHOR", anchor)
        ready, given = opened(hospital.model, hospital.labelled, tmp_path / f"given{number}")
        fine_tuning.fine_tune_on_all(ready, given, fine_tuning.Setting("decoder", 0.01, 8), seed=0)
        state, start = ready.predictor.net.state_dict(), ready.model.weights
        moved.append(sum(float((state[k] - start[k]).square().sum()) for k in start if k.endswith("conv1.weight")))
    assert moved[1] < 0.8 * moved[0]


def test_the_model_goes_half_of_the_way_that_training_went(
    hospital: Hospital, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = []
    for number, share in enumerate((fine_tuning.SHARE, 1.0)):
        monkeypatch.setattr(fine_tuning, "SHARE", share)
        ready, given = opened(hospital.model, hospital.labelled, tmp_path / f"given{number}")
        fine_tuning.fine_tune_on_all(ready, given, fine_tuning.Setting("all", 0.01, 3), seed=0)
        ends.append(ready.predictor.net.state_dict())
    start, (half, whole) = ready.model.weights, ends
    for key, value in start.items():
        wanted = (value + whole[key]) / 2 if value.is_floating_point() else whole[key]
        torch.testing.assert_close(half[key], wanted)


def test_cross_validation_scores_the_model_that_went_part_of_the_way(
    hospital: Hospital, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fine_tuning, "SHARE", 0.0)
    ready, given = opened(hospital.model, hospital.labelled, tmp_path / "given")
    trials = [fine_tuning.Setting("norm", 0.01, steps) for steps in (1, 2)]
    told: list[tuple[str, int, int]] = []
    before, after = fine_tuning.cross_validate(
        ready, given, trials, seed=0, progress=lambda what, done, total: told.append((what, done, total))
    )
    assert [done for _, done, total in told if total == 8] == [0, 1, 2, 2, 3, 4, 4, 5, 6, 6, 7, 8]
    assert told[1][0] == "cross-validation, training 1 of 4" and told[-1][0] == "cross-validation, training 4 of 4"
    np.testing.assert_array_equal(after, [before, before])
    assert all(torch.equal(ready.predictor.net.state_dict()[key], value) for key, value in ready.model.weights.items())


@pytest.mark.slow
def test_statistics_of_the_scans_help_where_outlines_did_not_agree(hospital: Hospital, tmp_path: Path) -> None:
    shifted = mean_dice(hospital.model, hospital.labelled, tmp_path / "before")
    ready = make_ready(open_model(hospital.model), Choice(), device="cpu")
    outcome = without_masks(ready, scans_of(ready, hospital.unlabelled), means=["statistics"], progress=quiet)
    record = outcome.adaptation
    assert (record.decision, record.means, record.unlabelled, record.labelled) == ("adapted", "statistics", 8, 0)
    assert record.evidence is not None and record.evidence.score == "agreement"
    changed = {key for key, value in ready.model.weights.items() if not np.array_equal(outcome.weights[key], value)}
    assert changed and all(key.endswith(("running_mean", "running_var", "num_batches_tracked")) for key in changed)
    _, given = opened(hospital.model, hospital.labelled, tmp_path / "given")
    assert np.mean(list(given.dice(ready, set(given.subjects)).values())) > shifted


@pytest.mark.slow
def test_without_masks_few_scans_or_scans_like_those_of_training_leave_the_model_as_it_is(
    hospital: Hospital, tmp_path: Path
) -> None:
    few = write_scans(tmp_path / "few", 3, hospital.curve)
    same = write_scans(tmp_path / "same", 6)
    for folder, why in ((few, "fewer than 5 scans"), (same, "points")):
        ready = make_ready(open_model(hospital.model), Choice(), device="cpu")
        outcome = without_masks(ready, scans_of(ready, folder), progress=quiet)
        assert outcome.adaptation.decision == "kept" and why in outcome.adaptation.reason
        assert all(np.array_equal(outcome.weights[key], value) for key, value in ready.model.weights.items())


def test_a_model_that_outlines_nothing_agrees_with_nothing(hospital: Hospital) -> None:
    ready = make_ready(open_model(hospital.model), Choice(), device="cpu")
    scans = scans_of(ready, hospital.unlabelled)
    before = unlabelled.judge(ready, scans)
    with torch.no_grad():
        ready.predictor.net.head.bias[:] = torch.tensor([100.0, -100.0])
    empty = unlabelled.judge(ready, scans)
    assert not empty.agreement.any() and before.agreement.all()
    assert "found in 0 of 8 scans" in (unlabelled.implausible(before, empty, ["prostate"]) or "")
    with torch.no_grad():
        ready.predictor.net.head.bias[:] = torch.tensor([-100.0, 100.0])
    full = unlabelled.judge(ready, scans)
    assert full.agreement.all() and "cover 100%" in (unlabelled.implausible(before, full, ["prostate"]) or "")


def test_a_network_without_running_statistics_has_none_to_set(trained: Run) -> None:
    path, _ = trained("fedavg", "network.options.norm=batch_statistics", "network.options.bn_momentum=0.1")
    ready = make_ready(open_model(path), Choice(), device="cpu")
    scans = [torch.rand(2, 3, 32, 32)]
    with raises("no-effect", naming=("cannot be adapted by statistics", "no running statistics")):
        without_masks(ready, scans, means=["statistics"], progress=quiet)
    with raises("no-effect", naming=("cannot be adapted without masks", "give masks")):
        without_masks(ready, scans, progress=quiet)


@pytest.mark.slow
def test_of_many_scans_no_window_is_at_an_end_where_no_structure_is(hospital: Hospital, tmp_path: Path) -> None:
    """As of twenty scans: too few windows of each to hold an end without looking only there."""
    ready = make_ready(open_model(hospital.model), Choice(), device="cpu")
    folder = write_scans(tmp_path, 20)
    cases = find_cases(sorted((folder / "images").iterdir()), ready.model.sequences)
    for case, windows in zip(cases, scans_of(ready, folder), strict=True):
        _, voxels = case.read_stacked()
        slices = unlabelled.network_images(voxels, (1.2, 1.2, 3.0), ready.model.spec)
        each = torch.cat(list(slices))
        places = [next(k for k, image in enumerate(each) if torch.equal(image, window)) for window in windows]
        assert places == [1, 3, 5, 7][: len(windows)] and len(windows) == unlabelled.LEAST_OF_EACH
    assert unlabelled.judge(ready, scans_of(ready, folder)).agreement.mean() > 0.5
