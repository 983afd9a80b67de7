"""The server gets the sum, exactly, whoever drops out; and nothing that does not fit becomes a part of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import SHAPES, small_image_job
from errors import raises

from fedshift.federation.encryption.masks.primitives import (
    Identity,
    SiteKey,
    decode,
    encode,
    largest,
    new_private_key,
    public_key,
)
from fedshift.federation.encryption.masks.protocol import HASHES, KEY, KEYS, MASKS, OPENED, SHARES, VECTOR, as_array
from fedshift.federation.encryption.masks.server import MaskedCoordinator
from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.federation.resolve import resolve
from fedshift.federation.site.site import Site
from fedshift.schema.errors import DataError
from fedshift.schema.messages import Broadcast, Update
from fedshift.schema.results import LAST

from .parties import MASKED, RUN, SITES, Parties, Passport, masked_job

SIX = ("BIDMC", "HK", "I2CVB", "BMC", "RUNMC", "UCL")


def plain_mean(parties: Parties, *sites: str) -> dict[str, np.ndarray]:
    """The weights from a sum of fixed-point numbers that was never masked."""
    total = np.zeros(parties.layout.size, np.int64)
    for site in sites:
        rows = [encode(row) for _, row in parties.layout.rows(parties.plain[site], parties.message)]
        total += np.concatenate(rows)
    factors = sum(parties.layout.factor(parties.plain[site].n_samples) for site in sites)
    return {
        segment.name: np.asarray(part / factors, segment.dtype)
        for segment, part in parties.layout.split(decode(total)).items()
    }


def assert_same_bits(got: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert wanted
    for key, value in wanted.items():
        assert got[key].dtype == value.dtype and got[key].tobytes() == value.tobytes(), key


# --- the sum ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_the_sum_is_that_of_the_numbers_without_masks(weights: str, tmp_path: Path) -> None:
    parties = Parties(masked_job("fedavg", f"fedavg.weights={weights}"), tmp_path)
    got = parties.result(*SITES)
    assert_same_bits(got, plain_mean(parties, *SITES))
    total = sum(update.n_samples for update in parties.plain.values())
    for key, value in got.items():
        if value.dtype == np.float32:
            shares = [1 / 3 if weights == "uniform" else u.n_samples / total for u in parties.plain.values()]
            mean = sum(
                s * u.weights[key].astype(np.float64) for s, u in zip(shares, parties.plain.values(), strict=True)
            )
            assert np.abs(value - mean).max() < 1e-7
        else:
            assert value == max(update.weights[key] for update in parties.plain.values())


@pytest.mark.parametrize("silent", [(), ("BIDMC",), ("UCL",)])
def test_a_site_that_leaves_after_its_update_changes_no_bit(silent: tuple[str, ...], tmp_path: Path) -> None:
    parties = Parties(masked_job(), tmp_path)
    assert_same_bits(parties.result(*SITES, silent=silent), plain_mean(parties, *SITES))
    assert not parties.server.record.results.rounds[-1].rejected


@pytest.mark.parametrize("gone", SITES)
def test_a_site_that_leaves_before_its_update_is_not_in_the_sum(gone: str, tmp_path: Path) -> None:
    parties = Parties(masked_job(), tmp_path)
    rest = [site for site in SITES if site != gone]
    assert_same_bits(parties.result(*rest), plain_mean(parties, *rest))


def test_sites_leave_before_and_after(tmp_path: Path) -> None:
    """Six sites: one sends nothing, another leaves after its update; four shares are enough."""
    parties = Parties(masked_job(sites=SIX), tmp_path)
    there = [site for site in SIX if site != "HK"]
    assert_same_bits(parties.result(*there, silent=["BMC"]), plain_mean(parties, *there))


def test_an_update_that_arrives_and_is_refused_stays_masked(tmp_path: Path) -> None:
    """Here for its number of samples: before anybody is asked to unmask a sum with it."""
    parties = Parties(masked_job("fedavg", "federation.max_sample_ratio=1.6", sites=SIX), tmp_path)
    parties.upload(*(site for site in SIX if site != "RUNMC"))
    question = parties.question()
    assert question.sites == SIX[:4]  # without RUNMC, UCL has more than 1.6 times the median
    parties.unmask(question, *question.sites)
    parties.server.close()
    assert_same_bits(parties.server.model.weights, plain_mean(parties, *question.sites))
    assert [fault.site for fault in parties.server.results.rounds[-1].rejected] == ["UCL"]


@pytest.mark.parametrize("asked", [False, True])
def test_a_site_that_is_disabled_is_in_no_sum_unless_it_is_being_unmasked(asked: bool, tmp_path: Path) -> None:
    parties = Parties(masked_job(sites=SIX), tmp_path)
    parties.upload(*SIX)
    rest = tuple(site for site in SIX if site != "HK")
    if not asked:
        parties.server.take_out("HK", "disabled", "by admin")
    question = parties.question()
    assert question.sites == (SIX if asked else rest)
    if asked:
        parties.server.take_out("HK", "disabled", "by admin")
        parties.server.take_out("HK", "disabled", "by admin")
    parties.unmask(question, *rest)
    parties.server.close()
    assert_same_bits(parties.server.model.weights, plain_mean(parties, *question.sites))


# --- whole runs -------------------------------------------------------------------------------------------


def test_rounds_that_end_by_the_clock_and_scores_of_rounds_are_accepted(
    three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    job = small_image_job("fedavg", MASKED, "schedule.rounds=2", "schedule.minutes=0.0000001", "evaluation.every=1")
    run = run_in_process(job, three_image_sites, tmp_path)
    assert [record.rejected for record in run.results.rounds] == [[], []]
    assert all(site.steps == 1 for record in run.results.rounds for site in record.sites.values())


def test_a_run_is_repeated_to_the_bit_and_close_to_one_without_masks(
    three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    """With a site that is held out: it has no key, and scores the models."""
    options = ("fedfa.share=sums", "schedule.rounds=3", "federation.min_sites=2", "optimizer.name=sgd")
    ends, seen = {}, {}
    for name, more in (("plain", ()), ("one", (MASKED,)), ("two", (MASKED,))):
        job = resolve(str(SHAPES), "fedfa", held_out=["C"], options=(*options, *more))
        messages: dict[int, Broadcast] = seen.setdefault(name, {})
        run = run_in_process(
            job,
            three_image_sites,
            tmp_path / name,
            on_update=lambda broadcast, update, messages=messages: messages.update({broadcast.round: broadcast}),  # type: ignore[misc]
        )
        assert all(not record.rejected and not record.absent for record in run.results.rounds)
        assert run.results.final is not None and "C" in run.results.final.last.held_out
        content = read_model_file(tmp_path / name / LAST)
        arrays = {f"fedfa/{key}": value for key, value in content["methods"]["fedfa"].items()}
        ends[name] = {key: value.numpy() for key, value in {**content["weights"], **arrays}.items()}
    assert_same_bits(ends["one"], ends["two"])
    assert ends["one"].keys() == ends["plain"].keys()
    # What the first round made. Later ones make more of a difference in the last digit.
    ours, theirs = seen["one"][2], seen["plain"][2]
    assert ours.weights.keys() == theirs.weights.keys() and theirs.arrays["fedfa"].keys() == ours.arrays["fedfa"].keys()
    for key, value in {**theirs.weights, **theirs.arrays["fedfa"]}.items():
        got, close = {**ours.weights, **ours.arrays["fedfa"]}[key], 1e-3 if "gamma" in key else 1e-6
        assert np.allclose(got, value, rtol=close, atol=close), key  # gammas are of small variances
    secrets = [(tmp_path / name / "site_state" / "A" / "masks.json").read_text() for name in ("one", "two")]
    assert secrets[0] != secrets[1]


# --- the round does not count -----------------------------------------------------------------------------


def test_without_enough_shares_the_sum_stays_masked_and_the_round_is_done_again(tmp_path: Path) -> None:
    parties = Parties(masked_job(), tmp_path)
    parties.upload(*SITES)
    question = parties.question()
    parties.unmask(question, "HK")
    parties.server.reject("UCL", "unmask", "has no disk")
    assert not parties.server.hopeless
    parties.server.reject("BIDMC", "unmask", "neither")
    assert parties.server.hopeless and parties.server.usable == 1 and parties.server.needed == 2
    with raises("stays-masked", naming="UCL"):
        parties.server.close()
    wanted = plain_mean(parties, *SITES)
    parties.server = MaskedCoordinator(parties.job, tmp_path / "server")
    assert parties.server.resume() == 0
    parties.message = parties.server.open(1)
    parties.sites = {site: parties.site(site) for site in SITES}
    assert_same_bits(parties.result(*SITES, silent=["BIDMC"]), wanted)


def test_a_simulated_run_that_ended_with_a_masked_sum_goes_on_to_the_same_bits(
    three_image_sites: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the error says: the sites are mended, the run is resumed."""
    job = small_image_job("fedavg", MASKED, "schedule.rounds=2", "optimizer.name=sgd")
    run_in_process(job, three_image_sites, tmp_path / "undisturbed")

    def no_room(site: Site, broadcast: Broadcast) -> Update:
        raise DataError("no-space", "has no disk")

    with monkeypatch.context() as patch:
        patch.setattr(Site, "unmask", no_room)
        with raises("stays-masked", naming=("A", "B", "C")):
            run_in_process(job, three_image_sites, tmp_path / "ended")
    run_in_process(job, three_image_sites, tmp_path / "ended", resume=True)
    ends = [read_model_file(tmp_path / name / LAST)["weights"] for name in ("undisturbed", "ended")]
    assert_same_bits(*({key: value.numpy() for key, value in end.items()} for end in ends))


