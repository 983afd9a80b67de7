"""Contrast: bring every site's images to the sites' mean contrast.

An example, from no paper::

    site:    s_k = mean over training images of the standard deviation of their intensities, once
    server:  s = 1/K Σ_k s_k
    site:    x ← x · (s / s_k)^strength        in training and at test

When: scanners differ in contrast and in nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from fedshift.methods import base
from fedshift.schema.messages import Arrays
from fedshift.schema.strict import Strict

NAME = "fedshift-template:contrast"
"""As jobs name it, and as its arrays are found in a site's update."""
LEAST = 1e-6
"""Of a site whose images are all of one intensity."""


class Config(Strict):
    """Options of Contrast.

    ``strength``: 1 takes the whole difference away, 0 none.
    """

    strength: float = Field(default=1.0, ge=0, le=1)


class Client(base.Client[Config]):
    """Measures once, then scales."""

    def up(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        """One number, once."""
        reveals = "mean over the site's training images of the standard deviation of their intensities"
        return {
            "deviation": base.ArraySpec((), "float64", "once", 0, 1e3, reveals, kind="statistics", mean_of="deviations")
        }

    def statistics(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        """s_k, also kept for later rounds."""
        total = sum(float(x.double().flatten(1).std(1, correction=0).sum()) for x, _ in data.chunks())
        ctx.state["deviation"] = torch.tensor(total / max(data.n_train, 1), dtype=torch.float64)
        return {"deviation": ctx.state["deviation"].numpy()}

    def receive(self, arrays: Arrays, ctx: base.Context) -> None:
        """The factor of this task."""
        ratio = float(arrays["mean"]) / max(float(ctx.state["deviation"]), LEAST)
        self._factor = max(ratio, LEAST) ** self.config.strength

    def inputs(self, x: Tensor, ctx: base.Context, *, training: bool) -> Tensor:
        """(B, C, *spatial), scaled."""
        return x * self._factor


class Server(base.Server[Config]):
    """The mean over sites."""

    def down(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        """One number."""
        return {"mean": base.ArraySpec((), "float64", reveals="the sites' mean contrast")}

    def receive(self, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> None:
        """Round 0 brings the numbers."""
        if ctx.round == 0:
            self.state["mean"] = np.asarray(np.mean([update.arrays[NAME]["deviation"] for update in updates]))

    def broadcast(self, ctx: base.ServerContext) -> Arrays:
        """The same every round."""
        return self.state
