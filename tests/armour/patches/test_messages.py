"""What a received message may hold, what it leaves behind, and that it ends no process."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from nvflare.apis.client import Client
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.app_common.decomposers import common_decomposers
from nvflare.fuel.f3.cellnet import cell as nvflare_cell
from nvflare.fuel.f3.cellnet.cell import Adapter
from nvflare.fuel.f3.cellnet.defs import CellChannel, Encoding, MessageHeaderKey
from nvflare.fuel.f3.cellnet.utils import decode_payload, encode_payload
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.stats_pool import CounterPool, HistPool
from nvflare.fuel.f3.streaming.blob_streamer import BlobHandler
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import StreamFuture
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.buffer_list import ConsumableBufferList
from nvflare.fuel.utils.fobs.lobs import MARKER_DATUM_FILE, MARKER_DATUM_TEXT
from nvflare.private.fed.server.server_runner import ServerRunner

from armour.conftest import Lower
from fedshift.flare import codec
from fedshift.schema.messages import Answer, Broadcast, Update
from flare_armour.patches import messages
from flare_armour.patches.messages import LONGEST_ROW, OTHERS

flare_decomposers.register()
common_decomposers.register()
WEIGHTS = {"a": np.ones((300, 300), np.float32), "b": np.zeros((), np.int64)}


def there_and_back(payload: Any, topic: str) -> Any:
    """What arrives of a message that is streamed."""
    message = Message({StreamHeaderKey.TOPIC: topic}, payload)
    encode_payload(message, StreamHeaderKey.PAYLOAD_ENCODING, fobs_ctx={})
    decode_payload(message, StreamHeaderKey.PAYLOAD_ENCODING, fobs_ctx={})
    return message.payload


def test_tasks_and_answers_come_through() -> None:
    answer = codec.encode_answers([Answer(Update("HK", 1, n_samples=8, n_steps=1, weights=WEIGHTS))])
    context = FLContext()
    context.set_prop("__identity_name__", "HK", private=False, sticky=True)
    answer.set_peer_context(context)
    received = there_and_back(answer, ServerCommandNames.SUBMIT_UPDATE)
    assert received.get_peer_context().get_identity_name() == "HK"
    (decoded,) = codec.decode_answers(received)
    assert isinstance(decoded.content, Update)
    assert decoded.content.weights["a"].tobytes() == WEIGHTS["a"].tobytes()
    task = codec.encode_task(Broadcast(round=1, best_round=0, weights=WEIGHTS, sites=("HK",)))
    received = there_and_back(task, f"server_command:{ServerCommandNames.GET_TASK}")
    assert codec.decode_task(received).weights["b"].shape == ()


@pytest.mark.parametrize(("marker", "dot"), [(MARKER_DATUM_FILE, 0), (MARKER_DATUM_TEXT, 1)])
def test_what_is_no_data_is_refused_before_it_is_looked_at(marker: int, dot: int) -> None:
    header = SimpleNamespace(marker=marker, dot=dot)
    with pytest.raises(ValueError):
        messages.take_data_only(lambda stream, expect: (header, b"", 0), None, True)


def test_an_object_of_another_type_is_refused_in_an_answer_only() -> None:
    assert there_and_back({"client": Client("HK", "token")}, "heartbeat")["client"].name == "HK"
    shareable = Shareable()
    shareable["client"] = Client("HK", "token")
    with pytest.raises(TypeError):
        there_and_back(shareable, ServerCommandNames.SUBMIT_UPDATE)


def test_more_objects_than_any_message_has_are_refused(lower: Lower) -> None:
    contents = [[{} for _ in range(20)], [[[{} for _ in range(5)] for _ in range(2)] for _ in range(2)]]
    sent = [fobs.dumps(content) for content in contents]
    assert [fobs.loads(message) for message in sent] == contents
    lower(messages, MOST_ELSEWHERE=10)
    for message in sent:
        with pytest.raises(ValueError):
            fobs.loads(message)


def test_messages_within_messages_are_counted(lower: Lower) -> None:
    lower(messages, MOST_MESSAGES=2)
    two = Shareable({"inner": Shareable()})
    there_and_back(two, "any")
    with pytest.raises(ValueError):
        there_and_back(Shareable({"inner": two}), "any")


def test_only_a_task_and_an_answer_hold_many_objects(lower: Lower) -> None:
    lower(messages, MOST_ELSEWHERE=50)
    many = Shareable({"x": [[] for _ in range(100)]})
    for topic in (ServerCommandNames.SUBMIT_UPDATE, f"server_command:{ServerCommandNames.GET_TASK}"):
        assert len(there_and_back(many, topic)["x"]) == 100
    with pytest.raises(ValueError):
        there_and_back(many, "heartbeat")


def test_the_text_of_a_message_does_not_have_its_bytes() -> None:
    assert str(ConsumableBufferList([b"x" * 1000, b"y"])) == "<message in 2 pieces>"


def test_a_table_does_not_grow_with_the_names_that_messages_have(lower: Lower) -> None:
    lower(messages, MOST_ROWS=10)
    times, counts = HistPool("x", "x", [1.0, 2.0], "s"), CounterPool("x", "x", ["received"])
    for number in range(15):
        times.record_value(f"{number}", 1.5)
        counts.increment(f"{number}", "received")
    assert len(times.cat_bins) == len(counts.cat_counters) == 11
    assert counts.cat_counters["7"] == {"received": 1}
    assert counts.cat_counters[OTHERS] == {"received": 5}


def test_a_long_name_is_none() -> None:
    counts = CounterPool("x", "x", ["received"])
    counts.increment("x" * (LONGEST_ROW + 1), "received")
    assert set(counts.cat_counters) == {OTHERS}


class Server:
    """The part of a server's job process that takes answers."""

    def __init__(self) -> None:
        self.taken, self.told = list[Any](), list[tuple[str, str]]()
        cell = SimpleNamespace(
            decode_pass_through_channels=(),
            decode_pass_through_topics=(),
            get_fobs_context=lambda props=None: dict(props or {}),
        )
        adapter = Adapter(lambda request: self.taken.append(request.payload), SimpleNamespace(fqcn="server.job"), cell)
        self._handler = BlobHandler(adapter.call)
        messages.listen(lambda sender, fault: self.told.append((sender, fault)))

    def gets(self, topic: str = ServerCommandNames.SUBMIT_UPDATE) -> None:
        """A message that can be decoded, from a site's job."""
        headers = {
            StreamHeaderKey.CHANNEL: CellChannel.SERVER_COMMAND,
            StreamHeaderKey.TOPIC: topic,
            StreamHeaderKey.PAYLOAD_ENCODING: Encoding.FOBS,
            MessageHeaderKey.ORIGIN: "HK.job",
        }
        future = StreamFuture(1, headers)
        future.set_result(bytes(fobs.dumps(DXO(DataKind.WEIGHTS, data={"w": np.ones(2)}).to_shareable())))
        self._handler._run_blob_cb(future, SimpleNamespace(), (), {})


