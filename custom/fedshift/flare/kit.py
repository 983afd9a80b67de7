"""Startup kits from NVFlare: whose a kit is, whether its key fits, and where its server keeps jobs."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cryptography.exceptions import UnsupportedAlgorithm
from nvflare.lighter.utils import cert_to_dict, load_crt, load_private_key_file, verify_cert

from fedshift.federation.certificate_dates import Validity
from fedshift.federation.run_lock import require_unlocked
from fedshift.schema.errors import ConfigError
from flare_armour.locks import owner_of, store_lock

Role = Literal["site", "server", "console"]

STARTUP: dict[Role, str] = {"site": "fed_client.json", "server": "fed_server.json", "console": "fed_admin.json"}
CERTIFICATE: dict[Role, str] = {"site": "client", "server": "server", "console": "client"}
STORE = "store"
"""Folder in a server's kit; FLARE's default is one folder for the whole machine."""


@dataclass(frozen=True)
class Kit:
    """The kit of a site, of the server, or of a person's console.

    Attributes:
        host: where the server listens, for sites and consoles; so is ``port``.
        scheme: how they speak with it: http, grpc or tcp.
        server: the name in the server's certificate.
        certificate: from when until when the party's certificate counts.
        root: the same of the project's root certificate.
    """

    folder: Path
    role: Role
    name: str
    organisation: str
    project: str
    host: str
    port: int
    scheme: str
    server: str
    certificate: Validity
    root: Validity

    @property
    def local(self) -> Path:
        """The owner's folder; provisioning does not overwrite it."""
        return self.folder / "local"


def open_kit(folder: Path, *, console: bool = False) -> Kit:
    """Read a kit's role, name, project and server.

    Raises:
        ConfigError: not a kit, a console's kit unless ``console``, or one whose certificate is of another project.
    """
    startup = folder / "startup"
    if not startup.is_dir() or not (folder / "local").is_dir():
        raise ConfigError("wrong-kit", f"{folder} is no kit: name the folder that holds startup/ and local/")
    if (startup / STARTUP["console"]).is_file() and not console:
        raise ConfigError("wrong-kit", f"{folder} is the kit of a console: it runs as it is, with startup/fl_admin.sh")
    role = next((role for role, name in STARTUP.items() if (startup / name).is_file()), None)
    if role is None:
        raise ConfigError(
            "damaged-kit", f"{startup} holds neither {' nor '.join(STARTUP.values())}: unpack the kit again"
        )
    content = read_json(startup / STARTUP[role])
    if role == "console":
        admin = content.get("admin", {})
        server = {"name": admin.get("project_name"), "identity": admin.get("server_identity")}
        host, port, scheme = (str(admin.get(key, "")) for key in ("host", "port", "scheme"))
    else:
        server = content.get("servers", [{}])[0]
        host, _, port = str(server.get("service", {}).get("target", "")).rpartition(":")
        scheme = str(server.get("service", {}).get("scheme", ""))
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
        scheme=scheme,
        server=str(server.get("identity") or server.get("admin_server") or host),
        certificate=Validity.from_certificate(certificate),
        root=Validity.from_certificate(issuer),
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
    if not (startup / STARTUP["console"]).is_file():
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
