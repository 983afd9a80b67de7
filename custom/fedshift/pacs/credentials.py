"""What a PACS knows a user by: from the environment, or from a file that only its owner may read.

They are in no manifest, log or error: nothing here repeats a value.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedshift.schema.errors import ConfigError
from fedshift.schema.strict import nearest

TOKEN, USER, PASSWORD = "FEDSHIFT_PACS_TOKEN", "FEDSHIFT_PACS_USER", "FEDSHIFT_PACS_PASSWORD"
NAMES = (TOKEN, USER, PASSWORD)
PRIVATE = (0o600, 0o400)
"""Modes of a file that nobody but its owner may read."""


@dataclass(frozen=True, repr=False)
class Credentials:
    """A token (bearer), or a user with a password; none of them where the PACS asks for none."""

    token: str | None = None
    user: str | None = None
    password: str | None = None


def from_environment(environment: Mapping[str, str] = os.environ) -> Credentials:
    """Credentials in environment variables.

    Raises:
        ConfigError: a user without a password, or both kinds.
    """
    return _credentials({name: value for name in NAMES if (value := environment.get(name))}, "the environment")


def from_file(path: Path) -> Credentials:
    """Credentials in a file of lines ``NAME=value``, with the names of the environment variables.

    Raises:
        ConfigError: others than its owner may read it, or it holds something else.
    """
    try:
        with path.open(encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or stat.S_IMODE(status.st_mode) not in PRIVATE:
                raise ConfigError(
                    "credentials-open",
                    f"{path} may be read by others than its owner: chmod 600 {path}, and change the password if "
                    "others may have seen it",
                )
            if status.st_uid != os.geteuid():
                raise ConfigError("credentials-open", f"{path} belongs to another user: use a file of your own")
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(
            "credentials-unreadable", f"{path} cannot be read ({why}): name a file with lines such as {USER}=name"
        ) from None
    values: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        name = name.strip()
        if not equals:
            raise ConfigError("credentials-form", f"{path}, line {number}, is not NAME=value: write {USER}=name")
        if name not in NAMES:
            hint = nearest(name, NAMES) if name.startswith("FEDSHIFT") else f"; known: {', '.join(NAMES)}"
            raise ConfigError("credentials-form", f"{path}, line {number}, has an unknown name{hint}")
        values[name] = value
    if not values:
        raise ConfigError("credentials-form", f"{path} holds no credentials: write lines such as {USER}=name")
    return _credentials(values, str(path))


def _credentials(values: Mapping[str, str], where: str) -> Credentials:
    if TOKEN in values and len(values) > 1:
        raise ConfigError("credentials-form", f"{where} has {TOKEN} and a user or password: leave one of the two")
    if len(values.keys() & {USER, PASSWORD}) == 1:
        missing = next(name for name in (USER, PASSWORD) if name not in values)
        raise ConfigError("credentials-form", f"{where} has no {missing}: {USER} and {PASSWORD} go together")
    return Credentials(values.get(TOKEN), values.get(USER), values.get(PASSWORD))
