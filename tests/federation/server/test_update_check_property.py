"""Bad updates that hypothesis makes up: each is named, none ends the job, none changes the aggregate by a bit."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from conftest import small_image_job
from errors import raises
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable

from fedshift.federation.server.coordinator import Coordinator
from fedshift.flare import codec
from fedshift.flare.aggregator import FedshiftAggregator
from fedshift.methods.base import ArraySpec
from fedshift.schema.messages import Answer, Broadcast, SiteInfo, Update

OFTEN = settings(
    max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
JOB = small_image_job("fedfa+fedproto+fedrdn", "fedproto.average_weights=true")
HONEST, BAD = ("A", "B"), "C"
N, STEPS = 24, 3

Change = Callable[[Update, Coordinator], Update]
"""Makes a good update a bad one; the coordinator knows what is good."""


# --- good answers, made without training ----------------------------------------------------------------


def info(site: str) -> SiteInfo:
    return SiteInfo(site, "phantom", n_train=N, n_val=6, n_test=6, manifest_sha256="sha", split_rule="image")


def good(site: str, broadcast: Broadcast, coordinator: Coordinator) -> Update:
    """An update that the guard accepts, another for each site."""
    rng = np.random.default_rng([broadcast.round, ord(site)])
    once = broadcast.round == 0

    def array(method: str, name: str, spec: ArraySpec) -> np.ndarray:
        if name == "counts":
            return np.ones(spec.shape, np.float32)  # type: ignore[arg-type]
        return rng.uniform(0.1, 0.4, spec.shape).astype(spec.dtype)  # type: ignore[arg-type]

    weights = {} if once else {k: moved(v, rng) for k, v in broadcast.weights.items()}
    arrays = {
        method: {n: array(method, n, s) for n, s in named.items() if (s.when == "once") is once}
        for method, named in coordinator.update_check.specs.items()
    }
    return Update(
        site=site,
        round=broadcast.round,
        n_samples=N,
        n_steps=0 if once else STEPS,
        weights=weights,
        metrics={} if once else {"train_loss": 0.5, "seconds": 1.0},
        arrays={method: named for method, named in arrays.items() if named},
    )


def moved(value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if np.issubdtype(value.dtype, np.integer):
        return np.asarray(value + STEPS)
    return np.asarray(value + rng.uniform(0, 0.01, value.shape), value.dtype)


# --- what can be wrong ----------------------------------------------------------------------------------

NOT_FINITE = st.sampled_from([np.nan, np.inf, -np.inf])
NUMBERS = st.one_of(
    st.integers(), st.sampled_from([0, -1, 10**9 + 1, 2**63, -(10**400), 10**4000]), st.floats(), st.booleans()
)
JUNK = st.one_of(
    st.none(),
    st.text(max_size=5),
    st.binary(max_size=5),
    NUMBERS,
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    st.just(np.ma.masked_all(2)),
    st.just(np.array([{}], object)),
)
NAMES = st.one_of(st.text(max_size=300), st.integers(), st.none(), st.tuples(st.integers()))


@st.composite
def spoilt(draw: st.DrawFn, array: np.ndarray) -> Any:
    """Something else in place of an array: values, shape, type, or no array at all."""
    what = draw(st.sampled_from(["value", "shape", "type", "junk"]))
    if what == "value" and np.issubdtype(array.dtype, np.floating):
        bad = array.copy()
        bad.flat[draw(st.integers(0, array.size - 1))] = draw(NOT_FINITE)
        return bad
    if what == "shape":
        shapes: list[Any] = [array[None], array.ravel()[:0], np.ones((1,), array.dtype), np.ones((), array.dtype)]
        shapes += [array[..., :-1]] if array.ndim else []
        shapes += [np.ones((*array.shape[:-1], 1), array.dtype)] if array.ndim else []
        return draw(st.sampled_from([s for s in shapes if s.shape != array.shape]))
    if what == "junk":
        return draw(JUNK)
    types = [t for t in ("f2", "f4", "f8", "i4", "i8", "u1", "?", "c8", "O", "U3", ">f4", "V4") if array.dtype != t]
    return np.zeros(array.shape, draw(st.sampled_from(types)))


@st.composite
def spoilt_mapping(draw: st.DrawFn, mapping: dict[str, Any]) -> dict[Any, Any]:
    """A mapping of arrays with a key too few, too many, renamed, or one array spoilt."""
    bad: dict[Any, Any] = dict(mapping)
    key = draw(st.sampled_from(sorted(mapping)))
    what = draw(st.sampled_from(["missing", "extra", "renamed", "array"]))
    if what == "array":
        bad[key] = draw(spoilt(mapping[key]))
    if what in ("missing", "renamed"):
        del bad[key]
    if what in ("extra", "renamed"):
        bad[draw(NAMES.filter(lambda name: name not in mapping))] = mapping[key]
    return bad


@st.composite
def changes(draw: st.DrawFn, *, statistics: bool) -> Change:
    """One way to make an update bad."""
    kinds = ["round", "n_samples", "metrics", "arrays", "methods", "range", "far"]
    kind = draw(st.sampled_from(kinds if statistics else [*kinds, "n_steps", "weights", "variance", "norm", "counter"]))
    data = draw(st.data())

    def change(update: Update, coordinator: Coordinator) -> Update:
        arrays, weights = deepcopy(update.arrays), dict(update.weights)
        if kind in ("round", "n_samples", "n_steps"):
            right = getattr(update, kind)
            wrong = st.one_of(NUMBERS, JUNK).filter(lambda value: type(value) is not int or value != right)
            return replace(update, **{kind: data.draw(wrong)})
        if kind == "metrics":
            name = data.draw(st.sampled_from(["accuracy", "train_loss", "Case07", 3]))
            value = data.draw(st.one_of(st.sampled_from([np.nan, np.inf, 1e300, 10**400]), JUNK))
            name = "unknown" if isinstance(value, int | float) and abs(value) <= 1 else name
            return replace(update, metrics={**update.metrics, name: value})
        if kind == "weights":
            return replace(update, weights=data.draw(spoilt_mapping(update.weights)))
        if kind == "variance":
            key = data.draw(st.sampled_from([k for k in weights if k.endswith("running_var")]))
            weights[key] = weights[key] - np.float32(data.draw(st.floats(2, 1e6)))
        if kind == "counter":
            key = data.draw(st.sampled_from([k for k in weights if k.endswith("batches_tracked")]))
            weights[key] = np.array(data.draw(st.sampled_from([-1, 49, 2**63 - 1, -(2**63)])))
        if kind == "norm":
            # The honest ones move by about 0.8; the guard's own limit for one update is a few times the model's norm.
            far = data.draw(st.floats(0.5, 1e30)) * data.draw(st.sampled_from([1, -1]))
            weights["fc1.0.weight"] = np.asarray(weights["fc1.0.weight"] + far, np.float32)
        if kind == "arrays":
            method = data.draw(st.sampled_from(sorted(arrays)))
            return replace(update, arrays={**arrays, method: data.draw(spoilt_mapping(arrays[method]))})
        if kind == "methods":
            return replace(update, arrays=data.draw(spoilt_methods(arrays)))
        if kind in ("range", "far"):
            method, name = data.draw(st.sampled_from([(m, n) for m in sorted(arrays) for n in sorted(arrays[m])]))
            spec, array = coordinator.update_check.specs[method][name], arrays[method][name]
            high = 254.0 if statistics else 9e5
            beyond = [float(np.nextafter(np.float32(spec.low), np.float32(-np.inf))) * 2 - 1, spec.high * 2]
            array[:] = data.draw(st.sampled_from(beyond)) if kind == "range" or name == "counts" else high
        return replace(update, weights=weights, arrays=arrays)

    return change


@st.composite
def spoilt_methods(draw: st.DrawFn, arrays: dict[str, Any]) -> dict[Any, Any]:
    """Arrays of a method too few or too many, or something else in their place."""
    bad: dict[Any, Any] = dict(arrays)
    method = draw(st.sampled_from(sorted(arrays)))
    what = draw(st.sampled_from(["missing", "extra", "junk"]))
    if what == "missing":
        del bad[method]
    elif what == "extra":
        bad[draw(NAMES.filter(lambda name: name not in arrays))] = arrays[method]
    else:
        bad[method] = draw(JUNK)
    return bad


# --- a job with one bad site ----------------------------------------------------------------------------

Send = Callable[[Update, SiteInfo], bool]


def result_of(coordinator: Coordinator, send: Send, spoil: Callable[[int, Update], Sequence[Update]]) -> list[bytes]:
    """The statistics round and one round of training; ``spoil`` makes what C sends of a good update of C."""
    out: list[bytes] = []
    for round_ in (0, 1):
        broadcast = coordinator.open(round_)
        for site in HONEST:
            assert send(good(site, broadcast, coordinator), info(site))
        for update in spoil(round_, good(BAD, broadcast, coordinator)):
            send(update, info(BAD))
        coordinator.close()
        opened = coordinator.open(round_ + 1)
        named = [opened.weights, *(opened.arrays[method] for method in sorted(opened.arrays))]
        out += [arrays[name].tobytes() for arrays in named for name in sorted(arrays)]
    return out


def at_the_coordinator(folder: Path) -> tuple[Coordinator, Send]:
    coordinator = Coordinator(JOB, folder)

    def send(update: Update, site_info: SiteInfo) -> bool:
        coordinator.register(site_info)
        return coordinator.accept(update)

    return coordinator, send


def over_the_wire(folder: Path) -> tuple[Coordinator, Send]:
    """As FLARE hands an answer over; what ``codec.encode_answers`` would not write is put in afterwards."""
    aggregator = FedshiftAggregator()
    aggregator.begin(JOB, folder, on_progress=lambda coordinator: None)

    def send(update: Update, site_info: SiteInfo) -> bool:
        return hand_over(aggregator, answer_of(update, site_info), site_info.site)

    return aggregator.coordinator, send


def answer_of(update: Update, site_info: SiteInfo) -> DXO:
    """An answer with the update's parts as they are, good or bad."""
    empty = Update(site_info.site, round=0, n_samples=1, n_steps=0)
    dxo = from_shareable(codec.encode_answers([Answer(empty, site_info)]))
    entry = dxo.data[site_info.site]
    entry.meta |= {name: getattr(update, name) for name in ("round", "n_samples", "n_steps")}
    entry.data["weights"].data = update.weights
    entry.data["metrics"].data = update.metrics
    entry.data["arrays"].data = {
        name: DXO(DataKind.STATISTICS, data=named) if isinstance(named, dict) else named
        for name, named in update.arrays.items()
    }
    return dxo


