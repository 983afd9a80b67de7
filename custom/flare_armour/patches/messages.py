"""A message holds data and nothing else, ends no process, and leaves nothing behind.

NVFlare 2.9: a message can hold more than data, and as many objects as fit into it. Some messages of other parties end
the process that receives them, and some return codes of a site end the job. A debug line that is not logged makes text
of all bytes of every message. Statistics of messages keep a row for each different name.
Cost: any site can fill the disk and the memory of the others, stop them, or end the job of all; four times a message's
size in memory, and processor time for it.
Instead: files and references are refused, and so are more than `MOST_CONTAINERS` lists and mappings, or than
`MOST_ELSEWHERE` where there is no task and no answer. A task and an answer hold plain data, DXOs and arrays. The
functions that would end the process are told that they are not in a server's job process, so that they drop the message
and tell its sender; who sent an answer that cannot be used is told to the `listen`er, which leaves the site out of the
round, and an answer with any return code reaches the workflow. The list that holds a message's pieces has a short text.
A table of statistics has `MOST_ROWS` with names of at most `LONGEST_ROW` characters; all further ones are one row.
Fixed in NVFlare when: what a received message may hold is a setting; ``nvflare.fuel.f3.cellnet.cell`` ends no process;
``ServerRunner.ABORT_RETURN_CODES`` is a setting; ``Adapter.call`` formats no message; ``StatsPool`` has a limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.apis.shareable import Shareable

from flare_armour.log_limits import PERSON, REFUSALS, party_of
from flare_armour.patch import Patch, find

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
FOBS = "nvflare.fuel.utils.fobs"
MOST_ROWS = 500
"""Rows of a table of statistics. A run has about 30."""
LONGEST_ROW = 200
"""Characters of a row's name."""
OTHERS = "others"
NUMPY = b"\x93NUMPY"
"""What an array's bytes begin with; NVFlare reads other files too."""

CELL = "nvflare.fuel.f3.cellnet.cell"
DECODE = "nvflare.fuel.f3.cellnet.utils:decode_payload"
LIST = "nvflare.fuel.utils.buffer_list:ConsumableBufferList"
POOLS = "nvflare.fuel.f3.stats_pool"
RUNNER = "nvflare.private.fed.server.server_runner:ServerRunner"
ORIGIN = "nvflare.fuel.f3.cellnet.defs:MessageHeaderKey.ORIGIN"
TOPIC = "nvflare.fuel.f3.streaming.stream_const:StreamHeaderKey.TOPIC"
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


def end_no_process() -> None:
    """Replace what decides whether a process ends, and how streamed messages are decoded."""
    cell, decode, origin, topic = find("nvflare.fuel.f3.cellnet:cell"), find(DECODE), find(ORIGIN), find(TOPIC)
    cell._is_server_job_cell = lambda my_info: False

    def decode_or_tell(message: Any, *args: Any, **kwargs: Any) -> None:
        is_answer = message.get_header(topic) == ServerCommandNames.SUBMIT_UPDATE
        try:
            decode(message, *args, **kwargs)
            if is_answer and not isinstance(message.payload, Shareable):
                raise TypeError(f"an answer is no {type(message.payload).__name__}")
        except Exception as error:
            sender = str(message.get_header(origin))
            party = party_of(sender, message.get_header(PERSON))
            what = f"has sent a message that cannot be decoded ({type(error).__name__}): it is dropped"
            REFUSALS.add(party, "decoding", what)
            if is_answer:
                report(sender, f"cannot be decoded ({type(error).__name__})")
            raise

    cell.decode_payload = decode_or_tell


