"""Task files and the numbered sites that they name."""

from __future__ import annotations

import pytest

from fedshift.schema.errors import ConfigError
from fedshift.schema.task_files import MOST_SITES, Numbered, apps_dir, tasks


def test_tasks_are_the_files_of_their_folder() -> None:
    assert tasks() == sorted(path.stem for path in apps_dir().iterdir() if path.suffix == ".yaml")
    assert "prostate" in tasks()


def test_names_sort_as_their_numbers_do() -> None:
    assert Numbered(prefix="site_", count=2).names == ["site_000", "site_001"]
    names = Numbered(prefix="s", count=1200).names
    assert names == sorted(names) and (names[0], names[-1]) == ("s0000", "s1199")


@pytest.mark.parametrize(
    ("change", "key"), [({"count": 0}, "count"), ({"count": MOST_SITES + 1}, "count"), ({"prefix": "../"}, "prefix")]
)
def test_no_site_far_too_many_and_a_prefix_that_is_no_file_name_are_refused(
    change: dict[str, object], key: str
) -> None:
    with pytest.raises(ConfigError, match=f"'{key}'"):
        Numbered.parse({"prefix": "site_", "count": 3, **change}, where="the task")
