"""No message ends the server's job process, and who sent one that cannot be decoded is told."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from flare.conftest import ROOT
from nvflare.apis.fl_constant import ReturnCode
from nvflare.private.fed.server.server_runner import ServerRunner

from flare_armour.patches.messages import outlive_return_codes

TAKES = """
import json
from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.app_common.decomposers import common_decomposers
from nvflare.fuel.f3.cellnet.cell import Adapter, Cell
from nvflare.fuel.f3.cellnet.defs import CellChannel, Encoding, MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.blob_streamer import BlobHandler
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey as Key
from nvflare.fuel.f3.streaming.stream_types import BlobSizeError, StreamFuture
from types import SimpleNamespace

from flare_armour import patches
from flare_armour.patches import messages
from tests.flare import undecodable

patches.install()
flare_decomposers.register()
common_decomposers.register()


good, BAD = undecodable.good(), undecodable.undecodable()
told, taken = [], []
messages.listen(lambda sender, reason: told.append((sender, reason)))
cell = SimpleNamespace(
    decode_pass_through_channels=(),
    decode_pass_through_topics=(),
    get_fobs_context=lambda props=None: dict(props or {}),
)


def take(request):
    taken.append(request.payload)


adapter = Adapter(take, SimpleNamespace(fqcn="server.job"), cell)
handler = BlobHandler(adapter.call)


def send(content):
    told.clear(), taken.clear()
    future = StreamFuture(1, {
        Key.CHANNEL: CellChannel.SERVER_COMMAND,
        Key.TOPIC: ServerCommandNames.SUBMIT_UPDATE,
        Key.PAYLOAD_ENCODING: Encoding.FOBS,
        MessageHeaderKey.ORIGIN: "HK.job",
    })
    future.set_result(content)
    handler._run_blob_cb(future, SimpleNamespace(), (), {})
    return list(told), len(taken)


found = {}
for name, content in BAD.items():
    bad = send(content)
    found[name] = [bad, send(good)[1]]
# What another party says of a message that it got.
core = SimpleNamespace(my_info=SimpleNamespace(fqcn="server.job"))
owner = SimpleNamespace(requests_dict={}, logger=adapter.logger, core_cell=core)
Cell._process_stream_error(owner, Message({Key.ERROR_TYPE: BlobSizeError.__name__}))
failed = StreamFuture(2)
failed.set_exception(BlobSizeError("too large"))
adapter._handle_reply_stream_done(failed)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, list[object]]:
    """Everything in one process of its own: whether it lives on is the question."""
    done = subprocess.run([sys.executable, "-c", TAKES], capture_output=True, encoding="utf-8", check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_after_each_message_that_cannot_be_decoded_the_next_is_taken(found: dict[str, list[object]]) -> None:
    assert len(found) > 15
    assert {name: taken for name, (_, taken) in found.items()} == dict.fromkeys(found, 1)


def test_its_sender_is_told_once_and_it_goes_no_further(found: dict[str, list[object]]) -> None:
    for name, (bad, _) in found.items():
        told, taken = bad  # type: ignore[misc]
        assert not taken, name
        ((sender, reason),) = told
        assert sender == "HK.job" and reason.startswith("cannot be decoded ("), name


@pytest.mark.parametrize("code", [ReturnCode.RUN_MISMATCH, ReturnCode.TASK_UNKNOWN, ReturnCode.UNSAFE_JOB])
def test_no_return_code_of_a_site_ends_the_job(code: str) -> None:
    runner = ServerRunner.__new__(ServerRunner)
    assert code in runner.ABORT_RETURN_CODES, "NVFlare ends the job"
    outlive_return_codes(runner)
    assert code not in runner.ABORT_RETURN_CODES
    assert code in ServerRunner.ABORT_RETURN_CODES, "only this job's runner is changed"
