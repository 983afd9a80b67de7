"""Whose statistics and personal parts a prediction uses; and that it is the evaluation's own answer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import make_image_site, small_image_job, small_job
from errors import raises

from fedshift.data.arrays import SliceArrays, open_arrays
from fedshift.federation.in_process import SITE_STATE, run_in_process
from fedshift.federation.server.coordinator import Coordinator
from fedshift.inference.model import Model, open_model
from fedshift.inference.ready import SAME_EVERYWHERE, Choice, Images, ReadyModel, make_ready
from fedshift.runtime.segmentation import SliceSpec, slice_batches
from fedshift.schema.results import LAST, read_results
from fedshift.tasks.kinds import build_task

from .conftest import Run, save_model


def images_of(arrays: SliceArrays, model: Model) -> Images:
    cases = [arrays.images[case.offset : case.offset + case.shape[0]] for case in arrays.manifest.cases]
    return Images([batch for case in cases for batch in slice_batches(case, model.spec)])


@torch.inference_mode()
def dice_of_test_case(ready: ReadyModel, folder: Path) -> float:
    """Of the site's only test case, by hand."""
    arrays = open_arrays(folder, matrix=32)
    (case,) = arrays.manifest.by_split("test")
    part = slice(case.offset, case.offset + case.shape[0])  # type: ignore[union-attr]
    logits = torch.cat([ready.predictor(x) for x in slice_batches(arrays.images[part], SliceSpec(32, 3, 1.0))])
    found, wanted = logits.argmax(1).numpy() > 0, arrays.labels[part] > 0
    return float(2 * (found & wanted).sum() / max((found | wanted).sum() + (found & wanted).sum(), 1))


def told(server: Coordinator, site: str) -> float:
    assert server.results.final is not None
    return server.results.final.last.sites[site]["test"]["dice"]


@pytest.mark.parametrize("methods", ["fedrdn", "fedbn", "harmofl", "fedharmo", "partialfed", "single", "fedrdn+fedbn"])
@pytest.mark.parametrize("site", ["HK", "UCL"])
def test_a_sites_state_gives_the_scores_that_the_site_told(
    methods: str, site: str, trained: Run, sites: dict[str, Path]
) -> None:
    path, server = trained(methods, "optimizer.lr=0.01")
    state = path.parent / SITE_STATE / site
    ready = make_ready(open_model(path), Choice(state=state), device="cpu")
    assert dice_of_test_case(ready, sites[site]) == pytest.approx(told(server, site), abs=1e-12)
    assert ready.statistics == ("the model's own" if "harmo" in methods else f"state of {site}")


@pytest.mark.parametrize("rows", [0, 1])
def test_a_model_without_all_of_its_methods_numbers_is_refused(rows: int, trained: Run, tmp_path: Path) -> None:
    content = torch.load(trained("fedrdn")[0], weights_only=True)
    arrays = content["methods"]["fedrdn"]
    content["methods"]["fedrdn"] = {name: value[:rows] for name, value in arrays.items()} if rows else {}
    torch.save(content, tmp_path / "model.pt")
    model = open_model(tmp_path / "model.pt")
    with raises("model-incomplete", naming="model.pt"):
        make_ready(model, Choice(site=model.header.statistics[-1]), device="cpu")


@pytest.mark.parametrize(
    ("site", "code", "naming"),
    [
        (None, "statistics-choice", ("fedrdn", "BIDMC, HK, UCL", "--site", "--statistics own")),
        ("HKK", "site-unknown", ("'HKK'", "'HK'")),
    ],
)
def test_a_fedrdn_model_asks_whose_statistics_to_use(
    site: str | None, code: str, naming: tuple[str, ...], trained: Run
) -> None:
    path, _ = trained("fedfa+fedrdn")
    with raises(code, naming=naming):
        make_ready(open_model(path), Choice(site=site))


@pytest.mark.parametrize("site", ["BIDMC", "HK", "UCL"])
def test_a_site_in_the_file_is_that_site(site: str, trained: Run, sites: dict[str, Path]) -> None:
    path, server = trained("fedfa+fedrdn", "optimizer.lr=0.01")
    ready = make_ready(open_model(path), Choice(site=site), device="cpu")
    assert ready.statistics == f"site {site}"
    assert dice_of_test_case(ready, sites[site]) == pytest.approx(told(server, site), abs=1e-12)
    own = make_ready(open_model(path), Choice(state=path.parent / SITE_STATE / site), device="cpu")
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(ready.predictor(x), own.predictor(x), rtol=0, atol=0)


