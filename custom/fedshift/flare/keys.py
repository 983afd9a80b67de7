"""Read encryption keys from a startup kit: the files that FLARE's HEBuilder writes, with FLARE's signature check."""

from __future__ import annotations

from pathlib import Path

from nvflare.fuel.sec.security_content_service import LoadResult, SecurityContentManager

from fedshift.federation.encryption.keys import Keys
from fedshift.schema.errors import ConfigError

SITE_KEYS, SERVER_KEYS = "client_context.tenseal", "server_context.tenseal"


def read_keys(startup: Path, name: str) -> Keys:
    """Read the keys of a kit.

    Args:
        startup: the kit's folder ``startup``.
        name: ``SITE_KEYS`` or ``SERVER_KEYS``.

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
