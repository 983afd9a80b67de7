"""The job's network on this machine, which all sites of a process use in turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import torch
from torch import nn

from fedshift.federation.site.state import SiteState
from fedshift.federation.tensors import load_tensors, load_weights, require_weights
from fedshift.methods.base import Run
from fedshift.methods.chain import ClientChain
from fedshift.methods.method_set import MethodSet
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Broadcast
from fedshift.tasks.captured import Captured, make_captured
from fedshift.tasks.device import choose_devices, device_name
from fedshift.tasks.kinds import build_task
from fedshift.tasks.machine import processes
from fedshift.tasks.out_of_memory import training_out_of_memory
from fedshift.tasks.precision import prepare, settled, use_threads
from fedshift.tasks.starting import starting_network

if TYPE_CHECKING:
    from fedshift.federation.site.ranks.team import Ranks


class Hardware(TypedDict):
    """What the network is computed on, as in `fedshift.schema.messages.SiteInfo`."""

    device: str
    precision: str
    threads: int
    devices: int


@dataclass(frozen=True)
class JobNetwork:
    """The network and the job's methods. It keeps nothing from one task to the next.

    ``ranks``: the processes that share each batch with this one, on other devices, if there are any.
    """

    net: nn.Module
    methods: MethodSet
    hardware: Hardware
    captured: Captured | None = None
    ranks: Ranks | None = None

    @classmethod
    def load(
        cls,
        job: JobSpec,
        site: str,
        *,
        device: str = "auto",
        devices: int = 1,
        workers: int | None = None,
        weights: Path | None = None,
    ) -> JobNetwork:
        """Build the network and move it to where it is trained. Errors name ``site``, the first that uses it.

        The other arguments are as in `fedshift.federation.site.site.SiteOptions`.

        Raises:
            ConfigError: this machine has no such device, or not so many; several cannot train the job; or the file that
                its adapters are trained beside is not here.
            TooLittleMemory: the network does not fit.
        """
        schedule = job.task.schedule
        if site in job.task.held_out:
            devices = 1  # it only scores
        with training_out_of_memory(site):
            names = choose_devices(device, devices)
            place = torch.device(names[0])
            if devices > 1:
                workers = processes(workers) * devices
            hardware = Hardware(
                device=device_name(place),
                precision=settled(schedule.precision, place),
                threads=use_threads(schedule.threads, workers=workers),
                devices=devices,
            )
            has_base = job.task.network.adapters is not None
            net = starting_network(job, weights=weights)[0] if has_base else build_task(job).network()
            net = prepare(net, schedule.precision, place)
        methods, captured = MethodSet(job, net), make_captured(net, schedule.precision, place)
        if devices == 1:
            return cls(net, methods, hardware, captured)
        from fedshift.federation.site.ranks import refusals, team

        refusals.check(methods, devices=devices, site=site)
        return cls(net, methods, hardware, captured, team.Ranks(names, workers=workers, weights=weights))

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
