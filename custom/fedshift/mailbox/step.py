"""What a step of a site and one of the coordinator have in common."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from fedshift.federation.encryption.kit_keys import ProjectRoot
from fedshift.mailbox.identity import LONGEST_CARD, Card, Keys
from fedshift.mailbox.mail_folder import CARD, MailFolder
from fedshift.mailbox.party import Party
from fedshift.mailbox.thread import Chains, RestoredError, Thread

log = logging.getLogger("fedshift")

DONE, WAITS = 0, 3
"""Exit codes of a step."""
OPENED = "opened"
"""Folder for messages that are too large to be opened in memory."""


@dataclass(frozen=True)
class Outcome:
    """The state of a party after a step.

    Attributes:
        line: in one line.
        done: whether the run has ended.
        notes: what a person should know beside it, such as strange files.
    """

    line: str
    done: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def code(self) -> int:
        """0 if the run has ended, 3 if it waits."""
        return DONE if self.done else WAITS


class Stepper:
    """A party's folder, its keys, and the shared folder."""

    def __init__(self, folder: Path) -> None:
        """Open a party's folder.

        Raises:
            ConfigError: it is none, or damaged.
        """
        self.folder, self.party, self.keys = folder, Party.load(folder), Keys.load(folder)
        self.mail = MailFolder(self.party.mail, self.party.name)
        self._logged: set[str] = set()

    @cached_property
    def root(self) -> ProjectRoot:
        """What cards are checked with."""
        return self.party.root()

    def show_card(self) -> None:
        """Put this party's card into the shared folder.

        Raises:
            RestoredError: another folder of this party has put its own there.
        """
        self.mail.require()
        card = self.keys.card
        former = self.mail.card(self.party.name)
        shown = card.model_dump_json().encode()
        if former is not None and former != shown:
            try:
                other = Card.read(former[:LONGEST_CARD], project=card.project, name=card.name, root=self.root)
            except ValueError:
                pass  # of nobody: it is replaced
            else:
                if other != card:
                    raise RestoredError(
                        "mailbox-two-folders",
                        f"{self.mail.own_folder / CARD} is the card of another folder of {card.name}: two of them use "
                        f"this shared folder. If {self.folder} is the one that counts, delete that file",
                    )
        self.mail.place(CARD, shown)

    def thread(self, other: str, chains: Chains) -> Thread:
        """The correspondence with another party, after a look at its folder."""
        thread = Thread(self.folder, self.party, self.keys, self.mail, other, chains)
        thread.find_card(self.root)
        thread.notes += self.mail.strange(other).notes(other)
        thread.require_newest(self.mail.letters(self.party.name, other))
        return thread

    def notes(self, threads: list[Thread]) -> list[str]:
        """What a person should know; each is in the log once in a process."""
        notes = [*self.mail.strange(self.party.name).notes(self.party.name)]
        notes += [note for thread in threads for note in thread.notes]
        for note in notes:
            if note not in self._logged:
                log.warning("%s", note)
        self._logged = set(notes)
        return notes
