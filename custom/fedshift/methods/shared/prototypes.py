"""Prototypes: the mean embedding of a site's training images of each class, and what may be sent of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedshift.methods.base import ArraySpec, ConfigT, Context, Rule, Run, Server, ServerContext, TrainingSamples
from fedshift.methods.shared.head import EmbeddingClient, head_of
from fedshift.schema.messages import Arrays

LARGEST = 1e6
TOO_FEW = "sends no prototype of fewer than min_samples images"


class ClassMeans:
    """Sums and counts of embeddings by class, in float64."""

    def __init__(self, like: Tensor) -> None:
        """All zero; ``like`` (K, d) gives the shape and the device."""
        self.sums = torch.zeros_like(like, dtype=torch.float64)
        self.counts = torch.zeros_like(self.sums[:, 0])

    def add(self, u: Tensor, classes: Tensor) -> None:
        """Add embeddings (B, d) of the classes (B,)."""
        member = functional.one_hot(classes, len(self.counts)).double()
        self.sums += member.T @ u.detach().double()  # index_add_ is not deterministic on a GPU
        self.counts += member.sum(0)

    def means(self) -> Tensor:
        """Means (K, d), 0 for classes without embeddings."""
        return self.sums / self.counts.clamp(min=1)[:, None]


class LastEpoch:
    """Class means over the round's last epoch of training, each batch embedded before its step.

    With ``schedule.local_steps``, an unfinished epoch is merged with the one before it. An image may then be in both,
    so the larger count of a class in one of them counts as its number of images.
    """

    def __init__(self, like: Tensor, run: Run) -> None:
        """No embeddings; ``like`` (K, d) gives the shape and the device."""
        self.current, self._before, self._like = ClassMeans(like), ClassMeans(like), like
        self._epoch = run.epoch

    def add(self, u: Tensor, classes: Tensor, run: Run) -> None:
        """Add a batch's embeddings (B, d) of the classes (B,), once for every step."""
        if run.replay:
            return
        if run.epoch != self._epoch:
            self._before, self.current = self.current, ClassMeans(self._like)
            self._epoch = run.epoch
        self.current.add(u, classes)

    def tensors(self) -> dict[str, Tensor]:
        sums = {"sums": self.current.sums, "counts": self.current.counts}
        before = {"sums_before": self._before.sums, "counts_before": self._before.counts}
        return {**sums, **before, "epoch": torch.tensor(self._epoch)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for means, suffix in ((self.current, ""), (self._before, "_before")):
            means.sums.copy_(tensors[f"sums{suffix}"])
            means.counts.copy_(tensors[f"counts{suffix}"])
        self._epoch = int(tensors["epoch"])

    def arrays(self, *, min_samples: int, by_class: bool) -> Arrays:
        """What leaves the site: prototypes (K, d) and counts (K,), 0 for classes of fewer than ``min_samples`` images.

        Counts are class counts with ``by_class``, otherwise 0 or 1.
        """
        images = self.current.counts.clone()  # no image occurs twice in an epoch, so this counts distinct images
        if images.sum() < self._before.counts.sum():  # unfinished: every epoch shows as many images
            images = torch.maximum(images, self._before.counts)
            self.current.sums += self._before.sums
            self.current.counts += self._before.counts
        enough = (images >= min_samples).double()
        counts = images * enough if by_class else enough
        prototypes = self.current.means() * enough[:, None]
        return {"prototypes": prototypes.float().cpu().numpy(), "counts": counts.float().cpu().numpy()}


def _counts(config: Any) -> tuple[int, bool]:
    """The fewest images of a class whose prototype leaves a site, and whether class counts do."""
    return config.min_samples, getattr(config, "weights", "uniform") == "samples"


class PrototypeClient(EmbeddingClient[ConfigT]):
    """Sends the site's prototypes, of the embeddings that its ``loss`` gives to ``_means``."""

    needs = (
        *EmbeddingClient.needs,
        Rule("one class for each image"),
        Rule("each image once in an epoch", f"it {TOO_FEW}", lambda case: case.config.min_samples > 1),
    )
    clashes = (Rule("may show an image twice in a batch", TOO_FEW, lambda case: case.config.min_samples > 1),)

    _means: LastEpoch
    """A new one in each round (``begin``)."""

    def up(self, net: nn.Module) -> dict[str, ArraySpec]:
        (least, by_class), head = _counts(self.config), head_of(net)
        counted = "the site's training images of each class"
        which = f"number of {counted}" if by_class else "which classes the site has (1 or 0)"
        few = f", if there are at least {least}" if least > 1 else " (of its only image, if there is one)"
        return {
            "prototypes": ArraySpec(
                (head.out_features, head.in_features),
                low=-LARGEST,
                high=LARGEST,
                reveals=f"average embedding of {counted}{few}",
                kind="prototypes",
                alike="norm",
            ),
            "counts": ArraySpec((head.out_features,), low=0, high=1e9, reveals=which, kind="prototypes"),
        }

    def checkpoint(self, ctx: Context) -> dict[str, Tensor]:
        return self._means.tensors()

    def restore(self, kept: Mapping[str, Tensor], ctx: Context) -> None:
        self._means.load(kept)

    def end(self, data: TrainingSamples, ctx: Context) -> Arrays:
        """Without classes that have fewer than ``min_samples`` images."""
        least, by_class = _counts(self.config)
        return self._means.arrays(min_samples=least, by_class=by_class)


class PrototypeServer(Server[ConfigT]):
    """Sends its state, which is made of the sites' prototypes."""

    def fault(self, arrays: Mapping[str, np.ndarray], n_samples: int) -> tuple[str, str] | None:
        """Impossible counts, or prototypes of classes whose count is 0."""
        least, by_class = _counts(self.config)
        counts = arrays["counts"].astype(np.float64)
        allowed = (counts == 0) | ((counts >= least) & (counts == np.rint(counts)) if by_class else counts == 1)
        if not allowed.all():
            wanted = f"0 or an integer of at least {least}" if by_class else "0 or 1"
            return "counts", f"is {counts[~allowed][0]:g} for a class, must be {wanted}"
        claimed = counts.sum() if by_class else least * counts.sum()
        if claimed > n_samples:
            return "counts", f"implies at least {claimed:g} images, and the site has {n_samples}"
        if (arrays["prototypes"] != 0)[counts == 0].any():
            return "prototypes", f"holds a prototype of a class whose count is 0: a mean of fewer than {least} images"
        return None

    def broadcast(self, ctx: ServerContext) -> Arrays:
        return self.state
