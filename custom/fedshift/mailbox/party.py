"""Who a party is, where its folders are, and the lock that one step at a time holds.

A party's own folder is on its own disk and is not shared::

    DIR/mailbox.json   who it is: its kit, its project, the shared folder; written by ``fedshift mailbox init``
    DIR/keys.json      its keys
    DIR/cards/         the cards of the others, as they were when first seen
    DIR/state.json     what was sent, read and answered; replaced as a whole, on disk before a letter leaves
    DIR/outbox/        encrypted messages that have not been acknowledged
    DIR/state/, run/   of a site: its state between rounds; of the coordinator: models, results and progress
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import Field, ValidationError

from fedshift.federation.encryption.kit_keys import (
    CERTIFICATE,
    KEY,
    SERVER_CERTIFICATE,
    SERVER_KEY,
    KitIdentity,
    ProjectRoot,
)
from fedshift.federation.run_lock import owner_of, take
from fedshift.mailbox.identity import Card, Keys
from fedshift.schema.errors import ConfigError
from fedshift.schema.files import write_private
from fedshift.schema.job import JobSpec
from fedshift.schema.names import Name
from fedshift.schema.strict import Strict, first_fault
from fedshift.schema.yaml_file import read_yaml

FILE_NAME, STATE, LOCK = "mailbox.json", "state.json", ".step.lock"
SCHEMA = 1
Role = Literal["coordinator", "site"]

_State = TypeVar("_State", bound=Strict)


class StepInProgress(Exception):
    """Another step is at work in the folder; the message says which."""


class Party(Strict):
    """A party of a federation by mailbox (``mailbox.json``).

    Attributes:
        schema_: of this file.
        project: name of the project.
        name: the party's, as in its certificate.
        role: coordinator or site.
        coordinator: the coordinator's name.
        sites: the names of the project's sites.
        kit: the party's startup kit, an absolute path.
        mail: the shared folder, an absolute path.
        run: of the coordinator: drawn for the run; sites learn it from the first letter.
    """

    schema_: int = Field(alias="schema")
    project: str = Field(min_length=1, max_length=256)
    name: Name
    role: Role
    coordinator: Name
    sites: tuple[Name, ...]
    kit: Path
    mail: Path
    run: str = ""

    @classmethod
    def load(cls, folder: Path) -> Party:
        """Read it from a party's folder.

        Raises:
            ConfigError: the folder is none, or of another version.
        """
        path = folder / FILE_NAME
        if not path.is_file():
            raise ConfigError(
                "no-mailbox",
                f"{folder} is no party's folder (it has no {FILE_NAME}): 'fedshift mailbox init' makes one",
            )
        party = cls.parse(_json(path), where=str(path))
        if party.schema_ != SCHEMA:
            raise ConfigError(
                "other-version",
                f"{path} has schema {party.schema_}, and this fedshift reads {SCHEMA}: install its version",
            )
        return party

    @property
    def startup(self) -> Path:
        return self.kit / "startup"

    @property
    def local(self) -> Path:
        """The owner's settings in the kit."""
        return self.kit / "local"

    @property
    def others(self) -> tuple[str, ...]:
        """With whom it corresponds."""
        return self.sites if self.role == "coordinator" else (self.coordinator,)

    def root(self) -> ProjectRoot:
        """What cards are checked with.

        Raises:
            ConfigError: the kit's root certificate cannot be read.
        """
        try:
            return ProjectRoot(self.startup)
        except (OSError, ValueError) as error:
            raise ConfigError(
                "file-unreadable",
                f"the root certificate in {self.startup} cannot be read ({error}): unpack the kit again",
            ) from None


