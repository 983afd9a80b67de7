"""Histogram landmarks by federation: the standard, the map to it, and what leaves a site for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import server_context
from errors import raises
from modelfiles import assert_same_weights
from volumesites import blob_job, make_volume_site

from fedshift.data.prepared import read_images
from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.federation.resolve import resolve
from fedshift.federation.site.privacy.ledger import Ledger
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.inference.model import open_model
from fedshift.inference.ready import Choice, make_ready
from fedshift.methods import landmarks
from fedshift.runtime.grids import INNER, SCALE, piecewise_linear, standard_landmarks
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import read_manifest
from fedshift.schema.policy import Policy
from fedshift.schema.results import BEST, LAST
from fedshift_testing.serialised import Federation

STANDARD = np.array([[-2.0, -1.5, -1.2, -0.8, -0.3, 0.1, 0.9, 1.2, 1.9], [-2.3, -2.2, -2, -1, 0, 1, 1.1, 1.2, 2.1]])
SETTINGS = ("data.normalise=landmarks", "data.sequences=[T2, ADC]", "data.context=3")


def whole(standard: np.ndarray) -> np.ndarray:
    return np.array([SCALE[0], *standard, SCALE[-1]])


def job(folder: Path, *options: str, methods: str = "landmarks") -> JobSpec:
    return blob_job(folder, *SETTINGS, *options, methods=methods)


@pytest.fixture
def sites(tmp_path: Path) -> dict[str, Path]:
    both = {"sequences": ("T2", "ADC")}
    return {
        "A": make_volume_site(tmp_path / "data", "A", cases=5, **both),
        "B": make_volume_site(tmp_path / "data", "B", cases=4, gain=3.0, offset=200.0, **both),
    }


# --- the map ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spatial", [(7,), (8, 9), (3, 8, 9)])
def test_both_steps_are_the_papers_map_from_a_volumes_landmarks_to_the_standard(spatial: Sequence[int]) -> None:
    rng = np.random.default_rng(0)
    raw = rng.gamma(2, 100, (2, *spatial))
    own = np.stack([whole(np.sort(rng.uniform(SCALE[0], SCALE[-1], INNER))) * 60 + 200 for _ in range(2)])
    on_scale = np.stack([piecewise_linear(v, knots, np.array(SCALE)) for v, knots in zip(raw, own, strict=True)])
    expected = [piecewise_linear(v, k, whole(s)) for v, k, s in zip(raw, own, STANDARD, strict=True)]
    found = landmarks.to_standard(torch.from_numpy(on_scale)[None], torch.from_numpy(STANDARD))[0]
    np.testing.assert_allclose(found.numpy(), np.stack(expected), rtol=1e-9, atol=1e-9)


def test_with_the_scale_as_standard_nothing_changes_and_a_standards_order_is_kept() -> None:
    x = torch.linspace(-10, 10, 1000).reshape(1, 2, 20, 25)
    same = torch.tensor([SCALE[1:-1]] * 2, dtype=torch.float64)
    assert torch.equal(landmarks.to_standard(x, same), x)
    mapped = landmarks.to_standard(x, torch.from_numpy(STANDARD))
    assert (mapped.flatten(2).diff() >= 0).all() and not torch.equal(mapped, x)
    assert mapped.dtype == x.dtype


def test_neighbouring_slices_are_mapped_as_their_sequence() -> None:
    x = torch.rand((2, 6, 4, 4)) * 4 - 2  # three slices of each of two sequences
    mapped = landmarks.to_standard(x, torch.from_numpy(STANDARD))
    for channel in range(6):
        alone = landmarks.to_standard(x[:, channel : channel + 1], torch.from_numpy(STANDARD[channel // 3][None]))
        torch.testing.assert_close(mapped[:, channel : channel + 1], alone, rtol=0, atol=0)


# --- the standard -------------------------------------------------------------------------------------


@dataclass
class Update:
    n_samples: int
    arrays: dict[str, dict[str, np.ndarray]]


def test_noise_that_swaps_neighbours_does_not_turn_the_order_of_intensities() -> None:
    swapped = STANDARD[:, [1, 0, *range(2, INNER)]]
    server = landmarks.Server(landmarks.Config())
    updates: Any = [Update(3, {"landmarks": {landmarks.SENT: swapped}})]
    server.receive(updates, server_context(round=0))
    np.testing.assert_array_equal(server.broadcast(server_context())[landmarks.STANDARD], STANDARD)


def test_the_standard_is_the_mean_over_all_training_volumes_of_all_sites(
    tmp_path: Path, sites: dict[str, Path]
) -> None:
    """Also by hand, from the files; and every model file has it."""
    run_in_process(job(tmp_path), sites, tmp_path / "run")
    volumes = []
    for site in sites.values():
        manifest = read_manifest(site)
        voxels = [read_images(site, manifest, case) for case in manifest.by_split("train")]
        volumes += [[standard_landmarks(sequence, nonzero=False) for sequence in case] for case in voxels]
    assert len(volumes) == 3 + 2
    for file in (BEST, LAST):
        kept = read_model_file(tmp_path / "run" / file)["methods"]["landmarks"][landmarks.STANDARD]
        np.testing.assert_allclose(kept.numpy(), np.mean(volumes, 0), rtol=1e-12)


# --- a federation -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_serialised_and_interrupted_it_gives_the_same_bits(tmp_path: Path, sites: dict[str, Path]) -> None:
    spec = job(tmp_path, "schedule.rounds=2")
    run_in_process(spec, sites, tmp_path / "run")
    Federation(spec, sites, tmp_path / "serialised").run(interrupted=True)
    for name in (BEST, LAST):
        assert_same_weights(tmp_path / "run" / name, tmp_path / "serialised" / "server" / name)
    plain = blob_job(tmp_path, *SETTINGS, "schedule.rounds=2")
    run_in_process(plain, sites, tmp_path / "plain")
    weights = [read_model_file(tmp_path / name / LAST)["weights"] for name in ("run", "plain")]
    assert any(not torch.equal(value, weights[1][key]) for key, value in weights[0].items())


def test_a_new_hospital_needs_no_statistics_and_its_scanners_gain_changes_no_mask(
    tmp_path: Path, sites: dict[str, Path]
) -> None:
    run_in_process(job(tmp_path), sites, tmp_path / "run")
    ready = make_ready(open_model(tmp_path / "run" / LAST), Choice(), device="cpu")
    manifest = read_manifest(sites["A"])
    voxels = read_images(sites["A"], manifest, manifest.cases[-1])
    masks = [ready.segment(v, (2.0, 1.0, 1.0)) for v in (voxels, 4 * voxels + 1000)]
    assert masks[0].any() and (masks[0] != masks[1]).mean() < 1e-3
    with_site = make_ready(open_model(tmp_path / "run" / LAST), Choice(site="B"), device="cpu")
    assert with_site.used == Choice() and with_site.notes, "a site's statistics change nothing, which is said"


def test_a_held_out_site_without_training_cases_scores_the_model(tmp_path: Path, sites: dict[str, Path]) -> None:
    spec = job(tmp_path, "schedule.rounds=1", "sites=[A]", "held_out=[B]")
    tests = make_volume_site(tmp_path / "tests", "B", cases=2, val=0, test=2, sequences=("T2", "ADC"))
    results = run_in_process(spec, {"A": sites["A"], "B": tests}, tmp_path / "run").results
    assert results.final is not None and "dice" in results.final.last.held_out["B"]["test"]


# --- what leaves a site -------------------------------------------------------------------------------


def policy(**options: Any) -> Policy:
    return Policy.parse(options, where="a site's policy")


def test_with_fewer_cases_than_the_policy_wants_nothing_leaves(tmp_path: Path, sites: dict[str, Path]) -> None:
    for least, refused in ((4, True), (3, False)):
        site = Site(job(tmp_path), "A", sites["A"], SiteOptions(tmp_path / f"{least}", policy=policy(min_cases=least)))
        if refused:
            with raises("too-few-cases", naming=("landmarks", "privacy.min_cases", "4")):
                site.statistics()
        else:
            assert site.statistics().arrays["landmarks"][landmarks.SENT].shape == (2, INNER)


def test_noise_is_made_for_one_case_and_is_on_record(tmp_path: Path, sites: dict[str, Path]) -> None:
    """A case moves each of the numbers by a third of their range at most, as there are three."""
    rules = policy(statistics={"multiplier": 0.01})
    ledger = tmp_path / "kit"
    site = Site(job(tmp_path), "A", sites["A"], SiteOptions(tmp_path / "state", policy=rules, ledger=ledger))
    noisy = site.statistics().arrays["landmarks"][landmarks.SENT]
    plain = Site(job(tmp_path), "A", sites["A"], SiteOptions(tmp_path / "plain")).statistics()
    difference = noisy - plain.arrays["landmarks"][landmarks.SENT]
    deviation = 0.01 / 3 * np.sqrt(2 * INNER) * (SCALE[-1] - SCALE[0])
    assert 0.4 * deviation < difference.std() < 1.8 * deviation
    (release,) = Ledger(ledger).trusted().releases
    assert release.what == "image statistics"
    assert release.sensitivity == pytest.approx(np.sqrt(2 * INNER) / 3)


# --- what is refused ----------------------------------------------------------------------------------


def test_without_volumes_on_landmarks_it_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with raises("method-needs", naming=("landmarks", "data.normalise=landmarks")):
        blob_job(tmp_path, methods="landmarks")
    with raises("methods-clash", naming=("landmarks", "fedrdn")):
        job(tmp_path, methods="landmarks+fedrdn")
    with raises("methods-clash", naming=("landmarks", "all")):
        job(tmp_path, methods="all+landmarks")


@pytest.mark.parametrize("option", ["data.normalise=landmarks", "data.bias_field=n4"])
def test_pictures_and_images_with_a_unit_are_refused(option: str) -> None:
    with raises("invalid-value", naming="data"):
        resolve("fundus", "fedavg", options=[option])
