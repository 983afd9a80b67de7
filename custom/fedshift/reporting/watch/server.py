"""The page on localhost: a fixed set of files, and the run's snapshot as JSON.

It listens on 127.0.0.1 only, changes nothing, and answers only those who know the token in its address. The name in a
request's Host header must be one of this machine's, as a page elsewhere could have its own name lead here.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedshift.reporting import report
from fedshift.reporting.watch.snapshot import Source
from fedshift.schema.errors import ConfigError

FOLDER, REPORT = Path(__file__).parent, Path(report.__file__).parent
ADDRESS = "127.0.0.1"
NAMES = frozenset({ADDRESS, "localhost"})
SNAPSHOT = "snapshot.json"
FILES = {
    "": ("text/html; charset=utf-8", FOLDER / "page.html"),
    "page.js": ("text/javascript; charset=utf-8", FOLDER / "page.js"),
    "page.css": ("text/css; charset=utf-8", FOLDER / "page.css"),
    "style.css": ("text/css; charset=utf-8", REPORT / "style.css"),
}
"""Name below the token -> kind of content, file. Nothing else is ever read from disk."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
MOST_CONNECTIONS = 32
SILENCE = 10.0
"""Seconds after which a connection that sends nothing is closed."""


class Reader:
    """Reads a source at most once per interval, however many pages ask."""

    def __init__(self, source: Source, *, interval: float, clock: Callable[[], float] = time.monotonic) -> None:
        """``interval`` and ``clock`` are in seconds."""
        self._source, self._interval, self._clock = source, interval, clock
        self._lock = threading.Lock()
        self._read: tuple[float, bytes] | None = None

    def latest(self) -> bytes:
        """The snapshot as JSON, not older than the interval."""
        with self._lock:
            if self._read is None or self._clock() - self._read[0] >= self._interval:
                content = self._source.read().model_dump_json(by_alias=True).encode()
                self._read = self._clock(), content
            return self._read[1]


class WatchServer(ThreadingHTTPServer):
    """Serves the page of one run. Use `url`, and `serve_forever` in a thread or not."""

    daemon_threads = True  # and so it keeps no list of them

    def __init__(self, source: Source, *, port: int = 0, interval: float = 1.0) -> None:
        """``port`` 0 takes any that is free; ``interval`` is between two looks at the run, in seconds.

        Raises:
            ConfigError: the port is taken.
        """
        self.reader, self.token = Reader(source, interval=interval), secrets.token_urlsafe(24)
        self.files = {name: (kind, path.read_bytes()) for name, (kind, path) in FILES.items()}
        self._slots = threading.BoundedSemaphore(MOST_CONNECTIONS)
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                "port-in-use", f"port {port} cannot be used ({reason}): give another --port, or none"
            ) from None

    @property
    def url(self) -> str:
        """The page's address, with the token."""
        return f"http://{ADDRESS}:{self.server_address[1]}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, of which there are only so many."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is no fault to tell of."""


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    timeout = SILENCE
    server_version, sys_version = "fedshift", ""

    def do_GET(self) -> None:
        """Send a file or the snapshot."""
        self._answer(body=True)

    def do_HEAD(self) -> None:
        """The same without the content."""
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        host = self.headers.get("Host", "")
        if host.rpartition(":")[0] not in NAMES and host not in NAMES:
            return self._send(HTTPStatus.FORBIDDEN, "text/plain", b"open the address that fedshift watch has printed\n")
        before, token, name = [*self.path.partition("?")[0].split("/", 2), "-", "-"][:3]
        known = not before and hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode())
        if known and name == SNAPSHOT:
            self._send(HTTPStatus.OK, "application/json", self.server.reader.latest(), body=body)
        elif known and name in self.server.files:
            self._send(HTTPStatus.OK, *self.server.files[name], body=body)
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"not found\n", body=body)

    def _send(self, status: HTTPStatus, kind: str, content: bytes, *, body: bool = True) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def end_headers(self) -> None:
        """Every answer has the headers that protect the page, the errors of http.server too."""
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """The terminal is for the run."""
