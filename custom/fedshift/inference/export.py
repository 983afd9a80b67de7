"""The network with its normalisation as one graph: TorchScript for the bundle, ONNX, torch.export.

A graph is float32 throughout. Every file is read again and compared with the model it was made from.
"""

from __future__ import annotations

import logging
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedshift.inference.model import Model, Ready
from fedshift.schema.errors import ConfigError
from fedshift.tasks.stages import StagedNetwork

LARGEST_DIFFERENCE = 1e-4
"""Of logits, between a model and what was exported of it."""
INPUT, OUTPUT = "image", "logits"
TRIED = (1, 3)
"""Batch sizes that are compared."""


class _Still(TorchFunctionMode):
    """Leaves out moves of tensors to where they are, which a trace would hold on to as moves to this machine's CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.to and len(args) == 2 and not kwargs and _is_there(*args):
            return args[0]
        return func(*args, **(kwargs or {}))


def _is_there(tensor: Tensor, target: object) -> bool:
    if isinstance(target, Tensor):
        return (tensor.device, tensor.dtype) == (target.device, target.dtype)
    return tensor.device == target


def example(model: Model, *, batch: int) -> Tensor:
    """Images as the network gets them, (batch, C, H, W), with all values between the smallest and the largest."""
    low, high = model.task.intensities
    channels = cast(StagedNetwork, model.task.network()).in_channels
    shape = batch, channels, model.task.sizes["rows"], model.task.sizes["columns"]
    return low + (high - low) * torch.rand(shape, generator=torch.Generator().manual_seed(batch))


def write_torchscript(model: Model, ready: Ready, path: Path) -> float:
    """Write a TorchScript file for any device; returns the largest difference of its logits.

    Raises:
        ConfigError: it cannot be expressed so, or differs.
    """
    with _expressed(model, ready, path, "TorchScript") as network, _Still(), torch.no_grad():
        traced = torch.jit.trace(network, example(model, batch=2), check_trace=False)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, str(path))
        _forget_places(path)
        loaded = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
        return _compared(model, network, loaded, path)


def write_torch_export(model: Model, ready: Ready, path: Path) -> float:
    """Write an ExportedProgram (.pt2); the rest as `write_torchscript`."""
    with _expressed(model, ready, path, "torch.export") as network, torch.no_grad():
        torch.export.save(_exported(model, network), path)
        return _compared(model, network, torch.export.load(path).module(), path)


def write_onnx(model: Model, ready: Ready, path: Path) -> float:
    """Write ONNX, compared in onnxruntime; the rest as `write_torchscript`.

    Raises:
        ConfigError: also if the packages for it are not installed.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 - the exporter needs it
    except ImportError as error:
        raise ConfigError(
            f"--onnx needs {error.name}, which is not installed here: pip install 'fedshift[export]'"
        ) from None
    with _expressed(model, ready, path, "ONNX") as network, torch.no_grad():
        program = torch.onnx.export(
            _exported(model, network), input_names=[INPUT], output_names=[OUTPUT], dynamo=True, verbose=False
        )
        assert program is not None
        program.save(str(path))
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

        def run(x: Tensor) -> Tensor:
            (logits,) = session.run(None, {INPUT: x.numpy()})
            return torch.from_numpy(np.asarray(logits))

        return _compared(model, network, run, path)


def _exported(model: Model, network: nn.Module) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1, max=4096)
    program = torch.export.export(network, (example(model, batch=2),), dynamic_shapes=({0: batch},))
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)  # lines and folders of this machine
    return program


def _forget_places(path: Path) -> None:
    """Remove from a TorchScript file where on this machine each operation came from."""
    beside = path.with_name(f".{path.name}.partial")
    with zipfile.ZipFile(path) as traced, zipfile.ZipFile(beside, "w", zipfile.ZIP_STORED) as clean:
        for entry in traced.infolist():
            if not entry.filename.endswith(".debug_pkl"):
                clean.writestr(entry.filename, traced.read(entry))
    beside.replace(path)


def _compared(model: Model, network: nn.Module, other: Callable[[Tensor], Tensor], path: Path) -> float:
    """The largest difference of logits.

    Raises:
        ConfigError: it is too large; the file is removed.
    """
    inputs = [example(model, batch=batch) for batch in TRIED]
    difference = max(float((network(x) - other(x)).abs().max()) for x in inputs)
    if not difference <= LARGEST_DIFFERENCE:
        path.unlink()
        raise ConfigError(
            f"{path} gave logits that differ by {difference:.2g} from the model's (more than {LARGEST_DIFFERENCE:g}), "
            "so it was deleted: use another format"
        )
    return difference


@contextmanager
def _expressed(model: Model, ready: Ready, path: Path, what: str) -> Iterator[nn.Module]:
    """The network on the CPU; whatever an exporter raises becomes a sentence, its chatter is held back.

    Raises:
        ConfigError: also if ``path`` cannot be written, or is there already.
    """
    if path.exists() or not path.parent.is_dir():
        wrong = "is there already" if path.exists() else "lies in a folder that does not exist"
        raise ConfigError(f"{path} {wrong}: name another place")
    network = ready.predictor.to("cpu")
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield network
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}): name another place") from None
    except Exception as error:  # exporters raise all kinds
        names = "+".join(model.header.job.methods)
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ConfigError(
            f"the model ({names}, {model.header.job.task.network.name}) cannot be expressed as {what} ({reason:.200}): "
            "use another format"
        ) from None
    finally:
        logging.disable(level)
        ready.predictor.to(ready.device)
