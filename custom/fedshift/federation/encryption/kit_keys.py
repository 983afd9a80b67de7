"""The keys in a startup kit: FLARE's HEBuilder's for encryption, and a party's own, with which it signs.

NVFlare is not needed for it.
"""

from __future__ import annotations

import json
from base64 import b64decode
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificate
from cryptography.x509.oid import NameOID

from fedshift.schema.errors import ConfigError

if TYPE_CHECKING:
    from fedshift.federation.encryption.keys import Keys

SITE_KEYS, SERVER_KEYS = "client_context.tenseal", "server_context.tenseal"
KEY, CERTIFICATE, ROOT = "client.key", "client.crt", "rootCA.pem"
SERVER_KEY, SERVER_CERTIFICATE = "server.key", "server.crt"
SIGNATURES = "signature.json"
PADDING = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
OWNERS_PADDING = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.MAX_LENGTH)
"""Of the signatures in a kit, which NVFlare's provisioning makes."""


def read_keys(startup: Path, name: str) -> Keys:
    """Read `SITE_KEYS` or `SERVER_KEYS` from a kit's folder ``startup``, if the project's owner has signed them.

    Raises:
        ConfigError: the file is missing, its signature is not the project owner's, or TenSEAL is not installed.
    """
    from fedshift.federation.encryption.keys import Keys  # brings torch, which signatures do not need

    path = startup / name
    try:
        content = path.read_bytes()
    except OSError:
        content = b""
    if not content:
        raise ConfigError(
            "keys-missing",
            f"the job asks for encryption, and {path} is not there: provision the project with FLARE's HEBuilder "
            "(FLARE's simulator has no keys)",
        )
    fault = _owners_fault(startup, name, content)
    if fault is not None:
        raise ConfigError(
            "file-changed",
            f"{path} is not as the project's owner has signed it ({fault}): ask for a new kit, made with "
            "HEBuilder before SignatureBuilder",
        )
    return Keys(content, where=str(path))


def _owners_fault(startup: Path, name: str, content: bytes) -> str | None:
    """Why a file of a kit is not as the owner has signed it; None if it is."""
    try:
        signature = b64decode(json.loads((startup / SIGNATURES).read_text(encoding="utf-8"))[name])
        owner = load_pem_x509_certificate((startup / ROOT).read_bytes()).public_key()
    except (OSError, ValueError, KeyError, TypeError):
        return "not signed"
    try:
        if not isinstance(owner, RSAPublicKey):
            raise InvalidSignature
        owner.verify(signature, content, OWNERS_PADDING, hashes.SHA256())
    except InvalidSignature:
        return "another signature"
    return None


class ProjectRoot:
    """Checks what sites have signed. Certificates must come from the kits' own root, directly, as FLARE's do."""

    def __init__(self, startup: Path) -> None:
        """``startup``: the kit's folder of that name.

        Raises:
            OSError, ValueError: the root's certificate cannot be read.
        """
        self._root = load_pem_x509_certificate((startup / ROOT).read_bytes())

    def check(self, site: str, content: bytes, signature: bytes, certificate: str) -> None:
        """Check what another site has signed.

        Raises:
            ValueError: it has not; the reason continues "the key of site X …".
        """
        if not certificate:
            raise ValueError("is not signed")
        try:
            theirs = load_pem_x509_certificate(certificate.encode())
        except ValueError:
            raise ValueError("comes with no certificate") from None
        try:
            theirs.verify_directly_issued_by(self._root)
        except (ValueError, TypeError, InvalidSignature):
            raise ValueError("comes with a certificate that the project's owner has not made") from None
        if not theirs.not_valid_before_utc <= datetime.now(UTC) <= theirs.not_valid_after_utc:
            raise ValueError("comes with a certificate that is not valid today")
        names = [str(name.value) for name in theirs.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        if names != [site]:
            raise ValueError(f"comes with the certificate of {', '.join(names) or 'nobody'}")
        public = theirs.public_key()
        try:
            if not isinstance(public, RSAPublicKey):
                raise InvalidSignature
            public.verify(signature, content, PADDING, hashes.SHA256())
        except InvalidSignature:
            raise ValueError("is not signed by that site, or for another run") from None


class KitIdentity(ProjectRoot):
    """Signs and checks with a party's kit.

    Attributes:
        name: the party's, by its certificate.
    """

    def __init__(self, startup: Path, *, key: str = KEY, certificate: str = CERTIFICATE) -> None:
        """``startup``: the kit's folder of that name, in which ``key`` and ``certificate`` are the party's.

        Raises:
            ConfigError: a file is missing or is not what it should be.
        """
        name = key
        try:
            private = load_pem_private_key((startup / key).read_bytes(), None)
            name = certificate
            self._certificate = (startup / certificate).read_text(encoding="ascii")
            loaded = load_pem_x509_certificate(self._certificate.encode())
            name = ROOT
            super().__init__(startup)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(
                "file-unreadable",
                f"{startup / name} cannot be read ({error}): with masks, and by mailbox, a party signs with the "
                "key of its kit",
            ) from None
        if not isinstance(private, RSAPrivateKey):
            raise ConfigError(
                "wrong-key", f"{startup / key} is no RSA key, as FLARE's provisioning makes them: ask for a new kit"
            )
        self._key = private
        self.name = next((str(name.value) for name in loaded.subject.get_attributes_for_oid(NameOID.COMMON_NAME)), "")

    def sign(self, content: bytes) -> tuple[bytes, str]:
        """The signature (RSA-PSS, SHA-256), and the party's certificate as PEM."""
        return self._key.sign(content, PADDING, hashes.SHA256()), self._certificate


def server_checker(startup: Path) -> ProjectRoot | None:
    """What a server checks the keys of sites with; None where there are no kits, as in FLARE's simulator.

    Raises:
        ConfigError: the kit's root certificate cannot be read.
    """
    if not (startup / ROOT).is_file():
        return None
    try:
        return ProjectRoot(startup)
    except (OSError, ValueError) as error:
        raise ConfigError(
            "file-unreadable", f"{startup / ROOT} cannot be read ({error}): unpack the server's kit again"
        ) from None
