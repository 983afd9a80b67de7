"""Two parties and a carrier, without a job: what is said of letters needs no training."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import small_job
from kits import SERVER

from fedshift.mailbox.letter import TRAIN, Letter
from fedshift.mailbox.party import make_party
from fedshift.mailbox.pieces import open_body, seal
from fedshift.mailbox.step import Stepper
from fedshift.mailbox.thread import OUTBOX, Chains, Thread, place_all

from .hospitals import PROJECT, make_kit

RUN = "ab" * 16
JOB = "cd" * 32
TEXT = b"weights of a round"


@dataclass
class End:
    """One end of a correspondence, whose state is kept as a step keeps it."""

    folder: Path
    other: str
    chains: Chains = field(default_factory=Chains)

    def look(self) -> Thread:
        """The correspondence as a new step finds it."""
        stepper = Stepper(self.folder)
        stepper.show_card()
        return stepper.thread(self.other, self.chains)

    def write(self, content: bytes = TEXT, *, round_: int = 1, run: str = RUN, place: bool = True) -> Letter:
        """A step that writes a letter with a message."""
        thread = self.look()
        known = {"run": run, "job": JOB, "request": round_, "round_": round_}
        about = f"{round_}".encode()
        letter = thread.write(TRAIN, sealed=seal([memoryview(content)], self.folder / OUTBOX, about), **known)  # type: ignore[arg-type]
        self.chains = thread.chains
        if place:
            place_all([thread], thread.mail, self.folder)
        return letter

    def read(self, *, run: str = RUN) -> bytes | None:
        """A step that reads the next letter; None if it is waited for."""
        thread = self.look()
        letter = thread.next(run=run)
        self.notes = thread.notes
        if letter is None:
            return None
        body = letter.content.body
        assert body is not None
        about, mail = f"{letter.header.round}".encode(), thread.mail.root / self.other
        key = letter.content_key(thread.keys)
        content = bytes(open_body(body, key, about, mail=mail, scratch=self.folder / "opened"))
        thread.accept(letter)
        self.chains = thread.chains.model_copy(update={"consumed": thread.chains.read})
        place_all([thread], thread.mail, self.folder)
        return content


@dataclass
class Pair:
    """The coordinator and a site, and the shared folder between them."""

    coordinator: End
    site: End
    mail: Path
    kits: Path

    def files(self, pattern: str) -> list[Path]:
        """Files of the shared folder, below the folder of their writer."""
        return sorted(self.mail.glob(pattern))


@pytest.fixture
def pair(kits_of: Callable[[str], Path], tmp_path: Path) -> Pair:
    kits, mail = kits_of("prostate"), tmp_path / "mail"
    mail.mkdir()
    ends = {}
    for name, other in ((SERVER, "HK"), ("HK", SERVER)):
        kit = make_kit(kits / name, tmp_path / f"{name}_kit")
        job = small_job("fedavg") if name == SERVER else None
        make_party(tmp_path / name, project=PROJECT, kit=kit, mail=mail, run=secrets.token_hex(16), job=job)
        ends[name] = End(tmp_path / name, other)
    for end in ends.values():
        end.look()
    return Pair(ends[SERVER], ends["HK"], mail, tmp_path)


def copy(source: Path, target: Path) -> Path:
    """A copy in place of what is there."""
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target))