def test_after_an_interruption_the_same_sites_must_be_in_the_sum(tmp_path: Path) -> None:
    """Those that have answered would not answer for others."""
    parties = Parties(masked_job(), tmp_path)
    parties.upload("HK", "UCL")
    question = parties.question()
    parties.unmask(question, "HK")
    parties.server = MaskedCoordinator(parties.job, tmp_path / "server")
    assert parties.server.resume() == 0
    parties.message = parties.server.open(1)
    parties.upload("BIDMC", "HK")
    with raises("other-sum", naming=("HK", "UCL")):
        parties.server.open_unmasking()
    assert parties.server.rejected["BIDMC"].startswith("site:")
    parties.upload("UCL")
    parties.unmask(parties.question(), "HK", "UCL")
    parties.server.close()
    assert_same_bits(parties.server.model.weights, plain_mean(parties, "HK", "UCL"))
    (tmp_path / "server" / "unmasking.json").write_text("{")
    with raises("file-damaged", naming="unmasking.json"):
        parties.server.open_unmasking()


def test_too_few_updates_for_the_threshold_end_the_round(tmp_path: Path) -> None:
    parties = Parties(masked_job(sites=SIX), tmp_path)
    parties.upload(*SIX[:3])
    assert parties.server.needed == 4 and parties.server.open_unmasking() is None and not parties.server.hopeless
    for site in SIX[3:]:
        parties.server.reject(site, "train", "has no disk")
    assert parties.server.hopeless
    with raises("too-few-answers", naming=("3", "6", "4")):
        parties.server.close()