def hand_over(aggregator: FedshiftAggregator, dxo: DXO, client: str) -> bool:
    shareable = Shareable()
    shareable.update(dxo.to_shareable())
    task = codec.TRAIN if aggregator.coordinator.round else codec.STATISTICS
    shareable.set_header(ReservedHeaderKey.TASK_NAME, task)
    shareable.set_peer_props({ReservedKey.IDENTITY_NAME: client})
    return aggregator.accept(shareable, FLContext())


def rejected(coordinator: Coordinator) -> list[list[str]]:
    """Sites that were left out, by round."""
    statistics = coordinator.results.statistics
    assert statistics is not None
    assert all(r.key and r.reason for record in (statistics, *coordinator.results.rounds) for r in record.rejected)
    return [[r.site for r in record.rejected] for record in (statistics, *coordinator.results.rounds)]


@cache
def without_c() -> list[bytes]:
    """The result of A and B alone."""
    with tempfile.TemporaryDirectory() as scratch:
        return result_of(*at_the_coordinator(Path(scratch)), lambda now, update: [])


def check(make: Callable[[Path], tuple[Coordinator, Send]], bad: Sequence[Change], *, round_: int) -> None:
    """The result with bad updates in a round is that without them."""

    def spoil(now: int, update: Update) -> list[Update]:
        if now != round_:
            return []
        return [change(replace(update, arrays=deepcopy(update.arrays)), coordinator) for change in bad]

    with tempfile.TemporaryDirectory() as scratch:
        coordinator, send = make(Path(scratch))
        assert result_of(coordinator, send, spoil) == without_c()
        # Of the updates that only the others' show to be bad the first waits, and the next are second answers.
        assert rejected(coordinator)[round_] == [BAD] * len(bad)
        assert not rejected(coordinator)[1 - round_]


