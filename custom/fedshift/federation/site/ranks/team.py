"""The other ranks of a site, as the site's own process, the first rank, starts, leads and ends them.

They are its children, one for each further device, and begin with the first round of training. Each gets what a round
starts from, and before every step a word that there is one: so the first rank alone decides when a round ends, and
nothing has to be read back from a GPU for it. They end with this process, however it ends.

A rank that dies ends the round; the others are ended too, and all begin anew with the next round, or the same again.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from fedshift.federation.site.ranks.channel import Channel
from fedshift.federation.site.ranks.group import Group
from fedshift.federation.site.ranks.refusals import REMEDY
from fedshift.federation.site.state import SiteState
from fedshift.federation.tensors import copied
from fedshift.methods.base import Run
from fedshift.methods.chain import ClientChain
from fedshift.schema.errors import ConfigError, DataError, FedshiftError
from fedshift.schema.identity import own_identity
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Broadcast
from fedshift.tasks.out_of_memory import BatchTooLarge

log = logging.getLogger("fedshift")

PATIENCE = 30 * 60.0
"""Seconds in which a rank must do what is awaited of it."""
TO_END = 5.0
"""Seconds in which a process whose connection is cut has ended."""
MODULE = "fedshift.federation.site.rank_process"


class RankDied(FedshiftError):
    """A process that trains with the site's own has ended, and with it the round."""


@dataclass(frozen=True)
class Member:
    """Another rank."""

    rank: int
    device: str
    process: subprocess.Popen[bytes]
    channel: Channel

    @property
    def name(self) -> str:
        return f"rank {self.rank} ({self.device})"


class First(Group):
    """The group as the first rank sees it."""

    def __init__(self, members: Sequence[Member]) -> None:
        super().__init__(0, 1 + len(members))
        self.members, self.where = members, ""
        self._since = time.monotonic()

    def begin_step(self) -> None:
        for member in self.members:
            with self.watched(member):
                member.channel.send()

    def close(self, run: Run, chain: ClientChain) -> None:
        if run.step < run.steps:  # the others wait for another step
            for member in self.members:
                with self.watched(member):
                    member.channel.send({"ended": True})
        super().close(run, chain)

    def connect(self, folder: Path, device: torch.device) -> None:
        try:
            super().connect(folder, device)
        except RuntimeError as error:
            raise self._dead(f"has not joined ({str(error).splitlines()[0]})") from error

    def total(self, values: torch.Tensor) -> None:
        self._since = time.monotonic()
        try:
            super().total(values)
        except RuntimeError as error:
            raise self._dead(f"was lost ({str(error).splitlines()[0]})") from error

    def look(self) -> None:
        for member in self.members:
            if member.process.poll() is not None:
                raise self._died(member, "")
        if time.monotonic() > self._since + PATIENCE:
            raise self._dead(f"has not answered for {PATIENCE / 60:.0f} minutes")

    def compare(self, fingerprints: Mapping[str, str]) -> None:
        """Raises `DataError` if a rank has anything else than this one."""
        for member in self.members:
            with self.watched(member):
                answer = member.channel.receive() or {}
            theirs = answer.get("fingerprints", {})
            for key in fingerprints.keys() | theirs.keys():
                if fingerprints.get(key) != theirs.get(key):
                    raise DataError(
                        "ranks-differ",
                        f"{self.where}: {member.name} has another {key} than rank 0 after training: {REMEDY}, and "
                        "report it: it is a fault of the program or of the machine",
                    )

    @contextmanager
    def watched(self, member: Member) -> Iterator[None]:
        """Say which rank it was, and how it ended, if a message cannot be sent or does not come."""
        try:
            yield
        except TimeoutError:
            raise self._died(member, f"has not answered for {PATIENCE / 60:.0f} minutes") from None
        except (EOFError, OSError):
            raise self._died(member, "was lost") from None

    def _dead(self, otherwise: str) -> FedshiftError:
        """Of the rank that has ended, or of any if none has."""
        deadline = time.monotonic() + TO_END
        while time.monotonic() < deadline:
            for member in self.members:
                if member.process.poll() is not None:
                    return self._died(member, otherwise)
            time.sleep(0.05)
        return RankDied(
            "rank-died", f"{self.where}: a rank of {self.size} {otherwise}: {REMEDY}, or see to the machine"
        )

    def _died(self, member: Member, otherwise: str) -> FedshiftError:
        try:
            code: int | None = member.process.wait(0 if not otherwise else TO_END)
        except subprocess.TimeoutExpired:
            code = None
        ended = otherwise if code is None else f"ended with exit code {code}"
        error = {} if code is None else _last_words(member)
        if error.get("code") == "out-of-memory":
            return BatchTooLarge("out-of-memory", error["error"])
        why = f" ({error['error']})" if error else ""
        return RankDied(
            "rank-died",
            f"{self.where}: {member.name} {ended}{why}: see this site's log and memory, or {REMEDY}",
        )


