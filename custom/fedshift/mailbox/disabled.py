"""Sites that the project's admin has disabled: in the file of the server's kit that a federation under FLARE has, too.

``fedshift mailbox disable`` writes it, as ``nvflare system disable-client`` does for FLARE's server.
"""

from __future__ import annotations

import getpass
import json
from pathlib import Path

from fedshift.mailbox.party import now
from fedshift.schema.errors import ConfigError
from fedshift.schema.files import write_private

FILE_NAME = "disabled_sites.json"
KEY = "disabled"
"""What ``results.json`` names in place of a part of the answer of a disabled site."""


def disabled_sites(kit: Path) -> dict[str, str]:
    """Site -> by whom it was disabled, and since when.

    Raises:
        ConfigError: the file is damaged, and a site that was disabled would take part again.
    """
    return {site: f"by {entry['by']} since {entry['since']}" for site, entry in _read(kit).items()}


def disable(kit: Path, site: str) -> None:
    """Disable a site from now on; one that is disabled stays so since then."""
    entry = {"by": getpass.getuser(), "since": f"{now():%Y-%m-%d %H:%M:%S} UTC"}
    _write(kit, {site: entry, **_read(kit)})


def enable(kit: Path, site: str) -> None:
    """Let a site in again.

    Raises:
        ConfigError: it is not disabled.
    """
    sites = _read(kit)
    if site not in sites:
        raise ConfigError(
            "unknown-site", f"{kit / FILE_NAME} does not name {site}; it names {', '.join(sites) or 'nobody'}"
        )
    _write(kit, {name: entry for name, entry in sites.items() if name != site})


def _read(kit: Path) -> dict[str, dict[str, str]]:
    path = kit / FILE_NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {str(site): {"by": str(entry["by"]), "since": str(entry["since"])} for site, entry in content.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            "file-damaged",
            f"{path} cannot be read ({error}), and a site that was disabled would take part again: restore it from a "
            "backup, or delete it and disable the sites anew",
        ) from None


def _write(kit: Path, sites: dict[str, dict[str, str]]) -> None:
    write_private(kit / FILE_NAME, json.dumps(dict(sorted(sites.items())), indent=1).encode())
