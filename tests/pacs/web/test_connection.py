from __future__ import annotations

import io
import ssl
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import requests
from certificates import own_certificate
from errors import raises
from requests.auth import AuthBase
from urllib3.response import HTTPResponse

from fedshift.pacs.addresses import same_server
from fedshift.pacs.archive import Archive
from fedshift.pacs.credentials import PASSWORD, TOKEN, USER, Credentials, from_environment, from_file
from fedshift.pacs.query import parse_query
from fedshift.pacs.web import connection
from fedshift.pacs.web.connection import CarefulSession, checked_address, connect


@pytest.mark.parametrize("url", ["https://pacs.example/dicom-web", "http://127.0.0.1:8042/dicom-web", "http://[::1]/x"])
def test_encrypted_addresses_and_this_machine_are_taken(url: str) -> None:
    assert checked_address(f"{url}/") == url


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://pacs.example/dicom-web", "pacs-unencrypted"),
        ("http://127.0.0.1.example/dicom-web", "pacs-unencrypted"),
        ("https://user:secret@pacs.example/", "pacs-address"),
        ("https://pacs.example/?token=secret", "pacs-address"),
        ("pacs.example/dicom-web", "pacs-address"),
        ("ftp://pacs.example/", "pacs-address"),
        ("https://pacs.example:port/", "pacs-address"),
    ],
)
def test_other_addresses_are_refused_without_repeating_credentials(url: str, code: str) -> None:
    with raises(code) as raised:
        checked_address(url)
    assert "secret" not in str(raised.value)


def test_without_encryption_only_by_an_option() -> None:
    assert checked_address("http://pacs.example/x", allow_unencrypted=True) == "http://pacs.example/x"


def test_credentials_are_for_one_server() -> None:
    assert same_server("https://pacs.example/a", "https://pacs.example/b")
    assert not same_server("https://pacs.example/a", "https://pacs.example:8443/a")
    assert not same_server("https://pacs.example/a", "http://pacs.example/a")


def private(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def test_credentials_come_from_the_environment_or_a_private_file(tmp_path: Path) -> None:
    assert from_environment({TOKEN: "secret"}).token == "secret"
    credentials = from_file(private(tmp_path / "file", f"# of the PACS\n{USER}=me\n{PASSWORD}=a = b\n"))
    assert (credentials.user, credentials.password) == ("me", "a = b") and "a = b" not in repr(credentials)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o604])
def test_a_file_that_others_may_read_is_refused(mode: int, tmp_path: Path) -> None:
    with raises("credentials-open", naming="file") as raised:
        from_file(private(tmp_path / "file", f"{TOKEN}=secret", mode))
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "text", ["", "secret", "TOKEN=secret", f"{USER}=me", f"{TOKEN}=secret\n{USER}=me\n{PASSWORD}=secret"]
)
def test_another_content_is_refused_without_repeating_it(text: str, tmp_path: Path) -> None:
    with raises("credentials-form", naming="file") as raised:
        from_file(private(tmp_path / "file", text))
    assert "secret" not in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with raises("credentials-unreadable", naming="nowhere"):
        from_file(tmp_path / "nowhere")
    with raises("file-missing", naming="nowhere"):
        connect("https://pacs.example", Credentials(), ca_file=tmp_path / "nowhere")


class Transport(requests.adapters.BaseAdapter):
    """Answers every request with the same bytes."""

    def __init__(self, body: bytes, kind: str, status: int = 200, **headers: str) -> None:
        super().__init__()
        self.body, self.headers, self.status = body, {"Content-Type": kind, **headers}, status
        self.asked: list[requests.PreparedRequest] = []

    def send(self, request: requests.PreparedRequest, **how: object) -> requests.Response:
        self.asked.append(request)
        raw = HTTPResponse(io.BytesIO(self.body), headers=self.headers, status=self.status, preload_content=False)
        return requests.adapters.HTTPAdapter().build_response(request, raw)

    def close(self) -> None:
        pass


def session(transport: Transport, ca_file: Path | None = None) -> CarefulSession:
    class Nothing(AuthBase):
        def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
            return request

    made = CarefulSession(Nothing(), ca_file)
    made.mount("https://", transport)
    return made


MULTIPART = 'multipart/related; type="application/dicom"; boundary=b1'
WHOLE = b"--b1\r\nContent-Type: application/dicom\r\n\r\nabc\r\n--b1--\r\n"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("cut", [0, 2, 8, 12, 20])
def test_an_answer_that_was_cut_short_is_no_answer(cut: int, stream: bool) -> None:
    """Cut by 2 bytes only the end of a line is missing."""
    made = session(Transport(WHOLE[: len(WHOLE) - cut], MULTIPART))
    if cut <= 2:
        answer = made.get("https://pacs.example/", stream=stream)
        assert b"".join(answer.iter_content(5)) == WHOLE[: len(WHOLE) - cut]
        return
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        b"".join(made.get("https://pacs.example/", stream=stream).iter_content(5))


