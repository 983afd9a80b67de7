"""A message holds data and nothing else, ends no process, and leaves nothing behind.

NVFlare 2.9: a message can hold more than data, and as many objects as fit into it. Some messages of other parties end
the process that receives them, and some return codes of a site end the job. Values below 10 MB are copied, one after
another, into one growing block. A debug line that is not logged makes text of all bytes of every message. Statistics of
messages keep a row for each different name.
Cost: any site can fill the disk and the memory of the others, stop them, or end the job of all; four times a message's
size in memory, and processor time for it.
Instead: files and references are refused, and so are more than `MOST_CONTAINERS` lists and mappings, or than
`MOST_ELSEWHERE` where there is no task and no answer. A task and an answer hold plain data, DXOs and arrays. The
functions that would end the process are told that they are not in a server's job process, so that they drop the message
and tell its sender; who sent an answer that cannot be used is told to the `listen`er, which leaves the site out of the
round, and an answer with any return code reaches the workflow. An array of `APART` bytes or more is a piece of its own
in a message, and the list that holds a message's pieces has a short text. A table of statistics has `MOST_ROWS` with
names of at most `LONGEST_ROW` characters; all further ones are one row.
Fixed in NVFlare when: what a received message may hold is a setting; ``nvflare.fuel.f3.cellnet.cell`` ends no process;
``ServerRunner.ABORT_RETURN_CODES`` is a setting; ``Adapter.call`` formats no message; ``StatsPool`` has a limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack  # type: ignore[import-untyped]
from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.buffer_list import ConsumableBufferList
from nvflare.fuel.utils.fobs import datum, lobs
from nvflare.private.fed.server.server_runner import ServerRunner

from flare_armour.log_limits import PERSON, REFUSALS, party_of
from flare_armour.patch import Patch

MOST_CONTAINERS = 1_000_000
"""Lists and mappings in a message, and elements of each. An array takes about four."""
MOST_ELSEWHERE = 50_000
"""The same of a message that is no task and no answer."""
MOST_MESSAGES = 16
"""Objects of NVFlare's type for messages in a message."""
HOLDS = frozenset(
    {
        "tuple",
        "set",
        "collections.OrderedDict",
        "numpy.ndarray",
        "numpy.float32",
        "numpy.float64",
        "numpy.int32",
        "numpy.int64",
        "nvflare.apis.dxo.DXO",
        "nvflare.apis.dxo.DataKind",
        "nvflare.apis.fl_context.FLContext",
        "nvflare.apis.shareable.Shareable",
        "nvflare.fuel.utils.fobs.datum.DatumRef",
    }
)
"""Types that a task and an answer may hold, beside msgpack's own."""
MESSAGE = "nvflare.apis.shareable.Shareable"
APART = 64 * 1024
"""Bytes from which an array is a piece of its own in a message."""
MOST_ROWS = 500
"""Rows of a table of statistics. A run has about 30."""
LONGEST_ROW = 200
"""Characters of a row's name."""
OTHERS = "others"
NUMPY = b"\x93NUMPY"
"""What an array's bytes begin with; NVFlare reads other files too."""


CELL = "nvflare.fuel.f3.cellnet.cell"
LIST = "nvflare.fuel.utils.buffer_list:ConsumableBufferList"
POOLS = "nvflare.fuel.f3.stats_pool"
FOBS = "nvflare.fuel.utils.fobs"
ARRAYS = "nvflare.app_common.decomposers.numpy_decomposers:NumpyArrayDecomposer"

Listener = Callable[[str, str], None]
"""Takes the sender of an answer that cannot be used, a cell's full name, and what completes "the answer ...". It must
return at once."""
_listeners: list[Listener] = []


def listen(listener: Listener | None) -> None:
    """From now on, call ``listener``, and no other, for each answer that cannot be used."""
    _listeners[:] = [] if listener is None else [listener]


def report(sender: str, fault: str) -> None:
    """An answer of ``sender`` cannot be used; ``fault`` completes the sentence "the answer ..."."""
    for listener in _listeners:
        listener(sender, fault)


def take_any_return_code() -> None:
    ServerRunner.ABORT_RETURN_CODES = ()


PATCH = Patch(
    name="messages",
    kind="protects",
    without="one site can fill the disk and the memory of the others' processes, stop them, or end the job of all",
    also=take_any_return_code,
    sources={
        f"{CELL}:Adapter.call": "a874a0e1bfaa",
        f"{CELL}:Adapter._handle_reply_stream_done": "803bd6ffd042",
        f"{CELL}:Adapter._send_response": "18cbc963d868",
        f"{CELL}:Cell._process_stream_error": "6412fff0cace",
        f"{FOBS}.lobs:load_from_stream": "bab9c828b06b",
        f"{FOBS}.fobs:Packer.unpack": "251ce1811b4a",
        "nvflare.private.fed.server.server_runner:ServerRunner._process_submission": "001447aac81d",
    },
)


@PATCH.replaces(f"{CELL}:_is_server_job_cell", "ec9c83ee85df")
def _end_no_process(_: Any, my_info: Any) -> bool:
    return False


