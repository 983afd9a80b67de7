"""Who may say what to whom: what an honest federation says passes, and nothing else does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from nvflare.fuel.f3.cellnet.defs import MessageType

from flare_armour.guard.rules import Message, party, refusal

JOB, OTHER_JOB = "3f509f41-3a7e-406e-88f6-69672abb2e34", "7ec4abd2-4608-4427-b937-110b3a62eecb"
SERVER, RUN, HK, HK_JOB, UCL, UCL_JOB = "server", f"server.{JOB}", "HK", f"HK.{JOB}", "UCL", f"UCL.{JOB}"
CONSOLE = "_admin_d3e8b2c4-6f5a-4c1e-9b7d-2a1f0e9c8b7a"
STREAM = "sm__STREAM"


def message(
    path: str,
    channel: str = "",
    topic: str = "",
    *,
    inner: tuple[str, str] = ("", ""),
    kind: str = MessageType.REQ,
    **others: object,
) -> Message:
    """``path``: origin, whoever passes it on, who looks at it now, and, if that is another, its destination."""
    names = path.split(" > ")
    at = names.index(next(name for name in names if name.startswith("(")))
    names[at] = names[at].strip("()")
    peer = names[at - 1] if at else names[at]
    roots = {name.partition(".")[0] for name in (peer, names[at])}
    person = "lead@hub.org" if peer == CONSOLE else peer.partition(".")[0]
    default = Message(
        me=names[at],
        peer=peer,
        certified=len(roots) > 1,
        person=person,
        origin=names[0],
        destination=names[-1],
        kind=kind,
        channel=channel,
        topic=topic,
        inner=inner,
        gives_up=False,
        client="",
        client_type="",
        asked="",
    )
    return replace(default, **others)


HONEST = [
    *(message("HK > (server)", "task", topic) for topic in ("challenge", "quit", "heart_beat", "report_job_failure")),
    message("HK > (server)", "task", "register", client="HK", client_type="regular"),
    message("server > (HK)", "admin", "admin"),
    message("HK > (server)", "admin", "admin", kind=MessageType.REPLY),
    message("HK > (server)", "cellnet.channel", "bye"),
    message(f"{HK_JOB} > (server)", "cellnet.channel", "bye"),
    message(f"server > ({HK_JOB})", "cellnet.channel", "bye"),
    message(f"server > ({HK_JOB})", "cellnet.channel", "bye", kind=MessageType.REPLY),
    message(f"HK > ({HK_JOB})", "client_command", "abort"),
    message(f"{HK_JOB} > (HK)", "admin", "train.notify_job_status"),
    message(f"server > ({RUN})", "server_command", "handle_dead_job"),
    message(f"server > ({RUN})", STREAM, "sm__DATA", inner=("server_command", "show_stats")),
    *(message(f"{RUN} > (server)", "server_parent_listener", t) for t in ("get_clients", "heartbeat")),
    message(f"{CONSOLE} > (server)", "task", "register", client="lead@hub.org", client_type="admin"),
    message(f"{CONSOLE} > (server)", STREAM, "sm__DATA", inner=("hci_channel", "command")),
    message(f"{CONSOLE} > (server)", STREAM, "sm__DATA", inner=("aux_communication", "ObjectStreamer.Request")),
    message(f"{CONSOLE} > (server)", STREAM, "sm__ACK"),
    message("(server)", "hci_channel", "anything"),
]
ASKED = (
    ("server_command", "get_task"),
    ("server_command", "submit_update"),
    ("aux_communication", "__sync_runner__"),
    ("armour_pieces", "send"),
    ("armour_pieces", "fetch"),
)
WAYS = (f"{HK_JOB} > (server) > {RUN}", f"{HK_JOB} > server > ({RUN})", f"{HK_JOB} > HK > (server) > {RUN}")
BACK = (f"{RUN} > (server) > {HK_JOB}", f"{RUN} > server > ({HK_JOB})", f"{RUN} > server > (HK) > {HK_JOB}")
for way in (*WAYS, f"{HK_JOB} > (HK) > {RUN}"):
    HONEST += [message(way, STREAM, "sm__DATA", inner=inner, client="HK") for inner in ASKED]
    HONEST += [message(way, *ASKED[2]), message(way, kind=MessageType.REPLY)]
    HONEST += [message(way, STREAM, topic) for topic in ("sm__ACK", "sm__ERROR")]
    HONEST += [message(way, STREAM, "sm__DATA", gives_up=True)]
    HONEST += [message(way, STREAM, "sm__DATA", inner=("return_only", "aux_communication:__end_run__"))]
for way in BACK:
    HONEST += [message(way, STREAM, "sm__DATA", inner=("return_only", "server_command:get_task"))]
    HONEST += [message(way, "aux_communication", "__end_run__"), message(way, kind=MessageType.REPLY)]
HONEST += [  # what could not be passed on comes back
    message(f"server > ({HK_JOB})", kind=MessageType.RETURN, asked=RUN),
    message(f"server > ({HK_JOB})", STREAM, "sm__ERROR"),
    message(f"server > ({RUN})", kind=MessageType.RETURN, asked=HK_JOB),
    message(f"HK > ({HK_JOB})", kind=MessageType.RETURN, asked=RUN),
]
for way in (f"HK > (server) > {RUN}", f"HK > server > ({RUN})"):
    HONEST += [message(way, kind=MessageType.RETURN, asked=HK_JOB), message(way, STREAM, "sm__ERROR", asked=HK_JOB)]


def told(seen: Message) -> str:
    return f"{seen.kind} {seen.origin}>{seen.peer}>({seen.me})>{seen.destination} {seen.channel} {seen.topic}"


@pytest.mark.parametrize("seen", HONEST, ids=told)
def test_what_an_honest_federation_says_passes(seen: Message) -> None:
    assert refusal(seen) is None


HOSTILE = {
    "an order to another site": message("UCL > (server) > HK", "admin", "admin"),
    "an order that the server has passed on": message("UCL > server > (HK)", "admin", "admin"),
    "an order to another site's job": message(f"UCL > (server) > {HK_JOB}", "client_command", "abort"),
    "an order in the server's name": message("server > UCL > (HK)", "admin", "admin", certified=True),
    "an order in the server's name, to the server": message("UCL > (server) > HK", "admin", origin="server"),
    "an order over another connection": message("UCL > (HK)", "admin", "admin"),
    "an order to the server": message("UCL > (server)", "admin", "admin"),
    "an order to the server's job": message(f"{UCL_JOB} > (server) > {RUN}", "server_command", "abort"),
    "the same in a stream": message(
        f"{UCL_JOB} > (server) > {RUN}", STREAM, "sm__DATA", inner=("server_command", "server_state")
    ),
    "the same, seen by the job": message(f"{UCL_JOB} > server > ({RUN})", "server_command", "abort"),
    "what the server's job asks": message("UCL > (server)", "server_parent_listener", "get_clients"),
    "what a console says": message("UCL > (server)", STREAM, "sm__DATA", inner=("hci_channel", "command")),
    "an upload": message("UCL > (server)", STREAM, "sm__DATA", inner=("aux_communication", "ObjectStreamer.Request")),
    "an event": message(f"{UCL_JOB} > (server) > {RUN}", "aux_communication", "fed.event"),
    "a console's name": message(f"{CONSOLE} > (server)", "hci_channel", "command", person="UCL"),
    "another's heartbeat": message("UCL > (server)", "task", "heart_beat", origin="HK"),
    "another's name beside its own": message("UCL > (server)", "task", "heart_beat", client="HK"),
    "the server's signature": message("UCL > (server)", "task", "heart_beat", client="server"),
    "registration as a console": message("UCL > (server)", "task", "register", client_type="admin"),
    "another's goodbye": message("UCL > (server)", "cellnet.channel", "bye", origin="HK"),
    "a goodbye to another": message("UCL > (server) > HK", "cellnet.channel", "bye"),
    "another's update": message("UCL > (server)", *ASKED[1], origin=HK_JOB, destination=RUN),
    "a piece of another's update": message("UCL > (server)", *ASKED[3], origin=HK_JOB, destination=RUN),
    "a piece for another site": message(f"{UCL_JOB} > (server) > {HK_JOB}", *ASKED[3]),
    "a piece of another job": message(f"UCL.{OTHER_JOB} > (server) > {RUN}", *ASKED[4]),
    "another job's task": message(f"UCL.{OTHER_JOB} > (server) > {RUN}", *ASKED[0]),
    "a task for the process between jobs": message(f"UCL > (server) > {RUN}", *ASKED[0]),
    "an answer in another's name": message("UCL > (server)", kind=MessageType.REPLY, origin="HK"),
    "an answer to another site": message("UCL > (server) > HK", kind=MessageType.REPLY),
    "another's message as undeliverable": message("UCL > (server)", kind=MessageType.RETURN, asked="HK"),
    "the same to a job": message(f"{UCL_JOB} > server > ({RUN})", kind=MessageType.RETURN, asked=HK_JOB),
    "another's stream as undeliverable": message(f"UCL > (server) > {RUN}", STREAM, "sm__ERROR", asked=HK_JOB),
    "a stream of another job as undeliverable": message(
        f"UCL > (server) > {RUN}", STREAM, "sm__ERROR", asked=f"UCL.{OTHER_JOB}"
    ),
    "the same of its own job": message(f"{UCL_JOB} > (server) > {RUN}", STREAM, "sm__ERROR", asked=HK_JOB),
    "the same, seen by the server's job": message(f"{UCL_JOB} > server > ({RUN})", STREAM, "sm__ERROR", asked=HK_JOB),
    "a notice to another site": message("UCL > (server) > HK", STREAM, "sm__ERROR", asked="UCL"),
    "another's stream": message("UCL > (server)", STREAM, "sm__DATA", inner=ASKED[1], origin=HK_JOB, destination=RUN),
    "a stream to another": message(f"UCL > (server) > {HK_JOB}", STREAM, "sm__ACK"),
    "a bulk": message("UCL > (server)", "cellnet.channel", "bulk"),
    "the server's bulk": message("server > (HK)", "cellnet.channel", "bulk"),
    "a look into connections": message("UCL > (server)", "_net_manager", "conns"),
    "the server's look into connections": message("server > (HK)", "_net_manager", "stop_cell"),
    "an exchange of certificates": message("UCL > (server)", "credential_manager", "key_exchange"),
    "a download": message(f"{UCL_JOB} > (server) > {RUN}", "download_service__", "download_service__download"),
    "a connection without a certificate": message("UCL > (server)", "task", "heart_beat", certified=False),
    "a neighbour's process as the server": message("server > (HK)", "admin", "admin", certified=False),
    "a site that passes on another's": message("server > (HK) > UCL", "admin", "admin"),
    "a job that passes on": message(f"HK > ({HK_JOB}) > {RUN}", *ASKED[0]),
    "a job's job": message(f"{UCL_JOB} > (server)", "task", "heart_beat", origin=f"{UCL_JOB}.x"),
    "the server as a site's job": message("UCL > (server)", "server_parent_listener", "heartbeat", origin=RUN),
    "no kind": message("UCL > (server)", "task", "heart_beat", kind="hello"),
    "a header": message("UCL > (server)", "task", "heart_beat", oddities=("cn__conn_url",)),
    "no name": message("UCL > (server)", "task", "heart_beat", origin=""),
    "a path": message("UCL > (server)", "task", "heart_beat", origin="UCL/../HK"),
    "oneself as another": message("(server)", "admin", "admin", origin="HK"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_nothing_else_does(what: str) -> None:
    assert refusal(HOSTILE[what]) is not None


@pytest.mark.parametrize("site", ["UCL", "site-1", "A_b", "hospital_3"])
def test_names(site: str) -> None:
    assert party(site) is not None and party(f"{site}.{JOB}") is not None
    for name in ("", ".", f"{site}.", f".{site}", f"{site}.{JOB}.1", "a b", "x" * 300, f"{site}\n", "_admin_x", None):
        assert party(name) is None, name