def make_party(folder: Path, *, project: Path, kit: Path, mail: Path, run: str, job: JobSpec | None) -> Party:
    """Make a party's folder, with new keys that its kit signs.

    Args:
        folder: new, or empty.
        project: the project's file, from which the kits were provisioned.
        kit: the party's startup kit.
        mail: the shared folder.
        run: for the coordinator, what names the run.
        job: for the coordinator, what the federation trains.

    Raises:
        ConfigError: the folder is in use, the kit is not of this project, or the job not for its sites.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError("folder-in-use", f"{folder} is in use: name a new folder for this party")
    if mail.absolute() in (folder.absolute(), *folder.absolute().parents):
        raise ConfigError(
            "invalid-value",
            f"{folder} is in the shared folder, and holds private keys: name a folder that nobody shares",
        )
    name, coordinator, sites = _participants(project)
    is_server = (kit / "startup" / SERVER_KEY).is_file()
    identity = (
        KitIdentity(kit / "startup", key=SERVER_KEY, certificate=SERVER_CERTIFICATE)
        if is_server
        else KitIdentity(kit / "startup", key=KEY, certificate=CERTIFICATE)
    )
    party_name = identity.name
    if party_name != coordinator if is_server else party_name not in sites:
        raise ConfigError(
            "other-project",
            f"{kit} is the kit of {party_name}, which {project} does not name: name the project that made it",
        )
    if is_server and job is None:
        raise ConfigError("no-job", f"{kit} is the server's kit: name with --job what the federation trains")
    if job is not None:
        _require_fit(job, kit, sites, is_server=is_server)
    party = Party(
        schema=SCHEMA,
        project=name,
        name=party_name,
        role="coordinator" if is_server else "site",
        coordinator=coordinator,
        sites=sites,
        kit=kit.absolute(),
        mail=mail.absolute(),
        run=run if is_server else "",
    )
    keys = Keys.make(name, party_name, identity)
    try:  # a card that no other party would take
        Card.read(keys.card.model_dump_json().encode(), project=name, name=party_name, root=party.root())
    except ValueError as error:
        raise ConfigError(
            "other-project", f"the card of {party_name} {error}: ask the project's owner for a new kit"
        ) from None
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    keys.write(folder)
    write_private(folder / FILE_NAME, party.model_dump_json(by_alias=True, indent=1).encode())
    return party


def _require_fit(job: JobSpec, kit: Path, sites: tuple[str, ...], *, is_server: bool) -> None:
    if not is_server:
        raise ConfigError(
            "wrong-kit", f"{kit} is a site's, and sites get the job from the coordinator: leave out --job"
        )
    strangers = [site for site in job.task.everyone if site not in sites]
    if strangers:
        raise ConfigError(
            "other-site",
            f"job {job.name} is for {', '.join(strangers)}, and the project's sites are {', '.join(sites)}",
        )


def _participants(project: Path) -> tuple[str, str, tuple[str, ...]]:
    """Name, server and sites of a project."""
    raw = read_yaml(project)
    listed = raw.get("participants")
    named: dict[str, list[str]] = {"server": [], "client": []}
    for participant in listed if isinstance(listed, list) else []:
        if isinstance(participant, dict) and participant.get("type") in named:
            named[participant["type"]].append(str(participant.get("name")))
    if len(named["server"]) != 1 or not named["client"] or not isinstance(raw.get("name"), str):
        raise ConfigError(
            "invalid-value", f"{project} does not name a project with one server and its clients: name the project.yml"
        )
    return raw["name"], named["server"][0], tuple(named["client"])


# --- the state ------------------------------------------------------------------------------------------


def load_state(folder: Path, model: type[_State]) -> _State:
    """The state of a party; a new one if there is none.

    Raises:
        ConfigError: the file is damaged.
    """
    path = folder / STATE
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return model()
    except ValidationError as error:
        raise ConfigError(
            "file-damaged",
            f"{path} is damaged, or of another version ({first_fault(error)}): restore this folder as a whole",
        ) from None


def save_state(folder: Path, state: Strict) -> None:
    """Replace the state; it is on disk when this returns."""
    write_private(folder / STATE, state.model_dump_json(exclude_defaults=True).encode())


@contextmanager
def step_lock(folder: Path) -> Iterator[None]:
    """Hold a party's folder for one step.

    Raises:
        StepInProgress: another step holds it.
        ConfigError: nothing can be locked there.
    """
    path = folder / LOCK
    try:
        file = take(path)
    except BlockingIOError:
        raise StepInProgress(f"another step is at work here (process {owner_of(path) or 'unknown'})") from None
    except OSError as error:
        raise ConfigError(
            "no-lock",
            f"{path} cannot be locked ({error.strerror}): put the party's folder on a disk of its own machine",
        ) from None
    with file:
        yield


def is_locked(folder: Path) -> str | None:
    """Who holds a folder's lock; None if nobody does. Nothing is changed."""
    try:
        with (folder / LOCK).open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return owner_of(folder / LOCK) or "unknown"
    except OSError:
        return None
    return None


def now() -> datetime:
    """The time of day: a round lasts over many processes, so its deadline cannot be kept by a process's clock."""
    return datetime.now(UTC)


def _json(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError("file-unreadable", f"{path} cannot be read ({error}): restore it") from None
