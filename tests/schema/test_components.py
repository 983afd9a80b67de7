"""A package's code is imported only after the package was compared, from its own files, and under its own name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from errors import raises
from packagefiles import MARKED, files_of, install, points_of

from fedshift.methods import method_set
from fedshift.schema import components
from fedshift.schema.errors import ConfigError, PolicyError
from fedshift.schema.packages import PackageSpec, installed
from fedshift.tasks import losses, networks

OTHER = PackageSpec(version="1.0", sha256="0" * 64)


def test_nothing_of_a_package_is_imported_before_it_was_admitted(site: Path) -> None:
    install(site, "acme-early")
    with raises("package-unnamed", naming="acme-early:halved"):
        method_set.find("acme-early:halved")
    with raises("package-unnamed", naming="acme-early:squared"):
        losses.make_loss("acme-early:squared", {}, n_classes=2)
    spec = installed("acme-early").spec
    components.admit({"acme-early": spec}, where="here", listed={"acme-early": spec})
    assert not [name for name in sys.modules if name.startswith("acme_early")]
    assert method_set.find("acme-early:halved").Config().share == 0.5


@pytest.mark.parametrize("fault", ["unlisted", "other hash", "other version", "changed", "absent"])
def test_a_site_refuses_what_its_policy_and_its_installation_do_not_agree_on(site: Path, fault: str) -> None:
    name = f"acme-{fault.replace(' ', '')}"
    module = name.replace("-", "_")
    install(site, name, files={**files_of(module), f"{module}/__init__.py": MARKED})
    spec = installed(name).spec
    needed, listed = {name: spec}, {name: spec}
    if fault == "unlisted":
        listed = {}
    elif fault == "other hash":
        listed = {name: OTHER}
    elif fault == "other version":
        needed = listed = {name: PackageSpec(version="2.0", sha256=spec.sha256)}
    elif fault == "changed":
        (site / module / "loss.py").write_text("", encoding="utf-8")
    else:
        (site / f"{module}-1.0.dist-info" / "METADATA").unlink()
        (site / f"{module}-1.0.dist-info").rename(site / "gone")
    with pytest.raises(PolicyError, match=name) as refused:
        components.admit(needed, where="site HK", listed=listed)
    assert "site HK" in str(refused.value)
    if fault == "other version":
        assert "1.0" in str(refused.value) and "2.0" in str(refused.value)
    with raises("package-unnamed"):
        components.load("loss", f"{name}:squared")


def test_on_ones_own_machine_what_is_installed_is_compared_with_the_job(site: Path) -> None:
    install(site, "acme-own")
    assert components.choose(["unet", "acme-own:small"]) == {"acme-own": installed("acme-own").spec}
    with raises("package-differs", naming=("model.pt", "acme-own", OTHER.sha256[:12])) as error:
        components.admit({"acme-own": OTHER}, where="model.pt")
    assert not isinstance(error.value, PolicyError)


def test_a_package_cannot_stand_in_for_another_name(site: Path) -> None:
    """Names of fedshift have no colon, and those of packages begin with the package's."""
    points = {
        "fedshift.methods": {"fedavg": "acme_shadow.method"},
        "fedshift.networks": {"unet": "acme_shadow.network"},
    }
    install(site, "acme-shadow", points=points)
    own = [*method_set.available(), *networks.available(), *losses.available()]
    assert not [name for name in own if components.SIGN in name]
    components.choose(["acme-shadow:fedavg"])
    assert method_set.find("fedavg").__name__ == "fedshift.methods.fedavg"
    assert method_set.find("acme-shadow:fedavg").__name__ == "acme_shadow.method"


def test_a_module_that_another_folder_shadows_is_not_imported(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "acme-first")
    before = tmp_path / "before" / "acme_first"
    before.mkdir(parents=True)
    (before / "__init__.py").write_text(MARKED, encoding="utf-8")
    monkeypatch.syspath_prepend(str(before.parent))
    components.choose(["acme-first:small"])
    with raises("package-shadowed", naming=("acme-first", str(before))):
        components.load("network", "acme-first:small")


def test_a_component_outside_of_the_packages_files_is_refused(site: Path) -> None:
    """The hash says nothing of another package's module, such as one of Python's own."""
    install(
        site,
        "acme-outside",
        points={"fedshift.losses": {"json": "json", "none": "acme_outside_none", "main": "__main__"}},
    )
    components.choose(["acme-outside:json"])
    with raises("package-shadowed", naming="json"):
        components.load("loss", "acme-outside:json")
    for name, module in (("none", "acme_outside_none"), ("main", "__main__")):
        with pytest.raises(ConfigError, match=module):
            components.load("loss", f"acme-outside:{name}")


def test_what_a_package_does_not_offer_is_refused_with_the_nearest(site: Path) -> None:
    install(site, "acme-nearest", points={**points_of("acme_nearest"), "fedshift.tasks": {"Odd": "acme_nearest"}})
    components.choose(["acme-nearest:small"])
    with raises("unknown-component", naming=("network", "acme-nearest:small")):
        components.load("network", "acme-nearest:smal")
    with raises("package-broken", naming="Odd"):
        components.task_file("acme-nearest:Odd")


def test_code_that_cannot_be_imported_or_lacks_what_its_kind_has_is_named(site: Path) -> None:
    files = {"acme_broken/__init__.py": "", "acme_broken/bad.py": MARKED, "acme_broken/bare.py": ""}
    points = {"fedshift.networks": {"bad": "acme_broken.bad", "bare": "acme_broken.bare"}}
    install(site, "acme-broken", files=files, points=points)
    components.choose(["acme-broken:bad"])
    for name, said in (("bad", "this code was run"), ("bare", "build")):
        with raises("package-broken", naming=(f"acme-broken:{name}", said)):
            networks.build(f"acme-broken:{name}", {}, in_channels=1, n_classes=2, seed=0)


def test_a_package_that_was_replaced_while_its_code_runs_is_refused(site: Path) -> None:
    install(site, "acme-replaced", files=files_of("acme_replaced"))
    components.choose(["acme-replaced:squared"])
    components.load("loss", "acme-replaced:squared")
    files = {**files_of("acme_replaced"), "acme_replaced/__init__.py": "# newer\n"}
    install(site, "acme-replaced", files=files)
    with pytest.raises(ConfigError, match="start it anew"):
        components.choose(["acme-replaced:squared"])
