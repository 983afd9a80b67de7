"""The page on what leaves a site is up to date, and an answer as it is sent holds nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from conftest import small_job
from nvflare.apis.dxo import DXO, from_shareable
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.app_common.decomposers import common_decomposers
from nvflare.fuel.utils import fobs

from fedshift.coordinator import Coordinator
from fedshift.flare import wire
from fedshift.networks.unet import UNet
from fedshift.reporting.leaves import leaves_tables
from fedshift.site import Site

PAGE = Path(__file__).parents[2] / "docs" / "what-leaves-a-site.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8").endswith("\n" + leaves_tables(UNet())), (
        "run 'fedshift methods --leaves' and put it in"
    )


def test_methods_that_share_statistics_say_so() -> None:
    tables = leaves_tables(UNet())
    assert "| `mean.5` | 512 float32 | every round |" in tables
    assert "| `std` | 3 float64 | once | average contrast" in tables
    assert "every site's `mean`, without names" in tables
    assert "## fedavg\n\nNothing more." in tables


def leaves(dxo: DXO, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Everything in a message that is not another DXO, by its path."""
    for key, value in {**dxo.data, **{f"meta:{k}": v for k, v in dxo.meta.items()}}.items():
        if isinstance(value, DXO):
            yield from leaves(value, (*path, key))
        elif isinstance(value, dict):
            yield from (((*path, key, inner), v) for inner, v in value.items())
        else:
            yield (*path, key), value


def test_an_answer_as_it_is_sent_holds_what_the_page_names(three_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_job("fedfa+fedrdn")
    coordinator = Coordinator(job, tmp_path / "server")
    coordinator.open(0)
    sites = {name: Site(job, name, data=path, state=tmp_path / "state") for name, path in three_sites.items()}
    for site in sites.values():
        coordinator.register(site.info())
        coordinator.accept(site.statistics())
    coordinator.close()
    site = sites["HK"]
    answers = [
        (wire.Answer(site.statistics(), site.info()), {("fedrdn", "mean"), ("fedrdn", "std")}),
        (
            wire.Answer(site.train(coordinator.open(1)), site.info()),
            {("fedfa", f"{name}.{layer}") for name in ("mean", "std") for layer in range(1, 6)},
        ),
    ]
    flare_decomposers.register()
    common_decomposers.register()
    page = PAGE.read_text(encoding="utf-8")
    network = set(coordinator.open(1).weights)
    for answer, arrays in answers:
        sent = fobs.loads(fobs.dumps(wire.encode_answers([answer])))
        found = dict(leaves(from_shareable(sent)))
        sent_arrays = {key[2:] for key, value in found.items() if key[:2] == ("HK", "arrays")}
        assert sent_arrays == arrays
        assert all(f"## {method}" in page and f"| `{name}` |" in page for method, name in arrays)
        assert {key[2] for key in found if key[:2] == ("HK", "weights")} <= network
        assert all(isinstance(v, np.ndarray) for k, v in found.items() if k[1] in ("weights", "arrays"))
        others = {key[1:] for key in found if key[0] == "HK" and key[1] not in ("weights", "arrays")}
        counts = {("meta:n_samples",), ("meta:n_steps",), ("meta:kind",), ("meta:round",)}
        info = {
            ("meta:info", n) for n in ("site", "kind", "n_train", "n_val", "n_test", "manifest_sha256", "split_rule")
        }
        assert others <= counts | info | {("metrics", "train_loss"), ("metrics", "seconds"), ("metrics", "dice")}
        assert {key for key in found if key[0] != "HK"} == {("meta:fedshift", "version"), ("meta:fedshift", "source")}
        for text in (v for v in found.values() if isinstance(v, str)):
            assert "/" not in text and "Case" not in text, "no path, no case"