# --- keys -------------------------------------------------------------------------------------------------


def test_a_site_that_comes_later_takes_part_from_the_next_round_on(tmp_path: Path) -> None:
    parties = Parties(masked_job(), tmp_path, with_keys=("BIDMC", "HK"))
    sent = parties.masked("UCL")
    assert not sent.weights and sent.arrays[MASKS].keys() == {KEY}
    assert not parties.server.accept(sent)
    assert parties.server.rejected["UCL"].startswith("key:")
    parties.result("BIDMC", "HK")
    again = MaskedCoordinator(parties.job, tmp_path / "server")
    assert again.resume() == 1  # keys are a part of the state
    message = again.open(2)
    for site, update in parties.plain.items():
        sent = parties.masked(site, message, replace(update, weights=message.weights))
        assert again.accept(sent), again.rejected
    question = again.open_unmasking()
    assert question is not None and question.sites == SITES


# --- what is refused --------------------------------------------------------------------------------------


def test_what_cannot_be_summed_is_refused_with_its_name(tmp_path: Path) -> None:
    parties = Parties(masked_job(), tmp_path)
    good = parties.masked("HK")
    masks, vector = good.arrays[MASKS], good.weights[VECTOR]
    readable = next(k for k, v in parties.plain["HK"].weights.items() if v.dtype == np.float32)
    for bad, key, reason in (
        (replace(good, weights={**good.weights, VECTOR: vector[:-1]}), VECTOR, "not int64"),
        (replace(good, weights={**good.weights, VECTOR: vector.astype(np.float64)}), VECTOR, "is float64"),
        (replace(good, weights={k: v for k, v in good.weights.items() if k != VECTOR}), VECTOR, "is missing"),
        (replace(good, weights={**good.weights, readable: np.zeros(1)}), readable, "is not expected in weights"),
        (replace(good, arrays={MASKS: {**masks, SHARES: masks[SHARES][:2]}}), SHARES, "is uint8 (2, "),
        (replace(good, arrays={MASKS: {SHARES: masks[SHARES]}}), HASHES, "is missing"),
        (replace(good, arrays={MASKS: masks, "fedfa": {}}), "fedfa", "is not expected in methods"),
        (replace(good, n_samples=10**6), "n_samples", "but the site said"),
        (replace(good, weights={}, arrays={MASKS: {KEY: np.zeros(3)}}), KEY, "is no row of bytes"),
        (replace(good, weights={}, arrays={MASKS: {KEY: np.zeros(10**5, np.uint8)}}), KEY, "has 100000 bytes"),
    ):
        assert not parties.server.accept(bad)
        fault = parties.server.record.current.rejected[-1]
        assert (fault.site, fault.key) == ("HK", key) and reason in fault.reason, fault
    assert parties.server.accept(good)


