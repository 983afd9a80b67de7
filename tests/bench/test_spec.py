"""The spec of a comparison: scales over it, and one sentence for what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedshift.schema.errors import ConfigError
from fedshift_bench.spec import read_spec

from .made import write_spec


def test_a_scale_goes_over_the_spec_key_by_key_and_label_by_label(tmp_path: Path) -> None:
    path = write_spec(
        tmp_path,
        options={"schedule.rounds": 20, "data.fraction": 1.0},
        seeds=[0, 1, 2],
        axes={
            "method": {"FedAvg": {"methods": "fedavg"}, "FedFA": {"methods": "fedfa", "options": {"fedfa.p": 0.5}}},
            "fraction": {0.17: {"options": {"data.fraction": 0.17}}, "all": None},
        },
        scales={
            "paper": {},
            "quick": {
                "options": {"schedule.rounds": 3},
                "seeds": [0],
                "axes": {
                    "method": {
                        "FedAvg": None,
                        "FedFA": {"options": {"fedfa.alpha": 0.9}},
                        "FedBN": {"methods": "fedbn"},
                    },
                    "fraction": None,
                },
            },
        },
    )
    paper, name = read_spec(path, "paper")
    assert name == "paper" and paper.seeds == (0, 1, 2) and paper.rows == ["FedAvg", "FedFA"]
    assert list(paper.axes["fraction"]) == ["0.17", "all"]
    quick, name = read_spec(path)
    assert name == "quick" and quick.seeds == (0,) and list(quick.axes) == ["method"]
    assert quick.rows == ["FedFA", "FedBN"]
    assert quick.axes["method"]["FedFA"].methods == "fedfa"
    assert quick.axes["method"]["FedFA"].options == {"fedfa.p": 0.5, "fedfa.alpha": 0.9}
    assert quick.options == {"schedule.rounds": 3, "data.fraction": 1.0}


def test_a_spec_without_scales_is_as_it_stands(tmp_path: Path) -> None:
    spec, name = read_spec(write_spec(tmp_path))
    assert name == "full" and spec.seeds == (0,) and spec.model == "best" and spec.parts("federation") == ("test",)
    assert spec.parts("leave_one_out") == ("held_out",)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": [0]}, "unknown key 'seed'; did you mean 'seeds'?"),
        ({"seeds": [1, 1]}, "1 is named twice"),
        ({"seeds": [0, -1]}, "'seeds.1' input should be greater than or equal to 0, not -1"),
        ({"model": "newest"}, "'model' input should be 'best', 'last', 'personal' or 'own_best'"),
        ({"part": ["test", "val"]}, "test, val and domains are all of the training sites"),
        ({"part": ["val", "domains"]}, "test, val and domains are all of the training sites"),
        ({"part": "domains"}, "domains have gradient norms only: set metric to gradient_norm"),
        (
            {"part": "domains", "metric": "gradient_norm", "average": "samples"},
            "domains count equally in averages",
        ),
        ({"axes": {}}, "axes must map names to settings"),
        (
            {"axes": {"method": {"A": {"method": "fedavg"}}}},
            "axes.method.A: unknown key 'method'; did you mean 'methods'",
        ),
        ({"tests": [["FedFA", "FedAvg"]]}, "there is no row 'FedFA'; did you mean 'FedAvg'?"),
        ({"tests": [["FedAvg", "FedAvg"]]}, "cannot be tested against itself"),
        ({"claims": [["FedAvg", "FedProxy"]]}, "claims: there is no row 'FedProxy'; did you mean 'FedProx'?"),
        ({"claims": [["FedProx", "FedAvg"]]}, "claims: add [FedProx, FedAvg] to tests"),
        ({"scales": {"quick": {"rounds": 3}}}, "scale quick: unknown key 'rounds'"),
        (
            {"scales": {"quick": {"axes": {"method": {"FedFA": None}}}}},
            "there is no 'FedFA' to remove; did you mean",
        ),
        ({"scales": ["quick"]}, "'scales' must map names to settings"),
        ({"published": {"file": "x.csv", "rows": {"FedVag": "a"}}}, "there is no row 'FedVag'; did you mean 'FedAvg'"),
        ({"axes": {"method": {"yes": {"methods": "fedavg"}}, "on": [1]}}, "axes.on must map names to settings"),
    ],
)
def test_what_does_not_fit_is_said_in_one_sentence(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path = write_spec(tmp_path, **changes)
    with pytest.raises(ConfigError) as error:
        read_spec(path)
    assert said in str(error.value) and str(path) in str(error.value)


@pytest.mark.parametrize(
    ("own", "changed", "said"),
    [
        ({"FedAvg": {}}, {"FedAvg": 3}, "scales.quick: axes.method.FedAvg must map names to settings, not be 3"),
        ({"FedAvg": {}}, {"FedAvg": ["fedavg"]}, "scales.quick: axes.method.FedAvg must map names to settings"),
        ({"FedAvg": "fedavg"}, {"FedAvg": {}}, "own axes.method.FedAvg must map names to settings, not be 'fedavg'"),
        (["FedAvg"], {"FedAvg": {}}, "own axes.method must map names to settings, not be ['FedAvg']"),
        ("fedavg", {"FedAvg": {}}, "own axes.method must map names to settings, not be 'fedavg'"),
    ],
)
def test_a_scale_of_an_axis_that_is_no_mapping_is_said_in_one_sentence(
    tmp_path: Path, own: Any, changed: Any, said: str
) -> None:
    path = write_spec(tmp_path, axes={"method": own}, scales={"quick": {"axes": {"method": changed}}})
    with pytest.raises(ConfigError) as error:
        read_spec(path)
    assert said in str(error.value) and str(path) in str(error.value)


def test_a_scale_may_give_a_label_without_settings_some_and_name_one_without_changes(tmp_path: Path) -> None:
    axes = {"method": {"FedAvg": None, "FedProx": {"methods": "fedprox"}}, "fraction": None}
    changes = {"method": {"FedAvg": {"methods": "fedavg"}, "FedProx": {}}, "fraction": {"all": {}}}
    spec, _ = read_spec(write_spec(tmp_path, axes=axes, scales={"fast": {"axes": changes}}))
    assert {label: settings.methods for label, settings in spec.axes["method"].items()} == {
        "FedAvg": "fedavg",
        "FedProx": "fedprox",
    }
    assert list(spec.axes["fraction"]) == ["all"]


def test_a_file_that_is_no_yaml_and_a_scale_that_is_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no scale 'half'.* Known: full, quick"):
        read_spec(write_spec(tmp_path, scales={"quick": {}}), "half")
    for text, reason in (
        ("name: [", "is not valid YAML"),
        ("axes: {method: {true: {methods: fedavg}}}", "the label True .*in quotes"),
    ):
        (tmp_path / "x.yaml").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=rf"x\.yaml.* {reason}"):
            read_spec(tmp_path / "x.yaml")
