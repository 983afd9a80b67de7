"""A site's ledger: nothing leaves that is not in it, whatever is killed; changes are found; the budget holds."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import small_job
from errors import raises
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.signal import Signal

from fedshift.federation.in_process import run_in_process
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.site.privacy import ledger as ledger_module
from fedshift.federation.site.privacy.accounting import epsilon_of
from fedshift.federation.site.privacy.gate import Gate
from fedshift.federation.site.privacy.ledger import HEAD_FILE, Account, Ledger, Release
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.flare import codec
from fedshift.flare.executor import FedshiftExecutor
from fedshift.flare.export import write_job
from fedshift.schema.policy import LEDGER_FILE, Policy, PrivacyBudget
from fedshift_testing.serialised import Kit


def policy(**options: Any) -> Policy:
    return Policy.parse(options, where="a site's policy")


def release(number: int = 1, *, run: str = "a", multiplier: float = 2.0) -> Release:
    return Release(
        date="2026-01-02T03:04:05+00:00",
        job="fedrdn_prostate",
        run=run,
        round=number,
        dataset="prostate",
        what="network",
        mechanism="gaussian",
        sensitivity=0.5,
        unit="L2 norm",
        deviation=0.5 * multiplier,
        multiplier=multiplier,
        epsilon=epsilon_of(1e-5, 1 / multiplier),
        delta=1e-5,
        question=f"{run} {number}",
    )


def filled(folder: Path, releases: int = 4) -> Ledger:
    ledger = Ledger(folder)
    for number in range(1, releases + 1):
        ledger.record(release(number), budget=None, site="HK")
    return ledger


def lines(folder: Path) -> list[str]:
    return (folder / LEDGER_FILE).read_text(encoding="utf-8").splitlines(keepends=True)


# --- the chain -----------------------------------------------------------------------------------------


def test_releases_come_back_as_they_were_and_a_repeated_one_is_there_once(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    before = (tmp_path / LEDGER_FILE).read_bytes()
    ledger.record(release(3), budget=None, site="HK")
    assert (tmp_path / LEDGER_FILE).read_bytes() == before
    account = Ledger(tmp_path).read()
    assert account.releases == tuple(release(number) for number in range(1, 5)) and account.broken is None
    assert account.epsilon(1e-5) == pytest.approx(epsilon_of(1e-5, 1.0)), "four with multiplier 2 are one with 1"
    assert stat.S_IMODE((tmp_path / LEDGER_FILE).stat().st_mode) == 0o600


def test_a_known_answer_with_other_noise_is_refused_and_not_put_down(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    before = (tmp_path / LEDGER_FILE).read_bytes()
    known = release(3)
    for other in (
        release(3, multiplier=1.5),
        known.model_copy(update={"sensitivity": 0.25, "deviation": 0.5}),
        known.model_copy(update={"steps": 2}),
    ):
        with raises("answered-before", naming=("HK", "3")):
            ledger.record(other, budget=None, site="HK")
    assert (tmp_path / LEDGER_FILE).read_bytes() == before


def test_no_ledger_is_an_empty_one(tmp_path: Path) -> None:
    assert Ledger(tmp_path / "nowhere").read() == Account()
    assert not (tmp_path / "nowhere").exists(), "reading makes nothing"


def _edit(text: str) -> Callable[[list[str]], list[str]]:
    return lambda have: [have[0], have[1].replace('"sensitivity":0.5', text), *have[2:]]


@pytest.mark.parametrize(
    ("change", "at", "reason"),
    [
        (_edit('"sensitivity":0.4'), 2, "changed after it was written"),
        (_edit('"sensitivity":"half"'), 2, "cannot be read"),
        (lambda have: [have[0], *have[2:]], 2, "does not follow the one before"),
        (lambda have: [have[0], have[2], have[1], have[3]], 2, "does not follow the one before"),
        (lambda have: [have[0], have[0], *have[1:]], 2, "does not follow the one before"),
        (lambda have: ["nothing\n", *have], 1, "cannot be read"),
        (lambda have: have[:-1], 4, "4 releases were recorded, and 3 are here"),
        (lambda have: [], 1, "4 releases were recorded, and 0 are here"),
    ],
    ids=["number", "type", "removed", "exchanged", "doubled", "before", "cut", "emptied"],
)
def test_a_changed_ledger_is_found_and_nothing_more_leaves(
    change: Callable[[list[str]], list[str]], at: int, reason: str, tmp_path: Path
) -> None:
    ledger = filled(tmp_path)
    (tmp_path / LEDGER_FILE).write_text("".join(change(lines(tmp_path))), encoding="utf-8")
    broken = ledger.read().broken
    assert broken is not None and broken.number == at and reason in broken.reason
    for use in (
        lambda: ledger.record(release(9), budget=None, site="HK"),
        lambda: ledger.check(PrivacyBudget(epsilon=100), [], site="HK", job="j", run=None),
    ):
        with raises("ledger-broken", naming=f"release {at}"):
            use()


def test_a_missing_or_damaged_head_is_found(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    (tmp_path / HEAD_FILE).write_text("{", encoding="utf-8")
    broken = ledger.read().broken
    assert broken is not None and broken.number == 4 and f"{HEAD_FILE} is damaged" in broken.reason
    (tmp_path / HEAD_FILE).unlink()
    assert "is missing" in str(ledger.read().broken)
    (tmp_path / LEDGER_FILE).unlink()
    assert ledger.read().broken is None, "both moved away is a new beginning"


def test_a_full_disk_keeps_the_release_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ledger_module.os, "fsync", full)
    with raises("no-space"):
        filled(tmp_path, 1)


# --- kills -----------------------------------------------------------------------------------------------

MOMENTS = {"before the noise": 1, "before the head": 1, "within the line": 0}
"""When a process is killed, and how many releases are on record then."""

KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [{tests!r}, {custom!r}]
from federation.site.privacy.test_ledger import MOMENTS, statistics_of
from fedshift.federation.site.privacy import ledger, noise

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

for number, when in enumerate(MOMENTS):
    child = os.fork()
    if child:
        print(when, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), sep=": ", flush=True)
        continue
    folder = Path({folder!r}) / str(number)
    if when == "before the noise":
        noise.NoiseSource.draw = die
    elif when == "before the head":
        ledger.write_private = die
    else:
        whole = ledger._text

        def half(content):
            if "hash" in content and "release" in content:
                with open(folder / "kit" / ledger.LEDGER_FILE, "ab") as file:
                    file.write(whole(content)[:100])
                die()
            return whole(content)

        ledger._text = half
    statistics_of(Path({data!r}), folder)
    print("it left", flush=True)
    os._exit(0)
"""