def test_wildcards_are_sent_as_they_are_and_redirections_not_followed() -> None:
    transport = Transport(b"[]", "application/dicom+json")
    session(transport).get("https://pacs.example/studies?SeriesDescription=t2%2A+a")
    assert transport.asked[0].url == "https://pacs.example/studies?SeriesDescription=t2*%20a"
    elsewhere = Transport(b"", "text/plain", 302, Location="http://other.example/")
    with pytest.raises(requests.TooManyRedirects):
        session(elsewhere).get("https://pacs.example/")
    assert len(elsewhere.asked) == 1


def test_credentials_of_netrc_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private(tmp_path / ".netrc", "machine pacs.example login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    transport = Transport(b"[]", "application/dicom+json")
    session(transport).get("https://pacs.example/")
    assert "Authorization" not in transport.asked[0].headers


def test_the_authority_that_is_named_is_the_one_that_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/elsewhere.pem")
    made = session(Transport(b"", "text/plain"), tmp_path / "ours.pem")
    assert made.merge_environment_settings("https://pacs.example", {}, None, None, None)["verify"] == str(
        tmp_path / "ours.pem"
    )


def test_queries_and_credentials_are_in_no_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "ATTEMPTS_MORE", 1)
    archive = Archive(connect("http://127.0.0.1:9/dicom-web", Credentials(token="secret")))
    with caplog.at_level("DEBUG"), raises("pacs-unreachable", naming="127.0.0.1:9") as raised:
        archive.studies(parse_query(["PatientName=Doe*"]))
    logged = f"{raised.value} {caplog.text}"
    assert "secret" not in logged and "Doe" not in logged


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dicomweb_client.api", None)
    with raises("not-installed", naming="fedshift[pacs]"):
        connect("https://pacs.example", Credentials())


class Nothing(BaseHTTPRequestHandler):
    """A PACS without images."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/dicom+json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, *what: object) -> None:
        pass


def test_a_certificate_that_nobody_vouches_for_is_refused_and_one_that_is_named_is_taken(tmp_path: Path) -> None:
    with_key, authority = own_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(with_key)
    with HTTPServer(("127.0.0.1", 0), Nothing) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        url, query = f"https://127.0.0.1:{server.server_port}/dicom-web", parse_query(["Modality=MR"])
        try:
            with raises("pacs-unreachable", naming="--ca-file"):
                Archive(connect(url, Credentials())).studies(query)
            assert Archive(connect(url, Credentials(), ca_file=authority)).studies(query) == []
        finally:
            server.shutdown()


UID = '[{"0020000D": {"vr": "UI", "Value": ["../up"]}}]'
OTHER = '[{"0020000D": {"vr": "UI", "Value": ["1.2.4"]}, "0020000E": {"vr": "UI", "Value": ["1.2.5"]}}]'


@pytest.mark.parametrize(
    ("body", "kind", "status", "code", "naming"),
    [
        ("<html>secret</html>", "text/html", 200, "pacs-answer", "1.2.3"),
        ('{"error": "secret"}', "application/json", 200, "pacs-answer", "1.2.3"),
        (UID, "application/dicom+json", 200, "pacs-answer", "1.2.3"),
        (OTHER, "application/dicom+json", 200, "pacs-answer", "1.2.3"),
        ("<html>secret</html>", "text/html", 500, "pacs-answer", "500"),
        ("secret", "text/plain", 403, "pacs-credentials", "403"),
    ],
)
def test_another_answer_than_a_list_of_series_is_a_sentence(
    body: str, kind: str, status: int, code: str, naming: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HTTPAdapter", lambda **how: Transport(body.encode(), kind, status))
    with raises(code, naming=("pacs.example", naming)) as raised:
        Archive(connect("https://pacs.example", Credentials())).series("1.2.3", {"Modality": "MR"})
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("body", "kind", "code"),
    [
        (WHOLE, MULTIPART, "pacs-answer"),
        (WHOLE[:-12], MULTIPART, "pacs-unreachable"),
        (b"<html>secret</html>", "text/html", "pacs-answer"),
        (b"secret", "application/dicom", "pacs-answer"),
    ],
)
def test_another_answer_than_images_is_a_sentence(
    body: bytes, kind: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HTTPAdapter", lambda **how: Transport(body, kind))
    with raises(code, naming="1.2.3") as raised:
        list(Archive(connect("https://pacs.example", Credentials())).images("1.2.3", "1.2.4", {"1.2.5": ""}))
    assert "secret" not in str(raised.value)
