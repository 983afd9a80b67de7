"""The job's network on this machine, which all sites of a process use in turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypedDict

from torch import nn

from fedshift.federation.site.state import SiteState
from fedshift.federation.tensors import load_tensors, load_weights, require_weights
from fedshift.methods.base import Run
from fedshift.methods.chain import ClientChain
from fedshift.methods.method_set import MethodSet
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Broadcast
from fedshift.tasks.captured import Captured, make_captured
from fedshift.tasks.device import choose_device, device_name
from fedshift.tasks.kinds import build_task
from fedshift.tasks.out_of_memory import training_out_of_memory
from fedshift.tasks.precision import prepare, settled, use_threads


class Hardware(TypedDict):
    """What the network is computed on, as in `fedshift.schema.messages.SiteInfo`."""

    device: str
    precision: str
    threads: int


@dataclass(frozen=True)
class JobNetwork:
    """The network and the job's methods. It keeps nothing from one task to the next."""

    net: nn.Module
    methods: MethodSet
    hardware: Hardware
    captured: Captured | None = None

    @classmethod
    def load(cls, job: JobSpec, site: str, *, device: str = "auto", workers: int | None = None) -> JobNetwork:
        """Build the network and move it to where it is trained. Errors name ``site``, the first that uses it.

        ``device`` and ``workers`` are as in `fedshift.federation.site.site.SiteOptions`.

        Raises:
            ConfigError: this machine has no such device.
            TooLittleMemory: the network does not fit.
        """
        schedule = job.task.schedule
        with training_out_of_memory(site):
            place = choose_device(device)
            hardware = Hardware(
                device=device_name(place),
                precision=settled(schedule.precision, place),
                threads=use_threads(schedule.threads, workers=workers),
            )
            net = prepare(build_task(job).network(), schedule.precision, place)
        return cls(net, MethodSet(job, net), hardware, make_captured(net, schedule.precision, place))

    @contextmanager
    def session(self, broadcast: Broadcast, run: Run, state: SiteState) -> Iterator[ClientChain]:
        """Load the received and the site's own weights and attach the methods, for one task; detach them afterwards.

        Raises:
            DataError: the received weights are not the network's.
            TooLittleMemory: memory ran out meanwhile.
        """
        chain = ClientChain(self.methods, run, state.methods)
        require_weights(self.net, broadcast.weights, f"site {run.site}, round {broadcast.round}")
        load_weights(self.net, broadcast.weights)
        if state.personal:
            load_tensors(self.net, state.personal, strict=False)
        handles = chain.attach(self.net)
        try:
            with training_out_of_memory(run.site, broadcast.round):
                chain.receive(broadcast.arrays)
                yield chain
        finally:
            for handle in handles:
                handle.remove()
