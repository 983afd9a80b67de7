"""Fixtures that commands share with the tests of what they call, and a machine on which nothing is prepared."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import make_image_site
from flare.conftest import phantom_home, short_job, side_by_side
from inference.conftest import sites, trained

from fedshift.cli import main
from fedshift.data.locate import DATA

__all__ = ["phantom_home", "short_job", "side_by_side", "sites", "trained"]
Refused = Callable[..., str]
NAME = "amazon"
"""The site whose kit it is."""


@pytest.fixture(scope="session")
def kits(kits_of: Callable[[str], Path]) -> Path:
    """The kits of a federation, as handed out."""
    return kits_of("office_caltech")


@pytest.fixture
def kit(kits: Path, tmp_path: Path) -> Path:
    """A site's kit, which has not been set up."""
    return Path(shutil.copytree(kits / NAME, tmp_path / "kits" / NAME))


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Checks that a command ends with exit code 2 and an error of this code that has these names; gives the error."""

    def check(*words: object, code: str, naming: str | tuple[str, ...] = ()) -> str:
        capsys.readouterr()
        assert main([*map(str, words)]) == 2
        error = capsys.readouterr().err
        assert error.startswith("fedshift: ") and error.endswith(f" [{code}]\n"), error
        for name in (naming,) if isinstance(naming, str) else naming:
            assert name in error
        return error

    return check


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory and $XDG_DATA_HOME: nothing is prepared there, and no data are named."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv(DATA, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def home(bare: Path) -> Path:
    """`bare`, with three image sites that are found as the phantom's are."""
    for site, gain in (("A", 1.0), ("B", 0.5), ("C", 1.4)):
        make_image_site(bare / "fedshift" / "phantom", site, gain=gain)
    return bare


@pytest.fixture
def with_phantom(bare: Path, phantom_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`bare`, where the phantom of the prostate is found."""
    monkeypatch.setenv("XDG_DATA_HOME", str(phantom_home))
    return bare
