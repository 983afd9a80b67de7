"""SGD that goes over large parameters once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.sgd import sgd

LARGE = 2**16
"""Elements from which on a parameter is worth a call of its own."""
LANES = 16
"""Elements that the widest processors take at once. The rest of a parameter is rounded otherwise in one pass."""


class SGD(torch.optim.SGD):
    """SGD whose large parameters are updated in one pass over memory on a processor.

    By itself torch goes over parameter, gradient and momentum once for each term. Its ``fused`` step gives the same
    bits in less than half of the time for parameters of `LARGE` elements and more that are stored contiguously, like
    their gradients and momentum, in multiples of `LANES`. The others take torch's usual step, as does SGD without
    momentum, which has nothing to gain, and with Nesterov's, whose bits would be others.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Make a step with the gradients that are there; there is no closure to call."""
        for group in self.param_groups:
            usual = []
            for parameter in group["params"]:
                if parameter.grad is not None and self._in_one_pass(parameter, group):
                    self._update([parameter], group, fused=True)
                elif parameter.grad is not None:
                    usual.append(parameter)
            self._update(usual, group, fused=None)

    def _in_one_pass(self, parameter: Tensor, group: dict[str, Any]) -> bool:
        if group["momentum"] == 0 or group["nesterov"]:
            return False
        tensors = [parameter, parameter.grad, self._momentum(parameter)]
        return (
            parameter.numel() >= LARGE
            and parameter.numel() % LANES == 0
            # The fused step reads all of them in the order of memory, whatever their strides.
            and all(t.is_contiguous() and t.is_cpu and t.dtype == torch.float32 for t in tensors if t is not None)
        )

    def _momentum(self, parameter: Tensor) -> Tensor | None:
        """Without an empty entry in the state, which asking ``state[parameter]`` would make."""
        momentum: Tensor | None = self.state.get(parameter, {}).get("momentum_buffer")
        return momentum

    def _update(self, parameters: list[Tensor], group: dict[str, Any], *, fused: bool | None) -> None:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        momenta = [self._momentum(parameter) for parameter in parameters]
        settings = ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize")
        sgd(parameters, gradients, momenta, fused=fused, **{key: group[key] for key in settings})
        if group["momentum"]:
            for parameter, momentum in zip(parameters, momenta, strict=True):
                self.state[parameter]["momentum_buffer"] = momentum