@pytest.fixture
def server(lower: Lower) -> Any:
    def ends(code: int) -> None:
        raise AssertionError(f"the process ends with {code}")

    lower(os, _exit=ends)
    yield Server()
    messages.listen(None)


def fails(*_: Any, **__: Any) -> Any:
    raise ValueError("for the test")


@pytest.mark.parametrize("decoder", [fails, lambda *_, **__: ["another type"]], ids=["an error", "another type"])
def test_after_an_answer_that_cannot_be_decoded_the_next_is_taken(
    server: Server, decoder: Callable[..., Any], lower: Lower
) -> None:
    loads = fobs.loads
    lower(fobs, loads=decoder)
    server.gets()
    assert not server.taken
    ((sender, _),) = server.told
    assert sender == "HK.job"
    if decoder is fails:
        server.gets("another topic")
        assert not server.taken and len(server.told) == 1, "of an answer only"
    lower(fobs, loads=loads)
    server.gets()
    assert len(server.taken) == len(server.told) == 1


def test_no_process_is_one_that_ends() -> None:
    assert not nvflare_cell._is_server_job_cell(SimpleNamespace(fqcn="server.job"))


def test_no_return_code_of_a_site_ends_the_job() -> None:
    assert not ServerRunner.ABORT_RETURN_CODES
