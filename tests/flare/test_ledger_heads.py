"""A ledger that was put back from a backup, cut or deleted is found, because the server knows where it ended."""

from __future__ import annotations

import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import make_site, small_job
from errors import raises
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace

from docs.hooks import leaves
from fedshift.federation.ledger_heads import FILE_NAME, LedgerHeads
from fedshift.federation.site.privacy.ledger import HEAD_FILE, Ledger
from fedshift.flare import codec
from fedshift.flare.aggregator import FedshiftAggregator
from fedshift.flare.dry_run import contents
from fedshift.flare.executor import FedshiftExecutor
from fedshift.flare.export import write_job
from fedshift.schema.messages import Answer, Broadcast, Failure, SiteInfo, Update
from fedshift.schema.policy import LEDGER_FILE, LedgerHead
from fedshift_testing.serialised import Kit

from .test_aggregator import send


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """Of site HK, whose policy puts noise on statistics."""
    kit = tmp_path / "kit"
    for name in ("local", "startup"):
        (kit / name).mkdir(parents=True)
    data = make_site(tmp_path / "data", "HK")
    settings = f"data: {{prostate: {data}}}\nprivacy: {{statistics: {{epsilon: 3}}}}\n"
    (kit / "local" / "fedshift.yaml").write_text(settings, encoding="utf-8")
    return kit


@pytest.fixture
def heads(tmp_path: Path) -> LedgerHeads:
    (tmp_path / "server").mkdir()
    return LedgerHeads(tmp_path / "server")


def measure(kit: Path, job: str, heads: LedgerHeads) -> Answer:
    """The site's answer to a job's statistics round, and what the server makes of its head."""
    context = Kit("HK", Workspace(root_dir=str(kit), site_name="HK"), simulator=False, job=job)
    context.deploy(write_job(small_job("fedrdn"), kit.parent / "jobs" / job))
    task = deepcopy(codec.encode_task(Broadcast(0, 0, {}, sites=("HK",), ledgers=heads.known(["HK"]))))
    reply = FedshiftExecutor().execute(codec.STATISTICS, task, context, Signal())  # type: ignore[arg-type]
    (answer,) = codec.decode_answers(reply)
    if answer.ledger is not None:
        heads.keep("HK", answer.ledger)
    return answer


def copy_of(local: Path, to: Path) -> Path:
    to.mkdir()
    for name in (LEDGER_FILE, HEAD_FILE):
        shutil.copy(local / name, to)
    return to


def test_every_answer_brings_where_the_ledger_ends(kit: Path, heads: LedgerHeads) -> None:
    for number, job in enumerate(("one", "two"), start=1):
        head = measure(kit, job, heads).ledger
        assert head is not None and head == Ledger(kit / "local").read().head
        assert head.number == number and heads.all() == {"HK": head}


@pytest.mark.slow
def test_of_a_ledger_nothing_leaves_but_a_number_and_a_hash(kit: Path, heads: LedgerHeads) -> None:
    answer = measure(kit, "one", heads)
    assert answer.ledger is not None

    def told(of: Answer) -> dict[str, object]:
        return {item.name: item.value for item in contents(codec.STATISTICS, of).items if not item.bytes}

    with_it, without = told(answer), told(replace(answer, ledger=None))
    new = {name: value for name, value in with_it.items() if name not in without}
    assert new == {"HK/ledger/number": answer.ledger.number, "HK/ledger/hash": answer.ledger.hash}
    page = leaves.on_page_markdown(leaves.MARK)
    row = "the end of the site's privacy ledger: number of releases, SHA-256 of the last | 1 number, 1 hash |"
    assert f"| {row}" in page


@pytest.mark.parametrize(
    ("what", "fault"),
    [
        ("restored", "seen 2 releases, and 1 "),
        ("deleted", "no privacy_ledger.jsonl here"),
        ("another", "its release 2 is not"),
    ],
)
def test_a_ledger_without_what_the_server_has_seen_computes_nothing(
    what: str, fault: str, kit: Path, heads: LedgerHeads, tmp_path: Path
) -> None:
    local = kit / "local"
    measure(kit, "one", heads)
    backup = copy_of(local, tmp_path / "backup")
    measure(kit, "two", heads)
    newest = copy_of(local, tmp_path / "newest")
    for name in (LEDGER_FILE, HEAD_FILE):
        (local / name).unlink()
        if what != "deleted":
            shutil.copy(backup / name, local)
    if what == "another":
        measure(kit, "three", LedgerHeads(tmp_path))  # of a server that knows nothing
    before = sorted((path.name, path.read_bytes()) for path in local.iterdir())
    refused = measure(kit, "four", heads).content
    assert isinstance(refused, Failure)
    assert refused.reason.startswith("site HK: ") and fault in refused.reason
    assert sorted((path.name, path.read_bytes()) for path in local.iterdir()) == before, "nothing was spent"
    for name in (LEDGER_FILE, HEAD_FILE):
        shutil.copy(newest / name, local)
    assert isinstance(measure(kit, "four", heads).content, Update), "the newest copy mends it"


