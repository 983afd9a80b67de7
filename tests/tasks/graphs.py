"""CUDA graphs on a processor: the operations of a pass are recorded once, and repeated in the same memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Graph:
    """As `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    @torch.no_grad()
    def replay(self) -> None:
        with torch.autocast("cpu", enabled=False):  # its casts were recorded
            for operation, arguments, options, results in self.operations:
                again = operation(*arguments, **options)
                for before, now in zip(tree_leaves(results), tree_leaves(again), strict=True):
                    is_view = isinstance(now, Tensor) and _memory(now) == _memory(before)
                    if isinstance(now, Tensor) and not is_view:
                        before.copy_(now)


class Recorder(TorchDispatchMode):
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        self.graph.operations.append((func, args, kwargs or {}, results))
        return results


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@contextmanager
def _record(graph: Graph, pool: object) -> Iterator[None]:
    with Recorder(graph):
        yield


def make_graphs(*arguments: Any, **options: Any) -> Any:
    """`torch.cuda.make_graphed_callables` of modules on a processor."""
    stand_ins = {"CUDAGraph": Graph, "graph": _record, "synchronize": lambda: None, "Stream": object}
    with (
        mock.patch.multiple("torch.cuda", stream=lambda stream: nullcontext(), **stand_ins),
        mock.patch("torch.cuda.graphs.graph_pool_handle", lambda: None),
    ):
        return torch.cuda.make_graphed_callables(*arguments, **options)