def test_own_statistics_are_those_of_all_given_images_together(trained: Run, sites: dict[str, Path]) -> None:
    path, _ = trained("fedfa+fedrdn")
    model = open_model(path)
    images = images_of(open_arrays(sites["UCL"], matrix=32), model)
    ready = make_ready(model, Choice(estimate=True), images=lambda: images, device="cpu")
    assert ready.statistics == "own, of 32 slices"
    x = torch.cat([batch for batch, _ in images.chunks()])
    mean, std = x.mean((0, 2, 3)), x.std((2, 3), correction=0).mean(0)
    net = model.task.network().eval()
    net.load_state_dict(model.weights)
    with torch.no_grad():
        wanted = net((x[:4] - mean[:, None, None]) / std[:, None, None])
        torch.testing.assert_close(ready.predictor(x[:4]), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("methods", ["fedfa", "fedfa+mixstyle", "scaffold", "fedmix", "fedsam"])
def test_what_only_trains_does_nothing_in_a_prediction(methods: str, tmp_path: Path) -> None:
    options = ["optimizer.name=sgd", "optimizer.keep=false"] if methods == "scaffold" else []
    model = open_model(save_model(tmp_path / "model.pt", small_job(methods, *options)))
    ready = make_ready(model, Choice(site="HK"), device="cpu")
    net = model.task.network().eval()
    net.load_state_dict(model.weights)
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(ready.predictor(x), net(x), rtol=0, atol=0)
    assert ready.used == Choice() and ready.statistics == "the model's own"
    assert ready.notes == (SAME_EVERYWHERE,)


@pytest.mark.slow
def test_a_personal_model_needs_a_sites_parts(trained: Run, sites: dict[str, Path], tmp_path: Path) -> None:
    path, _ = trained("fedbn")
    model = open_model(path)
    other, _ = trained("single")
    for choice, code, naming in (
        (Choice(), "model-personal", ("fedbn", "--site-state", "--statistics own")),
        (Choice(site="HK"), "model-personal", "fedbn"),
        (Choice(state=tmp_path), "state-missing", str(tmp_path)),
        (Choice(state=path.parent / SITE_STATE), "state-missing", SITE_STATE),
        (Choice(state=other.parent / SITE_STATE / "HK"), "state-other-job", "HK"),
    ):
        with raises(code, naming=naming):
            make_ready(model, choice)
    images = images_of(open_arrays(sites["HK"], matrix=32), model)
    ready = make_ready(model, Choice(estimate=True), images=lambda: images, device="cpu")
    assert ready.statistics == "own, of 32 slices" and "fedbn" in ready.notes[0]
    x = torch.cat([batch for batch, _ in images.chunks()])
    first = ready.predictor.net.encoder1.enc1_bn1  # type: ignore[union-attr]
    seen = ready.predictor.net.encoder1.enc1_conv1(x)  # type: ignore[union-attr, operator]
    torch.testing.assert_close(first.running_mean, seen.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)  # type: ignore[union-attr]


def test_nothing_stands_in_for_a_model_of_ones_own(trained: Run, sites: dict[str, Path]) -> None:
    model = open_model(trained("single")[0])
    images = images_of(open_arrays(sites["HK"], matrix=32), model)
    with raises("model-personal", naming="single") as error:
        make_ready(model, Choice(estimate=True), images=lambda: images)
    assert "--statistics own" not in str(error.value)


def test_an_average_that_newcomers_use_is_used_and_said(trained: Run) -> None:
    path, _ = trained("fedbn", "fedbn.unseen=averaged")
    ready = make_ready(open_model(path), Choice(), device="cpu")
    assert "average" in ready.notes[0]


@pytest.mark.slow
def test_a_mixture_without_its_site_is_the_global_model_and_says_so(trained: Run) -> None:
    path, _ = trained("partialfed")
    ready = make_ready(open_model(path), Choice(), device="cpu")
    assert "adapts" in ready.notes[0]


@pytest.mark.parametrize("methods", ["fraug", "fedproto", "fedrdn"])
def test_classifiers_are_made_ready_as_well(methods: str, tmp_path: Path) -> None:
    data = {site: make_image_site(tmp_path / "data", site, images=24) for site in "AB"}
    job = small_image_job(methods, "schedule.rounds=1", sites=("A", "B"))
    run_in_process(job, data, tmp_path / "run")
    model = open_model(tmp_path / "run" / LAST)
    ready = make_ready(model, Choice(state=tmp_path / "run" / SITE_STATE / "A"), device="cpu")
    site = build_task(job).open(data["A"], "A")
    with torch.inference_mode():
        found = torch.cat([ready.predictor(x).argmax(1) for x in site.eval_images("test")])
    accuracy = float((found == site.labels(site.members("test"))).double().mean())
    final = read_results(tmp_path / "run").final
    assert final is not None
    assert accuracy == pytest.approx(final.last.sites["A"]["test"]["accuracy"], abs=1e-12)
