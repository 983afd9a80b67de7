"""The page's server: who it answers, what it gives away, and that a week of looking costs no memory."""

from __future__ import annotations

import gc
import http.client
import json
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import coverage
import psutil
import pytest

from fedshift.reporting.watch.server import HEADERS, MOST_CONNECTIONS, Reader, WatchServer
from fedshift.schema.errors import ConfigError
from reporting.watch.standin import StandIn, progress_at


@contextmanager
def serving(source: StandIn, *, interval: float = 0.0) -> Iterator[WatchServer]:
    with WatchServer(source, interval=interval) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def server() -> Iterator[WatchServer]:
    with serving(StandIn(progress_at(5))) as server:
        yield server


def ask(server: WatchServer, path: str, *, host: str | None = None, method: str = "GET") -> tuple[int, bytes]:
    """Status and content; a path is sent as it is."""
    port = server.server_address[1]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", f"127.0.0.1:{port}" if host is None else host)
        connection.endheaders()
        answer = connection.getresponse()
        headers = {name: answer.getheader(name) for name in HEADERS}
        assert headers == HEADERS
        return answer.status, answer.read()
    finally:
        connection.close()


def test_the_snapshot_and_the_files_are_there_for_who_has_the_address(server: WatchServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    status, content = ask(server, f"/{server.token}/snapshot.json")
    assert status == 200 and json.loads(content)["progress"]["round"] == 5
    for name, begins in {"": b"<!DOCTYPE html>", "page.js": b"//", "page.css": b"/*", "style.css": b"/*"}.items():
        status, content = ask(server, f"/{server.token}/{name}")
        assert status == 200 and content.startswith(begins)
    status, content = ask(server, f"/{server.token}/", method="HEAD")
    assert (status, content) == (200, b"")


@pytest.mark.parametrize(
    "path",
    [
        *("/", "//", "/snapshot.json", "/wrong/snapshot.json", "/TOKEN", "/TOKENx/", "/TOKEN//", "/TOKEN/server.py"),
        *("/TOKEN/../page.js", "/TOKEN/../../../../etc/passwd", "/TOKEN/%2e%2e/page.js", "/TOKEN//etc/passwd"),
        *("http://127.0.0.1/TOKEN/snapshot.json", "/%54OKEN/", "/\xe9/"),
    ],
)
def test_all_else_is_not_found(server: WatchServer, path: str) -> None:
    path = path.replace("TOKEN", server.token)
    if path.isascii():
        status, content = ask(server, path)
        assert status == 404 and content == b"not found\n"
    else:  # http.client does not send it
        with socket.create_connection(server.server_address[:2]) as raw:
            raw.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode("latin-1"))
            assert raw.recv(100).startswith(b"HTTP/1.0 404")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::1]:80", "x@localhost"]
)
def test_a_page_that_gave_this_machine_another_name_gets_nothing(server: WatchServer, host: str) -> None:
    status, content = ask(server, f"/{server.token}/snapshot.json", host=host)
    assert status == 403 and b"progress" not in content


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1"])
def test_a_tunnel_may_end_at_another_port(server: WatchServer, host: str) -> None:
    assert ask(server, f"/{server.token}/", host=host)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_nothing_can_be_written(server: WatchServer, method: str) -> None:
    assert ask(server, f"/{server.token}/snapshot.json", method=method)[0] == 501


def test_a_port_that_is_taken_is_refused(server: WatchServer) -> None:
    for port in (server.server_address[1], 70000, -1):
        with pytest.raises(ConfigError, match=f"port {port} cannot be used"):
            WatchServer(StandIn(None), port=port)


def test_two_runs_have_two_tokens(server: WatchServer) -> None:
    with WatchServer(StandIn(None)) as other:
        assert len(other.token) >= 32 and other.token != server.token


def test_a_run_is_read_once_for_all_pages() -> None:
    now, source = [0.0], StandIn(progress_at(5))
    reader = Reader(source, interval=1.0, clock=lambda: now[0])
    for _ in range(50):
        reader.latest()
    assert source.asked == 1
    now[0] = 1.0
    assert b'"round":5' in reader.latest() and source.asked == 2


@pytest.mark.slow
def test_those_who_connect_and_say_nothing_do_not_pile_up() -> None:
    with serving(StandIn(None)) as server:
        before = threading.active_count()
        silent = [socket.create_connection(server.server_address[:2]) for _ in range(2 * MOST_CONNECTIONS)]
        try:
            # The last of them is shut down, and by then as many threads wait as ever will.
            assert silent[-1].recv(1) == b""
            assert threading.active_count() - before <= MOST_CONNECTIONS
        finally:
            for one in silent:
                one.close()


@pytest.mark.slow
def test_a_week_of_looking_costs_no_memory() -> None:
    """A run of thousands of rounds, watched by two pages; what is sent stays within its limits as well."""
    if coverage.Coverage.current() is not None:
        pytest.skip("coverage keeps something for each thread that answers a look: run it without --cov")
    source = StandIn(progress_at(1))

    def look(number: int) -> int:
        source.progress = progress_at(number % 4000 + 1, rounds=5000)
        return max(len(ask(server, f"/{server.token}/snapshot.json")[1]) for _ in range(2))

    process = psutil.Process()
    with serving(source) as server:
        largest = max(look(number) for number in range(3500, 3550))
        raw = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)

        def watch(rounds: range) -> int:
            """The longest answer of a look in each of these rounds; one in ten brings news."""
            longest = 0
            for number in rounds:
                if number % 10 == 0:
                    source.progress = progress_at(number + 1, rounds=5000)
                raw.request("GET", f"/{server.token}/snapshot.json")
                longest = max(longest, len(raw.getresponse().read()))
            gc.collect()
            return longest

        tracemalloc.start()
        try:
            largest = max(largest, watch(range(0, 100)))
            resident, threads = process.memory_info().rss, threading.active_count()
            start = tracemalloc.get_traced_memory()[0]
            largest = max(largest, watch(range(3000, 4000)))
            grown = tracemalloc.get_traced_memory()[0] - start
        finally:
            tracemalloc.stop()
            raw.close()
        assert grown < 100_000, "bytes that Python still holds after a thousand looks"
        assert process.memory_info().rss - resident < 40_000_000
        assert threading.active_count() <= threads + 2
    assert largest < 20_000
