"""FedFA: augment the channel statistics of features with noise scaled by how much the sites differ.

Zhou & Konukoglu, "FedFA: Federated Feature Augmentation", ICLR 2023 (equation numbers are the paper's).

At a site, at each chosen encoder stage, with probability p for a batch X of shape (B, C, H, W) or (B, C, D, H, W)::

    μ, σ   = mean and standard deviation of X over space, per image and channel     (2)
    S_μ    = variance of μ over the batch, per channel;  S_σ likewise for σ        (3)
    m ← α m + (1−α) mean_b μ,   s ← α s + (1−α) mean_b σ                           (4)
    Ŝ_μ    = (γ_μ + 1) S_μ;  Ŝ_σ likewise                                          (7)
    X̂ = σ̂ (X − μ)/σ + μ̂                                                            (8)
    μ̂ = μ + ε √Ŝ_μ,   σ̂ = σ + ε' √Ŝ_σ,   ε, ε' ~ N(0, 1) per image and channel     (9)

At the server, per stage, from the M sites' m and s::

    Σ²_j = variance over sites of m_j                                              (5)
    k_j  = 1 / (1 + 1/Σ²_j),    γ_j = C k_j / Σ_i k_i                              (6)

γ is 1 until the sites have sent statistics (as in the released code; the paper does not say). A batch that is not
augmented does not update m and s (as in the released code).

Deviations from the paper:

- ε = 1e-6 is added to variances inside the root and to Σ² inside the kernel. It keeps gradients finite for dead
  channels, and γ = 1 with a single site.
- Algorithm 1 can be read as resetting m, s to 0, 1 every round. As in the released code, sites continue from the mean
  over sites (``running: average``). ``reset`` and ``local`` are the other two readings.

Variants:

- ``variant: released`` follows the authors' code: unbiased variances, and one scalar Σ² over sites and channels
  together, which makes every γ_j = 1; a layer augments if u ≤ p instead of u < p, for u uniform in [0, 1).
  With p = 0 it never does here (in the authors' code it would for u = 0), so that the method is FedAvg.
- ``fusion`` selects the paper's ablations; FedFA-C has Ŝ = S, FedFA-R the standard deviation 0.5 for all.
- ``share: sums`` hides a site's m and s if the transport encrypts. A site sends the difference d between its value and
  the mean over sites that it received, and d². The server uses only Σ d and Σ d² over the M sites::

      mean = received mean + Σ d / M,    Σ² = Σ d² / M − (Σ d / M)²

  This equals (5) up to rounding. Without encryption the server still sees every site's values.

When: sites differ in appearance and one model should serve all of them, including new sites. Instance norm takes the
shifted means away, and only scaled deviations are left; ``fedshift job`` warns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedshift.methods import base
from fedshift.methods.shared import search
from fedshift.methods.shared.features import over_space, spatial_dims, stages_of
from fedshift.schema.messages import Arrays
from fedshift.schema.strict import Strict
from fedshift.tasks.precision import precise

RANDOM_STD = 0.5
BOTH = (1.0, 1.0)
"""Means and deviations are both perturbed."""


SEARCH = {"momentum": search.choice(0.5, 0.9, 0.99, 0.999)}


class Config(Strict):
    """Options of FedFA.

    ``p``: probability that a layer acts on a batch. ``momentum``: α. ``layers``: encoder stages, from 1; null for all.
    ``fusion``: ``direct`` has Σ² in place of γ, ``local`` is FedFA-C, ``random`` FedFA-R. ``running``: m and s continue
    from the sites' mean, begin anew, or stay the site's. ``share``: sites send m and s, or with ``sums`` differences of
    which the server uses only the sums. ``eps``: added inside roots. ``variant``: ``released`` has unbiased variances
    and one scalar Σ² over sites and channels.
    """

    variant: Literal["paper", "released"] = "paper"
    fusion: Literal["adaptive", "direct", "local", "random"] = "adaptive"
    p: float = Field(default=0.5, ge=0, le=1)
    momentum: float = Field(default=0.99, ge=0, lt=1)
    running: Literal["average", "reset", "local"] = "average"
    share: Literal["statistics", "sums"] = "statistics"
    layers: tuple[int, ...] | None = None
    eps: float = Field(default=1e-6, gt=0)

    @property
    def shares(self) -> bool:
        """Whether sites exchange statistics; the ablations FedFA-C and FedFA-R do not."""
        return self.fusion in ("adaptive", "direct")


# --- at a site ----------------------------------------------------------------------------------------


def feature_statistics(x: Tensor, *, eps: float, unbiased: bool) -> tuple[Tensor, Tensor]:
    """Eq. 2: mean and standard deviation over space, (B, C, *spatial) -> 2 x (B, C)."""
    variance, mean = torch.var_mean(x, spatial_dims(x), correction=int(unbiased))
    return mean, (variance + eps).sqrt()


def batch_variance(statistic: Tensor, *, eps: float, unbiased: bool) -> Tensor:
    """Eq. 3: variance over the batch plus ``eps``, (B, C) -> (C,). For a batch of one the variance is 0."""
    return statistic.var(0, correction=int(unbiased and len(statistic) > 1)) + eps


def augment(
    x: Tensor, mean: Tensor, std: Tensor, spread: tuple[Tensor, Tensor], noise: tuple[Tensor, Tensor]
) -> Tensor:
    """Eq. 8 and 9 as one multiply-add; ``spread`` holds √Ŝ_μ, √Ŝ_σ, (C,) each, ``noise`` two draws (B, C)."""
    new_mean = mean + noise[0] * spread[0]
    scale = 1 + noise[1] * spread[1] / std
    shift = new_mean - mean * scale
    return torch.addcmul(over_space(shift, x), x, over_space(scale, x))


def fires(u: float, config: Config) -> bool:
    """Whether a layer changes a batch, for u uniform in [0, 1): u < p, as released u ≤ p. With p = 0 it never does."""
    return u < config.p or (config.variant == "released" and 0 < config.p == u)


class FeatureAugmentation:
    """The FFA layer of one stage: augments features in training, the identity in evaluation."""

    def __init__(
        self,
        layer: int,
        channels: int,
        net: nn.Module,
        config: Config,
        ctx: base.Context,
        *,
        strength: tuple[float, float] = BOTH,
    ) -> None:
        """Start with γ = 1, m = 0, s = 1, which ``receive`` replaces. ``strength``: of ε and of ε'."""
        self._layer, self._net, self._config, self._ctx, self._strength = layer, net, config, ctx, strength
        self.gamma_mean, self.gamma_std = torch.ones(channels), torch.ones(channels)
        self.running_mean, self.running_std = torch.zeros(channels), torch.ones(channels)
        self.received: Arrays = {}

    def __call__(self, features: Tensor) -> Tensor:
        """Augmented features, of the same shape (B, C, *spatial) and type."""
        if not self._net.training:
            return features
        rng = self._ctx.rng(f"layer{self._layer}")
        if not fires(float(torch.rand((), generator=rng)), self._config):
            return features
        x = precise(features)
        unbiased, eps = self._config.variant == "released", self._config.eps
        mean, std = feature_statistics(x, eps=eps, unbiased=unbiased)
        if not self._ctx.run.replay:
            self._move_running(mean, std)
        draws = [strength * torch.randn(mean.shape, generator=rng).to(mean) for strength in self._strength]
        spread = self._spread(mean, std, eps=eps, unbiased=unbiased)
        return augment(x, mean, std, spread, (draws[0], draws[1])).to(features.dtype)

    def _spread(self, mean: Tensor, std: Tensor, *, eps: float, unbiased: bool) -> tuple[Tensor, Tensor]:
        if self._config.fusion == "random":
            constant = torch.full_like(mean[0], RANDOM_STD)
            return constant, constant
        own_mean = batch_variance(mean, eps=eps, unbiased=unbiased)
        own_std = batch_variance(std, eps=eps, unbiased=unbiased)
        if self._config.fusion == "local":
            return own_mean.sqrt(), own_std.sqrt()
        return (((self.gamma_mean.to(mean) + 1) * own_mean).sqrt(), ((self.gamma_std.to(std) + 1) * own_std).sqrt())

    @torch.no_grad()
    def _move_running(self, mean: Tensor, std: Tensor) -> None:
        keep = self._config.momentum
        self.running_mean = keep * self.running_mean + (1 - keep) * mean.mean(0).cpu().to(self.running_mean)
        self.running_std = keep * self.running_std + (1 - keep) * std.mean(0).cpu().to(self.running_std)


