"""A PACS by its address, whose scheme says how it is asked: https (DICOMweb), dimse or dimse+tls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedshift.pacs.archive import Archive, Carrier
from fedshift.pacs.credentials import Credentials
from fedshift.pacs.dimse.node import Node
from fedshift.schema.errors import ConfigError


@dataclass(frozen=True)
class Access:
    """What a PACS knows us by, and how it may be reached."""

    credentials: Credentials = field(default_factory=Credentials)
    """Of DICOMweb."""
    node: Node = field(default_factory=Node)
    """Of DIMSE."""
    ca_file: Path | None = None
    allow_unencrypted: bool = False


def open_archive(address: str, access: Access) -> Archive:
    """The PACS at an address. Nothing is sent before something is asked of it.

    Raises:
        ConfigError: what it needs is not installed, or the address or a file of certificates cannot be used.
    """
    carrier = _CARRIERS.get(address.partition(":")[0])
    if carrier is None:
        raise ConfigError(
            "pacs-address",
            "a PACS has the address of its DICOMweb service, such as https://pacs.example/dicom-web, or an AE title "
            "with machine and port, such as dimse+tls://PACS@pacs.example:2762",
        )
    return Archive(carrier(address, access))


def _by_web(address: str, access: Access) -> Carrier:
    from fedshift.pacs.web.connection import connect

    return connect(address, access.credentials, ca_file=access.ca_file, allow_unencrypted=access.allow_unencrypted)


def _by_dimse(address: str, access: Access) -> Carrier:
    from fedshift.pacs.dimse.carrier import connect

    return connect(address, access.node, ca_file=access.ca_file, allow_unencrypted=access.allow_unencrypted)


_CARRIERS: Mapping[str, Callable[[str, Access], Any]] = {
    "http": _by_web,
    "https": _by_web,
    "dimse": _by_dimse,
    "dimse+tls": _by_dimse,
}
