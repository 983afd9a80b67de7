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
    from flare_armour.guard.commands import DONE

    for topic, order in DONE.items():
        yield f"`{topic}`", "a job's id" if order.job else "–", order.body


def _commands() -> Rows:
    """Which role may give which command of the console."""
    from flare_armour.console_commands import ANY, COMMANDS, JOBS_OF_ORG, OWN_JOBS, ROLES, SITES_OF_ORG

    whose = {ANY: "all", OWN_JOBS: "own jobs", JOBS_OF_ORG: "jobs of the organisation", SITES_OF_ORG: "its sites"}
    for name, command in COMMANDS.items():
        if command.roles:
            cells = [whose[command.roles[role]] if role in command.roles else "–" for role in ROLES]
            yield f"`{name}`", *cells, command.usage.replace("|", "\\|") or "none"


def _bounds() -> Rows:
    """The limits of one certificate, or of one message, by where they are held."""
    from flare_armour.patches import (
        frame_size,
        handshakes,
        incoming_streams,
        job_archives,
        log_rate,
        long_poll,
        message_contents,
        message_shares,
        outgoing_streams,
        party_shares,
        statistics_pools,
        uploads,
    )
    from flare_armour.pieces import wire

    def size(number: float) -> str:
        unit, name = (1024 * 1024, "MiB") if number >= 1024 * 1024 else (1024, "KiB")
        return f"{number / unit:.4g} {name}"

    shares = party_shares
    yield "connections of one certificate", f"{shares.CONNECTIONS}, each with one name", "the most silent is closed"
    yield (
        "its frames",
        f"{shares.THREADS} threads, {shares.RATE:g} a second after the first {shares.BURST}",
        "further ones wait",
    )
    yield "its frames that wait", size(shares.WAITING), "the connection is closed"
    yield (
        "a frame",
        f"{size(frame_size.LARGEST)}, from sites by web sockets {size(frame_size.LARGEST_OF_SITES)}",
        "the connection is closed",
    )
    yield (
        "a handshake, a frame's headers",
        f"{size(handshakes.LARGEST)} with {handshakes.MOST} plain values, {size(handshakes.LARGEST_HEADERS)}",
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
        f"{message_shares.THREADS} and {message_shares.WAITING}",
        "further ones are refused",
    )
    contents = message_contents
    yield (
        "a message's contents",
        f"data without files and references, {contents.MOST_ELSEWHERE:,} lists and mappings"
        f" ({contents.MOST_CONTAINERS:,} in a task or an answer)",
        "refused",
    )
    yield (
        "an open task, to one site",
        f"{long_poll.AGAIN} times, then once in {long_poll.PAUSE_AGAIN:g} s; one request waits",
        "told to try again",
    )
    yield "messages to it without acknowledgement", f"{outgoing_streams.MOST_OPEN}", "the oldest is given up"
    yield "a piece of a large model", size(wire.MOST), "not taken"
    archives = job_archives
    yield (
        "a job, unpacked",
        f"{archives.LARGEST / 1e6:g} MB, {archives.LARGEST_TEXT / 1e6:g} MB a file of settings,"
        f" {archives.MOST_FILES} files within its folder",
        "refused",
    )
    yield "a console's upload", f"{uploads.LARGEST / 1e6:g} MB, {uploads.MOST_OPEN} at a time", "ended and deleted"
    yield "a line of NVFlare's log", f"{log_rate.MOST} times in {log_rate.PERIOD:g} s", "counted"
    yield "rows of NVFlare's statistics", f"{statistics_pools.MOST}", "counted as others"


def _protects() -> Rows:
    """What each part that a provisioned party demands protects from."""
    from flare_armour import patches
    from flare_armour.guard import commands, disabling, gate, sessions

    for module in (gate, commands, sessions, disabling, *patches.PROTECTION):
        kind = "guard" if module.__name__.rpartition(".")[0].endswith("guard") else "patches"
        yield f"`{kind}/{module.PATCH.name}.py`", module.PATCH.without


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