def statistics_of(data: Path, folder: Path) -> dict[str, np.ndarray]:
    """FedRDN's pair as it leaves a site with noise."""
    rules = policy(statistics={"epsilon": 3})
    site = Site(
        small_job("fedrdn"),
        "HK",
        data,
        SiteOptions(folder / "state", policy=rules, ledger=folder / "kit", device="cpu"),
    )
    return site.statistics().arrays["fedrdn"]


@pytest.mark.slow
def test_what_leaves_is_on_record_whenever_the_process_is_killed(three_sites: dict[str, Path], tmp_path: Path) -> None:
    """Killed for real; then the same task comes again to a new process, and is on record once."""
    tests, data = Path(__file__).parents[3], three_sites["HK"]
    code = KILLED.format(tests=str(tests), custom=str(tests.parent / "custom"), data=str(data), folder=str(tmp_path))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.splitlines() == [f"{when}: {-signal.SIGKILL}" for when in MOMENTS], result.stderr
    for number, recorded in enumerate(MOMENTS.values()):
        folder = tmp_path / str(number)
        ledger = Ledger(folder / "kit")
        assert len(ledger.trusted().releases) == recorded
        first, again = statistics_of(data, folder), statistics_of(data, folder)
        assert all(np.array_equal(first[name], again[name]) for name in first)
        assert len(ledger.trusted().releases) == 1
        assert len(lines(folder / "kit")) == 1, "the incomplete line is gone"


# --- what is in it, and the budget -----------------------------------------------------------------------


