"""FPL: contrast embeddings with clusters of the sites' prototypes, and hold them near an unbiased mean of the clusters.

Huang et al., "Rethinking Federated Learning with Domain Shift: A Prototype View", CVPR 2023, equations 2 to 12. With u
the embedding of an image of class y, d its length, sim the cosine, p_c^k site k's mean embedding of class c::

    server:  P_c = {mean of the p_c^k in a cluster}, clusters by FINCH over sites;    U_c = mean of P_c
    site:    loss + mean over the batch of  − log Σ_{P_y} exp(sim(u, p)/τ) / Σ_{all P} exp(sim(u, p)/τ)      (contrast)
                                            + ‖u − U_y‖²                                               (consistency)

FINCH (Sarfraz et al., "Efficient Parameter-free Clustering Using First Neighbor Relations", CVPR 2019) links every
point with its nearest neighbour by cosine distance; connected points are a cluster. The same is done with the clusters'
means as long as it leaves more than one cluster. Sites count equally in a cluster, and clusters in U_c, so that many
alike sites do not outweigh a single one of another kind. The models are averaged too.

p is made as FedProto makes it from the last epoch of training (`fedshift.methods.shared.prototypes`). A sample whose
class has no prototype contributes 0, so round 1 has no extra term.

Deviations:

- The paper makes p with the trained model, in a pass of its own after training; the code and this from the embeddings
  of the last epoch, which are there.
- The paper clusters by first neighbours and does not say how often; the code and this merge clusters as FINCH does.
- A class that no site of a round has keeps its last prototypes; the code drops it.
- As with FedProto, a site sends no prototype of fewer than ``min_samples`` images (2; the code: 1).
- ``contrast`` and ``consistency`` scale the two terms. Soft labels (Mixup) count as their largest class.

Choices: τ is the paper's 0.02. The paper's sum with weight 1 is strong where u is long: with d = 512 and the learning
rate of the task ``digits`` it slows training down a lot, and ``consistency`` has to be tuned (1/d is the code's).

Read: the paper's text, and the authors' code (WenkeHuang/RethinkFL, ``models/fpl.py`` and ``utils/finch.py``).

When: some sites are alike and others are not, and the alike ones should not decide what a class looks like.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from fedshift.methods import base
from fedshift.methods.shared import search
from fedshift.methods.shared.head import classes_of, head_of
from fedshift.methods.shared.prototypes import LARGEST, LastEpoch, PrototypeClient, PrototypeServer
from fedshift.schema.messages import Arrays
from fedshift.schema.strict import Strict
from fedshift.tasks.precision import precise

SEARCH = {
    "temperature": search.choice(0.02, 0.04, 0.1, 0.5),
    "contrast": search.log(0.1, 10),
    "consistency": search.log(0.001, 10),
    "min_samples": None,
}


class Config(Strict):
    """Options of FPL.

    ``temperature``: τ. ``contrast``: weight of the first term. ``consistency``: weight of the second. ``min_samples``:
    as with ``fedproto``. ``variant``: ``released`` divides the second term by the length of u, as the authors' code
    does; with the paper's sum ``consistency`` has to be tuned.
    """

    variant: Literal["paper", "released"] = "paper"
    temperature: float = Field(default=0.02, gt=0)
    contrast: float = Field(default=1.0, ge=0)
    consistency: float = Field(default=1.0, ge=0)
    min_samples: int = Field(default=2, ge=1)


# --- clusters -----------------------------------------------------------------------------------------


def linked(points: np.ndarray) -> np.ndarray:
    """Number of each point's cluster, if every point is linked with its nearest one by cosine: (n, d) -> (n,)."""
    unit = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    distance = 1 - unit @ unit.T
    np.fill_diagonal(distance, np.inf)
    group = np.arange(len(points))
    for point, neighbour in enumerate(distance.argmin(1)):
        group[group == group[neighbour]] = group[point]
    return np.unique(group, return_inverse=True)[1]


def finch(points: np.ndarray) -> np.ndarray:
    """FINCH's coarsest clusters of which there is more than one, or its first: (n, d) -> cluster numbers (n,)."""
    clusters = linked(points)
    while True:
        merged = linked(means_of(points, clusters))[clusters]
        if merged.max() == 0 or merged.max() == clusters.max():
            return clusters
        clusters = merged


