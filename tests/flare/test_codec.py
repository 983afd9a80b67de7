"""What goes over the wire comes back as it was; what another fedshift sends, or nobody would, is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.app_common.decomposers import common_decomposers
from nvflare.app_common.filters.exclude_vars import ExcludeVars
from nvflare.fuel.utils import fobs

from fedshift.flare import codec
from fedshift.schema.compression import Packed, pack
from fedshift.schema.identity import Identity, own_identity, source_hash
from fedshift.schema.messages import Answer, Broadcast, Failure, Scores, SiteInfo, Update

ARRAYS = {
    "conv.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "bn.num_batches_tracked": np.array(7),
    "bn.running_var": np.ones(2, np.float64),
    "empty": np.zeros((0, 4), np.float32),
}
UPDATE = Update(
    site="HK",
    round=3,
    n_samples=10,
    n_steps=2,
    weights=ARRAYS,
    metrics={"dice": 0.5, "train_loss": 1.25},
    arrays={"fedfa": {"mean.1": np.float32([1, 2])}, "fedrdn": {"mean": np.float64([3])}},
)
INFO = SiteInfo("HK", "phantom", 4, 2, 1, "abc", "case", devices=2)


def travelled(shareable: Shareable) -> Shareable:
    """As FLARE's serialiser leaves it."""
    flare_decomposers.register()
    common_decomposers.register()
    received = fobs.loads(fobs.dumps(shareable))
    assert isinstance(received, Shareable)
    return received


def assert_same(got: dict[str, np.ndarray], sent: dict[str, np.ndarray]) -> None:
    assert list(got) == list(sent)
    for key, value in sent.items():
        assert type(got[key]) is np.ndarray
        assert (got[key].dtype, got[key].shape) == (value.dtype, value.shape)
        assert got[key].tobytes() == value.tobytes()


def test_a_task_comes_back_as_it_was() -> None:
    sent = Broadcast(round=4, best_round=2, weights=ARRAYS, arrays={"fedrdn": {"means": np.eye(3)}})
    task = codec.decode_task(travelled(codec.encode_task(sent)))
    assert (task.round, task.best_round) == (4, 2)
    assert_same(task.weights, sent.weights)
    assert_same(task.arrays["fedrdn"], sent.arrays["fedrdn"])


def test_numpy_scalars_travel_as_arrays_without_dimensions() -> None:
    task = codec.decode_task(travelled(codec.encode_task(Broadcast(1, 0, {"count": np.int64(3)}))))  # type: ignore[dict-item]
    assert_same(task.weights, {"count": np.array(3)})


def test_an_update_comes_back_as_it_was() -> None:
    (answer,) = codec.decode_answers(travelled(codec.encode_answers([Answer(UPDATE, INFO)])))
    got = answer.content
    assert isinstance(got, Update)
    assert (got.site, got.round, got.n_samples, got.n_steps, got.metrics) == ("HK", 3, 10, 2, UPDATE.metrics)
    assert_same(got.weights, UPDATE.weights)
    assert {method: list(named) for method, named in got.arrays.items()} == {"fedfa": ["mean.1"], "fedrdn": ["mean"]}
    assert answer.info == INFO


def test_several_sites_of_one_client_answer_together() -> None:
    scores = Scores("UCL", 5, {"val": {"dice": 0.25}, "test": {"dice": 0.5}}, {"test": {"dice": 0.75}})
    failure = Failure("BMC", 5, "the disk is full")
    answers = [Answer(scores), Answer(failure), Answer(UPDATE)]
    got = codec.decode_answers(travelled(codec.encode_answers(answers)))
    assert [answer.content for answer in got[:2]] == [scores, failure]
    assert isinstance(got[2].content, Update)


def test_filters_of_flare_reach_the_arrays() -> None:
    shareable = codec.encode_answers([Answer(UPDATE, INFO)])
    filtered = ExcludeVars(exclude_vars=["conv.weight"]).process(shareable, FLContext())
    (answer,) = codec.decode_answers(filtered)
    assert isinstance(answer.content, Update)
    assert "conv.weight" not in answer.content.weights
    assert "bn.running_var" in answer.content.weights


KERNEL = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 2, 3)
PACKED = {"a.weight": pack(KERNEL, "int8"), "b.weight": pack(KERNEL, "bf16")}


def assert_same_packed(got: dict[str, Packed], sent: dict[str, Packed]) -> None:
    assert list(got) == list(sent)
    for key, packed in sent.items():
        assert_same({"codes": got[key].codes}, {"codes": packed.codes})
        scales = [{} if p.scale is None else {"scale": p.scale} for p in (got[key], packed)]
        assert_same(*scales)


def test_packed_weights_come_back_as_they_were() -> None:
    task = codec.decode_task(travelled(codec.encode_task(Broadcast(2, 1, {"bias": np.ones(3)}, packed=PACKED))))
    assert_same_packed(task.packed, PACKED)
    update = replace(UPDATE, packed=PACKED)
    (answer,) = codec.decode_answers(travelled(codec.encode_answers([Answer(update, INFO)])))
    assert isinstance(answer.content, Update)
    assert_same_packed(answer.content.packed, PACKED)
    assert_same(answer.content.weights, UPDATE.weights)


def test_without_packed_weights_a_message_has_no_part_for_them() -> None:
    task = from_shareable(codec.encode_task(Broadcast(2, 1, {"w": KERNEL})))
    answers = from_shareable(codec.encode_answers([Answer(UPDATE, INFO)]))
    assert "packed" not in {*task.data, *answers.data["HK"].data}


