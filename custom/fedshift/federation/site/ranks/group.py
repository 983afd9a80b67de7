"""What the ranks of a site do together in a round, as one of them sees it.

Every rank has the whole model and takes its share of each batch (`fedshift.federation.site.local_training.share_of`).
Before the methods see the gradients, these are summed over the ranks, each times the share's part of the batch: of a
loss that is a mean over samples, this is the batch's gradient. One flat sum a step carries all of them and the loss. At
the end of a round buffers (running statistics) are averaged, and all ranks must have the same bits.

Ranks of processors sum by gloo, those of NVIDIA's GPUs by NCCL, over this machine's own network interface. A rank asks
again and again whether a sum is there, and meanwhile looks after the others, so that none waits for one that has gone.
"""

from __future__ import annotations

import hashlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn

from fedshift.methods.base import Run
from fedshift.methods.chain import ClientChain

TO_MEET = timedelta(minutes=1)
"""Until all ranks, which have started, are connected."""
NO_LIMIT = timedelta(days=1)
"""Of a sum: ranks look after each other themselves."""
LOOK = 2e-4
"""Seconds between two looks whether a sum is there."""


class Group(ABC):
    """All ranks of a site."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._backend: Any = None

    def connect(self, folder: Path, device: torch.device) -> None:
        """Meet the other ranks by a file in an empty folder. Ends when all are there, or with a RuntimeError."""
        torch_: Any = distributed  # what groups are made of is not in its stubs
        store = torch_.FileStore(str(folder / "ranks"), self.size)
        if device.type == "cuda":
            torch.cuda.set_device(device)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
            os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # it would end this process when another rank dies
            self._backend = torch_.ProcessGroupNCCL(store, self.rank, self.size, NO_LIMIT)
        else:
            gloo = torch_.ProcessGroupGloo
            options = gloo._Options()
            options._devices, options._timeout = [gloo.create_device(hostname="127.0.0.1")], TO_MEET
            self._backend = gloo(store, self.rank, self.size, options)
        self.total(torch.zeros(1, device=device))  # NCCL connects with the first sum

    def disconnect(self) -> None:
        """Leave the others, who may have ended: a GPU would go on waiting for them."""
        if torch.cuda.is_initialized() and self._backend is not None:  # type: ignore[no-untyped-call]
            self._backend.abort()
        self._backend = None

    # --- in a step --------------------------------------------------------------------------------

    @abstractmethod
    def begin_step(self) -> None:
        """The first rank tells the others that there is another step."""

    def mean(self, net: nn.Module, loss: Tensor, *, share: float) -> Tensor:
        """Make the gradients of this rank's share of a batch those of the batch; returns the batch's loss.

        ``share`` is how large it is, of 1. Parameters without a gradient have none at any rank.
        """
        gradients = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
        flat = torch.cat([*(gradient.reshape(-1) for gradient in gradients), loss.detach().reshape(1)])
        self.total(flat.mul_(share))
        parts = torch.split(flat[:-1], [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view(gradient.shape))
        return flat[-1].to(loss)

    # --- at the end of a round --------------------------------------------------------------------

    def close(self, run: Run, chain: ClientChain) -> None:
        """Average the buffers over the ranks, and see that network, optimiser and methods are the same at all."""
        self._average_buffers(run.net)
        self.compare(fingerprints(run, chain))

    @abstractmethod
    def compare(self, fingerprints: Mapping[str, str]) -> None:
        """Compare with the other ranks' `fingerprints`."""

    def _average_buffers(self, net: nn.Module) -> None:
        """Whole numbers, such as how many batches a norm has seen, are those of the first rank."""
        buffers = list(net.buffers())
        if not buffers:
            return
        parts = [
            buffer.reshape(-1).double() * ((1 / self.size) if buffer.is_floating_point() else float(self.rank == 0))
            for buffer in buffers
        ]
        flat = torch.cat(parts)
        self.total(flat)
        for buffer, total in zip(buffers, torch.split(flat, [buffer.numel() for buffer in buffers]), strict=True):
            buffer.copy_(total.view(buffer.shape))

    # --- sums -------------------------------------------------------------------------------------

    def total(self, values: Tensor) -> None:
        """Replace values (n,) by their sum over all ranks, which has the same bits at each."""
        options = distributed.AllreduceOptions()
        options.timeout = NO_LIMIT
        work = self._backend.allreduce([values], options)
        while not work.is_completed():
            self.look()
            time.sleep(LOOK)
        work.wait()

    @abstractmethod
    def look(self) -> None:
        """Called while a sum is not there: raises an error if it is not worth waiting for."""


def fingerprints(run: Run, chain: ClientChain) -> dict[str, str]:
    """A hash of everything that ranks must have alike, by what it is of."""
    assert run.optimizer is not None
    parts = {"network": run.net.state_dict(), "optimizer": run.optimizer.state_dict()}
    parts |= {f"method {name}": kept for name, kept in chain.checkpoint().items()}
    return {name: _hash(value) for part, content in parts.items() for name, value in _leaves(content, part)}


def _leaves(content: object, name: str) -> Iterator[tuple[str, object]]:
    if isinstance(content, Mapping | list | tuple):
        items = content.items() if isinstance(content, Mapping) else enumerate(content)
        for key, inner in items:
            yield from _leaves(inner, f"{name} {key}")
    else:
        yield name, content


def _hash(value: object) -> str:
    if isinstance(value, Tensor):
        data = value.detach().cpu().reshape(-1).view(torch.uint8).numpy()
        return hashlib.blake2b(np.ascontiguousarray(data).data, digest_size=16).hexdigest()
    return repr(value)