def means_of(points: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """Mean of each cluster's points: (n, d), (n,) -> (number of clusters, d)."""
    return np.stack([points[clusters == number].mean(0) for number in range(clusters.max() + 1)])


# --- losses -------------------------------------------------------------------------------------------


def contrast_loss(u: Tensor, classes: Tensor, prototypes: Tensor, present: Tensor, *, temperature: float) -> Tensor:
    """−log of the share of the class's own prototypes: embeddings (B, d) of ``classes`` (B,) -> (B,).

    ``prototypes`` (K, S, d) are up to S for each class, ``present`` (K, S) bool says which there are; each class of the
    batch has one.
    """
    n_classes, most, _ = prototypes.shape
    similarity = functional.cosine_similarity(u[:, None], prototypes.flatten(0, 1)[None], dim=2) / temperature
    similarity = similarity.masked_fill(~present.flatten()[None], -torch.inf)
    same_class = torch.arange(n_classes, device=u.device).repeat_interleave(most)[None] == classes[:, None]
    return similarity.logsumexp(1) - similarity.masked_fill(~same_class, -torch.inf).logsumexp(1)


class Client(PrototypeClient[Config]):
    """Adds both terms to the loss and sends the site's prototypes."""

    least_part = 1
    idle = (
        base.Rule("temperature", "contrast is 0, and τ is a part of it", {"contrast": 0}),
        base.Rule("variant", "consistency is 0, in which variants differ", {"consistency": 0}),
        base.Rule(
            "min_samples", "contrast and consistency are 0, so no prototype is used", {"contrast": 0, "consistency": 0}
        ),
    )

    def receive(self, arrays: Arrays, ctx: base.Context) -> None:
        device = ctx.run.device
        self._prototypes = torch.from_numpy(arrays["prototypes"]).to(device)
        number = torch.from_numpy(arrays["number"]).to(device)
        self._present = torch.arange(self._prototypes.shape[1], device=device)[None] < number[:, None]
        self._unbiased = (self._prototypes * self._present[..., None]).sum(1) / number.clamp(min=1)[:, None]

    def begin(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        self._means = LastEpoch(self._unbiased, ctx.run)

    def loss(self, batch: base.Batch, logits: Tensor, loss: Tensor, ctx: base.Context) -> Tensor:
        u, classes = precise(self.embedding), classes_of(batch.y)
        self._means.add(u, classes, ctx.run)
        known = self._present.any(1)[classes]
        if not known.any():
            return loss
        embeddings, labels = u[known], classes[known]
        apart = contrast_loss(
            embeddings, labels, self._prototypes.to(u), self._present, temperature=self.config.temperature
        )
        squares = (embeddings - self._unbiased.to(u)[labels]).square()
        far = squares.mean(1) if self.config.variant == "released" else squares.sum(1)
        return loss + (self.config.contrast * apart + self.config.consistency * far).sum() / len(u)


class Server(PrototypeServer[Config]):
    """Clusters the sites' prototypes class by class."""

    def down(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        head = head_of(net)
        shape = (head.out_features, "sites", head.in_features)
        return {
            "prototypes": base.ArraySpec(
                shape,
                low=-LARGEST,
                high=LARGEST,
                reveals="means over groups of alike sites; of a site's own embeddings if it alone of a round's sites "
                "has a class",
            ),
            "number": base.ArraySpec((head.out_features,), "int64", low=0, reveals="groups of sites for each class"),
        }

    def start(self, net: nn.Module, ctx: base.ServerContext) -> None:
        head = head_of(net)
        self.state["prototypes"] = np.zeros((head.out_features, len(ctx.sites), head.in_features), np.float32)
        self.state["number"] = np.zeros(head.out_features, np.int64)

    def receive(self, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> None:
        """Replace the clusters of every class that a site of this round has."""
        if ctx.round == 0:
            return
        has = np.stack([update.arrays["fpl"]["counts"] for update in updates]) > 0
        sent = np.stack([update.arrays["fpl"]["prototypes"] for update in updates]).astype(np.float64)
        prototypes, number = self.state["prototypes"].copy(), self.state["number"].copy()
        for label in np.flatnonzero(has.any(0)):
            points = sent[has[:, label], label]
            means = means_of(points, finch(points))
            prototypes[label] = 0
            prototypes[label, : len(means)], number[label] = means, len(means)
        self.state = {"prototypes": prototypes, "number": number}
