"""A patch is applied only where NVFlare looks as expected; a run without any patch gives the same weights."""

from __future__ import annotations

import importlib
import json
import logging
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import make_site, small_job
from flare.conftest import run

import flare_armour
from armour.conftest import Enforce
from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.flare.export import write_job
from fedshift.schema.results import LAST
from flare_armour import patch, patches
from flare_armour.patch import NotAsExpectedError, Patch, find, fingerprint, parameters

REMOVE = "RxTask._remove_task"
TASK = f"nvflare.fuel.f3.streaming.byte_receiver:{REMOVE}"
CHANGED = """
# What another NVFlare might be: every function that a patch replaces or calls is another one that does the same.
import importlib, json, os, sys

def change(name):
    module, _, path = name.partition(":")
    *owners, last = path.split(".")
    owner = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    if isinstance(getattr(owner, last), type):
        return
    static = isinstance(owner.__dict__[last], staticmethod)
    original = getattr(owner, last)
    other = lambda *args, **named: original(*args, **named)
    setattr(owner, last, staticmethod(other) if static else other)

for name in json.loads(os.environ["CHANGED"]):
    change(name)
"""


MODULES = [
    importlib.import_module(found.name) for found in pkgutil.walk_packages(flare_armour.__path__, "flare_armour.")
]
PLACES = {f"{m.__name__}.{name}": value for m in MODULES for name, value in vars(m).items() if isinstance(value, Patch)}
"""Where each patch is defined → the patch."""


@pytest.fixture(autouse=True)
def all_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(patch.SKIP, raising=False)


def test_every_file_of_a_patch_says_why() -> None:
    holders = [module for module in MODULES if any(place.rpartition(".")[0] == module.__name__ for place in PLACES)]
    assert len(holders) > 10
    for module in holders:
        for heading in ("NVFlare 2.9:", "Cost:", "Instead:", "Fixed in NVFlare when:"):
            assert f"\n{heading}" in str(module.__doc__), f"{module.__name__} does not say {heading}"


def test_every_patch_fits_the_installed_nvflare() -> None:
    """In a process of its own: applied patches change what is compared."""
    code = f"from pydoc import locate\nfor name in {list(PLACES)}:\n    assert locate(name).fits(), name\n"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("sources", "calls", "said"),
    [
        ({TASK: "0" * 12}, {}, REMOVE),
        ({}, {TASK: "self, hurry"}, REMOVE),
        ({"nvflare.fuel.f3.streaming.byte_receiver:RxTask.gone": ""}, {}, "gone"),
        ({"nvflare.fuel.f4:RxTask": ""}, {}, "nvflare.fuel.f4"),
    ],
    ids=["other source", "other parameters", "no such function", "no such module"],
)
def test_where_nvflare_looks_different_a_patch_does_not_fit_and_says_so_once(
    sources: dict[str, str], calls: dict[str, str], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = Patch(name="some", kind="speed", without="it takes longer", sources=sources, calls=calls)
    with caplog.at_level(logging.WARNING, logger="flare_armour"):
        assert not one.fits()
        assert not one.fits()
    assert len(caplog.records) == 1
    for part in ("patch some", said, "goes on without", "it takes longer"):
        assert part in caplog.text


def test_comments_and_blank_lines_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_a.py").write_text("def f(x, y=1):\n    return x\n", encoding="utf-8")
    (tmp_path / "some_b.py").write_text("def f(x, y=1):\n\n    # why\n    return x\n", encoding="utf-8")
    (tmp_path / "some_c.py").write_text("def f(x, z=1):\n    return x + 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert fingerprint("some_a:f") == fingerprint("some_b:f") != fingerprint("some_c:f")
    assert (parameters("some_a:f"), parameters("some_c:f")) == ("x, y", "x, z")


def test_a_provisioned_party_does_not_go_on_without_its_protection(monkeypatch: pytest.MonkeyPatch) -> None:
    patches.require_protection()
    assert len(patches.PROTECTION) > 3
    for protection in patches.PROTECTION:
        monkeypatch.setenv(patch.SKIP, protection.name)
        with pytest.raises(NotAsExpectedError, match=f"without the patch {protection.name} "):
            patches.require_protection()


def test_a_function_gets_nvflares_before_its_arguments_until_it_is_removed(enforce: Enforce) -> None:
    place = "nvflare.fuel.utils.time_utils:time_to_string"
    other = Patch(name="some", kind="speed", without="it takes longer")

    @other.replaces(place, fingerprint(place))
    def louder(original: Callable[[object], str], time: object) -> str:
        return original(time) + "!"

    assert find(place)(None) == "N/A"
    enforce(other)
    assert find(place)(None) == "N/A!" and other.in_place and other.fits()
    other.remove()
    assert find(place)(None) == "N/A" and not other.in_place


def test_a_patch_that_is_left_out_by_name_says_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(patch.SKIP, "other,some")
    assert not Patch(name="some", kind="speed", without="it takes longer").fits()
    assert Patch(name="another", kind="speed", without="it takes longer").fits()
    assert not caplog.records


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_with_another_nvflare_a_run_goes_on_without_patches_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, phantom = small_job("fedfa+fedrdn", sites=("BIDMC", "HK")), tmp_path / "share" / "fedshift" / "phantom"
    run_in_process(job, {site: make_site(phantom, site) for site in job.task.sites}, tmp_path / "one_process")
    (tmp_path / "sitecustomize.py").write_text(CHANGED, encoding="utf-8")
    names = sorted({name for one in PLACES.values() for name in (*one.sources, *one.calls)})
    monkeypatch.setenv("CHANGED", json.dumps(names))
    command = (sys.executable, "-m", "fedshift.cli", "run", str(write_job(job, tmp_path / "job")))
    other = run(*command, workspace=tmp_path / "run", home=tmp_path / "share", path=str(tmp_path))
    assert other.code == 0, other.output[-3000:]
    needed = {one.name for one in PLACES.values() if one.sources or one.calls} - {
        *("job_restart", "readmission", "submissions", "gate", "orders", "sessions", "disabling"),
    }
    for name in needed:
        assert f"patch {name} expects" in other.log, name
    ours, theirs = (read_model_file(place / LAST)["weights"] for place in (tmp_path / "one_process", other.server))
    assert all(torch.equal(value, theirs[key]) for key, value in ours.items())
