"""A site that is held out is a party of its own under FLARE: deployed to, asked at the end, equal in its numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import SHAPES

from fedshift.federation.in_process import run_in_process
from fedshift.federation.resolve import resolve
from fedshift.flare import codec
from fedshift.flare.export import meta
from fedshift.schema.results import LAST, read_results
from fedshift_testing.serialised import Federation


@pytest.mark.parametrize("options", [(), ("federation.hosts=2",)])
def test_it_is_asked_for_scores_only_and_they_are_those_of_one_process(
    options: tuple[str, ...], three_image_sites: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fedshift").mkdir()
    (tmp_path / "data").rename(tmp_path / "fedshift" / "phantom")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)
    data = {site: tmp_path / "fedshift" / "phantom" / "shapes" / site for site in three_image_sites}
    job = resolve(str(SHAPES), "fedrdn+fedbn", held_out=["C"], options=options)
    run_in_process(job, data, tmp_path / "one")
    federation = Federation(job, {} if options else data, tmp_path / "flare")
    federation.run()
    one, flare = (read_results(folder) for folder in (tmp_path / "one", tmp_path / "flare" / "server"))
    assert one.final == flare.final and flare.final is not None
    assert set(flare.final.last.held_out) == {"C"} and flare.data == one.data
    assert (tmp_path / "flare" / "server" / LAST).is_file()
    if not options:
        tasks = {message.task for message in federation.messages if message.site == "C"}
        assert tasks == {codec.VALIDATE}
        assert not any(
            message.arrays("arrays") for message in federation.messages if message.site == "C" and message.up
        )


def test_it_is_deployed_to_and_not_waited_for() -> None:
    told = meta(resolve(str(SHAPES), "fedavg", held_out=["C"], options=["federation.min_sites=2"]))
    assert told["deploy_map"] == {"app": ["server", "A", "B", "C"]}
    assert told["min_clients"] == 2
