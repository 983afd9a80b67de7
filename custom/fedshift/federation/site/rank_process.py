"""What another rank of a site runs: rounds of training, as the first rank has them, on its share of every batch.

It opens the same job, data and network, and neither scores, keeps nor sends anything but what the ranks compare. It
ends with the process that started it: at the latest within `LOOK` seconds, whatever it is waiting for.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fedshift.federation.site.job_network import JobNetwork
from fedshift.federation.site.ranks.channel import Channel
from fedshift.federation.site.ranks.group import Group
from fedshift.federation.site.ranks.team import versions
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.federation.site.state import SiteState
from fedshift.federation.tensors import to_arrays
from fedshift.schema import components
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Broadcast

LOOK = 0.5
"""Seconds between two looks whether the first rank is there."""


class OneOf(Group):
    """The group as a rank sees it that is not the first."""

    def __init__(self, channel: Channel, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._channel = channel

    def begin_step(self) -> None:
        """It has asked (`is_over`)."""

    def look(self) -> None:
        """This process ends with the first rank, which looks after all."""

    def is_over(self) -> bool:
        """Wait for the first rank's word: whether the round has no other step."""
        return self._channel.receive() is not None

    def total(self, values: torch.Tensor) -> None:
        try:
            super().total(values)
        except RuntimeError:  # another rank has gone: the first one ends this process, and says whose fault it was
            time.sleep(24 * 3600)

    def compare(self, fingerprints: Mapping[str, str]) -> None:
        self._channel.send({"fingerprints": dict(fingerprints)})


class Work:
    """The job's network and the sites that have been trained so far."""

    def __init__(self, device: str, workers: int | None, weights: Path | None) -> None:
        self._device, self._workers, self._weights = device, workers, weights
        self._text = ""
        self._sites: dict[tuple[str, str], Site] = {}

    def train(self, message: Mapping[str, Any], group: OneOf) -> None:
        """A round, as `fedshift.federation.site.ranks.team.Ranks.round` tells of it."""
        arrays = {name: to_arrays(tensors) for name, tensors in message["arrays"].items()}
        broadcast = Broadcast(message["round"], message["best_round"], to_arrays(message["weights"]), arrays)
        site = self._site(message["job"], message["site"], message["data"])
        before = SiteState(**message["before"])
        site.train_share(broadcast, before, group, part=message["part"], is_new=message["is_new"], stop=group.is_over)

    def _site(self, text: str, name: str, data: str) -> Site:
        if text != self._text:
            job = JobSpec.parse(json.loads(text), where="the first rank's job")
            components.admit(job.packages, where=f"site {name}")  # the first rank has asked the site's policy
            network = JobNetwork.load(job, name, device=self._device, workers=self._workers, weights=self._weights)
            self._text, self._job, self._network, self._sites = text, job, network, {}
        if (name, data) not in self._sites:
            options = SiteOptions(Path(os.devnull), job_network=self._network)  # it writes nothing
            self._sites[name, data] = Site(self._job, name, Path(data), options)
        return self._sites[name, data]


def main() -> None:
    """``python -m … SOCKET PARENT``: the number of this end of the channel, and of the process that started this."""
    descriptor, parent = map(int, sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the first rank ends this process
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(message)s")  # the first one says the rest
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    channel = Channel(socket.socket(fileno=descriptor))
    code = 0
    try:
        _work(channel)
    except (EOFError, ConnectionError):
        pass  # the first rank has ended
    except Exception as error:
        code = 1
        logging.getLogger("fedshift").error("a rank has failed", exc_info=True)
        channel.send({"error": str(error) or type(error).__name__, "code": getattr(error, "code", "")})
    os._exit(code)  # nothing is left to be done, and connections to ranks that have gone would be waited for


def _work(channel: Channel) -> None:
    channel.send(versions())
    message = channel.receive() or {}
    group = OneOf(channel, message["rank"], message["size"])
    work = Work(message["device"], message["workers"], Path(message["weights"]) if message["weights"] else None)
    group.connect(Path(message["folder"]), torch.device(message["device"]))
    while True:
        message = channel.receive() or {}
        work.train(message, group)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK)
    os._exit(1)


if __name__ == "__main__":
    main()
