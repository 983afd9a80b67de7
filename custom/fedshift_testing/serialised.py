"""FLARE without its processes: every message is really serialised, every task meets a new executor.

What the simulator adds is processes and sockets; tests of those are few, as each takes half a minute.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from nvflare.apis.dxo import DXO, from_shareable
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.apis.workspace import Workspace
from nvflare.app_common.decomposers import common_decomposers
from nvflare.fuel.utils import fobs

from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.site.checkpoint import Checkpoint
from fedshift.flare import codec
from fedshift.flare.aggregator import FedshiftAggregator
from fedshift.flare.executor import FedshiftExecutor
from fedshift.flare.export import SPEC, hosts, write_job
from fedshift.schema.job import JobSpec


@dataclass
class Kit:
    """A site's kit: the part of FLARE's context that the executor reads."""

    client: str
    workspace: Workspace
    simulator: bool = True
    job: str = "job"

    @classmethod
    def make(cls, job: JobSpec, client: str, data: Path | None, folder: Path, *, sent: Path) -> Kit:
        """With the job folder ``sent`` deployed in it, and a site's data named in ``local/fedshift.yaml``."""
        for name in ("local", "startup"):
            (folder / name).mkdir(parents=True)
        if data is not None:
            text = f"data: {{{job.task.dataset}: {data}}}\n"
            (folder / "local" / "fedshift.yaml").write_text(text, encoding="utf-8")
        kit = cls(client, Workspace(root_dir=str(folder), site_name=client))
        kit.deploy(sent)
        return kit

    def deploy(self, sent: Path) -> None:
        """Put a job folder in place of the one that is there."""
        shutil.copytree((sent / SPEC).parent, self.workspace.get_app_config_dir(self.job), dirs_exist_ok=True)

    def get_identity_name(self) -> str:
        return self.client

    def get_job_id(self) -> str:
        return self.job

    def get_workspace(self) -> Workspace:
        return self.workspace

    def get_prop(self, key: str, default: Any = None) -> Any:
        return self.simulator if key == FLContextKey.SIMULATE_MODE else default


@dataclass
class Message:
    """What went over the wire: to or from a site, in which task."""

    site: str
    task: str
    round: int
    up: bool
    content: dict[tuple[str, ...], object]
    """Every leaf of the message by its path."""

    def arrays(self, part: str) -> dict[tuple[str, ...], np.ndarray]:
        """``weights`` or methods' ``arrays`` by the rest of their path."""
        start = (self.site, part) if self.up else (part,)
        values = {path[len(start) :]: v for path, v in self.content.items() if path[: len(start)] == start}
        return {path: v for path, v in values.items() if isinstance(v, np.ndarray)}


class Stop(Signal):  # type: ignore[misc]
    """Says no a number of times, and then that the task is to stop."""

    def __init__(self, *, after: int) -> None:
        super().__init__()
        self._remaining = after

    @property
    def is_next(self) -> bool:
        """Whether the task stops when it asks again."""
        return self._remaining == 0

    @property
    def triggered(self) -> bool:
        self._remaining -= 1
        return self._remaining < 0

    @triggered.setter
    def triggered(self, value: bool) -> None:
        """Set by nobody here."""


@dataclass
class Federation:
    """A server and its sites' kits."""

    job: JobSpec
    data: Mapping[str, Path]
    folder: Path
    messages: list[Message] = field(default_factory=list)
    kits: Path | None = None
    """Folder of provisioned kits, for the keys in their ``startup/``."""
    server: str = "localhost"
    """The server's kit among them."""
    _stop: Stop | None = field(default=None, init=False)

    def run(self, *, killed_in: int | None = None, interrupted: bool = False) -> Coordinator:
        """The whole job, as the workflow runs it.

        ``interrupted``: in round r every site stops after r steps, if it makes more, and begins the task again, from
        the checkpoint after the last of them if the job has any.
        ``killed_in``: in this round the server forgets all but its files when the first client has answered, and goes
        on from them. A site keeps nothing but its files in any case.
        """
        flare_decomposers.register()
        common_decomposers.register()
        sent = write_job(self.job, self.folder / "as_sent")
        kits = {
            name: Kit.make(self.job, name, self.data.get(name), self.folder / name, sent=sent)
            for name in hosts(self.job)
        }
        startup = None
        if self.kits is not None:
            startup = self.kits / self.server / "startup"
            for name, kit in kits.items():
                shutil.copytree(self.kits / name / "startup", kit.workspace.get_startup_kit_dir(), dirs_exist_ok=True)
        self._stop = Stop(after=0) if interrupted else None
        with self._fewer_checkpoints() if interrupted else nullcontext():
            if killed_in is not None:
                self._serve(kits, startup, until=killed_in)
            return self._serve(kits, startup)

    def _fewer_checkpoints(self) -> AbstractContextManager[object]:
        """Leave out those that nothing begins from, which are nine tenths of the time."""
        due = Checkpoint.due.__get__

        def seldom(checkpoint: Checkpoint) -> bool:
            return self._stop is not None and self._stop.is_next and due(checkpoint)

        return patch.object(Checkpoint, "due", property(seldom))

    def _serve(self, kits: dict[str, Kit], startup: Path | None, *, until: int | None = None) -> Coordinator:
        """A server's life, to the end of the job or to the first answer in round ``until``."""
        aggregator = FedshiftAggregator()
        aggregator.begin(self.job, self.folder / "server", on_progress=lambda coordinator: None, startup=startup)
        coordinator = aggregator.coordinator
        for request in coordinator.requests():
            last = coordinator.round == until
            self._gather(aggregator, kits, request.task, codec.encode_task(request.broadcast), last_only=last)
            if last:
                break
        return coordinator

    def _gather(
        self, aggregator: FedshiftAggregator, kits: dict[str, Kit], task: str, data: Shareable, *, last_only: bool
    ) -> None:
        """The answers of all invited clients, or with ``last_only`` of the last of them."""
        invited = {*aggregator.coordinator.invited}
        clients = [name for name in hosts(self.job) if invited & {*hosts(self.job)[name]}]
        for client in reversed(clients[-1:] if last_only else clients):  # the order of arrival must not matter
            kit = kits[client]
            received = self._send(client, task, aggregator.coordinator.round, data, up=False)
            if self._stop is not None and task == codec.TRAIN:
                self._stop = Stop(after=aggregator.coordinator.round)
                FedshiftExecutor().execute(task, received, kit, self._stop)
            answer = FedshiftExecutor().execute(task, received, kit, Signal())
            sent = self._send(client, task, aggregator.coordinator.round, answer, up=True)
            sent.set_header(ReservedHeaderKey.TASK_NAME, task)
            sent.set_peer_props({ReservedKey.IDENTITY_NAME: client})
            aggregator.accept(sent, FLContext())

    def _send(self, site: str, task: str, round_: int, message: Shareable, *, up: bool) -> Shareable:
        arrived: Shareable = fobs.loads(fobs.dumps(message))
        self.messages.append(Message(site, task, round_, up, dict(leaves(from_shareable(arrived)))))
        return arrived


def leaves(dxo: DXO, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Everything in a message that is not another DXO, by its path."""
    for key, value in {**dxo.data, **{f"meta:{k}": v for k, v in dxo.meta.items()}}.items():
        if isinstance(value, DXO):
            yield from leaves(value, (*path, key))
        else:
            yield from _inside(value, (*path, key))


def _inside(value: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    """The leaves of plain mappings within each other."""
    if not isinstance(value, dict):
        yield path, value
        return
    for key, inner in value.items():
        yield from _inside(inner, (*path, key))
