"""Where a site's data are looked for, in which order, and what is said when there are none."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import make_image_site, make_site, small_image_job
from errors import raises

from fedshift.data.locate import find_site, find_sites, is_phantom, phantom_home, read_settings
from fedshift.schema.errors import ConfigError, DataError


def test_the_order_of_places(tmp_path: Path) -> None:
    environ = {"XDG_DATA_HOME": str(tmp_path / "xdg")}
    local = tmp_path / "kit" / "local"
    local.mkdir(parents=True)

    def found(simulator: bool = True) -> Path:
        return find_site("prostate", "HK", local=local, simulator=simulator, environ=environ)

    phantom = make_site(tmp_path / "xdg" / "fedshift" / "phantom", "HK")
    assert found() == phantom
    with pytest.raises(DataError) as caught:
        found(simulator=False)
    assert "phantom" not in str(caught.value), "a provisioned site never falls back to simulated data"
    home = make_site(tmp_path / "xdg" / "fedshift", "HK")
    assert found() == home
    environ["FEDSHIFT_DATA"] = str(tmp_path / "env")
    by_environment = make_site(tmp_path / "env", "HK")
    assert found() == by_environment
    site = make_site(tmp_path / "own", "HK")
    (local / "fedshift.yaml").write_text(f"data: {{prostate: {site}}}\n", encoding="utf-8")
    assert found() == site == found(simulator=False)


def test_a_kit_that_names_other_data_never_falls_back(tmp_path: Path) -> None:
    environ = {"XDG_DATA_HOME": str(tmp_path / "xdg"), "FEDSHIFT_DATA": str(tmp_path / "env")}
    local = tmp_path / "kit" / "local"
    local.mkdir(parents=True)
    make_site(tmp_path / "xdg" / "fedshift", "HK")
    make_site(tmp_path / "env", "HK")
    (local / "fedshift.yaml").write_text("data: {zones: /data/zones/HK}\n", encoding="utf-8")
    with raises("site-missing", naming=("fedshift.yaml", "zones", "prostate", "site init")):
        find_site("prostate", "HK", local=local, simulator=False, environ=environ)
    (local / "fedshift.yaml").write_text("device: cpu\n", encoding="utf-8")
    assert find_site("prostate", "HK", local=local, simulator=False, environ=environ) == tmp_path / "env/prostate/HK"


def test_nothing_there_names_every_place_and_the_command(tmp_path: Path) -> None:
    environ = {"XDG_DATA_HOME": str(tmp_path / "xdg")}
    with pytest.raises(DataError) as caught:
        find_site("prostate", "HK", local=None, simulator=True, environ=environ)
    text = str(caught.value)
    for part in ("xdg/fedshift/prostate/HK", "phantom/prostate/HK", "fedshift data prepare prostate"):
        assert part in text
    assert "\n" not in text


@pytest.mark.parametrize("simulator", [True, False])
@pytest.mark.parametrize(
    ("named", "hint"),
    [
        ("{root}/nowhere", "{root}/nowhere does not exist"),
        ("{root}/scan", "{root}/scan does not exist, {root}/scans does"),
        ("{root}/scans/prostate", "{root}/scans/prostate/HK is there: set FEDSHIFT_DATA={root}/scans"),
        ("{root}/scans/prostate/HK", "{root}/scans/prostate/HK is there: set FEDSHIFT_DATA={root}/scans"),
        ("{root}", "{root}/scans/prostate/HK is there: set FEDSHIFT_DATA={root}/scans"),
        ("{root}/scans ", "{root}/scans/prostate/HK is there: set FEDSHIFT_DATA={root}/scans"),
        ("{root}/other", "{root}/other holds data of prostate_t2 (prostate_t2 is nearest)"),
        ("{root}/lower", "{root}/lower/prostate holds UCL, hk (hk is nearest)"),
        ("{root}/empty", "looked in {root}/empty/prostate/HK; correct $FEDSHIFT_DATA"),
    ],
)
def test_a_wrong_data_path_never_falls_back_to_other_data(
    named: str, hint: str, simulator: bool, tmp_path: Path
) -> None:
    root = tmp_path / "disk"
    make_site(root / "scans", "HK")
    make_site(tmp_path / "xdg" / "fedshift", "HK")
    make_site(tmp_path / "xdg" / "fedshift" / "phantom", "HK")
    make_site(root / "other", "HK").parent.rename(root / "other" / "prostate_t2")
    for site in ("hk", "UCL"):
        make_site(root / "lower", site)
    (root / "empty").mkdir()
    environ = {"FEDSHIFT_DATA": named.format(root=root), "XDG_DATA_HOME": str(tmp_path / "xdg")}
    with pytest.raises(DataError) as caught:
        find_site("prostate", "HK", local=None, simulator=simulator, environ=environ)
    text = str(caught.value)
    assert hint.format(root=root) in text
    assert f"looked in {named.format(root=root)}/prostate/HK" in text and repr(environ["FEDSHIFT_DATA"]) in text
    assert "phantom" not in text and "xdg" not in text


def test_the_phantom_is_found_where_it_is_asked_for_and_no_other_data(tmp_path: Path) -> None:
    environ = {"XDG_DATA_HOME": str(tmp_path / "xdg")}
    make_site(tmp_path / "xdg" / "fedshift", "HK")
    asked = {**environ, "FEDSHIFT_DATA": str(phantom_home(environ))}
    with raises("site-missing", naming=("prostate", "HK", "'fedshift data phantom'")):
        find_site("prostate", "HK", local=None, simulator=True, environ=asked)
    phantom = make_site(tmp_path / "xdg" / "fedshift" / "phantom", "HK")
    assert find_site("prostate", "HK", local=None, simulator=True, environ=asked) == phantom


@pytest.mark.parametrize("given", ["{kit}", "{kit}/prostate/HK/volumes", "{kit}/prostate/HK "])
def test_a_site_file_that_names_another_level_is_told_the_right_folder(given: str, tmp_path: Path) -> None:
    right = make_site(tmp_path / "kit", "HK")
    (tmp_path / "fedshift.yaml").write_text(
        f"data: {{prostate: '{given.format(kit=tmp_path / 'kit')}'}}\n", encoding="utf-8"
    )
    with pytest.raises(DataError) as caught:
        find_site("prostate", "HK", local=tmp_path, simulator=False, environ={})
    assert str(right) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "code", "named"),
    [
        ("data: {prostate: relative/path}", "relative-path", "'relative/path'"),
        ("data: {prostate: /nowhere/at/all}", "site-missing", "manifest.json"),
        ("dta: {}", "unknown-key", "'data'"),
    ],
)
def test_a_wrong_site_file_is_not_passed_over(content: str, code: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "fedshift.yaml").write_text(content, encoding="utf-8")
    with raises(code, naming=named):
        find_site("prostate", "HK", local=tmp_path, simulator=True, environ={})


def test_the_kit_says_where_to_train_else_the_environment_else_what_there_is(tmp_path: Path) -> None:
    assert read_settings(None, {}).device == "auto"
    assert read_settings(tmp_path, {"FEDSHIFT_DEVICE": "cuda:1"}).device == "cuda:1"
    (tmp_path / "fedshift.yaml").write_text("device: cpu\n", encoding="utf-8")
    assert read_settings(tmp_path, {"FEDSHIFT_DEVICE": "cuda:1"}).device == "cpu"
    (tmp_path / "fedshift.yaml").write_text("devise: cpu\n", encoding="utf-8")
    with raises("unknown-key", naming=("fedshift.yaml", "'devise'", "'device'")):
        read_settings(tmp_path, {})


def test_the_kit_says_on_how_many_devices_else_the_environment_else_one(tmp_path: Path) -> None:
    assert read_settings(tmp_path, {}).devices == 1 and read_settings(tmp_path, {"FEDSHIFT_DEVICES": "2"}).devices == 2
    with raises("invalid-value", naming=("FEDSHIFT_DEVICES", "two")):
        read_settings(tmp_path, {"FEDSHIFT_DEVICES": "two"})
    (tmp_path / "fedshift.yaml").write_text("devices: 4\n", encoding="utf-8")
    assert read_settings(tmp_path, {"FEDSHIFT_DEVICES": "2"}).devices == 4
    (tmp_path / "fedshift.yaml").write_text("devices: 0\n", encoding="utf-8")
    with raises("invalid-value", naming=("fedshift.yaml", "'devices'")):
        read_settings(tmp_path, {})


def test_the_kit_says_where_bases_of_adapters_are(tmp_path: Path) -> None:
    assert read_settings(tmp_path, {}).weights is None
    (tmp_path / "fedshift.yaml").write_text("weights: /srv/bases\n", encoding="utf-8")
    assert read_settings(tmp_path, {}).weights == Path("/srv/bases")
    (tmp_path / "fedshift.yaml").write_text("weights: bases\n", encoding="utf-8")
    with raises("invalid-value", naming=("fedshift.yaml", "'weights'")):
        read_settings(tmp_path, {})


@pytest.mark.parametrize(
    ("dataset", "command"),
    [
        ("pacs", "'fedshift data prepare pacs' makes"),
        ("cifar10_dirichlet_0.3", "'fedshift data prepare cifar10' (--help"),
        ("knees", "'fedshift data prepare' (--help"),
    ],
)
def test_the_command_that_makes_the_data_is_one_that_exists(dataset: str, command: str, tmp_path: Path) -> None:
    with raises("site-missing", naming=(dataset, command)):
        find_site(dataset, "A", local=None, simulator=True, environ={"XDG_DATA_HOME": str(tmp_path)})


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path))
    return tmp_path


def test_held_out_sites_are_found_too(root: Path) -> None:
    made = {site: make_image_site(root, site) for site in "ABC"}
    sites = find_sites(small_image_job("fedavg", "held_out=[C]", sites=("A", "B")))
    assert sites == made and is_phantom(sites)


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
