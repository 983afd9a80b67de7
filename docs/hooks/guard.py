"""Tables of docs/guard.md and docs/upstream.md: what the guard allows and bounds, read from the code that does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Rows = Iterator[tuple[str, ...]]


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put each table where a page asks for it."""
    for mark, (header, rows) in TABLES.items():
        if mark in markdown:
            markdown = markdown.replace(mark, table(header, rows()))
    return markdown


def table(header: tuple[str, ...], rows: Rows) -> str:
    """A table in Markdown."""
    lines = (header, ("---",) * len(header), *rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _messages() -> Rows:
    """Who may ask whom for what."""
    from flare_armour.guard.rules import ANY, ASKS

    for (sender, receiver), asks in ASKS.items():
        channels: dict[str, list[str]] = {}
        for channel, topic in sorted(asks):
            channels.setdefault(channel, []).append("all" if topic == ANY else f"`{topic}`")
        for channel, topics in channels.items():
            yield sender, receiver, f"`{channel}`", ", ".join(topics)


def _orders() -> Rows:
    """What a site does on its server's word."""
    from flare_armour.guard.orders import ORDERS

    for topic, order in ORDERS.items():
        yield f"`{topic}`", "a job's id" if order.job else "–", order.body


def _commands() -> Rows:
    """Which role may give which command of the console."""
    from flare_armour.guard.console import ANY, COMMANDS, JOBS_OF_ORG, OWN_JOBS, ROLES, SITES_OF_ORG

    whose = {ANY: "all", OWN_JOBS: "own jobs", JOBS_OF_ORG: "jobs of the organisation", SITES_OF_ORG: "its sites"}
    for name, command in COMMANDS.items():
        if command.roles:
            cells = [whose[command.roles[role]] if role in command.roles else "–" for role in ROLES]
            yield f"`{name}`", *cells, f"`{command.usage}`".replace("|", "\\|") if command.usage else "none"


def _bounds() -> Rows:
    """The limits of one certificate, or of one message, by where they are held."""
    from flare_armour.patches import (
        connections,
        incoming_streams,
        logs,
        messages,
        stream_shares,
        submissions,
        task_requests,
    )
    from flare_armour.pieces import wire

    def size(number: float) -> str:
        unit, name = (1024 * 1024, "MiB") if number >= 1024 * 1024 else (1024, "KiB")
        return f"{number / unit:.4g} {name}"

    shares = connections
    yield "connections of one certificate", f"{shares.CONNECTIONS}, each with one name", "the most silent is closed"
    yield (
        "its frames",
        f"{shares.THREADS} threads, {shares.RATE:g} a second after the first {shares.BURST}",
        "further ones wait",
    )
    yield "its frames that wait", size(shares.WAITING), "the connection is closed"
    yield (
        "a frame",
        f"{size(shares.LARGEST_FRAME)}, from sites by web sockets {size(shares.LARGEST_OF_SITES)}",
        "the connection is closed",
    )
    yield (
        "a handshake, a frame's headers",
        f"{size(shares.LARGEST_HANDSHAKE)} with {shares.MOST_VALUES} plain values, {size(shares.LARGEST_HEADERS)}",
        "the connection is closed",
    )
    streams = incoming_streams
    yield "a message", f"what the job's answer or task can have, else {size(streams.USUAL)}", "refused"
    yield (
        "its incomplete messages",
        f"{streams.MOST_OPEN}, of two of the largest in bytes",
        "the most silent are closed",
    )
    yield "silence within one", f"{streams.SILENCE:g} s", "it is closed"
    yield (
        "messages that are handled, and that wait",
        f"{stream_shares.THREADS} and {stream_shares.WAITING}",
        "further ones are refused",
    )
    contents = messages
    yield (
        "a message's contents",
        f"data without files and references, {contents.MOST_ELSEWHERE:,} lists and mappings"
        f" ({contents.MOST_CONTAINERS:,} in a task or an answer)",
        "refused",
    )
    yield (
        "an open task, to one site",
        f"{task_requests.AGAIN} times, then once in {task_requests.PAUSE_AGAIN:g} s; one request waits",
        "told to try again",
    )
    yield "messages to it without acknowledgement", f"{stream_shares.MOST_OUTGOING}", "the oldest is given up"
    yield "a piece of a large model", size(wire.MOST), "not taken"
    archives = submissions
    yield (
        "a job, unpacked",
        f"{archives.LARGEST / 1e6:g} MB, {archives.LARGEST_TEXT / 1e6:g} MB a file of settings,"
        f" {archives.MOST_FILES} files within its folder",
        "refused",
    )
    yield "a console's upload", f"{archives.LARGEST / 1e6:g} MB, {archives.MOST_OPEN} at a time", "ended and deleted"
    yield "a line of NVFlare's log", f"{logs.MOST} times in {logs.PERIOD:g} s", "counted"
    yield "rows of NVFlare's statistics", f"{messages.MOST_ROWS}", "counted as others"


def _protects() -> Rows:
    """What each part that a provisioned party demands protects from."""
    from flare_armour.guard import console, disabling, gate, orders
    from flare_armour.patches import PROTECTION

    for patch in (gate.PATCH, orders.PATCH, console.PATCH, disabling.PATCH, *PROTECTION):
        yield f"`{patch.name}`", patch.without


TABLES: dict[str, tuple[tuple[str, ...], Callable[[], Rows]]] = {
    "<!-- who may ask whom -->": (("from", "to", "channel", "topics"), _messages),
    "<!-- what a site does -->": (("topic", "is about", "brings"), _orders),
    "<!-- who may give which command -->": (
        ("command", "project admin", "org admin", "lead", "member", "arguments"),
        _commands,
    ),
    "<!-- bounds -->": (("of", "at most", "beyond it"), _bounds),
    "<!-- what protects -->": (("part", "without it"), _protects),
}
