"""A message from another party ends no process.

NVFlare 2.9: some messages of other parties end the process that receives them.
Cost: one site can end the job of all, and the process, which exited by itself, is not started again.
Instead: the functions that would end the process are told that they are not in a server's job process, so that they
drop the message and tell its sender. Who sent an answer that cannot be used is told to the listener of `tell`, which
leaves the site out of the round.
Fixed in NVFlare when: ``nvflare.fuel.f3.cellnet.cell`` ends no process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.apis.shareable import Shareable

from flare_armour.patches.patch import Patch, find
from flare_armour.patches.refusals import PERSON, REFUSALS, party_of

CELL = "nvflare.fuel.f3.cellnet.cell"
DECODE = "nvflare.fuel.f3.cellnet.utils:decode_payload"
ORIGIN = "nvflare.fuel.f3.cellnet.defs:MessageHeaderKey.ORIGIN"
TOPIC = "nvflare.fuel.f3.streaming.stream_const:StreamHeaderKey.TOPIC"
PATCH = Patch(
    name="message_exits",
    without="one site can end the job of all by a message",
    replaces={
        f"{CELL}:_is_server_job_cell": "ec9c83ee85df",
        f"{CELL}:Adapter.call": "a874a0e1bfaa",
        f"{CELL}:Adapter._handle_reply_stream_done": "803bd6ffd042",
        f"{CELL}:Adapter._send_response": "18cbc963d868",
        f"{CELL}:Cell._process_stream_error": "6412fff0cace",
        DECODE: "f465355a9479",
    },
)

Listener = Callable[[str, str], None]
_listener: Listener | None = None


def tell(listener: Listener | None) -> None:
    """From now on, call ``listener`` for each answer that cannot be used. It must return at once.

    Its arguments are the sender, a cell's full name, and what completes the sentence "the answer ...".
    """
    global _listener
    _listener = listener


def report(sender: str, fault: str) -> None:
    """An answer of ``sender`` cannot be used; ``fault`` completes the sentence "the answer ..."."""
    if _listener is not None:
        _listener(sender, fault)


def apply() -> None:
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
            REFUSALS.tell(party, "decoding", what)
            if is_answer:
                report(sender, f"cannot be decoded ({type(error).__name__})")
            raise

    cell.decode_payload = decode_or_tell
