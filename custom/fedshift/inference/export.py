"""Export the network with its normalisation as one graph: TorchScript (for the bundle), ONNX or torch.export.

Graphs are float32 throughout. Every exported file is loaded again and its logits are compared with the model's.
"""

from __future__ import annotations

import io
import logging
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedshift.inference.model import Model
from fedshift.inference.ready import ReadyModel
from fedshift.schema.errors import ConfigError
from fedshift.tasks.stages import StagedNetwork

MAX_LOGIT_DIFFERENCE = 1e-4
"""Largest allowed difference of logits between the model and the exported file, where they are at most 1; of larger
logits it is a part of the largest, since they are rounded in proportion."""
INPUT, OUTPUT = "image", "logits"
COMPARED_BATCH_SIZES = (1, 3)
"""Batch sizes at which logits are compared."""


class _WithoutDevices(TorchFunctionMode):
    """Keep this machine's CPU out of a trace, which would stay there when the rest moves to a GPU.

    ``.to()`` and ``as_tensor()`` that change nothing are skipped, and zeros are made where the network's input is.
    """

    def __init__(self, image: Tensor) -> None:
        super().__init__()
        self._image = image

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.to and len(args) == 2 and not kwargs and _is_already_there(*args):
            return args[0]
        if func is torch.as_tensor and len(args) == 1 and isinstance(args[0], Tensor) and not kwargs:
            return args[0]
        if func is torch.zeros and kwargs.get("device") == self._image.device:
            del kwargs["device"]
            return self._image.new_zeros(*args, **{"dtype": torch.get_default_dtype(), **kwargs})
        return func(*args, **kwargs)


def _is_already_there(tensor: Tensor, target: object) -> bool:
    if isinstance(target, Tensor):
        return (tensor.device, tensor.dtype) == (target.device, target.dtype)
    return tensor.device == target


def example(model: Model, *, batch: int) -> Tensor:
    """Random network inputs (batch, C, H, W), uniform over the task's intensity range; the seed is the batch size."""
    low, high = model.task.intensities
    channels = cast(StagedNetwork, model.task.network()).in_channels
    shape = batch, channels, *model.task.spatial
    return low + (high - low) * torch.rand(shape, generator=torch.Generator().manual_seed(batch))


def write_torchscript(ready: ReadyModel, path: Path, *, named: Path | None = None) -> float:
    """Write a device-independent TorchScript file. Errors name ``named`` in place of ``path``, if it is given.

    Returns:
        The largest absolute difference between its logits and the model's.

    Raises:
        ConfigError: the network cannot be traced, its logits differ, or the file cannot be written.
    """
    named = named or path
    with _exporting(ready, path, "TorchScript", named) as network, torch.no_grad():
        traced = trace(network, example(ready.model, batch=2))
        path.write_bytes(_without_debug_records(_saved(torch.jit.save, traced)))
        loaded = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
        return check_logits(ready.model, network, loaded, named)


def trace(network: nn.Module, image: Tensor) -> torch.jit.ScriptModule:
    """The network's forward pass on a batch (B, C, *spatial) as TorchScript that holds on to no device."""
    with _WithoutDevices(image):
        traced = torch.jit.trace(network, image, check_trace=False)  # type: ignore[no-untyped-call]
    return cast(torch.jit.ScriptModule, traced)


def write_torch_export(ready: ReadyModel, path: Path) -> float:
    """Write an ExportedProgram (.pt2); result and errors as for `write_torchscript`."""
    with _exporting(ready, path, "torch.export", path) as network, torch.no_grad():
        path.write_bytes(_saved(torch.export.save, _exported_program(ready.model, network)))
        return check_logits(ready.model, network, torch.export.load(path).module(), path)


def write_onnx(ready: ReadyModel, path: Path) -> float:
    """Write ONNX, checked with onnxruntime; result and errors as for `write_torchscript`.

    Raises:
        ConfigError: also if onnxruntime or onnxscript is not installed.
    """
    check_onnx(path)
    import onnxruntime

    with _exporting(ready, path, "ONNX", path) as network, torch.no_grad():
        graph = _exported_program(ready.model, network)
        program = torch.onnx.export(graph, input_names=[INPUT], output_names=[OUTPUT], dynamo=True, verbose=False)
        assert program is not None
        program.save(str(path))
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

        def run(x: Tensor) -> Tensor:
            (logits,) = session.run(None, {INPUT: x.numpy()})
            return torch.from_numpy(np.asarray(logits))

        return check_logits(ready.model, network, run, path)