def test_a_job_is_on_record_with_what_its_noise_was_made_for(three_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_job("fedbn+fedrdn")
    rules = policy(statistics={"epsilon": 3}, weights={"epsilon": 8, "clip": 0.5})
    site = Site(job, "HK", three_sites["HK"], SiteOptions(tmp_path / "s", policy=rules, ledger=tmp_path / "kit"))
    coordinator = Coordinator(job, tmp_path / "server")
    coordinator.open(0)
    update = site.statistics()
    arrays = {f"{name}s": update.arrays["fedrdn"][name][None] for name in ("mean", "std")}
    broadcast = replace(coordinator.open(1), arrays={"fedrdn": arrays})
    site.train(broadcast)
    site.train(broadcast)
    pair, network = Ledger(tmp_path / "kit").trusted().releases
    assert (pair.what, pair.round, network.what, network.round) == ("image statistics", 0, "network", 1)
    assert pair.epsilon == pytest.approx(3) and pair.dataset == "prostate" and pair.job == job.name
    assert (network.sensitivity, network.deviation) == (1.0, pytest.approx(network.multiplier))
    rounds = job.task.schedule.rounds
    assert epsilon_of(1e-5, np.sqrt(rounds) / network.multiplier) == pytest.approx(8)
    assert pair.run == network.run != ""


def test_a_job_past_the_budget_is_refused_before_anything_is_computed(
    three_sites: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = small_job("fedrdn+fedbn")
    rules = policy(statistics={"epsilon": 3}, weights={"epsilon": 3, "clip": 1}, budget={"epsilon": 6, "delta": 1e-5})

    def site(name: str) -> Site:
        return Site(job, "HK", three_sites["HK"], SiteOptions(tmp_path / name, policy=rules, ledger=tmp_path / "kit"))

    site("first").statistics()
    site("first").statistics()
    Ledger(tmp_path / "kit").record(release(1, run="another job", multiplier=1.5), budget=rules.budget, site="HK")
    monkeypatch.setattr(Site, "_measure", lambda self: pytest.fail("measured"))
    with raises("budget-spent", naming=("HK", "fedrdn_fedbn_prostate", "1e-05", "past the 6", "privacy.budget")):
        site("second").statistics()
    assert not (tmp_path / "second").exists(), "nothing was written either"


def test_a_budget_that_is_the_jobs_own_epsilon_is_enough_for_it_once(
    three_sites: dict[str, Path], tmp_path: Path
) -> None:
    rules = policy(statistics={"epsilon": 3}, budget={"epsilon": 3})
    job = small_job("fedrdn+single")

    def site(name: str) -> Site:
        return Site(job, "HK", three_sites["HK"], SiteOptions(tmp_path / name, policy=rules, ledger=tmp_path / "kit"))

    site("first").statistics()
    site("first").statistics()
    with raises("budget-spent", naming="privacy.budget"):
        site("second").statistics()


def test_two_jobs_at_the_same_time_cannot_go_past_the_budget_together(tmp_path: Path) -> None:
    """Each of them was admitted when the other had released nothing."""
    ledger, budget = Ledger(tmp_path), PrivacyBudget(epsilon=epsilon_of(1e-5, 1.0))
    for number in range(1, 5):
        ledger.record(release(number, run=f"job {number}"), budget=budget, site="HK")
    with raises("budget-spent", naming=("HK", "5", "4.983", "4.377")):
        ledger.record(release(5, run="job 5"), budget=budget, site="HK")
    assert len(ledger.trusted().releases) == 4


@pytest.mark.parametrize(
    ("names", "options", "named"),
    [
        ("fedrdn+fedbn", {"statistics": {"epsilon": 1}}, "the network"),
        ("fedrdn+fedbn", {"weights": {"epsilon": 1, "clip": 1}}, "privacy.statistics"),
        ("harmofl+single", {}, "privacy.budget"),
    ],
)
def test_with_a_budget_nothing_leaves_without_noise(
    names: str, options: dict[str, Any], named: str, three_sites: dict[str, Path], tmp_path: Path
) -> None:
    rules = policy(budget={"epsilon": 50}, **options)
    site = Site(small_job(names), "HK", three_sites["HK"], SiteOptions(tmp_path, policy=rules))
    with raises("no-noise", naming=named):
        site.statistics()


def test_with_a_budget_the_training_loss_stays(three_sites: dict[str, Path], tmp_path: Path) -> None:
    """Also where the network does, so that no noise is on anything."""
    rules = {"HK": policy(budget={"epsilon": 1})}
    run = run_in_process(small_job("single", "schedule.rounds=1"), three_sites, tmp_path, privacy=rules)
    losses = {site: of.train_loss for site, of in run.results.rounds[0].sites.items()}
    assert losses["HK"] is None and losses["UCL"] is not None


def test_a_broken_ledger_stops_the_site_before_anything_is_computed(
    three_sites: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    (tmp_path / LEDGER_FILE).write_text("".join(lines(tmp_path)[1:]), encoding="utf-8")
    monkeypatch.setattr(Gate, "release", lambda *_: pytest.fail("released"))
    rules = policy(statistics={"epsilon": 3})
    site = Site(
        small_job("fedrdn"), "HK", three_sites["HK"], SiteOptions(tmp_path / "s", policy=rules, ledger=tmp_path)
    )
    with raises("ledger-broken", naming="release 1"):
        site.statistics()


class Provisioned(Kit):
    """A kit at a hospital, as against one in FLARE's simulator."""

    def get_prop(self, key: str, default: Any = None) -> Any:
        return False if key == FLContextKey.SIMULATE_MODE else default


def test_at_a_hospital_the_ledger_is_in_the_kit_and_outlives_the_job(
    three_sites: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedshift.flare.executor.require_protection", lambda: None)
    job = small_job("fedrdn")
    kit = Provisioned.make(job, "HK", three_sites["HK"], tmp_path / "kit", sent=write_job(job, tmp_path / "job"))
    settings_file = tmp_path / "kit" / "local" / "fedshift.yaml"
    settings_file.write_text(
        settings_file.read_text(encoding="utf-8") + "privacy: {statistics: {epsilon: 3}}\n", encoding="utf-8"
    )
    asked = codec.encode_task(replace(Coordinator(job, tmp_path / "server").open(0), sites=("HK",)))
    FedshiftExecutor().execute(codec.STATISTICS, asked, kit, Signal())  # type: ignore[arg-type]
    account = Ledger(tmp_path / "kit" / "local").trusted()
    assert [one.what for one in account.releases] == ["image statistics"]
    assert json.loads(lines(tmp_path / "kit" / "local")[0])["release"]["job"] == job.name
