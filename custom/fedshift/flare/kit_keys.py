"""The keys in a startup kit: FLARE's HEBuilder's for encryption, and a site's own, with which it signs for masks."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificate
from cryptography.x509.oid import NameOID
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.sec.security_content_service import LoadResult, SecurityContentManager

from fedshift.federation.encryption.keys import Keys
from fedshift.federation.encryption.masks.protocol import FEWEST
from fedshift.federation.encryption.masks.site import SiteMasks
from fedshift.flare.context import startup_folder
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.policy import Policy

log = logging.getLogger("fedshift")

SITE_KEYS, SERVER_KEYS = "client_context.tenseal", "server_context.tenseal"
KEY, CERTIFICATE, ROOT = "client.key", "client.crt", "rootCA.pem"
PADDING = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)


def read_keys(startup: Path, name: str) -> Keys:
    """Read `SITE_KEYS` or `SERVER_KEYS` from a kit's folder ``startup``, with FLARE's signature check.

    Raises:
        ConfigError: the file is missing, its signature is not the project owner's, or TenSEAL is not installed.
    """
    content, result = SecurityContentManager(str(startup)).load_content(name)
    path = startup / name
    if content is None:
        raise ConfigError(
            "keys-missing",
            f"the job asks for encryption, and {path} is not there: provision the project with FLARE's HEBuilder "
            "(FLARE's simulator has no keys)",
        )
    if result != LoadResult.OK:
        raise ConfigError(
            "file-changed",
            f"{path} is not as the project's owner has signed it ({result.value}): ask for a new kit, made with "
            "HEBuilder before SignatureBuilder",
        )
    return Keys(content, where=str(path))


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
    """Signs and checks with a site's kit."""

    def __init__(self, startup: Path) -> None:
        """``startup``: the kit's folder of that name.

        Raises:
            ConfigError: a file is missing or is not what it should be.
        """
        name = KEY
        try:
            key = load_pem_private_key((startup / KEY).read_bytes(), None)
            name = CERTIFICATE
            self._certificate = (startup / CERTIFICATE).read_text(encoding="ascii")
            load_pem_x509_certificate(self._certificate.encode())
            name = ROOT
            super().__init__(startup)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(
                "file-unreadable",
                f"{startup / name} cannot be read ({error}): with federation.encryption=masks a site signs with the "
                "key of its kit",
            ) from None
        if not isinstance(key, RSAPrivateKey):
            raise ConfigError(
                "wrong-key", f"{startup / KEY} is no RSA key, as FLARE's provisioning makes them: ask for a new kit"
            )
        self._key = key

    def sign(self, content: bytes) -> tuple[bytes, str]:
        """The signature (RSA-PSS, SHA-256), and the site's certificate as PEM."""
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


def site_masks(
    job: JobSpec, site: str, *, folder: Path, fl_ctx: FLContext, simulated: bool, policy: Policy | None
) -> SiteMasks:
    """A site's masks in a job: with the identity of its kit, or without one in FLARE's simulator.

    A site without a policy keeps to the usual fewest sites in a sum all the same.

    Raises:
        ConfigError: the kit has no key that signs.
        PolicyError: the job has fewer sites than the policy wants in a sum.
    """
    least = (policy or Policy()).min_sites_in_sum
    if simulated:
        log.warning("site %s: FLARE's simulator has no kits: the sites' keys are not signed", site)
        identity, least = None, FEWEST if policy is None else least
    else:
        identity = KitIdentity(startup_folder(fl_ctx))
    return SiteMasks(job, site, folder=folder, run=fl_ctx.get_job_id(), identity=identity, least=least)
