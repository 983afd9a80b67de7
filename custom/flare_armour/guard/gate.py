"""Every message that comes in is asked about before anything is done with it.

NVFlare 2.9: does not hold a message's origin and destination to the connection that it came over.
Cost: any one site can give all others orders, read their files and end their jobs.
Instead: `CoreCell._process_received_msg`, through which everything comes that comes from a connection (requests,
answers, pieces of streams, and what is only passed on) first asks `rules.refusal`. What is refused is dropped without
an answer. Headers that are not a site's to set are taken off.
Fixed in NVFlare when: the server drops a message whose origin is not of its connection's certificate, and passes none
on from a site to another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType
from nvflare.fuel.f3.cellnet.identity import is_mtls_connection
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer
from nvflare.fuel.f3.streaming.stream_const import STREAM_ACK_TOPIC, STREAM_CHANNEL, StreamHeaderKey
from nvflare.private.defs import CellMessageHeaderKeys

from flare_armour.guard import disabling
from flare_armour.guard.rules import ASKS, ROOT, Asks, Message, party, refusal
from flare_armour.log_limits import DROPS, PERSON
from flare_armour.patch import Patch

CELL = "nvflare.fuel.f3.cellnet.core_cell:CoreCell"
CONNECTIONS = "nvflare.fuel.f3.sfm.conn_manager:ConnManager"
ODD = (MessageHeaderKey.CONN_URL, MessageHeaderKey.SECURE, MessageHeaderKey.SERVER_TRANSIT_REQUIRED)
"""Headers that no party of ours sets."""
ERROR_TYPE = StreamHeaderKey.ERROR_TYPE
"""A header of a failed stream."""

UNKNOWN = "N/A"
"""NVFlare's name in place of one that it does not know."""


def gate(asks: Asks = ASKS) -> Patch:
    """The gate before all cells of this process, those to come included. ``asks`` is the table of the rules."""
    patch = Patch(
        name="gate",
        kind="protects",
        without="any one site could give all others orders",
        sources={  # what it relies on
            f"{CELL}.process_message": "7c02c0640164",
            f"{CELL}._send_direct_message": "470c9ceb4714",
            f"{CONNECTIONS}.process_frame_task": "3e0c3f2ad0af",
            f"{CONNECTIONS}.update_endpoint": "21ffd26add3b",
            f"{CONNECTIONS}.loopback_message_task": "d9a10d8aae60",
            "nvflare.fuel.f3.cellnet.identity:CellIdentityResolver": "f12357412819",
            "nvflare.fuel.f3.cellnet.identity:is_mtls_connection": "edd1edfdbca4",
            "nvflare.fuel.f3.streaming.byte_streamer:ByteStreamer._ack_handler": "fa2f1e774eb5",
        },
    )

    @patch.replaces(f"{CELL}._process_received_msg", "02790bea4f0b")
    def receive(original: Callable[..., None], self: Any, endpoint: Any, connection: Any, message: Any) -> None:
        me = self.get_fqcn()
        reason = _why_not(me, endpoint, connection, message, asks)
        if reason is not None:
            sender = _sender(endpoint, connection)
            DROPS.add(sender, _wanted(message, sender), reason)
            return
        _take_off(me, message)
        _put_on(endpoint, connection, message)
        if me.partition(".")[0] != ROOT:
            disabling.note_refusal(message)
        original(self, endpoint, connection, message)

    return patch


def _why_not(me: str, endpoint: Any, connection: Any, message: Any, asks: Asks) -> str | None:
    try:
        contents = envelope(me, endpoint, connection, message)
    except (TypeError, ValueError, AttributeError) as error:
        return f"it is malformed ({type(error).__name__})"
    return refusal(contents, asks) or disabling.refusal(contents) or _anothers_stream(contents, message)


