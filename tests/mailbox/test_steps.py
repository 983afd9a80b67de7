"""Steps of whole runs: killed anywhere, late, refused, disabled, repeated; the weights are those of one process."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from conftest import small_job
from errors import raises
from kits import SERVER
from modelfiles import assert_same_model

from fedshift.cli import main
from fedshift.federation.in_process import run_in_process
from fedshift.federation.ledger_heads import LedgerHeads
from fedshift.federation.site.privacy.ledger import Ledger
from fedshift.federation.site.site import Site
from fedshift.mailbox import coordinator_party, site_party
from fedshift.mailbox.deadline import Until
from fedshift.mailbox.disabled import disable, enable
from fedshift.mailbox.party import StepInProgress, step_lock
from fedshift.schema.errors import DataError, QuorumError
from fedshift.schema.results import BEST, LAST, Results, read_results

from .hospitals import Hospitals

SITES = ("BIDMC", "HK", "UCL")
AT_ONCE = Until(after=timedelta(0))
Make = Callable[..., Hospitals]


@pytest.fixture
def make(three_sites: Mapping[str, Path], kits_of: Callable[[str], Path], tmp_path: Path) -> Make:
    """Three hospitals and a job, small and of one round unless it says more."""

    def made(methods: str, *options: str, fresh: bool = False, policies: Mapping[str, str] | None = None) -> Hospitals:
        rounds = () if any(o.startswith("schedule.rounds") for o in options) else ("schedule.rounds=1",)
        job = small_job(methods, "schedule.local_steps=1", *rounds, *options)
        folder = tmp_path / "mailbox"
        return Hospitals(job, three_sites, folder, kits_of("prostate"), policies=policies or {}, fresh=fresh)

    return made


def assert_same_as_one_process(hospitals: Hospitals, folder: Path) -> None:
    run_in_process(hospitals.job, hospitals.data, folder)
    for file in (BEST, LAST):
        assert_same_model(folder / file, hospitals.run_folder / file)


def results_of(hospitals: Hospitals) -> Results:
    return read_results(hospitals.run_folder)


# --- a carrier and machines that do what they like ----------------------------------------------------------


def mischief(hospitals: Hospitals) -> Iterator[str]:
    """What a carrier does to the shared folder, one thing after another, each on all files that are there."""
    mail, rest = hospitals.mail, hospitals.folder
    for what in itertools.cycle(("lose", "truncate", "double", "exchange", "restore", "forge", "foreign")):
        files = sorted(path for path in mail.glob("*/*") if path.suffix in (".letter", ".piece"))
        if what == "restore" and (rest / "old").is_dir():
            shutil.rmtree(mail)
            shutil.copytree(rest / "old", mail)
        shutil.rmtree(rest / "old", ignore_errors=True)
        shutil.copytree(mail, rest / "old")
        for number, path in enumerate(files):
            if not path.exists():
                continue
            content, other = path.read_bytes(), files[number - 1]
            if what == "lose":
                path.unlink()
            elif what == "truncate":
                path.write_bytes(content[: len(content) // 2])
            elif what == "double":
                shutil.copy(path, path.with_name(f"{path.stem} (1){path.suffix}"))
            elif what == "exchange" and other.exists():
                path.write_bytes(other.read_bytes())
                other.write_bytes(content)
            elif what == "forge":
                path.write_bytes(content[:-3] + bytes(3))
            elif what == "foreign":
                (path.parent / "notes.txt").write_text("hello")
        yield what


@pytest.mark.slow
def test_whatever_the_carrier_does_the_weights_are_the_same(make: Make, tmp_path: Path) -> None:
    """After each thing that it does, every party makes a step, and those who wrote put back what is missing."""
    hospitals = make("fedfa+fedrdn", "schedule.rounds=2")
    done = mischief(hospitals)
    hospitals.run(between=lambda: next(done), most=60)
    assert_same_as_one_process(hospitals, tmp_path / "one")
    assert not results_of(hospitals).rounds[0].rejected


class Killed(BaseException):
    """The process has ended here."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [("federation.encryption=masks", "federation.min_sites=3"), pytest.param((), marks=pytest.mark.slow)]
)
def test_a_step_that_is_killed_anywhere_loses_nothing(
    options: tuple[str, ...], make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after each of the writes of a step; the next step goes on, with the weights of one process."""
    hospitals = make("fedavg", "schedule.rounds=2", *options, fresh=True)
    points = itertools.cycle(
        [
            (module, name, after)
            for name in ("seal", "save_state", "place_all")
            for after in (False, True)
            for module in (0, 1)
        ]
    )

    def killed(name: str) -> None:
        number, function, after = next(points)
        module = (coordinator_party, site_party)[number]
        real = getattr(module, function)

        def killer(*args: object, **kwargs: object) -> None:
            if after:
                real(*args, **kwargs)
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(module, function, killer)
            try:
                hospitals.step(name)
            except Killed:
                deaths.append((name, function, after))

    deaths: list[tuple[str, str, bool]] = []
    parties = itertools.cycle((SERVER, *SITES))
    hospitals.run(between=lambda: killed(next(parties)), most=60)
    for name in SITES:  # the weak points of a site, one after another in a round of its own
        assert (hospitals.folder / name / "state" / name).is_dir()
    assert deaths
    assert_same_as_one_process(hospitals, tmp_path / "one")


@pytest.mark.slow
def test_a_site_that_is_killed_after_training_gives_one_answer(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It trains twice, to the same bits, and nothing of the first time had left. After that it never trains again."""
    hospitals = make("fedavg", fresh=True)
    trained, train = [], Site.train

    def counted(site: Site, *args: object, **kwargs: object) -> object:
        trained.append(train(site, *args, **kwargs))  # type: ignore[arg-type]
        return trained[-1]

    monkeypatch.setattr(Site, "train", counted)
    hospitals.ask_round_1()
    with monkeypatch.context() as patch:
        patch.setattr(site_party, "save_state", _die)
        with pytest.raises(Killed):
            hospitals.step("HK")
    assert not list((hospitals.mail / "HK").glob("*.000002.letter"))
    hospitals.step("HK")
    hospitals.step("HK")
    assert len(trained) == 2
    for key, array in trained[0].weights.items():
        assert (array == trained[1].weights[key]).all()


def _die(*args: object) -> None:
    raise Killed


def test_two_steps_at_a_time_are_refused(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    hospitals = make("fedavg")
    with step_lock(hospitals.folder / "HK"):
        with pytest.raises(StepInProgress, match=r"process \d+"):
            hospitals.step("HK")
        assert main(["mailbox", "step", str(hospitals.folder / "HK")]) == 3
        assert "another step is at work here" in capsys.readouterr().out


# --- late, absent, refused ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_late_site_is_absent_and_takes_part_again(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """As under FLARE: it is named as absent, its late answer is stale, and the quorum decides."""
    hospitals = make("fedavg", "schedule.rounds=2", "federation.min_sites=2")
    hospitals.ask_round_1()
    with pytest.raises(QuorumError, match="HK"):
        hospitals.step(SERVER, until=AT_ONCE)
    assert hospitals.step(SERVER).line.endswith("awaits BIDMC, HK, UCL"), "nothing is lost"
    hospitals.all_step("BIDMC", "UCL")
    assert "2 of 3" in hospitals.step(SERVER).line
    with pytest.raises(QuorumError):
        hospitals.step(SERVER, until=AT_ONCE)  # round 1 is closed, and round 2 is over before anybody has answered
    record = results_of(hospitals).rounds[0]
    assert record.absent == ["HK"] and not record.rejected
    hospitals.run()
    results = results_of(hospitals)
    assert [record.absent for record in results.rounds] == [["HK"], []]
    assert results.final is not None and "HK" in results.final.last.sites


@pytest.mark.slow
def test_an_answer_after_its_round_is_stale(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    hospitals = make("fedavg", "schedule.rounds=2", "federation.min_sites=2")
    hospitals.ask_round_1()
    hospitals.all_step(*SITES)
    shutil.move(hospitals.mail / "HK", hospitals.folder / "held back")
    with pytest.raises(QuorumError):
        hospitals.step(SERVER, until=AT_ONCE)
    assert results_of(hospitals).rounds[0].absent == ["HK"]
    shutil.move(hospitals.folder / "held back", hospitals.mail / "HK")
    hospitals.step(SERVER)
    assert "after its round had ended" in caplog.text
    hospitals.run()
    assert [record.absent for record in results_of(hospitals).rounds] == [["HK"], []]


def test_a_policy_refuses_as_under_flare(make: Make) -> None:
    """The site says why, in the words of its policy; the others go on."""
    policy = "privacy: {allow: [loss]}\n"
    hospitals = make("fedrdn", "federation.min_sites=2", policies={"HK": policy})
    hospitals.run()
    results = results_of(hospitals)
    assert results.statistics is not None
    (fault,) = results.statistics.rejected
    assert fault.site == "HK" and fault.key == "statistics" and "allow" in fault.reason
    assert results.rounds[0].absent == ["HK"]


def test_a_failure_says_nothing_of_the_sites_files(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    hospitals = make("fedavg", "federation.min_sites=2")
    (hospitals.folder / "HK_kit" / "local" / "fedshift.yaml").write_text("data: {prostate: /secret/place}\n")
    hospitals.run()
    statistics = results_of(hospitals).statistics
    assert statistics is not None
    (fault,) = statistics.rejected
    assert fault.site == "HK" and DataError.__name__ in fault.reason and "secret" not in fault.reason
    assert "/secret/place" in (hospitals.folder / "HK_kit" / "local" / "fedshift.yaml").read_text()


@pytest.mark.slow
def test_the_ledger_charges_once_although_a_step_is_repeated(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = "privacy: {statistics: {epsilon: 3}}\n"
    hospitals = make("fedrdn", policies={"HK": policy}, fresh=True)
    hospitals.all_step()
    hospitals.all_step(SERVER)
    for name in ("seal", "save_state"):
        with monkeypatch.context() as patch:
            patch.setattr(site_party, name, _die)
            with pytest.raises(Killed):
                hospitals.step("HK")
    hospitals.run()
    account = Ledger(hospitals.folder / "HK_kit" / "local").read()
    assert [(release.round, release.what) for release in account.releases] == [(0, "image statistics")]
    assert account.head == LedgerHeads(hospitals.folder / f"{SERVER}_kit" / "local").all()["HK"]


def test_a_ledger_that_was_put_back_is_found(make: Make) -> None:
    policy = "privacy: {statistics: {epsilon: 3}}\n"
    hospitals = make("fedrdn", "federation.min_sites=2", policies={"HK": policy})
    hospitals.ask_round_1()
    for path in (hospitals.folder / "HK_kit" / "local").glob("*ledger*"):
        path.unlink()
    hospitals.run()
    (fault,) = results_of(hospitals).rounds[0].rejected
    assert fault.site == "HK" and fault.key == "train" and "ledger" in fault.reason


@pytest.mark.slow
def test_a_disabled_site_has_no_part_until_it_is_enabled(make: Make) -> None:
    hospitals = make("fedavg", "schedule.rounds=3", "federation.min_sites=2")
    kit = hospitals.folder / f"{SERVER}_kit"
    hospitals.ask_round_1()
    hospitals.all_step(*SITES)  # HK has answered when it is disabled
    disable(kit, "HK")
    hospitals.step(SERVER)
    record = results_of(hospitals).rounds[0]
    assert [(fault.site, fault.key) for fault in record.rejected] == [("HK", "disabled")] and "HK" not in record.sites
    assert "(round 1)" in record.rejected[0].reason
    enable(kit, "HK")
    hospitals.run()
    assert "HK" in results_of(hospitals).rounds[-1].sites
    with raises("unknown-site", naming="HK"):
        enable(kit, "HK")


@pytest.mark.slow
def test_sites_that_could_not_do_it_are_asked_again(make: Make, tmp_path: Path) -> None:
    hospitals = make("fedavg", "federation.min_sites=3")
    settings = hospitals.folder / "HK_kit" / "local" / "fedshift.yaml"
    good = settings.read_text()
    settings.write_text("data: {prostate: /not/there}\n")
    hospitals.all_step()
    hospitals.all_step()
    with pytest.raises(QuorumError, match="HK"):
        hospitals.step(SERVER)
    settings.write_text(good)
    hospitals.coordinator().step(again=True)
    hospitals.run()
    assert_same_as_one_process(hospitals, tmp_path / "one")


@pytest.mark.slow
def test_a_site_whose_folder_is_lost_is_readmitted(make: Make) -> None:
    hospitals = make("fedavg", "schedule.rounds=2", "federation.min_sites=2")
    hospitals.ask_round_1()
    hospitals.all_step(*SITES)
    shutil.rmtree(hospitals.folder / "HK")
    shutil.rmtree(hospitals.mail / "HK")
    hospitals.make("HK")
    hospitals._sites.pop("HK", None)
    assert any("readmit" in note for note in hospitals.step("HK").notes)
    assert any("another card" in note for note in hospitals.step(SERVER).notes)
    hospitals.coordinator().readmit("HK")
    hospitals.run()
    assert all("HK" in record.sites for record in results_of(hospitals).rounds[1:])


@pytest.mark.slow
def test_nothing_grows_with_rounds(make: Make) -> None:
    """Files are as many after ten rounds as after three, but for the record of the rounds."""
    hospitals = make("fedavg", "schedule.rounds=8")
    counts = {}
    for _ in range(60):
        over = hospitals.all_step()
        rounds = len(results_of(hospitals).rounds) if (hospitals.run_folder / "results.json").is_file() else 0
        counts[rounds] = len([path for path in hospitals.folder.rglob("*") if path.is_file()])
        if over:
            break
    assert counts[7] <= counts[3]
    left = [path.name for path in hospitals.mail.rglob("*") if path.suffix in (".piece", ".letter")]
    chains = json.loads((hospitals.folder / SERVER / "state.json").read_text())["chains"]
    assert sorted(left) == sorted(f"{site}.{chains[site]['sent']:06d}.letter" for site in SITES)
