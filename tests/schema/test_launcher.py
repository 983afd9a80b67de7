"""A site's settings of where its processes of jobs run: what is odd is refused, and the nearest key named."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from errors import raises

from fedshift.data.locate import SITE_FILE, SiteSettings, read_settings
from fedshift.flare.kit_files import site_settings
from fedshift.schema.launcher import launcher_options, parse_launcher

SLURM: dict[str, object] = {"host": "login1"}
KUBERNETES: dict[str, object] = {"image": "fedshift:1", "kit_claim": "kit", "kit_path": "/kit"}
DOCKER: dict[str, object] = {"image": "fedshift:1"}


@pytest.mark.parametrize(
    ("kind", "options", "named"),
    [
        ("slurm", SLURM | {"partitoin": "gpu"}, "did you mean 'partition'"),
        ("slurm", SLURM | {"partition": "gpu --wrap=x"}, "blanks"),
        ("slurm", SLURM | {"time": 14400}, "quotes"),
        ("slurm", SLURM | {"gpus": 0}, "gpus"),
        ("slurm", SLURM | {"python": "python3"}, "absolute"),
        ("slurm", {}, "host is missing"),
        ("slurm", SLURM | {"connection": "files"}, "host is for"),
        ("docker", {}, "image"),
        ("docker", DOCKER | {"program": "dokcer"}, "did you mean 'docker'"),
        ("k8s", {"image": "fedshift:1"}, "kit_"),
        ("k8s", KUBERNETES | {"kit_claim": "Kit_1"}, "kit_claim"),
        ("k8s", KUBERNETES | {"kit_path": "kit"}, "absolute"),
        ("k8s", KUBERNETES | {"user": 0}, "user"),
        ("process", {"gpus": 1}, "gpus"),
    ],
)
def test_options_that_a_launcher_does_not_take_are_refused(kind: str, options: dict[str, object], named: str) -> None:
    code = "unknown-key" if "partitoin" in options or kind == "process" else "invalid-value"
    with raises(code, naming=named):
        parse_launcher(kind, options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["launcher:\n", "launcher: {}\n", "launcher:\n  slurm: {host: a}\n  docker: {image: b}\n"]
)
def test_a_file_names_one_launcher_or_none(text: str, tmp_path: Path) -> None:
    (tmp_path / SITE_FILE).write_text(text, encoding="utf-8")
    with raises("invalid-value", naming=SITE_FILE):
        read_settings(tmp_path)


def test_options_of_the_command_line_are_numbers_words_or_objects() -> None:
    found = launcher_options(["time=4:00:00", "gpus=2", 'environment={"A": "1"}', "setup=module load x\nexport B=1"])
    assert found == {"time": "4:00:00", "gpus": 2, "environment": {"A": "1"}, "setup": "module load x\nexport B=1"}
    for wrong in (["gpus"], ["=2"], ["gpus=1", "gpus=2"]):
        with raises("option-form"):
            launcher_options(wrong)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("slurm", SLURM | {"setup": "module load x\nexport B='#1'"}), ("docker", DOCKER), ("k8s", KUBERNETES)],
)
def test_the_file_that_a_kit_gets_says_what_was_chosen_and_tells_all_keys(
    kind: str, options: dict[str, object]
) -> None:
    launcher = parse_launcher(kind, options)  # type: ignore[arg-type]
    text = site_settings({"prostate": Path("/data")}, launcher=launcher)
    assert SiteSettings.parse(yaml.safe_load(text), where="test").launcher == launcher
    for key in type(getattr(launcher, kind)).model_fields:
        assert f" {key}: " in text
