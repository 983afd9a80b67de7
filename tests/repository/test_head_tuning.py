"""The head-tuning study of FRAug's Table 1 on small sites."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from conftest import SHAPES, make_image_site, make_site

from fedshift.federation.resolve import resolve
from fedshift.schema.errors import ConfigError
from fedshift.tasks.kinds import build_task

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fraug_head_tuning.py"


@pytest.fixture(scope="module")
def study() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fraug_head_tuning", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_more_embeddings_help_a_model_of_few_images_and_the_json_comes_when_asked(
    study: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for site, gain in (("A", 1.0), ("B", 0.4)):
        make_image_site(tmp_path, site, images=288, gain=gain)
    out = tmp_path / "results" / "study.json"
    arguments = ["--task", str(SHAPES), "--data", str(tmp_path), "--sites", "A,B", "--epochs", "8"]
    before = sorted(tmp_path.rglob("*.json"))
    study.main(arguments)
    assert sorted(tmp_path.rglob("*.json")) == before
    printed = capsys.readouterr().out
    study.main([*arguments, "--out", str(out)])
    assert capsys.readouterr().out == printed, "the same numbers again"
    result = json.loads(out.read_text(encoding="utf-8"))
    assert result["n_train"] == {"A": 192, "B": 192} and result["kind"] == {"A": "phantom", "B": "phantom"}
    without, with_ = (np.mean(list(result[name].values())) for name in ("without", "with"))
    assert with_ > without + 0.05
    assert f"{100 * with_:.2f} |" in printed.splitlines()[-1]


def test_only_the_head_moves_and_it_sees_every_image(
    study: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_image_site(tmp_path, "A", images=90)
    nets, seen = [], []
    measured, embedded = study.accuracy, study.embeddings

    def accuracy(task: object, data: object, chain: object, net: torch.nn.Module, job: object) -> float:
        nets.append({k: v.clone() for k, v in net.state_dict().items()})
        value: float = measured(task, data, chain, net, job)
        return value

    def embeddings(*arguments: object) -> tuple[torch.Tensor, torch.Tensor]:
        u, y = embedded(*arguments)
        seen.append(len(u))
        return u, y

    monkeypatch.setattr(study, "accuracy", accuracy)
    monkeypatch.setattr(study, "embeddings", embeddings)
    study.measure(str(SHAPES), folder.parents[1], sites=["A"], epochs=1, fraction=0.25)
    moved = {key for key, value in nets[0].items() if not torch.equal(value, nets[1][key])}
    assert moved == {"head.weight", "head.bias"}
    few = build_task(resolve(str(SHAPES), "fedavg", sites=["A"], options=["data.fraction=0.25"])).open(folder, "A")
    assert (few.n_train, seen) == (15, [60])


def test_a_network_without_a_head_is_refused(study: ModuleType, tmp_path: Path) -> None:
    make_site(tmp_path, "BIDMC")
    options = ["data={matrix: 32}", "network={name: unet, options: {features: 4}}", "schedule.precision=fp32"]
    options += ["evaluation.mirror=false", "evaluation.largest_component=false"]  # of patches only
    with pytest.raises(ConfigError, match="has no linear head to tune"):
        study.measure("prostate", tmp_path, sites=["BIDMC"], epochs=1, options=options)
