"""What a site sends says nothing alone, and it gives shares for one sum a round."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
from errors import raises

from fedshift.federation.encryption.masks.primitives import (
    BLOCK,
    Pair,
    SiteKey,
    add_stream,
    new_private_key,
    public_key,
)
from fedshift.federation.encryption.masks.protocol import (
    KEYS,
    MASKS,
    MEMBERS,
    OPENED,
    SEALED,
    VECTOR,
    as_array,
    digest_of,
    helpers_needed,
    threshold,
)
from fedshift.federation.encryption.masks.site import FILE_NAME, SiteMasks
from fedshift.schema.compression import WeightsAs, pack
from fedshift.schema.messages import Broadcast
from fedshift.schema.policy import Policy

from .parties import RUN, SITES, Parties, Passport, masked_job


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    return Parties(masked_job(), tmp_path)


def asked(question: Broadcast, numbers: Sequence[int], sealed: np.ndarray | None = None) -> Broadcast:
    """A question for the sum over other sites."""
    arrays = question.arrays[MASKS]
    shares = arrays[SEALED][list(numbers)] if sealed is None else sealed
    changed = {**arrays, MEMBERS: np.array(numbers, np.int64), SEALED: shares}
    return replace(question, arrays={MASKS: changed})


# --- masks ------------------------------------------------------------------------------------------------


def test_a_masked_update_looks_like_chance(parties: Parties) -> None:
    vector = parties.masked("HK").weights[VECTOR]
    counts = np.bincount(vector.view(np.uint8), minlength=256)
    expected = vector.nbytes / 256
    assert ((counts - expected) ** 2 / expected).sum() < 400  # chi-square with 255 degrees of freedom: p = 1e-8
    plain = np.concatenate([row for _, row in parties.layout.rows(parties.plain["HK"], parties.message)])
    assert abs(np.corrcoef(plain, vector.astype(np.float64))[0, 1]) < 0.02


def test_masks_belong_to_keys_message_and_content(parties: Parties, tmp_path: Path) -> None:
    def vector(of: Parties, message: Broadcast, step: float = 0.0) -> np.ndarray:
        update = of.plain["HK"]
        key = next(k for k, v in update.weights.items() if v.dtype == np.float32)
        moved = {**update.weights, key: update.weights[key] + np.float32(step)}
        return of.masked("HK", message, replace(update, weights=moved)).weights[VECTOR]

    first = vector(parties, parties.message)
    assert first.tobytes() == vector(parties, parties.message).tobytes()  # a task that comes again
    parties.sites["HK"] = parties.site("HK")  # after a restart
    assert first.tobytes() == vector(parties, parties.message).tobytes()
    key = next(iter(parties.message.weights))
    moved = replace(parties.message, weights={**parties.message.weights, key: parties.message.weights[key] + 1})
    again = Parties(parties.job, tmp_path / "again")
    for other in (
        vector(parties, moved),
        vector(parties, replace(parties.message, round=2)),
        vector(parties, parties.message, step=1.0),
        vector(again, again.message),
    ):
        assert (first == other).mean() < 0.001


@pytest.mark.parametrize("weights_as", ["bf16", "int8"])
def test_sites_that_were_sent_different_packed_models_do_not_share_masks(
    weights_as: WeightsAs, parties: Parties
) -> None:
    """What is packed is a part of the message that the masks belong to: codes, and scales where codes have them."""
    message = parties.message
    key = next(key for key, value in message.weights.items() if value.ndim >= 2)
    rest = {name: value for name, value in message.weights.items() if name != key}
    digests = {
        digest_of(
            replace(message, weights=rest, packed={key: pack(np.float32(factor) * message.weights[key], weights_as)})
        )
        for factor in (0, 1, 2)  # 1 and 2 have the same codes in int8, with other scales
    }
    assert len(digests) == 3


def test_a_second_message_without_keys_is_not_answered_under_the_first_ones_masks(parties: Parties) -> None:
    site = parties.sites["HK"]
    parties.masked("HK")
    zeros = {key: np.zeros_like(value) for key, value in parties.message.weights.items()}
    opened = site.open(replace(parties.message, weights=zeros, arrays={}))
    with raises("no-keys", naming="round 1"):
        site.seal(parties.plain["HK"], opened)
    parties.masked("HK")  # the first one again


def test_a_stream_is_added_and_taken_away_whatever_its_length() -> None:
    for length in (1, BLOCK - 1, BLOCK, 2 * BLOCK + 3):
        start = np.arange(length, dtype=np.uint64)
        vector = start.copy()
        add_stream(vector, b"s" * 32)
        assert length < 9 or not (vector == start).any()
        add_stream(vector, b"s" * 32, subtract=True)
        assert (vector == start).all()
    long, short = np.zeros(BLOCK + 5, np.uint64), np.zeros(BLOCK + 1, np.uint64)
    add_stream(long, b"s" * 32)
    add_stream(short, b"s" * 32)
    assert (long[: BLOCK + 1] == short).all() and len(np.unique(long)) == len(long)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e9])
def test_numbers_that_a_sum_has_no_room_for_are_not_sent(value: float, parties: Parties) -> None:
    update = parties.plain["HK"]
    key = next(k for k, v in update.weights.items() if v.dtype == np.float32)
    weights = {**update.weights, key: np.full_like(update.weights[key], value)}
    with raises("too-large", naming=("HK", "round 1", key)):
        parties.masked("HK", update=replace(update, weights=weights))


# --- one answer a round -----------------------------------------------------------------------------------


def test_a_site_gives_shares_for_one_sum_a_round(parties: Parties) -> None:
    """The server would have both the seed of HK's own mask and those of its pairs, or the difference of two sums."""
    parties.upload(*SITES)
    question = parties.question()
    answer = parties.sites["BIDMC"].unmask(question)
    assert answer.arrays[MASKS][OPENED].shape == (3, 1, 33)  # of each own mask, and of no pair
    for site in (parties.sites["BIDMC"], parties.site("BIDMC")):  # also after a restart
        again = site.unmask(question)
        assert again.arrays[MASKS][OPENED].tobytes() == answer.arrays[MASKS][OPENED].tobytes()
        with raises("unmask-refused", naming=("BIDMC", "round 1")):
            site.unmask(asked(question, (0, 2)))
    # The same round with another message, and so other masks, does not open it either.
    other = replace(parties.message, weights={key: value + 0 for key, value in parties.message.weights.items()})
    key = next(k for k, v in other.weights.items() if v.dtype == np.float32)
    other.weights[key] = other.weights[key] + 1
    parties.masked("BIDMC", other)
    with raises("unmask-refused"):
        parties.sites["BIDMC"].unmask(question)


