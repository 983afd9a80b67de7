"""FedRDN: normalise each training image with a random site's mean and standard deviation.

Yan et al., "A Simple Data Augmentation for Feature Distribution Skewed Federated Learning". Sites exchange their mean
image statistics once; training images are normalised with the statistics of randomly drawn sites::

    μ^k = 1/n_k Σ_i mean(x_i),   σ^k = 1/n_k Σ_i std(x_i)        per channel, once, at each site
    training:  x ← (x − μ^j) / σ^j,   j ~ U{1…K} drawn for every image in every epoch
    test:      x ← (x − μ^k) / σ^k    with the site's own pair

Deviations from the paper:

- The paper prints Σ_i without 1/n_k; its code divides by n_k, as done here.
- Statistics come from un-augmented training images in float64; the code uses augmented ones.
- Random normalisation follows the geometric augmentation, as in the code.
- Of volumes that are larger than the network's patch an image is a window, side by side as in evaluation. Patches of
  training are more often where there is something to segment, and a new site has no labels.

When: sites differ in brightness and contrast; it costs almost nothing and combines with the other methods. Not where
each volume is normalised by itself (``data.normalise: volume``, the default of patches): all pairs are then nearly the
same, and it can do nothing. ``fedshift job`` warns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedshift.methods import base
from fedshift.methods.shared import image_statistics
from fedshift.methods.shared.features import over_space
from fedshift.methods.shared.image_statistics import SMALLEST_STD
from fedshift.schema.errors import ConfigError
from fedshift.schema.messages import Arrays
from fedshift.schema.strict import Strict


class Config(Strict):
    """Options of FedRDN.

    ``variant``: ``released`` is the authors' code, which draws mean and standard deviation independently, one of each
    per batch. ``mode``: ``mean`` is FedRDN-V, the mean of all sites' pairs in training and test; ``fixed`` is plain
    normalisation. ``fixed_mean``: for ``fixed``, one number or one per channel. ``fixed_std``: likewise.
    """

    variant: Literal["paper", "released"] = "paper"
    mode: Literal["random", "mean", "fixed"] = "random"
    fixed_mean: tuple[float, ...] = (0.5,)
    fixed_std: tuple[float, ...] = (0.5,)

    def model_post_init(self, _context: object) -> None:
        if min(self.fixed_std) < SMALLEST_STD:
            raise ConfigError(
                "invalid-value", f"method fedrdn: fixed_std must be at least {SMALLEST_STD}, not {self.fixed_std}"
            )


class Client(base.Client[Config]):
    """Sends its statistics once; normalises with all sites' pairs in training, with its own pair at test."""

    in_ranks = frozenset({"inputs"})
    per_sample = frozenset({"inputs"})  # in training only what all sites have sent is used
    idle = (
        base.Rule(
            "fixed_mean fixed_std",
            "mode {case.config.mode} uses the sites' statistics: set mode=fixed",
            lambda case: case.config.mode != "fixed",
        ),
        base.Rule("variant", "mode {case.config.mode} draws no pairs", lambda case: case.config.mode != "random"),
    )

    def perturbations(self) -> Mapping[str, base.Client[Any]]:
        return {"normalised images": self}

    def up(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        """Mean and standard deviation, (C,) each."""
        return {} if self.config.mode == "fixed" else image_statistics.sent(net)

    def statistics(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        """μ^k and σ^k over the un-augmented training images; also kept in the site's state for test time."""
        if self.config.mode == "fixed":
            return {}
        arrays = image_statistics.site_statistics(data.images_alone(), site=ctx.run.site, method="FedRDN")
        ctx.state.update({name: torch.from_numpy(array) for name, array in arrays.items()})
        return arrays

    def receive(self, arrays: Arrays, ctx: base.Context) -> None:
        """All sites' pairs, (K, C) each; with ``mode: mean`` their mean, with ``mode: fixed`` the fixed pair."""
        if self.config.mode == "fixed":
            pairs = torch.tensor([self.config.fixed_mean]), torch.tensor([self.config.fixed_std])
        else:
            pairs = torch.from_numpy(arrays["means"]).float(), torch.from_numpy(arrays["stds"]).float()
        if self.config.mode == "mean":
            pairs = pairs[0].mean(0, keepdim=True), pairs[1].mean(0, keepdim=True)
        self._means, self._stds = pairs

    def state_from_model(self, arrays: Arrays, index: int) -> dict[str, Tensor]:
        if self.config.mode == "fixed":
            return {}
        return {name: torch.from_numpy(arrays[f"{name}s"][index]) for name in ("mean", "std")}

    def inputs(self, x: Tensor, ctx: base.Context, *, training: bool) -> Tensor:
        if self.config.mode != "random":
            mean, std = self._means, self._stds
        elif not training:
            mean, std = ctx.state["mean"][None].float(), ctx.state["std"][None].float()
        else:
            released = self.config.variant == "released"
            count = 1 if released else len(x)
            rng = ctx.rng("pair")
            i = torch.randint(len(self._means), (count,), generator=rng)
            j = torch.randint(len(self._stds), (count,), generator=rng) if released else i
            mean, std = self._means[i], self._stds[j]
        return (x - over_space(mean, x).to(x.device)) / over_space(std, x).to(x.device)


class Server(base.Server[Config]):
    """Collects the pairs once and sends all of them to every site."""

    def down(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        return {} if self.config.mode == "fixed" else image_statistics.sent_to_all(net)

    def receive(self, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> None:
        if ctx.round == 0 and self.config.mode != "fixed":
            self.state = image_statistics.collected(updates, "fedrdn")

    def broadcast(self, ctx: base.ServerContext) -> Arrays:
        return self.state