@pytest.mark.parametrize(
    ("hostile", "reason"),
    [
        ("garbage", "is none"),
        ("another's", "is one of site HK"),
        ("of another run", "is not signed by that site"),
        ("unsigned", "comes with a certificate of another"),
        ("readable", "is one with which everybody could read"),
    ],
)
def test_a_key_that_no_site_would_take_leaves_its_sender_out_and_the_others_in(
    hostile: str, reason: str, tmp_path: Path
) -> None:
    passports = {site: Passport(site) for site in SITES}
    public, zeros, own = public_key(new_private_key()), bytes(32), passports["UCL"]
    key = {
        "garbage": b"x",
        "another's": travelling("HK", public, identity=passports["HK"]),
        "of another run": travelling("UCL", public, run="another run", identity=own),
        "unsigned": travelling("UCL", public, identity=None),
        "readable": travelling("UCL", zeros, identity=own),
    }[hostile]
    parties = Parties(masked_job(), tmp_path, with_keys=("BIDMC", "HK"), identities=passports, checker=own)
    for round_ in (0, 1):
        parties.server.open(round_)
        for site in ("BIDMC", "HK") if round_ == 0 else ():
            statistics = Update(site, 0, parties.plain[site].n_samples, 0)
            assert parties.server.accept(parties.sites[site].seal(statistics, Broadcast(0, 0, {})))
        sent = Update("UCL", round_, parties.plain["UCL"].n_samples, 0, arrays={MASKS: {KEY: as_array(key)}})
        assert not parties.server.accept(sent)
        assert reason in parties.server.rejected["UCL"]
        if round_ == 0:
            parties.server.close()
    parties.result("BIDMC", "HK")
    assert parties.server.open(2).arrays[MASKS].keys() == {f"{KEYS}BIDMC", f"{KEYS}HK"}


