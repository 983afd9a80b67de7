"""What a method trains beside the job's network: small networks, and copies with an optimiser of the task's type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedshift.tasks import optimizers


class Mlp(nn.Module):
    """Two linear layers with batch norm. Several inputs are concatenated."""

    def __init__(self, inputs: int, hidden: int, outputs: int, *, positive: bool) -> None:
        """``positive``: whether a ReLU follows the last layer."""
        super().__init__()
        self.fc0, self.bn0 = nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden)
        self.fc1, self.bn1 = nn.Linear(hidden, outputs), nn.BatchNorm1d(outputs)
        self._positive = positive

    def forward(self, *inputs: Tensor) -> Tensor:
        """(B, …) tensors, concatenated -> (B, outputs)."""
        x = functional.relu(self.bn0(self.fc0(torch.cat(inputs, 1))))
        x = self.bn1(self.fc1(x))
        return functional.relu(x) if self._positive else x


class AuxiliaryNetwork:
    """A network with its SGD optimiser, and the names under which a site's state holds both."""

    def __init__(self, name: str, net: nn.Module, *, lr: float, momentum: float) -> None:
        """Make the optimiser. ``name`` is the prefix in the site's state."""
        self.net = net
        self._name = name
        self._parameters = list(net.parameters())
        self._optimizer = optimizers.SGD(self._parameters, lr=lr, momentum=momentum)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load weights by name; the others stay."""
        self.net.load_state_dict(dict(tensors), strict=False)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Load weights and momentum, as far as ``state`` has them."""
        self.load(
            {key: state[f"{self._name}.{key}"] for key in self.net.state_dict() if f"{self._name}.{key}" in state}
        )
        for key, parameter in self.net.named_parameters():
            if (name := f"{self._name}.momentum.{key}") in state:
                self._optimizer.state[parameter]["momentum_buffer"] = state[name].to(parameter)

    def remember(self, *, keys: Iterable[str]) -> dict[str, Tensor]:
        """Return the momentum and the weights in ``keys``, for the site's state."""
        weights = self.net.state_dict()
        kept = {f"{self._name}.{key}": weights[key] for key in keys}
        for key, parameter in self.net.named_parameters():
            buffer = self._optimizer.state[parameter].get("momentum_buffer")
            if buffer is not None:
                kept[f"{self._name}.momentum.{key}"] = buffer
        return {name: tensor.detach().cpu().clone() for name, tensor in kept.items()}

    def descend(self, loss: Tensor) -> None:
        """Take one optimiser step on ``loss``. Only this network's parameters get gradients."""
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward(inputs=self._parameters)  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def advance(self, *, step: bool) -> None:
        """Take one optimiser step with the gradients that are there if ``step``, and drop them."""
        if step:
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


# --- a second optimiser of the task's type --------------------------------------------------------------


def like(optimizer: torch.optim.Optimizer, parameters: list[Tensor]) -> torch.optim.Optimizer:
    """An optimiser of the same type and settings for other parameters."""
    settings = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    twin: torch.optim.Optimizer = type(optimizer)(parameters, lr=settings["lr"])  # type: ignore[call-arg]
    twin.param_groups[0].update(settings)
    return twin


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An optimiser's state as tensors by ``number of the parameter.name``."""
    return {
        f"{number}.{name}": value.detach().cpu().clone()
        for number, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Take what `optimizer_tensors` gave."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with ``prefix``, without it."""
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
