"""FedWon: train without normalisation layers, whose statistics differ between sites; standardise weights instead.

Zhuang and Lyu, "FedWon: Triumphing Multi-domain Federated Learning Without Normalization", ICLR 2024. All normalisation
layers are removed. Every convolution uses standardised weights (scaled weight standardisation, Brock, De and Smith,
"Characterizing Signal Propagation to Close the Performance Gap in Unnormalized ResNets", ICLR 2021), and gradients are
clipped by the size of the weights (adaptive gradient clipping, AGC, Brock et al., "High-Performance Large-Scale Image
Recognition Without Normalization", ICML 2021). For output channel i of a convolution, with N weights W_ij (the fan-in),
their mean μ_i and variance σ_i²::

    Ŵ_ij = γ (W_ij − μ_i) / (σ_i √N)                  in every pass; W is what is trained, sent and averaged
    G_i  ← λ ‖W_i‖* / ‖G_i‖ · G_i    if ‖G_i‖ > λ ‖W_i‖*,      ‖W_i‖* = max(‖W_i‖, 0.001)

G_i is the gradient of output i's weights; a vector of parameters, such as a bias, is clipped as a whole. The server
averages as usual. The network's layers stay where they are and its ``state_dict`` keeps its keys: `attach` gives norms
and convolutions another forward, in predictions and exports too.

Read: the paper's abstract and reviews, and Brock et al.'s formulas in timm's code (``layers/std_conv.py``,
``utils/agc.py``). No public code of the authors' was found (EasyFL, by one of them, has none), and the paper's
experiments and appendix were not available: its λ, and to which layers it is applied, are not known. Of what a site
sends, the authors of FedWSQ (ICCV 2025) write that it is Ŵ; here it is W, as FedAvg does it with such a layer. Chosen
here:

- A norm's learnable shift stays, as the bias that its convolution lacks. γ is a constant in the paper; with
  ``gain: learned`` the norm's scale stays too, which is the learnable gain of Brock et al. (2021). Running statistics
  stay as they were initialised, and so does the scale with ``gain: constant``.
- γ (``gamma``) is √(2 / (1 − 1/π)), which keeps the variance of features through a ReLU (Brock et al.).
- λ (``clip``) is 0.16, the largest that Brock et al. study: they find smaller batches to need a larger one. null does
  not clip.
- σ_i² N is at least 1e-4, as in their code.
- The last layers, which give the logits, are neither standardised nor clipped, like the linear ones of Brock et al.:
  with γ alone to scale them, logits could not grow. A channel with a single weight is left as it is.
- A transposed convolution is standardised by output channel, too; a pixel of its output sees N = weights / ∏ strides of
  them.
- Sums of a residual network are not scaled (NF-ResNets' α and β), so that its features grow with depth: of MONAI's
  networks, MedNeXt's grow beyond use.
- Clipping comes before ``optimizer.clip_norm``, and at its turn among methods that change gradients. The personal
  model of Ditto has the same network, and its gradients are clipped by its own weights.

When: small batches (a batch of one image trains), or sites so different that no running statistics suit all. Every site
gets the same model. In FedFA's U-Net and MONAI's BasicUNet features keep their size from the first to the last layer;
in residual networks they grow, and a lower ``gamma`` helps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.utils.hooks import RemovableHandle

from fedshift.methods import base
from fedshift.methods.shared import search
from fedshift.methods.shared.norms import Replaced, is_norm
from fedshift.schema.strict import Strict
from fedshift.tasks.last_layers import last_layers

RELU_GAIN = math.sqrt(2 / (1 - 1 / math.pi))
LEAST_VARIANCE, LEAST_NORM = 1e-4, 1e-3

SEARCH = {"gamma": None, "clip": search.log(0.01, 1.28)}


class Config(Strict):
    """Options of FedWon.

    ``gamma``: γ; the default suits ReLU. ``gain``: norms keep their learnable shift only, or with ``learned`` their
    scale too. ``clip``: λ; null does not clip.
    """

    gamma: float = Field(default=RELU_GAIN, gt=0)
    gain: Literal["constant", "learned"] = "constant"
    clip: float | None = Field(default=0.16, gt=0)


def by_output(layer: nn.Module, values: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Weights, or their gradients, in a shape in which the given dimensions are those of one output channel."""
    if isinstance(layer, _ConvTransposeNd):  # (in, out / groups, …)
        values = values.reshape(layer.groups, -1, *values.shape[1:])
        return values, (1, *range(3, values.dim()))
    return values, tuple(range(1, values.dim()))