def test_filters_of_flare_reach_codes_and_scales() -> None:
    shareable = codec.encode_answers([Answer(replace(UPDATE, packed=PACKED), INFO)])
    filtered = ExcludeVars(exclude_vars=["a.weight"]).process(shareable, FLContext())
    (answer,) = codec.decode_answers(filtered)
    assert isinstance(answer.content, Update)
    assert list(answer.content.packed) == ["b.weight"]


def with_packed(codes: object, scales: object) -> Shareable:
    dxo = from_shareable(codec.encode_answers([Answer(UPDATE, INFO)]))
    parts = {name: DXO(DataKind.WEIGHTS, data=data) for name, data in (("codes", codes), ("scales", scales))}
    dxo.data["HK"].data["packed"] = DXO(DataKind.COLLECTION, data=parts)
    return dxo.to_shareable()


CODES, SCALE = np.ones((2, 3), np.int8), np.ones(2, np.float32)


@pytest.mark.parametrize(
    ("codes", "scales", "key"),
    [
        ({"w": CODES}, {}, "packed.w"),
        ({}, {"w": SCALE}, "packed.w"),
        ({"w": CODES}, {"w": -SCALE}, "packed.w"),
        ({"w": CODES}, {"w": SCALE[:1]}, "packed.w"),
        ({"w": np.empty(0, np.uint8)}, {}, "packed.w"),
        ({"w": {"file": 1}}, {"w": SCALE}, "packed.w"),
        ({1: CODES}, {}, "packed.1"),
    ],
)
def test_what_cannot_be_unpacked_is_refused_by_name(
    codes: dict[object, object], scales: dict[object, object], key: str
) -> None:
    with pytest.raises(codec.WireError) as caught:
        codec.decode_answers(with_packed(codes, scales))
    assert caught.value.key == key


def test_packed_weights_that_are_no_messages_are_refused() -> None:
    shareable = with_packed({"w": CODES}, {"w": SCALE})
    dxo = from_shareable(shareable)
    for wrong in (np.ones(3), DXO(DataKind.COLLECTION, data={"codes": DXO(DataKind.WEIGHTS, data={"w": CODES})})):
        dxo.data["HK"].data["packed"] = wrong
        with pytest.raises(codec.WireError):
            codec.decode_answers(dxo.to_shareable())


def test_another_fedshift_is_refused_with_both_named(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = Identity("0.0.9", "0123456789ab")
    with monkeypatch.context() as patch:
        patch.setattr(codec, "own_identity", lambda: theirs)
        shareable = codec.encode_answers([Answer(UPDATE)])
    with pytest.raises(codec.WireError) as caught:
        codec.decode_answers(shareable)
    assert caught.value.key == "version"
    assert str(theirs) in caught.value.reason
    assert str(own_identity()) in caught.value.reason


def test_the_source_hash_sees_every_python_file(tmp_path: Path) -> None:
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "a.py").write_text("x = 1\n", encoding="utf-8")
    first = source_hash([tmp_path])
    (tmp_path / "methods" / "a.py").write_text("x = 2\n", encoding="utf-8")
    second = source_hash([tmp_path])
    (tmp_path / "methods" / "a.py").rename(tmp_path / "a.py")
    assert len({first, second, source_hash([tmp_path])}) == 3


def answer_with(site: Any) -> Shareable:
    identity = own_identity()
    meta = {"fedshift": {"version": identity.version, "source": identity.source}}
    return DXO(DataKind.COLLECTION, data={"HK": site}, meta=meta).to_shareable()


def entry(**meta: Any) -> DXO:
    return DXO(DataKind.COLLECTION, data={}, meta={"kind": "Update", "round": 1, **meta})


def splits(scores: dict[str, object]) -> DXO:
    return DXO(DataKind.COLLECTION, {"val": DXO(DataKind.METRICS, scores)})


@pytest.mark.parametrize(
    ("shareable", "key"),
    [
        (Shareable(), "message"),
        (DXO(DataKind.WEIGHTS, data={}).to_shareable(), "message"),
        (DXO(DataKind.COLLECTION, data={}).to_shareable(), "version"),
        (answer_with("weights"), "answer"),
        (answer_with(entry(kind="Pickle")), "kind"),
        (answer_with(entry(round="1")), "round"),
        (answer_with(entry(n_samples=1, n_steps=1)), "weights"),
        (answer_with(entry(kind="Scores")), "values"),
        (answer_with(entry(kind="Failure", info={"path": "/data"})), "info"),
        (
            answer_with(
                DXO(
                    DataKind.COLLECTION,
                    {"values": splits({"dice": "1"}), "personal": splits({"dice": 1.0})},
                    {"kind": "Scores", "round": 1},
                )
            ),
            "metrics.dice",
        ),
    ],
)
def test_what_is_no_answer_is_refused(shareable: Shareable, key: str) -> None:
    with pytest.raises(codec.WireError) as caught:
        codec.decode_answers(shareable)
    assert caught.value.key == key


def test_what_sites_are_sent_cannot_be_changed_on_its_way() -> None:
    """All of them get the same arrays, and the server goes on with them."""
    weights = {"conv": np.ones(2, np.float32)}
    task = codec.encode_task(Broadcast(1, 0, weights, {"fedfa": {"mean": np.zeros(3)}}))
    sent = from_shareable(task).data
    for array in (sent["weights"].data["conv"], sent["arrays"].data["fedfa"].data["mean"]):
        assert not array.flags.writeable
    weights["conv"] += 1