def test_shares_of_a_second_update_are_not_given(parties: Parties) -> None:
    """A site that trains a repeated task to another result gives shares of one of its two masks only."""
    parties.upload(*SITES)
    question = parties.question()
    parties.sites["BIDMC"].unmask(question)
    update = parties.plain["HK"]
    weights = {key: value + np.asarray(1, value.dtype) for key, value in update.weights.items()}
    second = parties.masked("HK", update=replace(update, weights=weights))
    sealed = question.arrays[MASKS][SEALED].copy()
    sealed[1] = second.arrays[MASKS]["shares"]
    with raises("unmask-refused"):
        parties.sites["BIDMC"].unmask(asked(question, (0, 1, 2), sealed))


@pytest.mark.parametrize(("numbers", "min_sites"), [((0,), 2), ((0, 1), 3), ((1, 2), 2), ((0, 0, 1), 2), ((2, 0), 2)])
def test_sums_that_would_tell_too_much_are_refused(numbers: tuple[int, ...], min_sites: int, tmp_path: Path) -> None:
    parties = Parties(masked_job("fedavg", f"federation.min_sites={min_sites}"), tmp_path)
    parties.upload(*SITES)
    question = parties.question()
    with raises("unmask-refused", naming=("BIDMC", "round 1")):
        parties.sites["BIDMC"].unmask(asked(question, numbers))
    parties.sites["BIDMC"].unmask(question)