def hold_data_only() -> None:
    """Replace how a message's parts are read."""
    lobs, fobs = find(f"{FOBS}:lobs"), find(f"{FOBS}:fobs")
    section, unpack = lobs._get_one_section, fobs.Packer.unpack
    key, topic_key = find(f"{FOBS}:FOBSContextKey.MESSAGE"), find(TOPIC)

    def get_section(stream: Any, expect_datum: bool) -> Any:
        read = section(stream, expect_datum)
        header = read[0]
        if header is not None and header.marker == lobs.MARKER_DATUM_FILE:
            raise ValueError("a message must not hold a file")
        if header is not None and header.dot:
            raise ValueError("a message must not hold a reference to data elsewhere")
        return read

    def deserialize(data: bytes, manager: Any = None, **kwargs: Any) -> Any:
        fobs._register_decomposers()
        message = None if manager is None else manager.get_fobs_context().get(key)
        topic = "" if message is None else str(message.get_header(topic_key, ""))
        strict = topic.endswith((ServerCommandNames.SUBMIT_UPDATE, ServerCommandNames.GET_TASK))
        most = MOST_CONTAINERS if strict else MOST_ELSEWHERE
        contents = _Contents(strict=strict, most=most)
        packer = fobs.Packer(manager)

        def open_mapping(mapping: dict[Any, Any]) -> Any:
            contents.count(mapping.get(fobs.FOBS_TYPE))
            return unpack(packer, mapping)

        result = find("msgpack:unpackb")(
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

    lobs._get_one_section, lobs.deserialize, fobs.deserialize = get_section, deserialize, deserialize
    arrays = find(ARRAYS)
    original = arrays.native_recompose

    def recompose(self: Any, data: Any, manager: Any = None) -> Any:
        if bytes(data[: len(NUMPY)]) != NUMPY:
            raise ValueError("an array is no NumPy file")
        return original(self, data, manager)

    arrays.native_recompose = recompose


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


def bound_statistics() -> None:
    """Replace what adds to a table."""
    times, counts = find(f"{POOLS}:HistPool"), find(f"{POOLS}:CounterPool")
    times.record_value = _bounded(times.record_value, "cat_bins")
    counts.increment = _bounded(counts.increment, "cat_counters")


def _bounded(original: Callable[..., None], table: str) -> Callable[..., None]:
    def add(self: Any, category: str, *others: Any, **named: Any) -> None:
        rows = getattr(self, table)
        if category not in rows and (len(rows) >= MOST_ROWS or len(category) > LONGEST_ROW):
            category = OTHERS
        original(self, category, *others, **named)

    return add


def shorten_text() -> None:
    """Give lists of a message's pieces a short text."""
    find(LIST).__repr__ = lambda message: f"<message in {len(message)} pieces>"


def outlive_return_codes(runner: Any) -> None:
    """Let no return code end the job of this ``ServerRunner``."""
    if RETURN_CODES.fits():
        runner.ABORT_RETURN_CODES = ()


EXITS = Patch(
    name="message_exits",
    kind="protects",
    without="one site can end the job of all by a message",
    apply=end_no_process,
    replaces={
        f"{CELL}:_is_server_job_cell": "ec9c83ee85df",
        f"{CELL}:Adapter.call": "a874a0e1bfaa",
        f"{CELL}:Adapter._handle_reply_stream_done": "803bd6ffd042",
        f"{CELL}:Adapter._send_response": "18cbc963d868",
        f"{CELL}:Cell._process_stream_error": "6412fff0cace",
        DECODE: "f465355a9479",
    },
)
CONTENTS = Patch(
    name="message_contents",
    kind="protects",
    without="one site can fill the disk and the memory of the others' processes or stop them",
    apply=hold_data_only,
    replaces={
        f"{FOBS}.lobs:_get_one_section": "d6e46b22c64d",
        f"{FOBS}.lobs:load_from_stream": "bab9c828b06b",
        f"{FOBS}.fobs:deserialize": "4a15c330a577",
        f"{FOBS}.fobs:Packer.unpack": "251ce1811b4a",
        f"{ARRAYS}.native_recompose": "058337dc0b91",
    },
)
RETURN_CODES = Patch(
    name="return_codes",
    kind="protects",
    without="one site can end the job of all by a return code",
    replaces={f"{RUNNER}._process_submission": "001447aac81d"},
)
STATISTICS = Patch(
    name="statistics_pools",
    kind="protects",
    without="one site can fill the memory of the server with names",
    apply=bound_statistics,
    replaces={f"{POOLS}:HistPool.record_value": "167f2a717f13", f"{POOLS}:CounterPool.increment": "1a00c6dcfef7"},
)
TEXT = Patch(
    name="message_text",
    kind="bounds memory",
    without="a message takes more memory and processor time",
    apply=shorten_text,
    replaces={LIST: "3a72f255775b", f"{CELL}:Adapter.call": "a874a0e1bfaa"},
)
