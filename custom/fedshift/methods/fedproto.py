"""FedProto: pull every embedding to the average embedding of its class over all sites.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022. With u = features(x)
(B, d), the input of the network's head::

    site:    loss + λ · mean over all B·d elements of (u − P_y)²         P the server's prototypes
    site:    p_c = mean of u over the site's training images of class c
    server:  P_c = mean of p_c over the sites that have class c

A sample whose class has no prototype yet contributes 0, so round 1 has no extra term. A class that no site has in a
round keeps its last prototype.

Variants:

- Only prototypes travel by default, as in the paper. ``average_weights: true`` also averages the models, as in
  benchmarks that compare a single global model.
- ``prototypes: last_epoch`` is the authors' code: each batch is embedded before its step, which mixes embeddings of
  changing weights (an unfinished epoch: `fedshift.methods.shared.prototypes.LastEpoch`). ``trained`` makes one more
  pass, un-augmented and in evaluation mode. With batch norm its embeddings differ from those in training, by much
  while running statistics are still averages over all sites: hence the default.

Deviations from the paper:

- The prototype of a single image is that image's embedding. A site therefore sends no prototype for a class with fewer
  than ``min_samples`` images (2; the paper: 1) and reports the class as absent. The server rejects updates that
  contradict this rule.
- A soft label (Mixup) uses the prototype of its largest class. Options with which one image of a batch may so count
  twice (``mixup.draw: sample``) are refused with ``last_epoch``.

When: sites that need their own model but should agree on what a class looks like; connections that are too slow for
models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from fedshift.methods import base
from fedshift.methods.shared.head import EmbeddingClient, classes_of, head_of
from fedshift.methods.shared.passes import predicted
from fedshift.methods.shared.prototypes import TOO_FEW, LastEpoch, PrototypeClient, PrototypeServer
from fedshift.schema.messages import Arrays
from fedshift.schema.strict import Strict
from fedshift.tasks.precision import precise


class Config(Strict):
    """Options of FedProto.

    ``weight``: λ. ``average_weights``: false exchanges prototypes only, and each site keeps its own model, as in the
    original. ``prototypes``: from the batches of the round's last epoch, as in the authors' code, or from one more pass
    with the trained model. ``weights``: ``samples`` weighs sites by their images of the class, and only then do class
    counts leave a site. ``min_samples``: a site sends no prototype averaged over fewer images, because that of one
    image is that image's embedding.
    """

    prototypes: Literal["last_epoch", "trained"] = "last_epoch"
    weight: float = Field(default=1.0, ge=0)
    weights: Literal["uniform", "samples"] = "uniform"
    average_weights: bool = False
    min_samples: int = Field(default=2, ge=1)


def prototype_loss(u: Tensor, classes: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Mean over all elements of (u − P_y)²; samples whose class is not in ``known`` (K,) bool contribute 0."""
    difference = (u - prototypes[classes]) * known[classes][:, None]
    return difference.square().mean()


def counts_images(case: base.Case) -> bool:
    """Whether the images of a class are counted as they come in training."""
    return bool(case.config.prototypes == "last_epoch" and case.config.min_samples > 1)


class Client(PrototypeClient[Config]):
    """Pulls embeddings to the received prototypes and sends the site's own."""

    least_part = 1
    needs = (
        *EmbeddingClient.needs,
        base.Rule("one class for each image"),
        base.Rule("each image once in an epoch", f"it {TOO_FEW}", counts_images),
    )
    clashes = (base.Rule("may show an image twice in a batch", TOO_FEW, counts_images),)

    def personal(self, net: nn.Module) -> frozenset[str]:
        return frozenset() if self.config.average_weights else frozenset(net.state_dict())

    def receive(self, arrays: Arrays, ctx: base.Context) -> None:
        self._prototypes = torch.from_numpy(arrays["prototypes"]).to(ctx.run.device)
        self._known = torch.from_numpy(arrays["known"]).to(ctx.run.device) > 0
        self._pulls = bool(arrays["known"].any())

    def begin(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        self._means = LastEpoch(self._prototypes, ctx.run)

    def loss(self, batch: base.Batch, logits: Tensor, loss: Tensor, ctx: base.Context) -> Tensor:
        u = precise(self.embedding)
        classes = classes_of(batch.y)
        if self.config.prototypes == "last_epoch":
            self._means.add(u, classes, ctx.run)
        if not self._pulls:
            return loss
        return loss + self.config.weight * prototype_loss(u, classes, self._prototypes.to(u), self._known)

    def end(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        if self.config.prototypes == "trained":
            self._pass_over(data, ctx)
        return super().end(data, ctx)

    @torch.no_grad()
    def _pass_over(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        """Add the trained model's embeddings of all training images."""
        for _, y in predicted(ctx.run, data.chunks()):
            self._means.current.add(self.embedding, y)


class Server(PrototypeServer[Config]):
    """Averages prototypes class by class."""

    def down(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        head = head_of(net)
        return {
            "prototypes": base.ArraySpec((head.out_features, head.in_features), reveals="a mean over sites"),
            "known": base.ArraySpec((head.out_features,), reveals="which classes any site has had (1 or 0)"),
        }

    def start(self, net: nn.Module, ctx: base.ServerContext) -> None:
        head = head_of(net)
        self.state["prototypes"] = np.zeros((head.out_features, head.in_features), np.float32)
        self.state["known"] = np.zeros(head.out_features, np.float32)

    def receive(self, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> None:
        """Update P_c, the mean over the sites that have class c, weighted by their counts."""
        if ctx.round == 0:
            return
        counts = np.stack([update.arrays["fedproto"]["counts"] for update in updates]).astype(np.float64)
        stack = np.stack([update.arrays["fedproto"]["prototypes"] for update in updates]).astype(np.float64)
        total = counts.sum(0)
        mean = (counts[..., None] * stack).sum(0) / np.maximum(total, 1)[:, None]
        has = total > 0
        self.state["prototypes"] = np.where(has[:, None], mean, self.state["prototypes"]).astype(np.float32)
        self.state["known"] = np.maximum(self.state["known"], has).astype(np.float32)
