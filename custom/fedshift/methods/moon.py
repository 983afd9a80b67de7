"""MOON: embed an image as the received model does, and unlike the site's own model of the round before.

Li, He, Song, "Model-Contrastive Federated Learning", CVPR 2021. With z the embedding of an image by the model in
training, z_glob by the received one and z_prev by the site's model after its last training, sim the cosine and τ the
temperature::

    loss + μ mean over the batch of −log exp(sim(z, z_glob)/τ) / (exp(sim(z, z_glob)/τ) + exp(sim(z, z_prev)/τ))

z_glob and z_prev carry no gradient. A site that has not trained before has no z_prev, and no term: round 1 is FedAvg,
as in the authors' code. There a site that is first drawn later has its random initial network as the previous one.

Choices: as in the code the received and the previous model embed in evaluation mode, and a site that was absent takes
the model that it trained last. With personal layers the received model is the one that local training begins with; what
keeps the whole network at a site leaves nothing to contrast, and is refused. τ is .5, and μ is 1, as in the code; the
paper tunes μ among .1, 1, 5 and 10.

Deviations from the paper: no projection head is added. The paper, and its code, insert two linear layers between
encoder and classifier and contrast their output, which is also what the classifier gets; here the contrast is of the
input of the network's head, with whatever layers the network has before it. The code's ``model_buffer_size`` above 1
(several previous models) is not offered: the paper has one.

Read: the authors' code (QinbinLi/MOON, ``main.py``). The paper's text was not at hand for a second reading.

When: local models drift because the sites' images differ. A site's first round has no term.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedshift.methods import base
from fedshift.methods.shared import search
from fedshift.methods.shared.head import EmbeddingClient
from fedshift.methods.shared.passes import evaluating, same_precision
from fedshift.schema.messages import Arrays
from fedshift.schema.strict import Strict
from fedshift.tasks.precision import precise

SEARCH = {"mu": search.choice(0.1, 1.0, 5.0, 10.0), "temperature": search.choice(0.1, 0.5, 1.0)}


class Config(Strict):
    """Options of MOON.

    ``mu``: μ, which the paper tunes among 0.1, 1, 5 and 10. ``temperature``: τ.
    """

    mu: float = Field(default=1.0, ge=0)
    temperature: float = Field(default=0.5, gt=0)


def contrast(z: Tensor, positive: Tensor, negative: Tensor, *, temperature: float) -> Tensor:
    """Mean of −log of the softmax share of ``positive``: three times (B, d) -> scalar."""
    similarities = [functional.cosine_similarity(z, other, dim=1) for other in (positive, negative)]
    logits = torch.stack(similarities, 1) / temperature
    return functional.cross_entropy(logits, torch.zeros(len(z), dtype=torch.int64, device=z.device))


class Client(EmbeddingClient[Config]):
    """Adds the contrast to the loss. State: the site's model after its last training, by network key."""

    least_part = 1
    in_ranks = frozenset({"attach", "begin", "batch", "loss", "end"})
    clashes = (
        base.Rule(
            "gives a site the model that it trained last",
            "pulls from that model towards the received one, so that mu would do nothing",
        ),
    )

    def begin(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        self._previous = {key: value.to(ctx.run.device) for key, value in ctx.state.items()}
        self._received: dict[str, Tensor] = {}

    def batch(self, batch: base.Batch, ctx: base.Context) -> base.Batch:
        """Copy the received model before the first step: every method's ``begin`` has run, no weight has changed."""
        if not self._received:
            self._received = {key: value.detach().clone() for key, value in ctx.run.net.state_dict().items()}
        return batch

    def loss(self, batch: base.Batch, logits: Tensor, loss: Tensor, ctx: base.Context) -> Tensor:
        if not self._previous:
            return loss
        z = self.embedding
        positive, negative = (self._embed(ctx.run.net, model, batch.x, z) for model in (self._received, self._previous))
        return loss + self.config.mu * contrast(precise(z), positive, negative, temperature=self.config.temperature)

    def checkpoint(self, ctx: base.Context) -> dict[str, Tensor]:
        return self._received

    def restore(self, kept: Mapping[str, Tensor], ctx: base.Context) -> None:
        self._received = {key: value.to(ctx.run.device) for key, value in kept.items()}

    def end(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        """Keep the trained model at the site; sends nothing."""
        for key, value in ctx.run.net.state_dict().items():
            ctx.state[key] = value.detach().cpu().clone()
        return {}

    @torch.no_grad()
    def _embed(self, net: nn.Module, model: Mapping[str, Tensor], x: Tensor, like: Tensor) -> Tensor:
        """Embeddings (B, d) by other weights of the network, in evaluation mode and the precision of ``like``."""
        with evaluating(net), same_precision(like):
            functional_call(net, dict(model), (x,))
        return precise(self.embedding)