def travelling(site: str, public: bytes, *, identity: Identity | None, run: str = RUN) -> bytes:
    return SiteKey.make(site, public, run=run, identity=identity).model_dump_json().encode()


def test_a_wrong_share_is_named_and_the_others_are_enough(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    parties = Parties(masked_job(), tmp_path)
    parties.upload(*SITES)
    question = parties.question()
    answer = parties.sites["HK"].unmask(question)
    opened = answer.arrays[MASKS][OPENED]
    for changed, reason in (
        (opened ^ np.uint8(1), "another share than the one that site BIDMC gave it"),
        (opened[:2], r"is uint8 \(2, 1, 33\), not uint8 \(3, 1, 33\)"),
    ):
        assert not parties.server.accept(replace(answer, arrays={MASKS: {OPENED: changed}}))
        assert reason.replace("\\", "") in parties.server._unmasking.refused["HK"]  # type: ignore[union-attr]
    assert "site HK" in caplog.text
    assert not parties.server.accept(replace(answer, site="BMC"))
    assert not parties.server.accept(replace(answer, round=2))
    assert not parties.server.accept(replace(answer, weights={"more": opened}))
    parties.unmask(question, "BIDMC", "UCL")
    parties.server.close()
    assert_same_bits(parties.server.model.weights, plain_mean(parties, *SITES))


def test_a_site_that_gives_out_shares_of_nothing_is_named(tmp_path: Path) -> None:
    parties = Parties(masked_job(), tmp_path)
    parties.upload("BIDMC", "HK")
    sent = parties.masked("UCL")
    hashes = sent.arrays[MASKS][HASHES].copy()
    hashes[2, 3] ^= 1  # of the seed itself
    assert parties.server.accept(replace(sent, arrays={MASKS: {**sent.arrays[MASKS], HASHES: hashes}}))
    parties.unmask(parties.question(), *SITES)
    with raises("stays-masked", naming="UCL"):
        parties.server.close()


def test_a_sum_that_honest_sites_cannot_have_made_is_no_model(tmp_path: Path) -> None:
    parties = Parties(masked_job(), tmp_path)
    parties.upload("BIDMC", "HK")
    sent = parties.masked("UCL")
    nonsense = {**sent.weights, VECTOR: sent.weights[VECTOR] + np.int64(encode(np.array([1e6]))[0])}
    assert parties.server.accept(replace(sent, weights=nonsense))
    parties.unmask(parties.question(), *SITES)
    with raises("sum-too-far"):
        parties.server.close()


def test_steps_are_exact_and_sums_have_room() -> None:
    values = np.array([0.0, 2.0**-32, -(2.0**-32), 1.25, -3e4, largest(3)])
    assert decode(encode(values)).tolist() == values.tolist()
    assert abs(decode(encode(np.array([0.1])))[0] - 0.1) <= 2.0**-33
    most = encode(np.array([largest(3)]))
    assert 0 < int(most[0]) * 3 < 2**63


# --- jobs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("schedule.rounds=2", "federation.model_average=0.5")])
def test_jobs_that_need_sums_only_can_have_masks(options: tuple[str, ...]) -> None:
    """The server can read the models, unlike with ckks, so it can average them."""
    assert masked_job("fedavg", *options).federation.encryption == "masks"


def test_only_a_round_of_training_is_unmasked(tmp_path: Path) -> None:
    parties = Parties(masked_job(), tmp_path)
    fresh = MaskedCoordinator(parties.job, tmp_path / "other")
    fresh.open(0)
    assert fresh.open_unmasking() is None
    assert isinstance(parties.server.open(1), Broadcast)
    assert not fresh.accept(Update("HK", 0, n_samples=8, n_steps=0))