class Ranks:
    """The other ranks of this process's sites and jobs."""

    def __init__(self, devices: Sequence[str], *, workers: int | None = None, weights: Path | None = None) -> None:
        """``devices`` as torch names them, that of this process first; the others as for `JobNetwork.load`."""
        self._devices, self._workers, self._weights = tuple(devices), workers, weights
        self.members: list[Member] = []
        self._group: First | None = None
        self._meeting: tempfile.TemporaryDirectory[str] | None = None
        weakref.finalize(self, _end, self.members)

    @property
    def devices(self) -> tuple[str, ...]:
        return self._devices

    @contextmanager
    def round(
        self,
        job: JobSpec,
        site: str,
        data: Path,
        broadcast: Broadcast,
        before: SiteState,
        *,
        part: int | None,
        is_new: bool,
    ) -> Iterator[Group]:
        """Have all ranks begin a round of a site, from the opened message and the site's state.

        ``data`` is the site's prepared folder, ``part`` that of `Run`; ``is_new``: whether it has never trained. An
        error in the round ends the other ranks.

        Raises:
            RankDied: one has ended.
            BatchTooLarge: its memory ran out.
            ConfigError: they run another version.
            DataError: after the round they do not have the same model or state.
        """
        where = f"site {site}, round {broadcast.round}"
        message = {
            "job": json.dumps(job.dump()),
            "site": site,
            "data": str(data),
            "round": broadcast.round,
            "best_round": broadcast.best_round,
            "weights": copied(broadcast.weights),
            "arrays": {name: copied(arrays) for name, arrays in broadcast.arrays.items()},
            "before": {"optimizer": before.optimizer, "personal": before.personal, "methods": before.methods},
            "part": part,
            "is_new": is_new,
        }
        try:
            group = self._group or self._start(where)
            group.where = where
            for member in group.members:
                with group.watched(member):
                    member.channel.send(message)
            yield group
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End the other ranks, which another round starts anew."""
        _end(self.members)
        if self._group is not None:
            self._group.disconnect()
            self._group = None
        if self._meeting is not None:
            self._meeting.cleanup()
            self._meeting = None

    def _start(self, where: str) -> First:
        for rank, device in enumerate(self._devices[1:], start=1):
            self.members.append(_started(rank, device))
        self._group = group = First(self.members)
        group.where = where
        installed = versions()
        for member in group.members:
            with group.watched(member):
                theirs = member.channel.receive() or {}
            for name, version in installed.items():
                if theirs.get(name) != version:
                    raise ConfigError(
                        "other-version",
                        f"{where}: {member.name} runs {name} {theirs.get(name)}, and this process {version}: do not "
                        "change the installation during a run, and start it anew",
                    )
        self._meeting = tempfile.TemporaryDirectory(prefix="fedshift-ranks-")
        for member in group.members:
            message = {"rank": member.rank, "size": group.size, "device": member.device, "folder": self._meeting.name}
            with group.watched(member):
                member.channel.send({**message, "workers": self._workers, "weights": str(self._weights or "")})
        group.connect(Path(self._meeting.name), torch.device(self._devices[0]))
        return group


def versions() -> dict[str, str]:
    """What all ranks must have alike."""
    return {"fedshift": str(own_identity()), "torch": str(torch.__version__)}


def _started(rank: int, device: str) -> Member:
    """A process that runs what this one runs."""
    parent_end, child_end = socket.socketpair()
    places = os.pathsep.join(place for place in sys.path if place)
    with child_end:
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, str(child_end.fileno()), str(os.getpid())],
            env={**os.environ, "PYTHONPATH": places, "PYTHONSAFEPATH": "1"},
            stdin=subprocess.DEVNULL,
            pass_fds=[child_end.fileno()],
        )
    return Member(rank, device, process, Channel(parent_end, seconds=PATIENCE))


def _end(members: list[Member]) -> None:
    for member in members:
        member.process.kill()
    for member in members:
        member.process.wait()
        member.channel.close()
    members.clear()


def _last_words(member: Member) -> dict[str, str]:
    """The error that a rank has sent before it ended, if there was one: its sentence and code."""
    try:
        while True:
            message = member.channel.receive() or {}
            if "error" in message:
                return dict(message)
    except (EOFError, OSError):
        return {}
