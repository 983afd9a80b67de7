"""Who may say what to whom. Pure: no connection, no NVFlare object, no state.

A name (NVFlare's FQCN) is a path: ``server``, ``server.JOB``, ``SITE``, ``SITE.JOB``, ``_admin_UUID``. The process of a
party between jobs is its root, the process of a job its child.

What is certain about a message is the other end of the connection that it came over: under mutual TLS the first part
of its name is that of its certificate. Everything in the message itself is what its sender wrote. So: a sender may
only name an origin that the other end can speak for; then the table says which kinds of party may ask which others for
what. A site and another site have nothing to say to each other, and the server passes nothing on between them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from nvflare.apis.fl_constant import ReservedTopic, ServerCommandNames
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageType
from nvflare.fuel.f3.streaming.download_service import OBJ_DOWNLOADER_CHANNEL
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    STREAM_ERROR_TOPIC,
)
from nvflare.fuel.utils.admin_name_utils import is_valid_admin_client_name
from nvflare.private.defs import ClientType
from nvflare.private.stream_runner import TOPIC_STREAM_ABORT, TOPIC_STREAM_REQUEST

from flare_armour.log_limits import CONSOLE
from flare_armour.pieces.wire import CHANNEL, FETCH, SEND

Kind = Literal["server", "server's job", "site", "site's job", "console"]

ROOT = "server"
"""The server's name in messages, whatever its host is called."""
ANY = "*"
LONGEST = 200
"""Characters of a name."""
PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.~-]*")
COMMANDS, AUX = CellChannel.SERVER_COMMAND, CellChannel.AUX_COMMUNICATION
BYE = (CellChannel.CELLNET, CellChannelTopic.Bye)

Asks = Mapping[tuple[Kind, Kind], frozenset[tuple[str, str]]]

ASKS: Asks = {
    ("site", "server"): frozenset(
        (CellChannel.SERVER_MAIN, topic)
        for topic in (
            CellChannelTopic.Challenge,
            CellChannelTopic.Register,
            CellChannelTopic.Quit,
            CellChannelTopic.HEART_BEAT,
            CellChannelTopic.REPORT_JOB_FAILURE,
        )
    ),
    ("site's job", "server's job"): frozenset(
        {
            (COMMANDS, ServerCommandNames.GET_TASK),
            (COMMANDS, ServerCommandNames.SUBMIT_UPDATE),
            (AUX, ReservedTopic.SYNC_RUNNER),
            (AUX, ReservedTopic.JOB_HEART_BEAT),
            (AUX, ReservedTopic.TASK_CHECK),
            (CHANNEL, SEND),
            (CHANNEL, FETCH),
        }
    ),
    ("server", "site"): frozenset({(CellChannel.CLIENT_MAIN, ANY)}),  # what of it is done: `commands`
    ("server's job", "site's job"): frozenset({(AUX, ReservedTopic.END_RUN)}),
    ("server", "server's job"): frozenset({(COMMANDS, ANY)}),
    ("server's job", "server"): frozenset({(CellChannel.SERVER_PARENT_LISTENER, ANY)}),
    ("site", "site's job"): frozenset({(CellChannel.CLIENT_COMMAND, ANY)}),
    ("site's job", "site"): frozenset({(CellChannel.CLIENT_MAIN, ANY)}),
    ("console", "server"): frozenset(
        {
            (CellChannel.SERVER_MAIN, CellChannelTopic.Challenge),
            (CellChannel.SERVER_MAIN, CellChannelTopic.Register),
            (CellChannel.HCI, ANY),
            (AUX, TOPIC_STREAM_REQUEST),  # submits a job
            (AUX, TOPIC_STREAM_ABORT),
            (OBJ_DOWNLOADER_CHANNEL, ANY),  # fetches what a job left
        }
    ),
}
"""(who asks, who is asked) → channel and topic. Answers go the other way, on any channel."""


@dataclass(frozen=True)
class Party:
    """A name, taken apart."""

    kind: Kind
    root: str
    job: str | None = None


@dataclass(frozen=True, kw_only=True)
class Message:
    """What is known of a message when it comes in. Names are FQCNs."""

    me: str
    """Who has received it."""
    peer: str
    """The other end of the connection."""
    certified: bool
    """Whether the connection is of mutual TLS, which binds the peer's name to its certificate."""
    person: str
    """Common name of the peer's certificate, if known."""
    origin: str
    destination: str
    kind: str
    """NVFlare's ``MessageType``."""
    channel: str
    topic: str
    inner: tuple[str, str]
    """Channel and topic of what a stream carries; both empty outside streams."""
    gives_up: bool
    """Whether it says that its sender has given up the stream; such a message names no channel."""
    client: str
    """The site that it claims to be from, beside its origin; may be empty."""
    client_type: str
    """As what it registers; empty otherwise."""
    asked: str
    """Of a notice that a message, or a stream, could not be delivered: where it had been sent."""
    oddities: tuple[str, ...] = ()
    """Headers that no honest party of ours sets."""


def party(name: str) -> Party | None:
    """Who a name is of, or None if nobody of ours has such a name."""
    if not isinstance(name, str) or len(name) > LONGEST:
        return None
    if is_valid_admin_client_name(name):
        return Party("console", name)
    parts = name.split(".")
    if len(parts) > 2 or not all(PART.fullmatch(part) for part in parts) or name.startswith(CONSOLE):
        return None
    root, job = parts[0], parts[1] if len(parts) == 2 else None
    if root == ROOT:
        return Party("server", root) if job is None else Party("server's job", root, job)
    return Party("site", root) if job is None else Party("site's job", root, job)