def _exported_program(model: Model, network: nn.Module) -> torch.export.ExportedProgram:
    """Run ``torch.export`` with a dynamic batch size and drop stack traces, which name files on this machine."""
    batch = torch.export.Dim("batch", min=1, max=4096)
    program = torch.export.export(network, (example(model, batch=2),), dynamic_shapes=({0: batch},))
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)
    return program


def _saved(save: Callable[[Any, io.BytesIO], None], content: Any) -> bytes:
    """The bytes of a file of torch: where torch writes the file itself, a full disk ends the process."""
    buffer = io.BytesIO()
    save(content, buffer)
    return buffer.getvalue()


def _without_debug_records(content: bytes) -> bytes:
    """A TorchScript file without its debug records, which name source files on this machine."""
    cleaned = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as traced, zipfile.ZipFile(cleaned, "w", zipfile.ZIP_STORED) as clean:
        for entry in traced.infolist():
            if not entry.filename.endswith(".debug_pkl"):
                clean.writestr(entry.filename, traced.read(entry))
    return cleaned.getvalue()


def check_logits(model: Model, network: nn.Module, other: Callable[[Tensor], Tensor], path: Path) -> float:
    """Return the largest absolute difference of logits between the model and the exported file."""
    inputs = [example(model, batch=batch) for batch in COMPARED_BATCH_SIZES]
    wanted = [network(x) for x in inputs]
    difference = max(float((logits - other(x)).abs().max()) for logits, x in zip(wanted, inputs, strict=True))
    allowed = MAX_LOGIT_DIFFERENCE * max(1.0, *(float(logits.abs().max()) for logits in wanted))
    if not difference <= allowed:
        raise ConfigError(
            "export-differs",
            f"the logits of {path} differ from the model's by {difference:.2g} (allowed: {allowed:.2g}), so "
            "it was deleted: use another format",
        )
    return difference


def check_file(path: Path) -> None:
    """Refuse a file that is there or in no folder (`ConfigError`)."""
    if path.exists():
        raise ConfigError("output-exists", f"{path} already exists: name another file")
    if not path.parent.is_dir():
        raise ConfigError("folder-missing", f"{path} is in a folder that does not exist: name another file")


def check_onnx(path: Path) -> None:
    """The same of an ONNX file, which needs packages."""
    for name in ("onnxruntime", "onnxscript"):  # the exporter needs the second
        if find_spec(name) is None:
            message = f"--onnx needs {name}, which is not installed: pip install 'fedshift[export]'"
            raise ConfigError("package-missing", message)
    check_file(path)


@contextmanager
def _exporting(ready: ReadyModel, path: Path, what: str, named: Path) -> Iterator[nn.Module]:
    """Yield the network on the CPU; silence the exporter's log messages and turn its errors into a ConfigError.

    If anything fails, no file stays.

    Args:
        ready: its predictor is moved to the CPU and back afterwards.
        path: the file to write.
        what: the format's name for errors.
        named: what errors name in place of ``path``.
    """
    check_file(path)
    network, complete = ready.predictor.to("cpu"), False
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield network
        complete = True
    except ConfigError:
        raise
    except OSError as error:
        message = f"{named} cannot be written ({error.strerror or error}): free disk space or name another place"
        raise ConfigError("file-unwritable", message) from None
    except Exception as error:  # exporters raise many types of error
        job = ready.model.header.job
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ConfigError(
            "not-exportable",
            f"the model ({'+'.join(job.methods)}, {job.task.network.name}) cannot be exported as {what} "
            f"({reason:.200}): use another format",
        ) from None
    finally:
        if not complete:
            with suppress(OSError):  # where nothing can be written there is nothing to remove
                path.unlink()
        logging.disable(level)
        ready.predictor.to(ready.device)
