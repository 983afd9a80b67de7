from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from certificates import own_certificate
from errors import raises

from fedshift.pacs.access import Access, open_archive
from fedshift.pacs.dimse.node import Node, client_context, peer_at, server_context


@pytest.mark.parametrize(
    ("address", "title", "host", "port"),
    [
        ("dimse://PACS@127.0.0.1:104", "PACS", "127.0.0.1", 104),
        ("dimse+tls://My%20Pacs@pacs.example:2762", "My Pacs", "pacs.example", 2762),
        ("dimse://A@[::1]:11112", "A", "::1", 11112),
    ],
)
def test_an_address_has_a_title_a_machine_and_a_port(address: str, title: str, host: str, port: int) -> None:
    peer = peer_at(address)
    assert (peer.title, peer.host, peer.port, peer.encrypted) == (title, host, port, "+tls" in address)
    assert peer_at(peer.address.replace(" ", "%20")) == peer


@pytest.mark.parametrize(
    ("address", "code"),
    [
        ("dimse://pacs.example:104", "pacs-address"),
        ("dimse://PACS@pacs.example", "pacs-address"),
        ("dimse://PACS@pacs.example:port", "pacs-address"),
        ("dimse+tls://PACS:secret@pacs.example:104", "pacs-address"),
        ("dimse+tls://SEVENTEEN-LETTERS@pacs.example:104", "pacs-address"),
        ("dimse+tls://PACS@pacs.example:104/dicom", "pacs-address"),
        ("dicom://PACS@pacs.example:104", "pacs-address"),
        ("PACS@pacs.example:104", "pacs-address"),
        ("dimse://PACS@pacs.example:104", "pacs-unencrypted"),
    ],
)
def test_another_address_is_refused(address: str, code: str) -> None:
    with raises(code) as raised:
        open_archive(address, Access())
    assert "secret" not in str(raised.value)


def test_without_encryption_only_by_an_option() -> None:
    assert open_archive("dimse://A@pacs.example:104", Access(allow_unencrypted=True)).address.endswith(
        "pacs.example:104"
    )


@pytest.mark.parametrize("title", ["", "   ", "a\\b", "x" * 17, "ä"])
def test_a_name_that_cannot_be_a_title_is_refused(title: str) -> None:
    with raises("ae-title", naming=repr(title)):
        Node(title)


def test_files_of_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with_key, authority = own_certificate(tmp_path)
    for context in (client_context, server_context):
        assert context(Node(certificate=with_key), authority).verify_mode == ssl.CERT_REQUIRED
    with raises("file-missing", naming="nowhere.pem"):
        client_context(Node(), tmp_path / "nowhere.pem")
    with raises("file-missing", naming="nowhere.pem"):
        client_context(Node(certificate=tmp_path / "nowhere.pem"), authority)
    with raises("certificate-unreadable", naming=str(authority)):  # without its key
        server_context(Node(certificate=authority), authority)
    with raises("certificate-missing"):
        server_context(Node(), authority)