def test_a_site_sums_with_as_many_others_as_its_policy_says_whatever_the_job_says(tmp_path: Path) -> None:
    """The job is content with two. The server sends fewer keys, or leaves a site out of the sum as if it were gone."""
    parties = Parties(masked_job(), tmp_path, least=3)
    keys = parties.message.arrays[MASKS]
    two = replace(parties.message, arrays={MASKS: {key: keys[key] for key in (f"{KEYS}BIDMC", f"{KEYS}HK")}})
    with raises("too-few-sites", naming=("HK", "min_sites_in_sum")):
        parties.sites["HK"].open(two)
    parties.upload(*SITES)
    question = parties.question()
    with raises("unmask-refused", naming=("BIDMC", "round 1")):
        parties.sites["BIDMC"].unmask(asked(question, (0, 1)))
    parties.unmask(question, *SITES)
    parties.server.close()


def test_a_dropout_does_not_bring_a_sum_below_a_sites_policy(tmp_path: Path) -> None:
    """The server, whose job wants two, asks the two that are left to unmask their sum: neither does."""
    parties = Parties(masked_job(), tmp_path, least=3)
    parties.upload("BIDMC", "HK")
    question = parties.question()
    assert question.sites == ("BIDMC", "HK")
    for site in question.sites:
        with raises("unmask-refused", naming=("2", "3")):
            parties.sites[site].unmask(question)


def test_a_job_of_fewer_sites_than_the_policy_wants_in_a_sum_is_refused_before_a_key_leaves(tmp_path: Path) -> None:
    with raises("too-few-sites", naming=("BIDMC", "2", "3")):
        Parties(masked_job(sites=("BIDMC", "HK")), tmp_path, least=3)


def test_a_job_may_want_more_in_a_sum_than_the_policy(tmp_path: Path) -> None:
    parties = Parties(masked_job("fedavg", "federation.min_sites=3"), tmp_path, least=2)
    assert parties.sites["HK"].least == 3


def test_a_policy_sums_over_three_sites_unless_it_says_otherwise() -> None:
    assert Policy().min_sites_in_sum == 3 and Policy(min_sites_in_sum=2).min_sites_in_sum == 2
    with pytest.raises(ValueError, match="greater than or equal to 2"):
        Policy(min_sites_in_sum=1)


def test_shares_that_were_changed_or_cut_are_named(parties: Parties) -> None:
    parties.upload(*SITES)
    question = parties.question()
    sealed = question.arrays[MASKS][SEALED]
    changed = sealed.copy()
    changed[2, 0, 40] ^= 1
    swapped = sealed.copy()
    swapped[[1, 2]] = sealed[[2, 1]]
    for bad, named in (
        (asked(question, (0, 1, 2), changed), "UCL"),
        (asked(question, (0, 1, 2), swapped), "HK"),
        (asked(question, (0, 1, 2), sealed[:, :, :-1].copy()), "'sealed'"),
        (asked(question, (0, 1, 2), sealed[:2]), "'sealed'"),
        (replace(question, arrays={MASKS: {}}), "'digest'"),
        (replace(question, arrays={MASKS: {"members": np.zeros(2)}}), "'digest'"),
        (replace(question, round=2), "round 2"),
    ):
        with raises("unmask-refused", naming=named):
            parties.sites["BIDMC"].unmask(bad)


def test_sites_that_were_sent_different_models_do_not_unmask(parties: Parties) -> None:
    """Else a server could send one site a model of which the sum tells that site's part."""
    key = next(k for k, v in parties.message.weights.items() if v.dtype == np.float32)
    other = replace(
        parties.message, weights={**parties.message.weights, key: parties.message.weights[key] + np.float32(1)}
    )
    parties.upload("BIDMC", "HK")
    assert parties.server.accept(parties.masked("UCL", other))
    question = parties.question()
    for site, named in (("BIDMC", ("BIDMC", "UCL")), ("UCL", "another message")):
        with raises("unmask-refused", naming=named):
            parties.sites[site].unmask(question)