def squared(name: str) -> str:
    """Name of the array that holds the squares of array ``name``."""
    return f"squared_{name}"


def differences(name: str, spec: base.ArraySpec) -> dict[str, base.ArraySpec]:
    """The specs of d and d², which ``share: sums`` sends instead of an array."""
    reveals = f"{spec.reveals}: {{}} the mean of all sites; only the sum over sites is used"
    widest = spec.high - min(spec.low, -spec.high)
    difference = replace(spec, dtype="float64", low=-widest, high=widest, reduce="sum", mean_of=None)
    return {
        name: replace(difference, reveals=reveals.format("the difference to")),
        squared(name): replace(
            difference, low=0, high=widest**2, alike="", reveals=reveals.format("the squared difference to")
        ),
    }


class Client(base.Client[Config]):
    """Inserts the FFA layers; sends m and s, receives γ."""

    least_part = 2
    option_for_sums = "fedfa.share=sums"
    idle = (
        base.Rule(
            "momentum running share", "with fusion {case.config.fusion} sites share no statistics", {"shares": False}
        ),
        base.Rule(
            "momentum running",
            "variant released has one variance for all channels, which makes every γ 1 whatever the sites send",
            {"variant": "released", "fusion": "adaptive"},
        ),
    )
    _strength = BOTH

    def perturbations(self) -> Mapping[str, base.Client[Any]]:
        if not self.config.p:
            return {}
        means, deviations = (Client(self.config.model_copy(update={"p": 1.0})) for _ in range(2))
        means._strength, deviations._strength = (1.0, 0.0), (0.0, 1.0)
        return {"shifted means of features": means, "scaled deviations of features": deviations}

    def up(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        if not self.config.shares:
            return {}
        reveals = "moving average of the {} of features over the site's training images, per channel"
        specs: dict[str, base.ArraySpec] = {}
        for number, stage in stages_of(net, self.config.layers, "fedfa").items():
            mean = base.ArraySpec(
                (stage.channels,),
                low=-1e6,
                high=1e6,
                alike="norm",
                reveals=reveals.format("mean"),
                kind="statistics",
                mean_of="features",
            )
            # ε inside the root keeps a dead channel's standard deviation above 0.
            std = replace(mean, low=0.5 * self.config.eps**0.5, reveals=reveals.format("deviation"))
            for name, spec in ((f"mean.{number}", mean), (f"std.{number}", std)):
                specs |= differences(name, spec) if self.config.share == "sums" else {name: spec}
        return specs

    def attach(self, net: nn.Module, ctx: base.Context) -> list[RemovableHandle]:
        stages = stages_of(net, self.config.layers, "fedfa")
        self._layers = {
            number: FeatureAugmentation(number, stage.channels, net, self.config, ctx, strength=self._strength)
            for number, stage in stages.items()
        }
        return [stage.hook(self._layers[number]) for number, stage in stages.items()]

    def receive(self, arrays: Arrays, ctx: base.Context) -> None:
        """Set γ, and the m and s from which each layer continues."""
        if not self.config.shares:
            return
        for number, layer in self._layers.items():
            layer.gamma_mean = torch.from_numpy(arrays[f"gamma_mean.{number}"])
            layer.gamma_std = torch.from_numpy(arrays[f"gamma_std.{number}"])
            layer.received = {name: arrays[f"{name}.{number}"] for name in ("mean", "std")}
            if self.config.running == "average":
                layer.running_mean = torch.from_numpy(arrays[f"mean.{number}"])
                layer.running_std = torch.from_numpy(arrays[f"std.{number}"])
            elif self.config.running == "local" and f"mean.{number}" in ctx.state:
                layer.running_mean = ctx.state[f"mean.{number}"]
                layer.running_std = ctx.state[f"std.{number}"]

    def checkpoint(self, ctx: base.Context) -> dict[str, Tensor]:
        means = {f"mean.{number}": layer.running_mean for number, layer in self._layers.items()}
        return means | {f"std.{number}": layer.running_std for number, layer in self._layers.items()}

    def restore(self, kept: Mapping[str, Tensor], ctx: base.Context) -> None:
        for number, layer in self._layers.items():
            layer.running_mean, layer.running_std = kept[f"mean.{number}"], kept[f"std.{number}"]

    def end(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        if not self.config.shares:
            return {}
        arrays: Arrays = {}
        for number, layer in self._layers.items():
            for name, value in (("mean", layer.running_mean.numpy()), ("std", layer.running_std.numpy())):
                if self.config.share == "sums":
                    difference = value.astype(np.float64) - layer.received[name]
                    arrays |= {f"{name}.{number}": difference, squared(f"{name}.{number}"): difference**2}
                else:
                    arrays[f"{name}.{number}"] = value
            if self.config.running == "local":
                ctx.state[f"mean.{number}"] = layer.running_mean
                ctx.state[f"std.{number}"] = layer.running_std
        return arrays


# --- at the server ------------------------------------------------------------------------------------


def site_variance(statistics: np.ndarray, *, scalar: bool) -> np.ndarray:
    """Eq. 5: variance over sites, (M, C) -> (C,).

    With ``scalar`` (the released code) one unbiased variance over sites and channels, repeated for every channel.
    """
    if scalar:
        correction = 1 if statistics.size > 1 else 0
        return np.full(statistics.shape[1], statistics.var(ddof=correction))
    variance: np.ndarray = statistics.var(axis=0)
    return variance


def moments(
    centre: np.ndarray, total: np.ndarray, squares: np.ndarray, n_sites: int, *, scalar: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and `site_variance` over sites of x = centre + d, all (C,), from Σ d and Σ d² only."""
    mean = total / n_sites
    if not scalar:
        return centre + mean, np.maximum(squares / n_sites - mean**2, 0)
    # The variance over channels needs the squares of x itself, because centres differ between channels.
    count = n_sites * len(total)
    overall = float((centre + mean).mean())
    spread = float((squares + 2 * (centre - overall) * total + n_sites * (centre - overall) ** 2).sum())
    return centre + mean, np.full(len(total), max(spread, 0.0) / max(count - 1, 1))


def channel_weights(variance: np.ndarray, *, eps: float) -> np.ndarray:
    """Eq. 6: γ_j = C k_j / Σ k with k_j = 1 / (1 + 1/(Σ²_j + eps)), (C,) -> (C,)."""
    kernel = (variance + eps) / (1 + variance + eps)
    weights: np.ndarray = len(kernel) * kernel / kernel.sum()
    return weights


class Server(base.Server[Config]):
    """Computes γ from the sites' m and s."""

    def down(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        if not self.config.shares:
            return {}
        return {
            f"{name}.{number}": base.ArraySpec((stage.channels,), reveals="a statistic over all sites")
            for number, stage in stages_of(net, self.config.layers, "fedfa").items()
            for name in ("gamma_mean", "gamma_std", "mean", "std")
        }

    def start(self, net: nn.Module, ctx: base.ServerContext) -> None:
        if not self.config.shares:
            return
        for number, stage in stages_of(net, self.config.layers, "fedfa").items():
            for name, fill in (("gamma_mean", 1.0), ("gamma_std", 1.0), ("mean", 0.0), ("std", 1.0)):
                self.state[f"{name}.{number}"] = np.full(stage.channels, fill, np.float32)

    def fault(self, arrays: Mapping[str, np.ndarray], n_samples: int) -> tuple[str, str] | None:
        """Check that d² is the square of d (``share: sums``). Encrypted arrays cannot be checked."""
        if self.config.share == "sums":
            for name in [n for n in self.state if n.startswith(("mean.", "std.")) and n in arrays]:
                if not np.allclose(arrays[squared(name)], np.square(arrays[name]), rtol=1e-6, atol=1e-12):
                    return squared(name), f"is not the square of {name}, which the site sent too"
        return None

    def receive(self, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> None:
        if ctx.round == 0:
            return
        for name in [n for n in self.state if n.startswith(("mean.", "std."))]:
            mean, variance = self._over_sites(name, updates)
            direct = self.config.fusion == "direct"
            gamma = variance if direct else channel_weights(variance, eps=self.config.eps)
            self.state[name] = mean.astype(np.float32)
            self.state[f"gamma_{name}"] = gamma.astype(np.float32)

    def _over_sites(self, name: str, updates: Sequence[base.SiteUpdate]) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance over sites of m or s of one layer, (C,) each."""
        scalar = self.config.variant == "released"
        if self.config.share == "sums":
            # Use sums only: with encryption the server receives nothing else.
            total, squares = (
                np.asarray(sum(update.arrays["fedfa"][key].astype(np.float64) for update in updates))
                for key in (name, squared(name))
            )
            return moments(self.state[name].astype(np.float64), total, squares, len(updates), scalar=scalar)
        stack = np.stack([update.arrays["fedfa"][name] for update in updates]).astype(np.float64)
        return stack.mean(0), site_variance(stack, scalar=scalar)

    def broadcast(self, ctx: base.ServerContext) -> Arrays:
        return self.state
