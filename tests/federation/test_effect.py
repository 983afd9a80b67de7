"""A perturbation that normalisation takes away is found by what the network answers, and others are not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import SHAPES, small_job

from fedshift import cli
from fedshift.federation.effect import LEAST, Effect, effects, without_effect
from fedshift.federation.resolve import resolve
from fedshift.methods import base, fedavg, fedrdn

RECIPE = ("data.patch=[64, 64]", "network.options.features=[8, 8, 16, 32, 32, 8]")
"""The prostate's default, smaller: volumes normalised one by one, a U-Net with instance norm."""


def found(methods: str, *options: str, protocol: str | None = None) -> dict[str, float]:
    job = resolve("prostate", methods, protocol=protocol, options=options)
    return {effect.what: effect.size for effect in effects(job)}


@pytest.mark.parametrize(
    ("methods", "little", "much"),
    [
        ("fedrdn", {"normalised images"}, set()),
        ("fedfa", {"shifted means of features"}, {"scaled deviations of features"}),
        ("fedfa+fedrdn", {"normalised images", "shifted means of features"}, {"scaled deviations of features"}),
        ("mixstyle", set(), {"exchanged statistics of features"}),
        ("moex", set(), {"exchanged statistics of features"}),
        ("harmofl", set(), {"normalised images"}),
    ],
)
def test_what_normalised_volumes_and_instance_norm_take_away(methods: str, little: set[str], much: set[str]) -> None:
    sizes = found(methods, *RECIPE)
    assert {what for what, size in sizes.items() if size < LEAST} == little
    assert {what for what, size in sizes.items() if size >= LEAST} == much


@pytest.mark.parametrize(("option", "little"), [("network.options.norm=batch", True), ("data.normalise=none", False)])
def test_it_is_the_normalised_volumes_that_take_fedrdns_pairs_away(option: str, little: bool) -> None:
    """Instance norm alone does not: a shifted image differs from the zeros around it."""
    assert (found("fedrdn", *RECIPE, option)["normalised images"] < LEAST) is little


@pytest.mark.parametrize("methods", ["fedrdn", "fedfa", "mixstyle", "harmofl"])
def test_in_the_papers_protocols_all_comes_through(methods: str) -> None:
    """Whole intensities and batch norm."""
    sizes = found(methods, "data.matrix=48", "network.options.features=8", protocol="fedfa")
    assert sizes and min(sizes.values()) > 0.1


def test_pictures_with_batch_norm_too() -> None:
    sizes = [effect.size for effect in effects(resolve(str(SHAPES), "fedrdn+fedfa"))]
    assert len(sizes) == 3 and min(sizes) > LEAST


def test_a_method_that_perturbs_nothing_costs_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedshift.federation.effect.build_task", lambda job: 1 / 0)
    assert effects(small_job("fedprox")) == []


def test_a_method_says_what_it_perturbs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook is enough: here one that does nothing at all."""

    class Nothing(fedavg.Client):
        def perturbations(self) -> Mapping[str, base.Client[Any]]:
            return {"wishes": self}

    monkeypatch.setattr(fedavg, "Client", Nothing)
    assert effects(small_job("fedavg")) == [Effect("fedavg", "wishes", 0.0)]


def test_the_trial_is_repeated_to_the_bit_and_leaves_no_trace() -> None:
    job = small_job("fedfa+fedrdn")
    assert effects(job) == effects(job)


@pytest.mark.slow
def test_a_job_and_a_comparison_warn_with_the_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["job", "fedrdn", "prostate", "--out", str(tmp_path), "--set", *RECIPE]) == 0
    printed = capsys.readouterr().out
    assert "effect: method fedrdn" in printed and "by 1." in printed
    assert cli.main(["job", "fedavg", "prostate", "--out", str(tmp_path), "--set", *RECIPE]) == 0
    assert "effect:" not in capsys.readouterr().out
    spec = tmp_path / "two.yaml"
    spec.write_text(
        "{name: two, title: T, what: W., task: prostate, options: {data.patch: [64, 64]},"
        " axes: {method: {A: {methods: fedavg}, R: {methods: fedrdn}}}, seeds: [0, 1], tuning: none.}",
        encoding="utf-8",
    )
    assert cli.main(["compare", str(spec), "--dry-run", "--out", str(tmp_path / "out"), "-w", str(tmp_path / "w")]) == 0
    assert capsys.readouterr().out.count("effect: method fedrdn") == 1
    assert without_effect(resolve("prostate", "fedrdn", options=RECIPE))[0].method == fedrdn.__name__.rpartition(".")[2]