# --- what a server could learn at most --------------------------------------------------------------------


def bared(told: Sequence[frozenset[int]], n: int, t: int, helpers: int = 0) -> Iterator[frozenset[int]]:
    """The sums that a server gets from honest sites 0, 1, … that were told these U; the last sites help it."""
    honest = range(n - helpers)

    def has(member: int, without: int | None = None) -> bool:
        number = sum(member in told[k] and (without is None or without not in told[k]) for k in honest)
        return number >= t - helpers

    for size in range(1, n - helpers + 1):
        for members in combinations(honest, size):
            outside = [j for j in honest if j not in members]
            if all(has(i) and all(has(i, j) or has(j, i) for j in outside) for i in members):
                yield frozenset(members)


@pytest.mark.parametrize(("n", "helpers"), [(2, 0), (3, 0), (4, 0), (4, 1), (5, 0), (5, 2)])
def test_whatever_sites_are_told_no_sum_is_over_few(n: int, helpers: int) -> None:
    """All ways to tell each honest site a U that it accepts."""
    t = threshold(n)
    others = {k: [o for o in range(n) if o != k] for k in range(n)}
    choices = [
        [frozenset({k, *rest}) for size in range(t - 1, n) for rest in combinations(others[k], size)]
        for k in range(n - helpers)
    ]
    smallest = min((len(members) for told in product(*choices) for members in bared(told, n, t, helpers)), default=n)
    assert smallest >= 2
    if not helpers:
        assert smallest * t >= n * (2 * t - n)


@pytest.mark.parametrize(
    ("n", "least", "helpers"),
    [
        *((2, 2, 1), (3, 2, 1), (4, 2, 1), (6, 2, 1)),
        *((3, 3, 2), (4, 3, 2), (5, 3, 2), (6, 3, 2), (12, 3, 2)),
        *((4, 4, 3), (5, 5, 4), (6, 6, 4), (12, 12, 8), (6, 5, 2)),
    ],
)
def test_so_many_must_help_a_dishonest_server(n: int, least: int, helpers: int) -> None:
    """The numbers of the page."""
    assert helpers_needed(n, least) == helpers


@pytest.mark.parametrize("n", [3, 4, 5])
@pytest.mark.parametrize("least", [2, 3, 4, 5])
def test_fewer_helpers_lay_no_update_open_and_so_many_do(n: int, least: int) -> None:
    """All ways to tell each honest site a U that it accepts, with the keys of n sites or fewer."""
    if least > n:
        return
    assert helpers_needed(n, least) == min(
        next(helpers for helpers in range(keys) if are_enough(helpers, keys, least)) for keys in range(least, n + 1)
    )


def are_enough(helpers: int, n: int, least: int) -> bool:
    """Whether ``helpers`` of n sites with keys lay a single update open."""
    honest, t = range(n - helpers), threshold(n)
    if len(honest) == 1:
        return True
    choices = [
        [
            frozenset({k, *rest})
            for size in range(max(t, least) - 1, n)
            for rest in combinations([o for o in range(n) if o != k], size)
        ]
        for k in honest
    ]
    return any(min(map(len, bared(told, n, t, helpers)), default=n) == 1 for told in product(*choices))


def test_if_all_must_be_in_a_sum_helpers_learn_no_more_than_the_sum() -> None:
    """``min_sites`` of all sites: the two honest ones of four are told of one U only."""
    told = [frozenset(range(4))] * 2
    assert {*bared(told, 4, threshold(4), helpers=2)} == {frozenset({0, 1})}


@pytest.mark.parametrize("n", range(2, 60))
def test_a_server_alone_never_gets_both_kinds_of_shares(n: int) -> None:
    assert n < 2 * threshold(n) and threshold(n) <= n


