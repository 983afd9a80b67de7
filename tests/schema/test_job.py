"""A job: what it refuses, and that it comes back from its file as it was."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import small_image_job
from errors import raises

from fedshift.schema.errors import ConfigError
from fedshift.schema.job import FederationSpec, JobSpec, read_job


def changed(path: str, value: Any) -> dict[str, Any]:
    raw = small_image_job("fedavg").dump()
    target = raw
    *parents, last = path.split(".")
    for key in parents:
        target = target.setdefault(key, {})
    target[last] = value
    return raw


def test_a_job_comes_back_from_its_file(tmp_path: Path) -> None:
    job = small_image_job("fedfa+fedrdn", "federation.weights_as=int8", "evaluation.gradient_norm=true", seed=3)
    path = tmp_path / "fedshift.yaml"
    path.write_text(yaml.safe_dump(job.dump()), encoding="utf-8")
    assert read_job(path) == job


def test_options_at_their_default_are_not_written() -> None:
    raw = small_image_job("fedavg").dump()
    assert "evaluation" not in raw and "weights" not in raw["task"]["network"]
    assert not {"robust", "encryption", "weights_as", "shares"} & raw["federation"].keys()
    assert not {"patience", "minutes", "checkpoint_minutes"} & raw["task"]["schedule"].keys()
    assert raw["schema"] == 1


def test_sites_of_a_domain_are_a_group_and_others_stand_alone() -> None:
    task = small_image_job("fedavg").task
    assert task.groups == (("A",), ("B",), ("C",)) and "domains" not in task.model_dump()
    grouped = task.model_copy(update={"domains": {"near": ("C", "A", "absent")}})
    assert grouped.groups == (("A", "C"), ("B",)) and grouped.model_dump()["domains"] == grouped.domains


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("unknown", 1, "unknown"),
        ("schema", 2, "schema"),
        ("name", "../elsewhere", "name"),
        ("task.sites", [], "sites"),
        ("task.sites", ["A", "A"], "A is named twice"),
        ("task.sites", ["A/../B"], "sites"),
        ("task.held_out", ["A"], "A cannot both train"),
        ("task.classes", ["one"], "classes"),
        ("task.domains", {"a": ["A"], "b": ["A", "B"]}, "A is named twice"),
        ("task.schedule.threads", 0, "must be a whole number from 1, or auto"),
        ("task.schedule.threads", True, "must be a whole number from 1, or auto"),
        ("task.schedule.rounds", 0, "rounds"),
        ("task.schedule.minutes", 0, "minutes.* greater than 0"),
        ("task.schedule.minutes", -5, "minutes.* greater than 0"),
        ("task.schedule.minutes", float("inf"), "minutes.* finite"),
        ("task.schedule.checkpoint_minutes", 0, "checkpoint_minutes.* greater than 0"),
        ("task.schedule.checkpoint_minutes", float("nan"), "checkpoint_minutes"),
        ("task.optimizer.momentum", 1.0, "momentum"),
        ("federation.min_sites", 0, "min_sites"),
        ("federation.robust", {"rule": "median", "trim": 2}, "'trim' is an option of rule trimmed_mean, not of median"),
        ("federation.shares", [["A", "B", "C"]], "federation.shares has sites of 1 hosts, not of None"),
    ],
)
def test_what_does_not_fit_is_named(path: str, value: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        JobSpec.parse(changed(path, value), where="job")


def test_shares_name_every_site_once() -> None:
    raw = changed("federation.hosts", 2)
    raw["federation"]["shares"] = [["A", "B"], ["C"]]
    assert JobSpec.parse(raw, where="job").federation.shares == (("A", "B"), ("C",))
    for shares, reason in (
        ([["A", "B", "C"]], "sites of 1 hosts, not of 2"),
        ([["A", "B", "C"], []], "sites of 2 hosts"),
        ([["A"], ["C"]], "each of the job's sites once"),
        ([["A", "B"], ["B"]], "each of the job's sites once"),
        ([["A", "B", "C"], ["A"]], "each of the job's sites once"),
    ):
        raw["federation"]["shares"] = shares
        with pytest.raises(ConfigError, match=reason):
            JobSpec.parse(raw, where="job")


@pytest.mark.parametrize(
    ("min_sites", "drawn", "needed"), [(4, None, 4), (4, 10, 4), (4, 20, 4), (2, 3, 9), (3, 3, 10)]
)
def test_as_many_sites_may_be_missing_with_sampling_as_without(min_sites: int, drawn: int | None, needed: int) -> None:
    assert FederationSpec(min_sites=min_sites, sites_per_round=drawn).min_clients(10) == needed


def test_a_file_that_is_no_job_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    deep = "a: " + "[" * 5000 + "]" * 5000
    cases = {"file-missing": None, "not-a-mapping": "- a\n", "not-yaml": "a: [", "too-deep": deep}
    for code, text in cases.items():
        if text is not None:
            path.write_text(text, encoding="utf-8")
        with raises(code, naming="job.yaml"):
            read_job(path)


def test_a_file_that_nobody_may_read_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run as root, who may read everything."""
    path = tmp_path / "job.yaml"
    path.write_text("a: 1", encoding="utf-8")

    def forbidden(*_: object, **__: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_text", forbidden)
    with raises("file-unreadable", naming="job.yaml"):
        read_job(path)