@OFTEN
@given(bad=st.lists(changes(statistics=False), min_size=1, max_size=3))
def test_no_bad_update_gets_through(bad: list[Change]) -> None:
    check(at_the_coordinator, bad, round_=1)


@OFTEN
@given(bad=st.lists(changes(statistics=True), min_size=1, max_size=3))
def test_no_bad_statistics_get_through(bad: list[Change]) -> None:
    check(at_the_coordinator, bad, round_=0)


@OFTEN
@given(bad=changes(statistics=False))
def test_no_bad_update_gets_through_over_the_wire(bad: Change) -> None:
    check(over_the_wire, [bad], round_=1)


@st.composite
def strange_answers(draw: st.DrawFn) -> Callable[[DXO], Any]:
    """One way to spoil a whole answer of site C, around its arrays."""
    what = draw(st.sampled_from(["kind", "info", "identity", "part", "entry", "site", "message", "data"]))
    junk = draw(JUNK)
    name = draw(NAMES.filter(lambda name: name != BAD))

    def spoil(dxo: DXO) -> None:
        entry = dxo.data[BAD]
        if what == "kind":
            entry.meta["kind"] = draw_from(("Scores", "Failure", "update", None, 3), junk)
        elif what == "info":
            field = draw_from(sorted(asdict(info(BAD))), junk)
            entry.meta["info"] = {**asdict(info(BAD)), field: {"no": "text"}}
        elif what == "identity":
            dxo.meta["fedshift"] = junk
        elif what == "part":
            entry.data[draw_from(("weights", "metrics", "arrays"), junk)] = junk
        elif what == "entry":
            dxo.data[BAD] = junk
        elif what == "site":
            dxo.data[name] = dxo.data.pop(BAD)
        elif what == "data":
            entry.data = junk
        else:
            dxo.data_kind = DataKind.WEIGHTS

    return spoil


