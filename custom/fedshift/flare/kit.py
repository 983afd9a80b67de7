"""Startup kits from ``nvflare provision``: whose a kit is, whether its key fits, and where its server keeps jobs."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from cryptography.exceptions import UnsupportedAlgorithm
from nvflare.lighter.utils import cert_to_dict, load_crt, load_private_key_file, verify_cert

from fedshift.federation.run_lock import require_unlocked
from fedshift.schema.errors import ConfigError
from flare_armour.locks import owner_of, store_lock

Role = Literal["site", "server"]

STARTUP: dict[Role, str] = {"site": "fed_client.json", "server": "fed_server.json"}
CERTIFICATE: dict[Role, str] = {"site": "client", "server": "server"}
STORE = "store"
"""Folder in a server's kit; FLARE's default is one folder for the whole machine."""


@dataclass(frozen=True)
class Kit:
    """A site's or a server's kit. ``host`` and ``port`` are where the server listens, for sites and consoles."""

    folder: Path
    role: Role
    name: str
    organisation: str
    project: str
    host: str
    port: int
    valid_from: datetime
    valid_until: datetime

    @property
    def local(self) -> Path:
        """The owner's folder; provisioning does not overwrite it."""
        return self.folder / "local"

    def out_of_time(self, now: datetime) -> str | None:
        """Why its certificate is of no use ``now``; None if it is valid."""
        valid = f"of {self.name}, valid from {self.valid_from:%Y-%m-%d} to {self.valid_until:%Y-%m-%d}"
        if now < self.valid_from:
            return f"{valid}: not yet (it is {now:%Y-%m-%d %H:%M} UTC), set this machine's clock"
        if now > self.valid_until:
            return f"{valid}: it has expired, ask the project's owner for a new kit"
        return None


def open_kit(folder: Path) -> Kit:
    """Read a kit's role, name, project and server.

    Raises:
        ConfigError: not a kit, a console's kit, or one whose certificate is of another project.
    """
    startup = folder / "startup"
    if not startup.is_dir() or not (folder / "local").is_dir():
        raise ConfigError("wrong-kit", f"{folder} is no kit: name the folder that holds startup/ and local/")
    if (startup / "fed_admin.json").is_file():
        raise ConfigError("wrong-kit", f"{folder} is the kit of a console: it runs as it is, with startup/fl_admin.sh")
    role = next((role for role, name in STARTUP.items() if (startup / name).is_file()), None)
    if role is None:
        raise ConfigError(
            "damaged-kit", f"{startup} holds neither {' nor '.join(STARTUP.values())}: unpack the kit again"
        )
    server = read_json(startup / STARTUP[role]).get("servers", [{}])[0]
    host, _, port = str(server.get("service", {}).get("target", "")).rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError("damaged-kit", f"{startup / STARTUP[role]} names no server with a port: unpack the kit again")
    path, root = startup / f"{CERTIFICATE[role]}.crt", startup / "rootCA.pem"
    try:
        certificate, issuer = load_crt(path), load_crt(root)
    except (OSError, ValueError):
        raise ConfigError(
            "damaged-kit", f"{path} or {root} is missing or no certificate: unpack the kit again"
        ) from None
    subject = cert_to_dict(certificate)["subject"]
    try:
        verify_cert(certificate, issuer.public_key())
    except Exception:  # what cryptography raises has no common base, and no text
        raise ConfigError(
            "other-project", f"{path} was not signed by {root}: the two are of different projects"
        ) from None
    return Kit(
        folder=folder,
        role=role,
        name=subject["commonName"],
        organisation=subject.get("organizationName", ""),
        project=server.get("name", ""),
        host=host,
        port=int(port),
        valid_from=certificate.not_valid_before_utc,
        valid_until=certificate.not_valid_after_utc,
    )


def key_fault(kit: Kit) -> str | None:
    """Why a party cannot show its certificate with the private key of its kit; None if it can."""
    startup = kit.folder / "startup"
    key = startup / f"{CERTIFICATE[kit.role]}.key"
    new = "unpack the kit again, or ask the project's owner for a new one"
    if not key.exists():
        return f"{key} is missing: {new}"
    try:
        public = load_private_key_file(key).public_key()
    except OSError as error:
        return f"{key} cannot be read ({error.strerror}): see to its owner and its permissions"
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return f"{key} is no private key without a password: {new}"
    if public != load_crt(key.with_suffix(".crt")).public_key():
        return f"{key} is not of this certificate: {new}"
    return None


def console_user(folder: Path) -> str | None:
    """The name in the certificate of a console's kit; None if the folder is no such kit.

    Raises:
        ConfigError: the certificate cannot be read.
    """
    startup = folder / "startup"
    if not (startup / "fed_admin.json").is_file():
        return None
    try:
        return str(cert_to_dict(load_crt(startup / "client.crt"))["subject"]["commonName"])
    except (OSError, ValueError, KeyError):
        raise ConfigError(
            "damaged-kit", f"{startup / 'client.crt'} is missing or no certificate: unpack the kit again"
        ) from None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ConfigError: the file is missing or holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            "file-unreadable", f"{path} cannot be read ({error.strerror}): unpack the kit again"
        ) from None
    except ValueError as error:
        raise ConfigError(
            "not-json", f"{path} is not valid JSON ({error}): correct it, or unpack the kit again"
        ) from None
    if not isinstance(content, dict):
        raise ConfigError("not-a-mapping", f"{path} holds no JSON object: correct it, or unpack the kit again")
    return content


def is_root() -> bool:
    """Whether this process may do everything on its machine."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


# --- where a server keeps its jobs ----------------------------------------------------------------------


def jobs_folder(kit: Path) -> Path:
    return kit / STORE / "jobs"


def snapshots_folder(kit: Path) -> Path:
    return kit / STORE / "snapshots"


def holder(kit: Path) -> str | None:
    """The number of the process, or 'unknown', that runs a server in this kit's store; None if none is known."""
    jobs = jobs_folder(kit)
    try:
        require_unlocked(jobs)
    except ConfigError:
        return owner_of(store_lock(jobs))
    return None