def refusal(message: Message, asks: Asks = ASKS) -> str | None:
    """Why the party that received this message drops it, or None if it takes it or passes it on."""
    if message.oddities:
        return f"it carries {', '.join(message.oddities)}"
    parties = [party(name) for name in (message.me, message.peer, message.origin, message.destination)]
    me, peer, origin, destination = parties
    if me is None or peer is None or origin is None or destination is None:
        return "one of its names is of nobody in this federation"
    if message.peer == message.me:
        return None if message.origin == message.me == message.destination else "its origin is another than its sender"
    return (
        _not_connected(message, me, peer)
        or _speaks_for_another(message, peer, origin)
        or _misdirected(message, me, peer, origin, destination)
        or _not_asked_for(message, origin, destination, asks)
    )


def _not_connected(message: Message, me: Party, peer: Party) -> str | None:
    """Whether the connection may exist at all."""
    if peer.root == me.root:
        parent_and_child = (me.job is None) != (peer.job is None)
        return None if parent_and_child else "its sender is no relative of this process"
    if not message.certified:
        return "its sender's name was not checked against a certificate"
    if peer.kind == "console":
        # People's certificates are of e-mail addresses, sites' never are.
        return None if me.kind == "server" and "@" in message.person else "its sender is no person's console"
    if me.kind == "server" or peer.kind == "server":
        return None
    return "its sender is not the server"


def _speaks_for_another(message: Message, peer: Party, origin: Party) -> str | None:
    """Whether the origin, and the site that the message claims to be from, are the peer's own."""
    if peer.kind == "site" or peer.kind == "site's job":
        allowed = origin.root == peer.root or (_is_parent(message) and origin.root == ROOT)
    elif peer.kind == "server":
        allowed = origin.root == ROOT or message.me.startswith(f"{ROOT}.")  # which the server has checked itself
    else:
        allowed = message.origin == message.peer
    if not allowed:
        return "it speaks for another party"
    if origin.kind in ("site", "site's job") and message.client not in ("", origin.root):
        return "it gives another site's name as its client"
    if message.client_type:
        expected = ClientType.ADMIN if origin.kind == "console" else ClientType.REGULAR
        if message.client_type != expected:
            return "it registers as another kind of client"
    return None


def _is_parent(message: Message) -> bool:
    """Whether the sender is the parent of the job process that received it, which passes on the server's messages."""
    return message.me.startswith(f"{message.peer}.")


def _misdirected(message: Message, me: Party, peer: Party, origin: Party, destination: Party) -> str | None:
    """Whether the message has no business here, or the receiver would have to pass it on where it may not."""
    if message.destination == message.me:
        return None
    if me.job is not None:
        return "it is for another process"
    if me.kind == "server":
        jobs = {origin.kind, destination.kind} == {"site's job", "server's job"}
        passes = jobs or _could_not_pass_on(message, origin, destination)
        return None if passes and origin.root == peer.root else "the server passes nothing on between these"
    between = {origin.root, destination.root} == {me.root, ROOT}
    away = destination.root == ROOT and peer.root == me.root
    inwards = destination.root == me.root and peer.root == ROOT
    return None if between and (away or inwards) else "a site passes on nothing but its own jobs' messages"


def _not_asked_for(message: Message, origin: Party, destination: Party, table: Asks) -> str | None:
    """Whether the table has no place for it."""
    if origin.job is not None and destination.job is not None and origin.job != destination.job:
        return "it is for another job"
    direct = message.origin == message.peer and message.destination == message.me
    if message.kind in (MessageType.REQ, MessageType.REPLY) and (message.channel, message.topic) == BYE:
        return None if direct else "it says another's goodbye"
    if _could_not_pass_on(message, origin, destination):
        return None
    asks = table.get((origin.kind, destination.kind), frozenset())
    if not asks and (destination.kind, origin.kind) not in table:
        return "these parties have nothing to say to each other"
    if message.kind == MessageType.REPLY:
        return None
    asked = party(message.asked)
    if message.kind == MessageType.RETURN or message.asked:
        if asked is None or (asked.root != origin.root and origin.root != ROOT):
            return "it tells of what another was sent"
        if message.kind == MessageType.RETURN:
            return None
    if message.kind != MessageType.REQ:
        return "it is neither a request nor an answer"
    if message.channel != STREAM_CHANNEL:
        return None if _listed(asks, message.channel, message.topic) else "its channel and topic are not its sender's"
    if message.topic in (STREAM_ACK_TOPIC, STREAM_ERROR_TOPIC):
        return None
    if message.topic != STREAM_DATA_TOPIC:
        return "its topic is not one of streams"
    channel, topic = message.inner
    given_up = message.gives_up and (channel, topic) == ("", "")
    if given_up or channel == CellChannel.RETURN_ONLY or _listed(asks, channel, topic):
        return None
    return "the stream's channel and topic are not its sender's"


def _could_not_pass_on(message: Message, origin: Party, destination: Party) -> bool:
    """Whether the process between jobs of the server, or of a site for its own jobs, says that it could not pass on."""
    stream_failed = (message.channel, message.topic) == (STREAM_CHANNEL, STREAM_ERROR_TOPIC)
    if message.kind != MessageType.RETURN and not (message.kind == MessageType.REQ and stream_failed):
        return False
    if origin.kind == "server" or (origin.kind == "site" and destination.root == origin.root):
        return True
    own_job = f"{origin.root}.{destination.job}"
    return origin.kind == "site" and destination.kind == "server's job" and message.asked == own_job


def _listed(asks: frozenset[tuple[str, str]], channel: str, topic: str) -> bool:
    return (channel, topic) in asks or (channel, ANY) in asks
