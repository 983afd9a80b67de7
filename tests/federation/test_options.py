"""``--set`` options: their order does not matter, and contradictions are refused."""

from __future__ import annotations

from itertools import permutations

import pytest
from errors import raises

from fedshift.federation.resolve import resolve
from fedshift.schema.errors import ConfigError

SETS = [
    ["network.name=monai.UNet", "network.options.channels=[8, 16, 32]", "network.options.num_res_units=0"],
    ["network.name=monai.UNet", "network.options={channels: [8, 16, 32]}", "network.options.num_res_units=0"],
    ["network={name: monai.UNet, options: {num_res_units: 0}}", "network.options.channels=[8, 16, 32]"],
    ["network={name: monai.UNet, options: {num_res_units: 0}}", "network.options.channels=[8, 16, 32]"],
]


@pytest.mark.parametrize("options", SETS)
def test_the_order_of_options_does_not_matter(options: list[str]) -> None:
    for order in permutations(options):
        network = resolve("prostate", "fedavg", options=order).task.network
        assert network.name == "monai.UNet"
        assert network.options == {"channels": [8, 16, 32], "num_res_units": 0}


def test_a_network_of_the_wrong_dimension_is_refused_in_any_order() -> None:
    for order in permutations(["network.options.spatial_dims=3", "network.name=monai.UNet"]):
        with pytest.raises(ConfigError, match="spatial_dims"):
            resolve("prostate", "fedavg", options=order)


@pytest.mark.parametrize(
    "options",
    [
        ["fedfa.p=0.3", "fedfa.p=0.5"],
        ["schedule.keep=1", "schedule.keep=true"],
        ["schedule={rounds: 3}", "schedule.rounds=4"],
        ["data=none", "data.matrix=96"],
        ["network={name: unet}", "network.name=monai.UNet"],
    ],
)
def test_options_that_contradict_each_other_are_both_named(options: list[str]) -> None:
    for one, other in permutations(options):
        with raises("options-clash") as error:
            resolve("prostate", "fedfa", options=[one, other])
        assert one in str(error.value) and other in str(error.value)


def test_the_same_option_twice_is_no_contradiction() -> None:
    job = resolve("prostate", "fedfa", options=["fedfa.p=0.3", "fedfa.p=0.3"])
    assert job.methods["fedfa"]["p"] == 0.3


def test_method_names_may_be_in_upper_case() -> None:
    job = resolve("prostate", "FedFA+FedRDN", options=["FedFA.p=0.3"])
    assert job == resolve("prostate", "fedfa+fedrdn", options=["fedfa.p=0.3"])
