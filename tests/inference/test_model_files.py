"""Model files: what their header says, and which files are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_image_site, small_image_job, small_job

from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import FORMAT, SCHEMA, header_of, read_model_file
from fedshift.inference.model import open_model
from fedshift.schema.errors import ConfigError
from fedshift.schema.results import BEST, LAST
from fedshift.tasks import networks
from fedshift.tasks.kinds import build_task

from .conftest import Run, save_model


def test_a_header_says_what_the_model_is(trained: Run) -> None:
    path, server = trained("fedrdn")
    header = header_of(read_model_file(path), where=path.name)
    assert (header.format, header.schema_, header.kind, header.sites, header.round) == (
        FORMAT,
        SCHEMA,
        "phantom",
        ("BIDMC", "HK", "UCL"),
        1,
    )
    assert header.job == server.job and header.statistics == server.job.task.sites
    assert header.scores == {"val_dice": server.mean_score(1)}
    assert header.preparation["matrix"] == 32 and header.preparation["clip_above_quantile"] == 0.99
    assert header.initial_weights == "from scratch" and header.personal == () and not header.encrypted


def test_a_header_names_only_sites_that_were_there(tmp_path: Path) -> None:
    data = {site: make_image_site(tmp_path / "data", site, images=18) for site in "AC"}
    job = small_image_job("fedrdn", "schedule.rounds=1", "federation.min_sites=2")
    run_in_process(job, {**data, "B": tmp_path / "gone"}, tmp_path / "run")
    for name in (BEST, LAST):
        found = header_of(read_model_file(tmp_path / "run" / name), where=name)
        assert found.statistics == found.sites == ("A", "C")
        assert len(read_model_file(tmp_path / "run" / name)["methods"]["fedrdn"]["means"]) == 2


def drop(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["weights"].pop(key)


def put(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put("format", value="another"), "is not a model that fedshift wrote"),
        (put("schema", value=SCHEMA + 1), "install that version"),
        (put("colour", value=1), "unknown key 'colour'"),
        (put("kind", value="guessed"), "'kind' input should be"),
        (put("sites", value=["HK", "=cmd"]), "'sites.1' string should match"),
        (put("statistics", value=["[red]HK"]), "'statistics.0' string should match"),
        (put("lineage", value={"prostate": ["../HK"]}), "'lineage.prostate.0' string should match"),
        (put("scores", value={"dice\x1b[2J": 0.5}), "'scores.*' string should match"),
        (
            put("initial_weights", value="from scratch\nround 1 of 2"),
            "'initial_weights': has characters that cannot be printed",
        ),
        (put("fedshift", value="9" * 10**5), "'fedshift' string should have at most"),
        (put("job", "task", "network", "name", value="unett"), "no network 'unett'"),
        (put("job", "task", "network", "options", "features", value=8), "does not fit its own job"),
        (put("weights", value=[1]), "does not hold arrays by name"),
        (put("methods", value={"fedrdn": 1}), "does not hold arrays by name"),
        (drop("conv.bias"), "conv.bias is missing"),
        (put("weights", "more", value=torch.ones(1)), "more has no place in the network"),
        (
            put("weights", "conv.bias", value=torch.ones(3)),
            r"conv.bias is float32 \(3,\), the network's float32 \(2,\)",
        ),
        (put("weights", "conv.bias", value=torch.ones(2).half()), "conv.bias is float16"),
        (
            put("weights", "conv.bias", value=torch.tensor([1.0, torch.nan])),
            "conv.bias has numbers that are not finite",
        ),
    ],
)
def test_a_file_that_is_no_model_of_ours_is_refused_with_a_sentence(
    change: Callable[[dict[str, Any]], None], said: str, tmp_path: Path
) -> None:
    path = save_model(tmp_path / "model.pt", small_job("fedavg"))
    content = torch.load(path, weights_only=True)
    change(content)
    torch.save(content, path)
    with pytest.raises(ConfigError, match=said) as error:
        read_model_file(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "words"), [("model.pt", r"model\.pt cannot be read"), ("none.pt", r"none\.pt does not exist")]
)
def test_a_cut_off_file_and_one_that_is_not_there_are_refused(name: str, words: str, tmp_path: Path) -> None:
    path = save_model(tmp_path / "model.pt", small_job("fedavg"))
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ConfigError, match=words):
        read_model_file(tmp_path / name)


def test_a_model_that_lies_some_folders_below_is_named(tmp_path: Path) -> None:
    inner = tmp_path / "server" / "simulate_job"
    inner.mkdir(parents=True)
    path = save_model(inner / "best_global_model.pt", small_job("fedavg"))
    for asked, problem in (
        (tmp_path, "is a folder, not a model file"),
        (tmp_path / "best_global_model.pt", "does not exist"),
    ):
        with pytest.raises(ConfigError) as error:
            read_model_file(asked)
        assert str(error.value) == f"{asked} {problem}: did you mean {path}?"


@pytest.mark.parametrize("name", networks.available())
def test_every_network_is_compared_without_its_memory(name: str) -> None:
    if name in ("monai.SwinUNETR", "monai.UNETR"):
        pytest.importorskip("einops")
    with torch.device("meta"):
        net = networks.build(name, {}, in_channels=4, n_classes=2, seed=0, patch=(32, 32))
    assert all(value.is_meta for value in net.state_dict().values())


def test_an_encrypted_model_and_one_of_another_preparation_do_not_predict(tmp_path: Path) -> None:
    job = small_job("fedavg")
    with pytest.raises(ConfigError, match="fedshift site decrypt"):
        open_model(save_model(tmp_path / "sealed.pt", job, encrypted=True))
    path = save_model(tmp_path / "model.pt", job)
    content = torch.load(path, weights_only=True)
    torch.save(content | {"preparation": build_task(job).preparation() | {"clip_above_quantile": 0.98}}, path)
    with pytest.raises(ConfigError, match="prepared differently"):
        open_model(path)
