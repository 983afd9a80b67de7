"""What addresses of PACS have in common, however they are asked."""

from __future__ import annotations

from urllib.parse import urlsplit

THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1"})


def same_server(address: str, other: str) -> bool:
    """Whether two addresses are of one server, which may get the same credentials."""
    first, second = urlsplit(address), urlsplit(other)
    return (first.scheme, first.hostname, first.port) == (second.scheme, second.hostname, second.port)
