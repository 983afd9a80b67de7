"""A server unpacks answers one after another, and handles everything else as NVFlare does."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.apis.shareable import Shareable
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.fuel.f3.cellnet.cell import Adapter
from nvflare.fuel.f3.cellnet.defs import Encoding
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.blob_streamer import BlobHandler
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import StreamFuture
from nvflare.fuel.utils import fobs

from flare_armour import patches

patches.install()
flare_decomposers.register()


@pytest.mark.parametrize("topic", [ServerCommandNames.SUBMIT_UPDATE, ServerCommandNames.GET_TASK])
def test_answers_are_unpacked_one_after_another(topic: str) -> None:
    """Also if NVFlare handles them in the background, and by adapters registered before the patch was applied."""
    pool, at_once, most, replies = ThreadPoolExecutor(8), [0], [0], FakeCell()

    def work() -> Message:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        time.sleep(0.05)
        at_once[0] -= 1
        return Message({}, b"")

    adapter = Adapter(lambda request: pool.submit(work), SimpleNamespace(fqcn="server"), replies)
    handler = BlobHandler(adapter.call)
    futures = []
    for number in range(4):
        headers = {StreamHeaderKey.TOPIC: topic, StreamHeaderKey.STREAM_REQ_ID: number + 1}
        future = StreamFuture(number, {**headers, StreamHeaderKey.PAYLOAD_ENCODING: Encoding.FOBS})
        future.set_result(fobs.dumps(Shareable()))
        futures.append(future)
    with ThreadPoolExecutor(4) as callers:
        list(callers.map(lambda future: handler._run_blob_cb(future, SimpleNamespace(), (), {}), futures))
    pool.shutdown()
    assert (most[0] == 1) is (topic == ServerCommandNames.SUBMIT_UPDATE)
    assert sorted(replies.answered) == [1, 2, 3, 4]


class FakeCell:
    """What an adapter needs of a cell."""

    decode_pass_through_channels: frozenset[str] = frozenset()
    decode_pass_through_topics: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.answered: list[int] = []

    def get_fobs_context(self, props: object = None) -> dict[str, object]:
        return {}

    def send_blob(self, channel: str, topic: str, to: str, message: Message, *others: object, **named: object) -> Any:
        self.answered.append(message.get_header(StreamHeaderKey.STREAM_REQ_ID))
        return StreamFuture(0)