@PATCH.replaces(f"{CELL}:decode_payload", "f465355a9479")
def _decode_or_report(decode: Callable[..., None], message: Any, *args: Any, **kwargs: Any) -> None:
    is_answer = message.get_header(StreamHeaderKey.TOPIC) == ServerCommandNames.SUBMIT_UPDATE
    try:
        decode(message, *args, **kwargs)
        if is_answer and not isinstance(message.payload, Shareable):
            raise TypeError(f"an answer is no {type(message.payload).__name__}")
    except Exception as error:
        sender, kind = str(message.get_header(MessageHeaderKey.ORIGIN)), type(error).__name__
        party = party_of(sender, message.get_header(PERSON))
        REFUSALS.add(party, "decoding", f"has sent a message that cannot be decoded ({kind}): it is dropped")
        if is_answer:
            report(sender, f"cannot be decoded ({kind})")
        raise


@PATCH.replaces(f"{FOBS}.lobs:_get_one_section", "d6e46b22c64d")
def take_data_only(section: Callable[..., Any], stream: Any, expect_datum: bool) -> Any:
    read = section(stream, expect_datum)
    header = read[0]
    if header is not None and header.marker == lobs.MARKER_DATUM_FILE:
        raise ValueError("a message must not hold a file")
    if header is not None and header.dot:
        raise ValueError("a message must not hold a reference to data elsewhere")
    return read


@PATCH.replaces(f"{FOBS}.lobs:deserialize", "4a15c330a577")
@PATCH.replaces(f"{FOBS}.fobs:deserialize", "4a15c330a577")
def _deserialize(_: Any, data: bytes, manager: Any = None, **kwargs: Any) -> Any:
    fobs.fobs._register_decomposers()
    message = None if manager is None else manager.get_fobs_context().get(fobs.FOBSContextKey.MESSAGE)
    topic = "" if message is None else str(message.get_header(StreamHeaderKey.TOPIC, ""))
    strict = topic.endswith((ServerCommandNames.SUBMIT_UPDATE, ServerCommandNames.GET_TASK))
    most = MOST_CONTAINERS if strict else MOST_ELSEWHERE
    contents, packer = _Contents(strict=strict, most=most), fobs.fobs.Packer(manager)

    def open_mapping(mapping: dict[Any, Any]) -> Any:
        contents.count(mapping.get(fobs.fobs.FOBS_TYPE))
        return packer.unpack(mapping)

    result = msgpack.unpackb(
        data,
        strict_map_key=False,
        object_hook=open_mapping,
        list_hook=contents.count_list,
        max_array_len=min(len(data), most),
        max_map_len=min(len(data), most),
        **kwargs,
    )
    if manager is not None:
        manager.post_process()
    return result


@PATCH.replaces(f"{ARRAYS}.native_recompose", "058337dc0b91")
def _recompose(original: Callable[..., Any], self: Any, data: Any, manager: Any = None) -> Any:
    if bytes(data[: len(NUMPY)]) != NUMPY:
        raise ValueError("an array is no NumPy file")
    return original(self, data, manager)


class _Contents:
    """Counts what is in a message while it is read."""

    def __init__(self, *, strict: bool, most: int) -> None:
        """``strict``: only types of `HOLDS`; ``most``: lists and mappings."""
        self._strict, self._most = strict, most
        self._containers = self._messages = 0

    def count(self, kind: object) -> None:
        """A mapping, or the object of type ``kind`` that it stands for."""
        self._containers += 1
        self._messages += kind == MESSAGE
        if self._strict and kind is not None and kind not in HOLDS:
            raise TypeError("a task or an answer holds an object of a type that it must not hold")
        if self._containers > self._most or self._messages > MOST_MESSAGES:
            raise ValueError("a message holds too many lists and mappings, or other messages")

    def count_list(self, values: list[Any]) -> list[Any]:
        self.count(None)
        return values


@PATCH.replaces(f"{POOLS}:HistPool.record_value", "167f2a717f13")
def _time(original: Callable[..., None], self: Any, category: str, *others: Any, **named: Any) -> None:
    original(self, _row(self.cat_bins, category), *others, **named)


@PATCH.replaces(f"{POOLS}:CounterPool.increment", "1a00c6dcfef7")
def _count(original: Callable[..., None], self: Any, category: str, *others: Any, **named: Any) -> None:
    original(self, _row(self.cat_counters, category), *others, **named)


def _row(rows: dict[str, Any], name: str) -> str:
    """The row of a table of statistics to which a name is added."""
    return OTHERS if name not in rows and (len(rows) >= MOST_ROWS or len(name) > LONGEST_ROW) else name


def keep_apart() -> None:
    """Lower the size from which a value is a piece of its own; smaller ones are copied into one growing block."""
    datum.TEN_MEGA = APART


MESSAGE_PIECES = Patch(
    name="message_pieces",
    kind="bounds memory",
    without="server and sites need more memory while they send",
    also=keep_apart,
    sources={f"{FOBS}.datum:DatumManager.__init__": "3c52f8097c5c"},
)


def shorten_text() -> None:
    """Give lists of a message's pieces a short text."""
    ConsumableBufferList.__repr__ = lambda message: f"<message in {len(message)} pieces>"


TEXT = Patch(
    name="message_text",
    kind="bounds memory",
    without="a message takes more memory and processor time",
    also=shorten_text,
    sources={LIST: "3a72f255775b", f"{CELL}:Adapter.call": "a874a0e1bfaa"},
)
