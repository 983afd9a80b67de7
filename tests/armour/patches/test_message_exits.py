"""No message ends the server's job process, and who sent one that cannot be decoded is told."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.app_common.decomposers import common_decomposers
from nvflare.fuel.f3.cellnet import cell as nvflare_cell
from nvflare.fuel.f3.cellnet.cell import Adapter
from nvflare.fuel.f3.cellnet.defs import CellChannel, Encoding, MessageHeaderKey
from nvflare.fuel.f3.streaming.blob_streamer import BlobHandler
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import StreamFuture
from nvflare.fuel.utils import fobs
from nvflare.private.fed.server.server_runner import ServerRunner

from flare_armour import patches
from flare_armour.patches import messages
from flare_armour.patches.messages import outlive_return_codes

patches.install()
flare_decomposers.register()
common_decomposers.register()


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
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    def ends(code: int) -> None:
        raise AssertionError(f"the process ends with {code}")

    monkeypatch.setattr(os, "_exit", ends)
    yield Server()
    messages.listen(None)


def fails(*_: Any, **__: Any) -> Any:
    raise ValueError("for the test")


@pytest.mark.parametrize("decoder", [fails, lambda *_, **__: ["another type"]], ids=["an error", "another type"])
def test_after_an_answer_that_cannot_be_decoded_the_next_is_taken(
    server: Server, decoder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(fobs, "loads", decoder)
        server.gets()
        assert not server.taken
        ((sender, _),) = server.told
        assert sender == "HK.job"
        if decoder is fails:
            server.gets("another topic")
            assert not server.taken and len(server.told) == 1, "of an answer only"
    server.gets()
    assert len(server.taken) == len(server.told) == 1


def test_no_process_is_one_that_ends() -> None:
    assert not nvflare_cell._is_server_job_cell(SimpleNamespace(fqcn="server.job"))


def test_no_return_code_of_a_site_ends_the_job() -> None:
    runner = ServerRunner.__new__(ServerRunner)
    before = set(ServerRunner.ABORT_RETURN_CODES)
    outlive_return_codes(runner)
    assert not before & set(runner.ABORT_RETURN_CODES)
    assert set(ServerRunner.ABORT_RETURN_CODES) == before, "only this job's runner is changed"
