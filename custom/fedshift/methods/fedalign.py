"""FedAlign: train on views of each image in other sites' styles, and align features and predictions of the views.

Gupta, Sutar, Singh and Sethi, "FedAlign: Federated Domain Generalization with Cross-Client Feature Alignment", 2025
(arXiv 2501.15486). Sites exchange mean image statistics once: μ_k and σ_k per channel are the means over a site's
images of their mean and of their standard deviation. In each step every image x gets two views, x₁ from x and x₂ from
x₁, each in the style of a random site j and then changed by AugMix::

    x' = AugMix( (λ σ(x) + (1−λ) σ_j) (x − μ(x)) / σ(x) + λ μ(x) + (1−λ) μ_j ),   λ ~ Beta(α, α)

With z the features before the last layer, p the softmax and L the task's loss::

    L(x) + L(x₁) + L(x₂) + λ₁ Σ_v SupCon(z_v, z) + λ₂ JS(p, p₁, p₂) + λ₃ mean_v ‖z_v − z‖² / d

SupCon (Khosla et al., NeurIPS 2020) pulls a view's features to those of all images of its class and away from the
other images'. JS is the Jensen-Shannon divergence, mean over images.

In segmentation z is a structure's: the mean features over its mask, and the background's is one of them. AugMix then
changes tones only, so that the mask fits every view, and JS is the mean over voxels.

Read: the authors' code (varunav123/FedAlign, ``algorithm/client/fedalign.py``), and the paper's abstract.

Deviations from the code:

- Sites there send the statistics of single images, a tenth of them in each round, to all others. Here a site sends
  means over its images, once, as FedRDN does; with few images single ones' say much.
- Its ``MixStyle`` in effect mixes with other images of the batch, and weighs λ by how difficult the image is; the pool
  of statistics, its clusters and the discriminator of domains change nothing there. Here styles are other sites'.
- JS is of the three distributions as in AugMix's paper. Views normalise with their own statistics in batch norms, and
  move no running ones.

``contrast``, ``agreement`` and ``distance`` are λ₁, λ₂ and λ₃, all 0.1 as in the code. A step takes about three times
as long as without.

When: a model for sites that did not train. With standard scores of each volume sites' mean statistics are nearly the
same, and AugMix alone makes the views.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from fedshift.methods import base
from fedshift.methods.shared import image_statistics, search
from fedshift.methods.shared.augmix import augmix
from fedshift.methods.shared.features import beta, mean_over, on_grid_of, over_space, spatial_dims, structures
from fedshift.methods.shared.head import classes_of
from fedshift.methods.shared.passes import same_precision, uncounted
from fedshift.schema.messages import Arrays
from fedshift.schema.strict import Strict
from fedshift.tasks.last_layers import last_layers
from fedshift.tasks.losses import Logits
from fedshift.tasks.precision import precise

SEARCH = {
    "contrast": search.log(0.01, 1),
    "agreement": search.log(0.01, 10),
    "distance": search.log(0.01, 1),
    "temperature": search.choice(0.05, 0.1, 0.5),
}
VIEWS = 2


class Config(Strict):
    """Options of FedAlign.

    ``alpha``: α. ``severity``: of AugMix, in tenths of the strongest. ``contrast``: λ₁. ``agreement``: λ₂.
    ``distance``: λ₃. ``temperature``: of SupCon.
    """

    alpha: float = Field(default=0.1, gt=0)
    severity: float = Field(default=3.0, ge=0, le=10)
    contrast: float = Field(default=0.1, ge=0)
    agreement: float = Field(default=0.1, ge=0)
    distance: float = Field(default=0.1, ge=0)
    temperature: float = Field(default=0.1, gt=0)


def in_style(x: Tensor, mean: Tensor, std: Tensor, share: Tensor) -> Tensor:
    """Images (B, C, *spatial) partly in the styles ``mean`` and ``std`` (B, C); ``share`` (B,) of their own is kept."""
    std_now, mean_now = torch.std_mean(x, spatial_dims(x), correction=0, keepdim=True)
    share, mean, std = (over_space(each.to(x), x) for each in (share[:, None], mean, std))
    scale = share + (1 - share) * std / std_now.clamp(min=image_statistics.SMALLEST_STD)
    return scale * (x - mean_now) + share * mean_now + (1 - share) * mean


def supervised_contrast(z: Tensor, anchors: Tensor, labels: Tensor, *, temperature: float) -> Tensor:
    """SupCon of features ``z`` to ``anchors``, (N, d) each; row i of both is of one image, of class ``labels`` (N,)."""
    similar = functional.normalize(z, dim=1) @ functional.normalize(anchors, dim=1).T / temperature
    same = (labels[:, None] == labels).to(similar)
    return -((similar.log_softmax(1) * same).sum(1) / same.sum(1)).mean()


def divergence(logits: Tensor, *, exclusive: bool) -> Tensor:
    """Jensen-Shannon divergence of versions' logits (V, B, K, *spatial), mean over all else; classes or yes and no."""
    logits = precise(logits)
    if not exclusive:
        logits = torch.stack([logits, torch.zeros_like(logits)], 2)
    log_p = logits.log_softmax(2)
    log_mean = log_p.logsumexp(0) - torch.tensor(float(len(log_p))).log()
    return (log_p.exp() * (log_p - log_mean)).sum(2).mean()


