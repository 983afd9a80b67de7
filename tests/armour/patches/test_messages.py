"""What a received message may hold, and what it leaves behind."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from nvflare.apis.client import Client
from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.app_common.decomposers import common_decomposers
from nvflare.fuel.f3.cellnet.utils import decode_payload, encode_payload
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.stats_pool import CounterPool, HistPool
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.buffer_list import ConsumableBufferList
from nvflare.fuel.utils.fobs.datum import Datum
from nvflare.fuel.utils.fobs.lobs import MARKER_MAIN

from fedshift.flare import codec
from fedshift.schema.messages import Broadcast, Update
from flare_armour.patches import messages
from flare_armour.patches.messages import LONGEST_ROW, MOST_ROWS, OTHERS

flare_decomposers.register()
common_decomposers.register()
WEIGHTS = {"a": np.ones((300, 300), np.float32), "b": np.zeros((), np.int64)}


def there_and_back(payload: Any, topic: str) -> Any:
    """What arrives of a message that is streamed."""
    message = Message({StreamHeaderKey.TOPIC: topic}, payload)
    encode_payload(message, StreamHeaderKey.PAYLOAD_ENCODING, fobs_ctx={})
    decode_payload(message, StreamHeaderKey.PAYLOAD_ENCODING, fobs_ctx={})
    return message.payload


def framed(body: Any) -> bytes:
    packed = body if isinstance(body, bytes) else msgpack.packb(body)
    return struct.pack(">BBQ", MARKER_MAIN, 0, len(packed)) + packed


def test_tasks_and_answers_come_through() -> None:
    answer = codec.encode_answers([codec.Answer(Update("HK", 1, n_samples=8, n_steps=1, weights=WEIGHTS))])
    context = FLContext()
    context.set_prop("__identity_name__", "HK", private=False, sticky=True)
    answer.set_peer_context(context)
    found = there_and_back(answer, ServerCommandNames.SUBMIT_UPDATE)
    assert found.get_peer_context().get_identity_name() == "HK"
    (decoded,) = codec.decode_answers(found)
    assert isinstance(decoded.content, Update)
    assert decoded.content.weights["a"].tobytes() == WEIGHTS["a"].tobytes()
    task = codec.encode_task(Broadcast(round=1, best_round=0, weights=WEIGHTS, sites=("HK",)))
    found = there_and_back(task, f"server_command:{ServerCommandNames.GET_TASK}")
    assert codec.decode_task(found).weights["b"].shape == ()


def test_a_file_is_refused_and_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVFLARE_DATUM_DIR", str(tmp_path / "datums"))
    (tmp_path / "content").write_bytes(b"x" * 100)
    message = fobs.dumps({"x": Datum.file_datum(str(tmp_path / "content"))})
    with pytest.raises(ValueError, match="must not hold a file"):
        fobs.loads(message)
    assert not (tmp_path / "datums").exists()


def test_a_reference_is_refused_and_nobody_is_asked() -> None:
    message = fobs.dumps({"x": Datum.text_datum('{"fqcn": "nobody", "ref_id": "1"}', dot=1)})
    with pytest.raises(ValueError, match="reference to data elsewhere"):
        fobs.loads(message, fobs_ctx={})


def test_an_object_of_another_type_is_refused_in_an_answer_only() -> None:
    assert there_and_back({"client": Client("HK", "token")}, "heartbeat")["client"].name == "HK"
    shareable = Shareable()
    shareable["client"] = Client("HK", "token")
    with pytest.raises(TypeError, match="must not hold"):
        there_and_back(shareable, ServerCommandNames.SUBMIT_UPDATE)


@pytest.mark.parametrize(
    "body",
    [b"\xdd" + (2000).to_bytes(4, "big") + b"\x80" * 2000, b"\xdd" + (2000).to_bytes(4, "big") + b"\x90" * 2000],
    ids=["mappings", "lists"],
)
def test_more_empty_objects_than_any_message_has_are_refused(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(fobs.loads(framed(body))) == 2000
    monkeypatch.setattr(messages, "MOST_ELSEWHERE", 1000)
    with pytest.raises(ValueError):
        fobs.loads(framed(body))
    with pytest.raises(ValueError, match="too many"):
        fobs.loads(framed([[{} for _ in range(100)] for _ in range(20)]))


def test_messages_within_messages_are_counted() -> None:
    inner = Shareable()
    for _ in range(messages.MOST_MESSAGES):
        outer = Shareable()
        outer["inner"], inner = inner, outer
    with pytest.raises(ValueError, match="other messages"):
        there_and_back(inner, "any")


def test_only_a_task_and_an_answer_hold_many_objects() -> None:
    many = [[] for _ in range(messages.MOST_ELSEWHERE + 1)]  # type: ignore[var-annotated]
    for topic in (ServerCommandNames.SUBMIT_UPDATE, f"server_command:{ServerCommandNames.GET_TASK}"):
        shareable = Shareable()
        shareable["x"] = [many[:1000] for _ in range(60)]
        assert len(there_and_back(shareable, topic)["x"]) == 60
    with pytest.raises(ValueError):
        there_and_back({"x": many}, "heartbeat")


def test_the_text_of_a_message_does_not_have_its_bytes() -> None:
    assert str(ConsumableBufferList([b"x" * 1000, b"y"])) == "<message in 2 pieces>"


def test_a_table_does_not_grow_with_the_names_that_messages_have() -> None:
    times, counts = HistPool("x", "x", [1.0, 2.0], "s"), CounterPool("x", "x", ["received"])
    for number in range(5 * MOST_ROWS):
        times.record_value(f"{number}", 1.5)
        counts.increment(f"{number}", "received")
    assert len(times.cat_bins) == len(counts.cat_counters) == MOST_ROWS + 1
    assert counts.cat_counters["7"] == {"received": 1}
    assert counts.cat_counters[OTHERS] == {"received": 4 * MOST_ROWS}


def test_a_long_name_is_none() -> None:
    counts = CounterPool("x", "x", ["received"])
    counts.increment("x" * (LONGEST_ROW + 1), "received")
    assert set(counts.cat_counters) == {OTHERS}
