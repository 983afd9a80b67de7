"""An installed package's hash is that of its files, and what could change unseen is refused."""

from __future__ import annotations

import hashlib
import importlib
import json
from pathlib import Path

import pytest
from errors import raises
from packagefiles import files_of, install

from fedshift.schema.components import choose
from fedshift.schema.packages import installed, offering


def test_the_hash_is_that_of_a_list_of_files_as_sha256sum_writes_it(site: Path) -> None:
    install(site, "acme-hash", files={"acme_hash.py": "x = 1\n"}, points={"fedshift.losses": {"a": "acme_hash"}})
    counted = ["acme_hash-1.0.dist-info/METADATA", "acme_hash-1.0.dist-info/entry_points.txt", "acme_hash.py"]
    text = "".join(f"{hashlib.sha256((site / name).read_bytes()).hexdigest()}  {name}\n" for name in counted)
    spec = installed("acme-hash").spec
    assert (spec.version, spec.sha256) == ("1.0", hashlib.sha256(text.encode()).hexdigest())


def test_how_it_was_installed_changes_no_hash(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, "acme-how")
    before = installed("acme-how").spec
    cache = site / "acme_how" / "__pycache__"
    cache.mkdir()
    (cache / "network.cpython-311.pyc").write_bytes(b"compiled")
    (site / "acme_how-1.0.dist-info" / "INSTALLER").write_text("uv\n", encoding="utf-8")
    (site / "acme_how-1.0.dist-info" / "direct_url.json").write_text('{"url": "file:///a.whl"}', encoding="utf-8")
    assert installed("acme-how").spec == before


def test_what_a_wheel_brings_into_a_cache_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code there can be imported too, and Python runs compiled files that say so without a look at their source."""
    specs = []
    for number, text in enumerate(["x = 1\n", "x = 2\n"]):
        for cached in ("code.py", "loss.cpython-311.pyc"):
            folder = tmp_path / f"{number}{cached}"
            files = {**files_of("acme_cached"), f"acme_cached/__pycache__/{cached}": text}
            install(folder, "acme-cached", files=files)
            with monkeypatch.context() as patch:
                patch.syspath_prepend(str(folder))
                specs.append(installed("acme-cached").spec)
    assert len({spec.sha256 for spec in specs}) == 4


def test_another_file_or_version_is_another_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = []
    for number, (version, text) in enumerate([("1.0", "x = 1\n"), ("1.0", "x = 2\n"), ("1.1", "x = 1\n")]):
        folder = tmp_path / str(number)
        install(folder, "acme-other", version=version, files={"acme_other.py": text}, points={})
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(folder))
            specs.append(installed("acme-other").spec)
    assert len({spec.sha256 for spec in specs}) == 3


@pytest.mark.parametrize("backport", [False, True])
def test_a_missing_file_is_named(site: Path, backport: bool) -> None:
    """Also after ``importlib_metadata`` was imported, which changes what the standard library's module gives."""
    name = f"acme-missing-{backport}".lower()
    install(site, name)
    (site / name.replace("-", "_") / "loss.py").unlink()
    if backport:
        importlib.import_module("importlib_metadata")  # comes with MLflow, onnxscript and others
    with raises("package-changed", naming="loss.py"):
        _ = installed(name).spec


def test_a_changed_and_an_added_file_are_named(site: Path) -> None:
    install(site, "acme-tampered")
    file = site / "acme_tampered" / "loss.py"
    text = file.read_text(encoding="utf-8")
    file.write_text(text + "# changed\n", encoding="utf-8")
    with raises("package-changed", naming="acme_tampered/loss.py"):
        _ = installed("acme-tampered").spec
    file.write_text(text, encoding="utf-8")
    _ = installed("acme-tampered").spec
    hidden = site / "acme_tampered" / "loss"  # a folder is imported in place of the file
    hidden.mkdir()
    (hidden / "__init__.py").write_text("", encoding="utf-8")
    with raises("package-changed", naming="__init__.py"):
        _ = installed("acme-tampered").spec


@pytest.mark.parametrize("how", ["direct_url", "pth"])
def test_an_editable_install_is_refused(site: Path, how: str) -> None:
    name = f"acme-editable-{how.replace('_', '')}"
    if how == "direct_url":
        about = json.dumps({"url": "file:///checkout", "dir_info": {"editable": True}})
        install(site, name, beside={"direct_url.json": about})
    else:
        install(site, name, files={f"_{name}.pth": "/checkout\n"})
    with raises("package-editable", naming=name):
        _ = installed(name).spec


def test_a_package_that_is_there_twice_or_not_at_all_is_refused(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "acme-twice")
    assert "acme-twice" in offering()
    monkeypatch.syspath_prepend(str(install(tmp_path / "other", "acme-twice", version="2.0")))
    with raises("package-twice", naming=("acme-twice", "1.0", "2.0")):
        installed("acme-twice")
    with raises("package-missing", naming="acme-twise"):
        installed("acme-twise")
    with raises("package-missing", naming=("acme-twise", "acme-twice")):
        choose(["acme-twise:small"])
    with raises("package-missing", naming="Acme_Twice"):  # names are compared letter by letter
        installed("Acme_Twice")


def test_without_a_list_of_files_nothing_can_be_compared(site: Path) -> None:
    install(site, "acme-unlisted")
    (site / "acme_unlisted-1.0.dist-info" / "RECORD").unlink()
    with raises("package-unlisted", naming="acme-unlisted"):
        _ = installed("acme-unlisted").spec
