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


def changed(seen: Message, **others: object) -> list[Message]:
    """One fact of an honest message is another."""
    return [replace(seen, **{name: value}) for name, value in others.items()]  # type: ignore[arg-type]


@pytest.mark.parametrize("seen", [seen for seen in HONEST if seen.peer != seen.me], ids=told)
def test_nothing_else_does(seen: Message) -> None:
    """Another party's, to another party, over another connection, or of a kind that nobody has."""
    of_another = changed(
        seen,
        origin="UCL",
        destination="UCL",
        peer="UCL",
        me="UCL",
        client="UCL" if not seen.origin.startswith(("server", "_admin_")) else seen.client,
        kind="none",
        oddities=("any header",),
    )
    nobodys = [other for name in ("", "UCL.a.b", "U/C", "x" * 300) for other in changed(seen, origin=name, peer=name)]
    for other in (*of_another, *nobodys):
        assert refusal(other) is not None or other == seen, other
    if seen.kind == MessageType.REQ and seen.channel and not seen.asked and not seen.gives_up:
        channel = {"inner": ("none", "none")} if seen.inner[0] else {"channel": "none", "topic": "none"}
        assert refusal(replace(seen, **channel)) is not None or (seen.channel == STREAM and not seen.inner[0])  # type: ignore[arg-type]
    if seen.peer.partition(".")[0] != seen.me.partition(".")[0]:
        assert refusal(replace(seen, certified=False)) is not None


UNEXPECTED = {
    "between sites": message("UCL > (server) > HK", "none", "none"),
    "between sites' jobs": message(f"{UCL_JOB} > (server) > {HK_JOB}", *ASKED[0]),
    "to another job": message(f"UCL.{OTHER_JOB} > (server) > {RUN}", *ASKED[0]),
    "by a process between jobs": message(f"UCL > (server) > {RUN}", *ASKED[0]),
    "passed on by a job": message(f"HK > ({HK_JOB}) > {RUN}", *ASKED[0]),
    "passed on for another site": message("server > (HK) > UCL", "none", "none"),
    "passed on by another site": message("server > UCL > (HK)", "none", "none"),
    "a console of a site": message(f"{CONSOLE} > (server)", "hci_channel", "none", person="UCL"),
    "a site that registers as a console": message("UCL > (server)", "task", "register", client_type="admin"),
    "a notice of what another was sent": message("UCL > (server)", kind=MessageType.RETURN, asked="HK"),
    "the same, to a job": message(f"{UCL_JOB} > server > ({RUN})", kind=MessageType.RETURN, asked=HK_JOB),
    "a notice of another's stream": message(f"UCL > (server) > {RUN}", STREAM, "sm__ERROR", asked=HK_JOB),
    "a notice to another site": message("UCL > (server) > HK", STREAM, "sm__ERROR", asked="UCL"),
    "a notice of another job": message(f"UCL > (server) > {RUN}", STREAM, "sm__ERROR", asked=f"UCL.{OTHER_JOB}"),
    "a goodbye for another": message("UCL > (server)", "cellnet.channel", "bye", origin="UCL.x"),
    "oneself as another": message("(server)", "none", "none", origin="HK"),
}


@pytest.mark.parametrize("what", UNEXPECTED)
def test_what_has_no_place_in_the_table_is_dropped(what: str) -> None:
    assert refusal(UNEXPECTED[what]) is not None


@pytest.mark.parametrize("site", ["UCL", "site-1", "A_b", "hospital_3"])
def test_names(site: str) -> None:
    assert party(site) is not None and party(f"{site}.{JOB}") is not None
    for name in ("", ".", f"{site}.", f".{site}", f"{site}.{JOB}.1", "a b", "x" * 300, f"{site}\n", "_admin_x", None):
        assert party(name) is None, name
