"""The sites of a simulation are all found before one of them starts, simulated or real."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import make_image_site, small_image_job

from fedshift.data.locate import find_sites, is_phantom
from fedshift.schema.errors import ConfigError, DataError


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path))
    return tmp_path


def test_held_out_sites_are_found_too(root: Path) -> None:
    made = {site: make_image_site(root, site) for site in "ABC"}
    found = find_sites(small_image_job("fedavg", "held_out=[C]", sites=("A", "B")))
    assert found == made and is_phantom(found)


def test_a_site_without_data_is_named(root: Path) -> None:
    make_image_site(root, "A")
    with pytest.raises(DataError, match="site B"):
        find_sites(small_image_job("fedavg", sites=("A", "B")))


def test_simulated_and_real_data_do_not_mix(root: Path) -> None:
    for site in "AB":
        manifest = make_image_site(root, site) / "manifest.json"
        if site == "A":
            manifest.write_text(manifest.read_text(encoding="utf-8").replace('"phantom"', '"images"'), encoding="utf-8")
    with pytest.raises(ConfigError, match="sites B"):
        find_sites(small_image_job("fedavg", sites=("A", "B")))