def test_a_person_can_give_the_lost_releases_up(kit: Path, heads: LedgerHeads) -> None:
    measure(kit, "one", heads)
    for name in (LEDGER_FILE, HEAD_FILE):
        (kit / "local" / name).unlink()
    assert isinstance(measure(kit, "two", heads).content, Failure)
    assert heads.forget("HK").number == 1
    answer = measure(kit, "two", heads)
    assert isinstance(answer.content, Update) and answer.ledger is not None and answer.ledger.number == 1


def test_a_server_that_tells_another_head_stops_a_site_and_gives_nothing_back(kit: Path, heads: LedgerHeads) -> None:
    measure(kit, "one", heads)
    spent = Ledger(kit / "local").read()
    for lie in (LedgerHead(number=7, hash="0" * 64), LedgerHead(number=1, hash="f" * 64)):
        told = LedgerHeads(heads.path.parent / str(lie.number))
        told.path.parent.mkdir()
        told.keep("HK", lie)
        assert isinstance(measure(kit, "two", told).content, Failure)
    assert Ledger(kit / "local").read() == spent


def test_a_site_that_put_no_noise_on_anything_tells_of_no_ledger(kit: Path, heads: LedgerHeads) -> None:
    settings = kit / "local" / "fedshift.yaml"
    settings.write_text(settings.read_text(encoding="utf-8").partition("privacy")[0], encoding="utf-8")
    answer = measure(kit, "one", heads)
    assert isinstance(answer.content, Update) and answer.ledger is None and heads.all() == {}
    assert not heads.path.exists()


# --- the server's record ------------------------------------------------------------------------------------


def head(number: int) -> LedgerHead:
    return LedgerHead(number=number, hash=f"{number:064x}")


def test_the_furthest_head_of_each_site_is_kept(heads: LedgerHeads) -> None:
    for number in (3, 5, 4, 5):
        heads.keep("HK", head(number))
    heads.keep("UCL", head(1))
    again = LedgerHeads(heads.path.parent)
    assert again.all() == {"HK": head(5), "UCL": head(1)} and again.known(["UCL", "BMC"]) == {"UCL": head(1)}
    with raises("unknown-site", naming=("BMC", "HK, UCL")):
        again.forget("BMC")


def test_jobs_that_run_at_the_same_time_lose_no_head(heads: LedgerHeads) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: LedgerHeads(heads.path.parent).keep(f"S{n % 4}", head(n + 1)), range(40)))
    assert {site: known.number for site, known in heads.all().items()} == {"S0": 37, "S1": 38, "S2": 39, "S3": 40}


@pytest.mark.parametrize("content", ["{", '{"sites": {"HK": {"number": 0, "hash": "x"}}}', '{"HK": 3}'])
def test_a_damaged_record_is_no_empty_one(content: str, heads: LedgerHeads) -> None:
    heads.path.write_text(content, encoding="utf-8")
    with raises("file-damaged", naming=FILE_NAME):
        heads.all()


def test_a_full_disk_costs_one_record_and_not_the_round(
    heads: LedgerHeads, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR, "fedshift"):
        patch.setattr("fedshift.federation.ledger_heads.write_private", full)
        heads.keep("HK", head(3))
    assert "release 3 of site" in caplog.text
    heads.keep("HK", head(4))
    assert heads.all() == {"HK": head(4)}


def test_a_head_is_kept_of_an_answer_that_is_refused(heads: LedgerHeads, tmp_path: Path) -> None:
    """What is in it has left the site."""
    aggregator = FedshiftAggregator()
    job = small_job("fedavg")
    aggregator.begin(job, tmp_path / "run", on_progress=lambda coordinator: None, ledgers=heads)
    info = SiteInfo("HK", "mice", 8, 4, 4, "sha", "case")
    answer = Answer(Update("HK", 0, n_samples=8, n_steps=0), info, head(2))
    assert not send(aggregator, codec.encode_answers([answer]), client="HK", task=codec.STATISTICS)
    assert heads.all() == {"HK": head(2)}


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ([1], "ledgers"),
        ({3: {"number": 1, "hash": "0" * 64}}, "ledgers"),
        ({"HK": {"number": "1", "hash": 5}}, "ledgers.HK.hash"),
        ({"HK": {"number": -1, "hash": "0" * 64}}, "ledgers.HK.number"),
        ({"HK": {"number": 1, "hash": "0" * 64, "path": "/"}}, "ledgers.HK.path"),
    ],
)
def test_what_is_no_head_is_refused_by_its_key(told: object, named: str) -> None:
    task = codec.encode_task(Broadcast(0, 0, {}, sites=("HK",), ledgers={"HK": head(1)}))
    assert codec.decode_task(deepcopy(task)).ledgers == {"HK": head(1)}
    task["DXO"]["meta"]["ledgers"] = told
    with pytest.raises(codec.WireError) as refusal:
        codec.decode_task(task)
    assert refusal.value.key == named
