"""Distributions of options: every method's are within what it accepts, and draws repeat."""

from __future__ import annotations

import math

import pytest
from errors import raises

from fedshift.methods import method_set
from fedshift.methods.shared.search import Distribution, around, choice, log, space, uniform


@pytest.mark.parametrize("name", method_set.available())
def test_a_method_accepts_every_setting_that_can_be_drawn(name: str) -> None:
    module = method_set.find(name)
    for option, where in space(module).items():
        ends = where.values if where.kind == "choice" else (where.low, where.high)
        drawn = [where.draw(f"{name}.{option}", number=number, seed=0) for number in range(1, 30)]
        for value in (*drawn, *ends):
            config = module.Config.parse({option: value}, where=name)
            assert getattr(config, option) == value
        assert len(set(drawn)) > 1, option
        if where.kind != "choice":
            assert all(where.low <= value <= where.high for value in drawn)
    for number in range(1, 30):
        setting = {o: where.draw(f"{name}.{o}", number=number, seed=0) for o, where in space(module).items()}
        module.Config.parse(setting, where=name)


def test_what_is_drawn_of_methods_as_their_papers_search_them() -> None:
    told = {name: {k: str(v) for k, v in space(method_set.find(name)).items()} for name in method_set.available()}
    assert told["fedprox"] == {"mu": "log 0.001 to 1"}
    assert told["fedfa"] == {"p": "uniform 0 to 1", "momentum": "one of 0.5, 0.9, 0.99, 0.999"}, "no eps, no variants"
    assert told["fedmix"]["images"] == "whole 2 to 20" and "per_round" not in told["fedmix"]
    assert told["augmentation"] == told["fedavg"] == told["fedbn"] == {}


def test_a_draw_depends_on_the_option_its_number_and_the_seed_alone() -> None:
    where = log(0.001, 1)
    first = where.draw("a.b", number=1, seed=0)
    assert first == where.draw("a.b", number=1, seed=0)
    others = [where.draw(o, number=n, seed=s) for o, n, s in (("a.c", 1, 0), ("a.b", 2, 0), ("a.b", 1, 1))]
    assert len({first, *others}) == 4 and all(value == float(f"{value:.3g}") for value in others)


def test_a_logarithmic_range_has_as_many_draws_in_each_decade() -> None:
    drawn = [log(0.001, 1).draw("x", number=number, seed=0) for number in range(900)]
    decades = [math.floor(math.log10(value)) for value in drawn]
    assert all(250 <= decades.count(decade) <= 350 for decade in (-3, -2, -1))
    assert {choice("a", "b").draw("x", number=number, seed=0) for number in range(20)} == {"a", "b"}
    assert (around(0.02).low, around(0.02).high) == (0.002, 0.2) and str(uniform(0, 1)) == "uniform 0 to 1"


@pytest.mark.parametrize(
    "raw", [{"kind": "log", "low": 0, "high": 1}, {"kind": "uniform", "low": 1, "high": 1}, {"kind": "choice"}]
)
def test_a_range_without_sense_is_refused(raw: dict[str, object]) -> None:
    with raises("invalid-value", naming="needs"):
        Distribution.parse(raw, where="test")
