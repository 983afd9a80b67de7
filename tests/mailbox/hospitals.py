"""Hospitals in folders that share nothing but a synchronised directory."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kits import ROOT, SERVER

from fedshift.mailbox.coordinator_party import JOB_FILE, RUN, CoordinatorParty
from fedshift.mailbox.deadline import Until
from fedshift.mailbox.party import make_party
from fedshift.mailbox.site_party import SiteParty
from fedshift.mailbox.step import Outcome
from fedshift.schema.files import write_private
from fedshift.schema.job import JobSpec

PROJECT = ROOT / "deploy" / "project.yml"


def make_kit(source: Path, target: Path, *, settings: str = "") -> Path:
    """A copy of a party's kit, with its owner's settings."""
    shutil.copytree(source / "startup", target / "startup")
    (target / "local").mkdir()
    if settings:
        (target / "local" / "fedshift.yaml").write_text(settings, encoding="utf-8")
    return target


@dataclass
class Hospitals:
    """A coordinator and its sites.

    ``fresh``: whether each step is of a new object, as of a new process.
    """

    job: JobSpec
    data: Mapping[str, Path]
    folder: Path
    kits: Path
    policies: Mapping[str, str] = field(default_factory=dict)
    fresh: bool = True

    def __post_init__(self) -> None:
        self.mail = self.folder / "mail"
        self.mail.mkdir(parents=True)
        self._sites: dict[str, SiteParty] = {}
        self._coordinator: CoordinatorParty | None = None
        for name in (SERVER, *self.job.task.everyone):
            self.make(name)

    def make(self, name: str, *, folder: str | None = None) -> Path:
        """``fedshift mailbox init`` of a party, in a folder of its name or another."""
        own = self.folder / (folder or name)
        kit = own.with_name(f"{name}_kit")
        if not kit.exists():
            text = f"data: {{{self.job.task.dataset}: {self.data[name]}}}\n" if name in self.data else ""
            make_kit(self.kits / name, kit, settings=text + self.policies.get(name, ""))
        job = self.job if name == SERVER else None
        make_party(own, project=PROJECT, kit=kit, mail=self.mail, run=secrets.token_hex(16), job=job)
        if job is not None:
            write_private(own / JOB_FILE, job.model_dump_json(by_alias=True).encode())
        return own

    @property
    def run_folder(self) -> Path:
        return self.folder / SERVER / RUN

    def site(self, name: str) -> SiteParty:
        if self.fresh or name not in self._sites:
            self._sites[name] = SiteParty(self.folder / name)
        return self._sites[name]

    def coordinator(self) -> CoordinatorParty:
        if self.fresh or self._coordinator is None:
            self._coordinator = CoordinatorParty(self.folder / SERVER)
        return self._coordinator

    def step(self, name: str, *, until: Until | None = None) -> Outcome:
        """A step of a party by its name."""
        if name == SERVER:
            return self.coordinator().step(until=until)
        return self.site(name).step()

    def all_step(self, *names: str, until: Until | None = None) -> bool:
        """A step of everyone (or of the ``names``); whether the run has ended everywhere."""
        return all([self.step(name, until=until).done for name in names or (SERVER, *self.job.task.everyone)])

    def ask_round_1(self) -> None:
        """Cards are shown, the statistics round is answered and closed, and the sites are asked for round 1."""
        self.all_step()
        self.all_step()
        self.step(SERVER)

    def run(self, *, between: Callable[[], object] = lambda: None, most: int = 40) -> None:
        """Steps until the run has ended."""
        for _ in range(most):
            if self.all_step():
                return
            between()
        raise AssertionError(f"not over after {most} steps each: {self.step(SERVER).line}")