def standardised(layer: _ConvNd, weight: Tensor, *, gamma: float) -> Tensor:
    """Ŵ of a convolution, transposed or not, in the shape of ``weight``."""
    w, dims = by_output(layer, weight)
    variance, mean = torch.var_mean(w, dims, correction=0, keepdim=True)
    fan_in = float(math.prod(w.shape[dim] for dim in dims))
    if isinstance(layer, _ConvTransposeNd):
        fan_in /= math.prod(layer.stride)
    return (gamma * (w - mean) * (variance * fan_in).clamp_min(LEAST_VARIANCE).rsqrt()).reshape(weight.shape)


def clipped(layer: nn.Module, parameter: Tensor, gradient: Tensor, *, clip: float) -> Tensor:
    """The gradient of a layer's parameter after AGC."""
    w, dims = by_output(layer, parameter) if parameter.dim() > 1 else (parameter, None)
    g = gradient.reshape(w.shape)
    most = clip * torch.linalg.vector_norm(w, dim=dims, keepdim=True).clamp_min(LEAST_NORM)
    norm = torch.linalg.vector_norm(g, dim=dims, keepdim=True)
    return torch.where(norm > most, g * (most / norm), g).reshape(gradient.shape)


def convolutions(net: nn.Module) -> Iterator[_ConvNd]:
    """Those to standardise: all but the last layers, and where an output channel has more than one weight."""
    last = {id(module) for layer in last_layers(net) for module in layer.modules()}
    for module in net.modules():
        if isinstance(module, _ConvNd) and id(module) not in last:
            w, dims = by_output(module, module.weight)
            if math.prod(w.shape[dim] for dim in dims) > 1:
                yield module


class Client(base.Client[Config]):
    """Trains and predicts without normalisation."""

    least_part = 1
    in_ranks = frozenset({"attach", "begin", "gradients"})
    attached_to_predict = True
    removes_norms = True
    needs = (
        base.Rule("a network without layer norms", "attention does not train without them"),
        base.Rule("a network that is trained whole", "it standardises the weights of its convolutions"),
    )
    traits = (
        base.Rule("clips gradients", "", lambda case: case.config.clip is not None, "fedwon.clip=null"),
        base.Rule("replaces normalisation layers"),
    )
    clashes = (base.Rule("may keep norms, and not the rest, at the site", "removes them"),)
    idle = (
        base.Rule(
            "gain",
            "no normalisation layer of network {case.job.task.network.name} has a scale",
            lambda case: all(
                getattr(module, "weight", None) is None for module in case.net.modules() if is_norm(module, "all")
            ),
        ),
    )

    def attach(self, net: nn.Module, ctx: base.Context) -> list[RemovableHandle]:
        """Give convolutions standardised weights, and let norms add their shift alone."""
        gamma, learned = self.config.gamma, self.config.gain == "learned"

        def convolve(layer: _ConvNd, *args: Any, **kwargs: Any) -> Tensor:
            # Found before the parameter of that name, which stays in place for optimiser and state_dict.
            layer.__dict__["weight"] = standardised(layer, layer._parameters["weight"], gamma=gamma)  # type: ignore[arg-type]
            try:
                result: Tensor = type(layer).forward(layer, *args, **kwargs)
            finally:
                del layer.__dict__["weight"]
            return result

        def shift(norm: nn.Module, x: Tensor) -> Tensor:
            scale, bias = (
                None if values is None else values.to(x.dtype).reshape(-1, *[1] * (x.dim() - 2))
                for values in (getattr(norm, "weight", None), getattr(norm, "bias", None))
            )
            # Never x itself: an activation that works in place would change what goes around the norm.
            y = x * scale if learned and scale is not None else x.clone()
            return y if bias is None else y + bias

        handles: list[RemovableHandle] = [Replaced(layer, convolve) for layer in list(convolutions(net))]
        return handles + [Replaced(module, shift) for module in net.modules() if is_norm(module, "all")]

    def begin(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        """Clip a second model's gradients too."""
        last = {id(module) for layer in last_layers(ctx.run.net) for module in layer.modules()}
        self._clipped = [module for module in ctx.run.net.modules() if id(module) not in last]
        ctx.run.clip_gradients = self._clip

    def gradients(self, ctx: base.Context) -> None:
        self._clip()

    def _clip(self) -> None:
        if self.config.clip is None:
            return
        for layer in self._clipped:
            for parameter in layer.parameters(recurse=False):
                if parameter.grad is not None:
                    parameter.grad = clipped(layer, parameter.detach(), parameter.grad, clip=self.config.clip)