def envelope(me: str, endpoint: Any, connection: Any, message: Any) -> Message:
    """What the rules look at.

    Raises:
        TypeError: a header is of another type than NVFlare writes.
    """
    returned = message.get_header(MessageHeaderKey.ORIGINAL_HEADERS)
    return Message(
        me=me,
        peer=endpoint.name,
        # A connection that NVFlare has no certificate for is one within this machine (a party's own processes).
        certified=connection is not None and is_mtls_connection(connection.connector.params),
        person=_person(connection),
        origin=_text(message, MessageHeaderKey.ORIGIN),
        destination=_text(message, MessageHeaderKey.DESTINATION),
        kind=_text(message, MessageHeaderKey.MSG_TYPE),
        channel=_text(message, MessageHeaderKey.CHANNEL),
        topic=_text(message, MessageHeaderKey.TOPIC),
        inner=(_text(message, StreamHeaderKey.CHANNEL), _text(message, StreamHeaderKey.TOPIC)),
        gives_up=bool(message.get_header(StreamHeaderKey.ERROR_MSG)),
        client=_text(message, CellMessageHeaderKeys.CLIENT_NAME),
        client_type=_text(message, CellMessageHeaderKeys.CLIENT_TYPE),
        asked=_text(message, StreamHeaderKey.FAILED_DESTINATION)
        or (str(returned.get(MessageHeaderKey.DESTINATION, "")) if isinstance(returned, dict) else ""),
        oddities=tuple(key for key in ODD if message.get_header(key)),
    )


def _person(connection: Any) -> str:
    return str((connection.get_conn_properties() if connection else {}).get(DriverParams.PEER_CN.value) or "")


def _text(message: Any, key: str) -> str:
    value = message.get_header(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError(key)
    return value


def _anothers_stream(contents: Message, message: Any) -> str | None:
    """Whether it acknowledges, or stops, a stream of ours to another."""
    if (contents.channel, contents.topic) != (STREAM_CHANNEL, STREAM_ACK_TOPIC) or contents.destination != contents.me:
        return None
    stream = ByteStreamer.tx_task_map.get(message.get_header(StreamHeaderKey.STREAM_ID))
    return None if stream is None or stream.target == contents.origin else "it acknowledges a stream to another"


def _take_off(me: str, message: Any) -> None:
    """Take off a site's message what is not a site's to say."""
    if message.get_header(MessageHeaderKey.CHANNEL) != STREAM_CHANNEL:
        message.remove_header(StreamHeaderKey.TOPIC)  # by which `messages` knows a task and an answer
    origin = party(message.get_header(MessageHeaderKey.ORIGIN))
    receiver = party(me)
    if origin is not None and receiver is not None and receiver.root == ROOT != origin.root:
        message.remove_header(ERROR_TYPE)


def _put_on(endpoint: Any, connection: Any, message: Any) -> None:
    """Note whose a console is, for `sessions`."""
    peer = party(endpoint.name)
    if peer is not None and peer.kind == "console":
        message.set_header(PERSON, _person(connection))


def _sender(endpoint: Any, connection: Any) -> str:
    """Whose certificate the connection has, or at least the first part of the peer's name."""
    person = (connection.get_conn_properties() if connection else {}).get(DriverParams.PEER_CN.value)
    return str(person) if person and person != UNKNOWN else str(getattr(endpoint, "name", "?")).partition(".")[0]


def _wanted(message: Any, sender: str) -> str:
    """What a message is about, in a few words: channel and topic, for whom, in which stream, in whose name."""
    get = message.get_header
    kind = "" if get(MessageHeaderKey.MSG_TYPE) == MessageType.REQ else f"{get(MessageHeaderKey.MSG_TYPE)} "
    channel, topic = get(MessageHeaderKey.CHANNEL), get(MessageHeaderKey.TOPIC)
    if channel == STREAM_CHANNEL:
        channel, topic = f"{topic} {get(StreamHeaderKey.CHANNEL)}", get(StreamHeaderKey.TOPIC)
    origin = get(MessageHeaderKey.ORIGIN)
    name = "" if origin == sender else f", in the name of {origin}"
    return f"{kind}{channel}/{topic} to {get(MessageHeaderKey.DESTINATION)}{name}"


PATCH = gate()
