"""FedSR: keep what an embedding tells of an image small, beyond the image's class.

Nguyen, Torr, Lim, "FedSR: A Simple and Effective Domain Generalization Method for Federated Learning", NeurIPS 2022.
With u the embedding of an image x of class y, the input of the head, d its length::

    z = u + σ(u) ε,   ε ~ N(0, I),   σ(u) = softplus(S u + s)        the head classifies z in training, u at test
    loss + α ‖z‖ + β KL(N(c u, c² σ(u)²) ‖ r(· | y)),   r(· | y) = N(μ_y, softplus(ρ_y)²)        means over the batch

S, s, c, μ and ρ are trained with the network, by SGD of their own (``lr``, ``momentum``), and stay at the site: what
only training uses need not be shared. μ is 0, ρ and c are 1 at first. α is ``l2r``, β is ``cmi``; their defaults
are those of the code's README for PACS. r is one Gaussian for each class; a mixture of all z of a batch is computed in
the code, and not used.

Deviations from the code:

- The code inserts a linear layer after the features that gives mean and deviation of z. Here the mean is the embedding
  as it is, so that the network, and with it the model file, stays the task's; only σ's layer is new.
- σ's layer is averaged over sites in the code, as a part of the network. Here it stays at the site.
- The code averages the probabilities of 20 drawn z at test. Here z is its mean.
- μ, ρ and c use SGD with the network's learning rate, weight decay and momentum .9 there; here ``lr`` and ``momentum``
  (.9), without weight decay.

Soft labels (Mixup) count as their largest class.

Read: the authors' code (atuannguyen/FedSR, ``src/methods/FedSR.py``, ``base.py`` and ``argument.py``), with which
FL-bench agrees. The paper's text was not available: whether its first term is ‖z‖, as in the code, or ‖z‖², and whether
it has c, is not known.

When: the model should work at sites that do not take part.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from fedshift.methods import base
from fedshift.methods.shared import search
from fedshift.methods.shared.auxiliary import AuxiliaryNetwork
from fedshift.methods.shared.head import EmbeddingClient, classes_of, head_of
from fedshift.schema.messages import Arrays
from fedshift.schema.seeding import derive_seed, seeded_global
from fedshift.schema.strict import Strict
from fedshift.tasks.precision import precise

SEARCH = {"l2r": search.log(1e-3, 0.1), "cmi": search.log(1e-4, 1e-2), "lr": search.log(1e-3, 0.1), "momentum": None}


class Config(Strict):
    """Options of FedSR.

    ``l2r``: α. ``cmi``: β. ``stochastic``: false is the authors' FedL2R (z = u, and only the first term). ``lr``:
    learning rate of σ's layer and of the reference c, μ, ρ. ``momentum``: their momentum.
    """

    l2r: float = Field(default=0.01, ge=0)
    cmi: float = Field(default=0.001, ge=0)
    stochastic: bool = True
    lr: float = Field(default=0.01, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)


class Noise(nn.Module):
    """σ's layer and the reference r: what FedSR trains beside the network."""

    def __init__(self, d: int, n_classes: int) -> None:
        """``d`` is the length of the embedding."""
        super().__init__()
        self.layer = nn.Linear(d, d)
        self.mean = nn.Parameter(torch.zeros(n_classes, d))
        self.spread = nn.Parameter(torch.ones(n_classes, d))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, u: Tensor) -> Tensor:
        """σ(u), (B, d) -> (B, d)."""
        return functional.softplus(self.layer(u))

    def divergence(self, u: Tensor, sigma: Tensor, classes: Tensor) -> Tensor:
        """Mean over the batch of KL(N(c u, c² σ²) ‖ r(· | y)): (B, d), (B, d), (B,) -> scalar."""
        mean, spread = self.mean[classes], functional.softplus(self.spread)[classes]
        scaled, width = self.scale * u, (self.scale * sigma).abs()
        kl = spread.log() - width.log() + (width.square() + (scaled - mean).square()) / (2 * spread.square()) - 0.5
        return kl.sum(1).mean()


class Client(EmbeddingClient[Config]):
    """Draws the embedding in training and adds both terms to the loss. State: `Noise` and its momentum."""

    least_part = 1
    needs = (*EmbeddingClient.needs, base.Rule("one class for each image"))
    idle = (
        base.Rule(
            "cmi lr momentum",
            "stochastic is false, so the embedding has no distribution: --set fedsr.stochastic=true as well",
            {"stochastic": False},
        ),
    )

    _noise: AuxiliaryNetwork | None = None

    def attach(self, net: nn.Module, ctx: base.Context) -> list[RemovableHandle]:
        def draw(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            self._z = self._u = inputs[0]
            if self._noise is None or not net.training:
                return None
            self._sigma = precise(self._noise.net(precise(self._u)))
            epsilon = torch.randn(self._u.shape, generator=ctx.rng("noise")).to(self._sigma)
            self._z = self._u + (self._sigma * epsilon).to(self._u)
            return (self._z, *inputs[1:])

        return [head_of(net).register_forward_pre_hook(draw)]

    def begin(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        if not self.config.stochastic:
            return
        run, head = ctx.run, head_of(ctx.run.net)
        with seeded_global(derive_seed(run.seed, run.site, 0, "fedsr.noise")):
            noise = Noise(head.in_features, head.out_features)
        noise = noise.to(head.weight.device)
        self._noise = AuxiliaryNetwork("noise", noise, lr=self.config.lr, momentum=self.config.momentum)
        self._noise.restore(ctx.state)

    def loss(self, batch: base.Batch, logits: Tensor, loss: Tensor, ctx: base.Context) -> Tensor:
        loss = loss + self.config.l2r * torch.linalg.vector_norm(precise(self._z), dim=1).mean()
        if self._noise is None:
            return loss
        noise = self._noise.net
        assert isinstance(noise, Noise)
        return loss + self.config.cmi * noise.divergence(precise(self._u), self._sigma, classes_of(batch.y))

    def gradients(self, ctx: base.Context) -> None:
        """Take the step of σ's layer and the reference, whose gradients came with the network's."""
        if self._noise is not None:
            self._noise.advance(step=not ctx.run.replay)

    def checkpoint(self, ctx: base.Context) -> dict[str, Tensor]:
        return {} if self._noise is None else self._noise.remember(keys=self._noise.net.state_dict())

    def restore(self, kept: Mapping[str, Tensor], ctx: base.Context) -> None:
        if self._noise is not None:
            self._noise.restore(kept)

    def end(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        """Keep σ's layer and the reference at the site; sends nothing."""
        ctx.state.update(self.checkpoint(ctx))
        return {}