def draw_from(choices: Sequence[Any], junk: object) -> Any:
    """One of them, which one follows from what hypothesis drew."""
    return choices[len(repr(type(junk))) % len(choices)]


@OFTEN
@given(spoil=strange_answers())
def test_no_strange_answer_ends_the_job(spoil: Callable[[DXO], Any]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        aggregator = FedshiftAggregator()
        aggregator.begin(JOB, Path(scratch), on_progress=lambda coordinator: None)
        coordinator = aggregator.coordinator
        broadcast = coordinator.open(0)
        for site in HONEST:
            assert hand_over(aggregator, answer_of(good(site, broadcast, coordinator), info(site)), site)
        dxo = answer_of(good(BAD, broadcast, coordinator), info(BAD))
        spoil(dxo)
        assert not hand_over(aggregator, dxo, BAD)
        coordinator.close()
        assert rejected(coordinator) == [[BAD]]


def test_the_good_update_that_is_spoilt_is_accepted() -> None:
    """Or the tests above would show nothing."""
    with tempfile.TemporaryDirectory() as scratch:
        for make in (at_the_coordinator, over_the_wire):
            coordinator, send = make(Path(scratch) / make.__name__)
            assert result_of(coordinator, send, lambda now, update: [update]) != without_c()
            assert rejected(coordinator) == [[], []]


def test_who_is_left_out_at_the_end_of_a_round_is_missing_in_its_quorum_and_scores(tmp_path: Path) -> None:
    told: list[tuple[str, str, int]] = []
    job = JOB.model_copy(update={"federation": JOB.federation.model_copy(update={"min_sites": 3})})
    coordinator = Coordinator(
        job, tmp_path, on_reject=lambda fault, round_: told.append((fault.site, fault.key, round_))
    )
    for round_ in (0, 1, 2):
        broadcast = coordinator.open(round_)
        for site in (*HONEST, BAD):
            coordinator.register(info(site))
            update = good(site, broadcast, coordinator)
            if round_ == 2:
                update.metrics["accuracy"] = 1.0
                if site == BAD:
                    update.weights["fc1.0.weight"] += np.float32(0.5)
            assert coordinator.accept(update)
        if round_ < 2:
            coordinator.close()
    with raises("too-few-answers", naming=("2", "3", "C")):
        coordinator.close()
    assert told == [(BAD, "weights", 2)]
    first, second = coordinator.results.rounds
    assert [site for site, record in first.sites.items() if record.val] == list(HONEST)
    assert list(second.sites) == list(HONEST) and second.absent == [BAD]