# --- keys -------------------------------------------------------------------------------------------------


@pytest.fixture
def signed(tmp_path: Path) -> Parties:
    return Parties(masked_job(), tmp_path, identities={site: Passport(site) for site in SITES})


def with_key(parties: Parties, site: str, key: SiteKey | bytes) -> Broadcast:
    content = key if isinstance(key, bytes) else key.model_dump_json().encode()
    keys = {**parties.message.arrays[MASKS], f"{KEYS}{site}": as_array(content)}
    return replace(parties.message, arrays={MASKS: keys})


def test_signed_keys_are_taken_and_others_are_not(signed: Parties) -> None:
    signed.sites["HK"].open(signed.message)
    public = public_key(new_private_key())
    real = SiteKey.model_validate_json(signed.message.arrays[MASKS][f"{KEYS}UCL"].tobytes())
    stranger = Passport("UCL")
    del stranger.real[stranger.certificate]
    for key, reason in (
        (SiteKey.make("UCL", public, run=RUN, identity=None), "comes with a certificate of another"),
        (SiteKey.make("UCL", public, run=RUN, identity=stranger), "comes with a certificate of another"),
        (SiteKey.make("UCL", public, run=RUN, identity=signed.identities["BIDMC"]), "certificate of another"),
        (real.model_copy(update={"public": public.hex()}), "is not signed by that site"),
        (SiteKey.make("UCL", public, run="run 2", identity=signed.identities["UCL"]), "is not signed by that site"),
        (SiteKey.make("BIDMC", public, run=RUN, identity=signed.identities["BIDMC"]), "is one of site BIDMC"),
        (b"{}", "is none"),
    ):
        with raises("wrong-key", naming=("UCL", reason)):
            signed.sites["HK"].open(with_key(signed, "UCL", key))


def test_with_a_key_that_makes_pairs_readable_or_without_keys_nothing_is_sent(parties: Parties) -> None:
    for message, code, named in (
        (with_key(parties, "UCL", SiteKey(site="UCL", public="00" * 32)), "wrong-key", "UCL"),
        (replace(parties.message, arrays={}), "no-keys", "round 1"),
    ):
        parties.sites["HK"] = parties.site("HK")
        with raises(code, naming=named):
            parties.masked("HK", message)


def test_pairs_agree_and_purposes_differ() -> None:
    one, two = new_private_key(), new_private_key()
    here, there = Pair.agreed(one, public_key(two)), Pair.agreed(two, public_key(one))
    assert here.seed("a", "b") == there.seed("a", "b") != here.seed("ab") and here.seed("a", "b") != here.seed("b", "a")
    sealed = here.encrypt(b"shares", bytes(12), "to", "two")
    assert there.decrypt(sealed, "to", "two") == b"shares"
    for content, purpose in ((sealed, ("to", "one")), (sealed[:-1], ("to", "two"))):
        with pytest.raises(ValueError, match="was changed"):
            there.decrypt(content, *purpose)


def test_a_sites_secrets_are_its_own_and_last(parties: Parties, tmp_path: Path) -> None:
    path = tmp_path / "HK" / FILE_NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    parties.masked("HK")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and not path.with_name(f"{path.name}.partial").exists()
    path.write_text("{", encoding="utf-8")
    with raises("file-damaged", naming=("masks.json", "HK")):
        parties.site("HK")
    path.unlink()
    parties.sites["HK"] = parties.site("HK")
    assert not parties.masked("HK").weights  # the server has another key: the new one is the answer


def test_other_messages_pass_as_they_are(parties: Parties) -> None:
    site = SiteMasks(parties.job, "HK", folder=parties.folder / "x", run=RUN, identity=None, least=2)
    plain = replace(parties.message, arrays={"fedfa": {}})
    assert site.open(plain) is plain
    assert site.open(replace(parties.message, round=99)).arrays == {}
