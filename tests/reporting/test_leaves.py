"""The page on what leaves a site says what the guard accepts, and nothing that the guard accepts is left out."""

from __future__ import annotations

from pathlib import Path

from fedshift.networks.unet import UNet
from fedshift.reporting.leaves import leaves_tables

PAGE = Path(__file__).parents[2] / "docs" / "what-leaves-a-site.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text().endswith("\n" + leaves_tables(UNet())), "run 'fedshift methods --leaves' and put it in"


def test_methods_that_share_statistics_say_so() -> None:
    tables = leaves_tables(UNet())
    assert "| `mean.5` | 512 float32 | every round |" in tables
    assert "| `std` | 3 float64 | once | average contrast" in tables
    assert "every site's `mean`, without names" in tables
    assert "## fedavg\n\nNothing more." in tables