class Client(base.Client[Config]):
    """Sends its statistics once; trains on images and their views."""

    needs = (
        base.Rule(
            "one class for each image",
            "it contrasts classes",
            lambda case: case.config.contrast > 0,
            "{name}.contrast=0",
        ),
    )
    traits = (base.Rule("reads what a step's last pass computes"),)
    clashes = (
        base.Rule("reads what a step's last pass computes", "has two passes in a step"),
        base.Rule("normalises images", "exchanges styles of images as they are"),
        base.Rule("mixes images and their targets", "contrasts images by their class"),
    )
    idle = (base.Rule("temperature", "contrast is 0", {"contrast": 0}),)

    def up(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        return image_statistics.sent(net)

    def statistics(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        return image_statistics.site_statistics(data.images_alone(), site=ctx.run.site, method="FedAlign")

    def receive(self, arrays: Arrays, ctx: base.Context) -> None:
        """All sites' statistics; none come with a final model."""
        self._styles = {name: torch.from_numpy(array) for name, array in arrays.items()}

    def attach(self, net: nn.Module, ctx: base.Context) -> list[RemovableHandle]:
        """Keep the features before the last layer of each training pass."""

        def keep(_layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if net.training and "views" in ctx.scratch:
                ctx.scratch["features"] = inputs[0]

        return [last_layers(net)[0].register_forward_pre_hook(keep)]

    def batch(self, batch: base.Batch, ctx: base.Context) -> base.Batch:
        """Make the views; the batch stays."""
        if not self._styles:
            return batch
        views, rng = [batch.x], ctx.rng("views")
        for _ in range(VIEWS):
            site = torch.randint(len(self._styles["means"]), (len(batch.x),), generator=rng)
            share = beta(self.config.alpha, (len(batch.x),), rng)
            styled = in_style(views[-1], self._styles["means"][site], self._styles["stds"][site], share)
            views.append(augmix(styled, rng, severity=self.config.severity, moves=not ctx.run.dense))
        ctx.scratch["views"] = torch.cat(views[1:])
        return batch

    def loss(self, batch: base.Batch, logits: Tensor, loss: Tensor, ctx: base.Context) -> Tensor:
        if not self._styles:
            return loss
        config, run = self.config, ctx.run
        before = ctx.scratch.pop("features")
        with uncounted(run), same_precision(main(logits)):
            outputs = run.net(ctx.scratch["views"])
        features = torch.cat([before, ctx.scratch.pop("features")])
        loss = loss + sum(run.objective(part(outputs, view), batch.y) for view in range(VIEWS))
        versions = torch.cat([main(logits), main(outputs)]).unflatten(0, (1 + VIEWS, -1))  # type: ignore[no-untyped-call]
        exclusive = not (run.findings or run.regions)
        loss = loss + config.agreement * divergence(versions, exclusive=exclusive)
        if config.contrast or config.distance:
            z, labels = of_structures(features, batch.y, run) if run.dense else of_images(features, batch.y)
            for view in z[1:]:
                if config.contrast:
                    near = supervised_contrast(view, z[0], labels, temperature=config.temperature)
                    loss = loss + config.contrast * near
                loss = loss + config.distance * functional.mse_loss(view, z[0]) / VIEWS
        return loss


def main(logits: Logits) -> Tensor:
    """The network's main output."""
    return logits if isinstance(logits, Tensor) else logits[0]


def part(logits: Logits, view: int) -> Logits:
    """What the network gives for one of the views."""
    if isinstance(logits, Tensor):
        return logits.chunk(VIEWS)[view]
    return [output.chunk(VIEWS)[view] for output in logits]


def of_images(features: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Features (V, B, d) of V versions of images, and the images' classes."""
    return precise(features).unflatten(0, (1 + VIEWS, -1)), classes_of(y)  # type: ignore[no-untyped-call]


def of_structures(features: Tensor, y: Tensor, run: base.Run) -> tuple[Tensor, Tensor]:
    """Mean features (V, N, d) over each structure of V versions of B images, and which structure each is of (N,)."""
    features = on_grid_of(y, precise(features)).unflatten(0, (1 + VIEWS, -1))  # type: ignore[no-untyped-call]
    masks = [mask for mask, _ in structures(y, run)]
    z, labels = [], []
    for number, mask in enumerate([y == 0, *masks]):
        present = mask.flatten(1).any(1)
        z.append(mean_over(features[:, present].flatten(0, 1), mask[present]))
        labels.append(torch.full((z[-1].shape[1],), number, device=y.device))
    return torch.cat(z, 1), torch.cat(labels)


class Server(base.Server[Config]):
    """Collects the statistics once and sends all of them to every site."""

    def down(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        return {name: replace(spec, keep=False) for name, spec in image_statistics.sent_to_all(net).items()}

    def receive(self, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> None:
        if ctx.round == 0:
            self.state = image_statistics.collected(updates, "fedalign")

    def broadcast(self, ctx: base.ServerContext) -> Arrays:
        return self.state
