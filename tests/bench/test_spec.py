"""The spec of a comparison: scales over it, and what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from errors import raises

from fedshift_bench.spec import read_spec

from .made import write_spec


def test_a_scale_goes_over_the_spec_key_by_key_and_label_by_label(tmp_path: Path) -> None:
    quick_axes = {
        "method": {"FedAvg": None, "FedFA": {"options": {"fedfa.alpha": 0.9}}, "FedBN": {"methods": "fedbn"}},
        "fraction": None,
    }
    path = write_spec(
        tmp_path,
        options={"schedule.rounds": 20, "data.fraction": 1.0},
        seeds=[0, 1, 2],
        axes={
            "method": {"FedAvg": {"methods": "fedavg"}, "FedFA": {"methods": "fedfa", "options": {"fedfa.p": 0.5}}},
            "fraction": {0.17: {"options": {"data.fraction": 0.17}}, "all": None},
        },
        scales={"paper": {}, "quick": {"options": {"schedule.rounds": 3}, "seeds": [0], "axes": quick_axes}},
    )
    paper, name = read_spec(path, "paper")
    assert name == "paper" and paper.seeds == (0, 1, 2) and paper.rows == ["FedAvg", "FedFA"]
    assert list(paper.axes["fraction"]) == ["0.17", "all"]
    quick, name = read_spec(path)
    assert name == "quick" and quick.seeds == (0,) and list(quick.axes) == ["method"]
    assert quick.rows == ["FedFA", "FedBN"] and quick.axes["method"]["FedFA"].methods == "fedfa"
    assert quick.axes["method"]["FedFA"].options == {"fedfa.p": 0.5, "fedfa.alpha": 0.9}
    assert quick.options == {"schedule.rounds": 3, "data.fraction": 1.0}


def test_a_spec_without_scales_is_as_it_stands(tmp_path: Path) -> None:
    spec, name = read_spec(write_spec(tmp_path))
    assert name == "full" and spec.seeds == (0,) and spec.model == "best" and spec.parts("federation") == ("test",)
    assert spec.parts("leave_one_out") == ("held_out",)


@pytest.mark.parametrize(
    ("changes", "code", "names"),
    [
        ({"seed": [0]}, "unknown-key", "'seed'"),
        ({"seeds": [1, 1]}, "invalid-value", "'seeds'"),
        ({"seeds": [0, -1]}, "invalid-value", "'seeds.1'"),
        ({"folds": [0]}, "invalid-value", "'folds.0'"),
        ({"model": "newest"}, "invalid-value", "'model'"),
        ({"axes": {"method": {"A": {"method": "fedavg"}}}}, "unknown-key", ("axes.method.A", "'method'")),
        ({"scales": {"quick": {"rounds": 3}}}, "unknown-key", ("scale quick", "'rounds'")),
        ({"part": ["test", "val"]}, "parts-together", "part"),
        ({"part": ["val", "domains"]}, "parts-together", "part"),
        ({"part": "domains"}, "domain-metric", "metric"),
        ({"part": "domains", "metric": "gradient_norm", "average": "samples"}, "domain-average", "average"),
        ({"options": {"data.fold": 2}, "folds": [1]}, "fold-option", "data.fold"),
        ({"pairs": "sites_and_folds"}, "folds-missing", "folds"),
        ({"tests": [["FedFA", "FedAvg"]]}, "unknown-row", ("'FedFA'", "'FedAvg'")),
        ({"tests": [["FedAvg", "FedAvg"]]}, "same-row", "FedAvg"),
        ({"claims": [["FedAvg", "FedProxy"]]}, "unknown-row", ("claims", "'FedProx'")),
        ({"claims": [["FedProx", "FedAvg"]]}, "claim-untested", "[FedProx, FedAvg]"),
        ({"ranking": {"against": "FedVag"}}, "unknown-row", ("ranking", "'FedAvg'")),
        ({"scales": ["quick"]}, "spec-scales", "'scales'"),
        ({"scales": {"quick": {"axes": {"method": {"FedFA": None}}}}}, "unknown-label", ("scales.quick", "'FedFA'")),
        ({"published": {"file": "x.csv", "rows": {"FedVag": "a"}}}, "unknown-row", ("'FedVag'", "'FedAvg'")),
        ({"axes": {}}, "no-mapping", "axes"),
        ({"axes": {"method": {"yes": {"methods": "fedavg"}}, "on": [1]}}, "no-mapping", "axes.on"),
    ],
)
def test_what_does_not_fit_is_named_with_its_file(
    tmp_path: Path, changes: dict[str, Any], code: str, names: str | tuple[str, ...]
) -> None:
    path = write_spec(tmp_path, **changes)
    with raises(code, naming=(str(path), *((names,) if isinstance(names, str) else names))):
        read_spec(path)


@pytest.mark.parametrize(
    ("own", "changed", "place"),
    [
        ({"FedAvg": {}}, {"FedAvg": 3}, "scales.quick: axes.method.FedAvg"),
        ({"FedAvg": {}}, {"FedAvg": ["fedavg"]}, "scales.quick: axes.method.FedAvg"),
        ({"FedAvg": "fedavg"}, {"FedAvg": {}}, "own axes.method.FedAvg"),
        (["FedAvg"], {"FedAvg": {}}, "own axes.method"),
        ("fedavg", {"FedAvg": {}}, "own axes.method"),
    ],
)
def test_a_scale_of_an_axis_that_is_no_mapping_is_refused(tmp_path: Path, own: Any, changed: Any, place: str) -> None:
    path = write_spec(tmp_path, axes={"method": own}, scales={"quick": {"axes": {"method": changed}}})
    with raises("no-mapping", naming=(str(path), place)):
        read_spec(path)
