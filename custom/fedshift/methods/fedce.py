"""FedCE: weigh sites by an estimate of what each contributes, from directions and from models without it.

Jiang et al., "Fair Federated Medical Image Segmentation via Client Contribution Estimation", CVPR 2023. A site
contributes much if its change points elsewhere than the others', and if a model made without it is bad on its images::

    Δ_i = w_i − w,    Δ_−i = Σ_{j≠i} p_j Δ_j
    s_i = 1 − mean over rounds of cos(Δ_i, Δ_−i)                             gradient space
    w_−i = (w − p_i w_i) / (1 − p_i)                                         the last aggregate without site i's model
    e_i = mean over rounds of the error of w_−i on site i's validation samples          data space
    p_i ∝ s_i / Σ s + e_i / Σ e    (join: sum)   or   s_i / Σ s · e_i / Σ e    (join: product)

The new p average the round's models, p_i = 1/K before that. `Server.contributions` gives them for the round.

The server sends p, and each site makes its own w_−i: from the received aggregate and the model that it trained in the
round before, which it keeps in its state. If the server's limits scaled its change down, w_i is what they left of it.

The error is 1 − accuracy, or for segmentation 1 − Dice: mean over the foreground classes that the site's validation
masks have, each over all their pixels or voxels together. In the first round it is 1 for every site.

Read: NVFlare's ``research/fed-ce``, by authors of the paper (``fedce_assembler.py``, the learner, and ``client.py``,
which replaced it), NVFlare's ``FedCERecipe``, and the paper's abstract. The paper's equations were not at hand.
Deviations from that code:

- It limits s_i / Σ s, e_i / Σ e and p_i to 0.001 and more, so that p may sum to more than 1; here p is divided by its
  sum after that.
- Its error is 1 minus MONAI's mean Dice over validation batches, for segmentation only.

Choices: ``join: sum``, which NVFlare's job and recipe have as default (``plus``); the paper compares both. A site that
was not in the last aggregate (absent, rejected, not drawn) measures the error of the aggregate itself, which is the
model without it. It keeps its sums over its own rounds. A site without validation samples measures on its training
samples. Batch-norm statistics are averaged with p, and w_−i has them without site i's; a variance that rounding made
negative is 0.

When: a federation wants to know what each site brings, and to give sites that differ more weight. The estimate of every
round is in ``results.json`` and in the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedshift.methods import base
from fedshift.methods.shared.aggregation import average, inner_products, places
from fedshift.methods.shared.features import structures
from fedshift.methods.shared.passes import predicted
from fedshift.schema.messages import Arrays, Weights
from fedshift.schema.strict import Strict
from fedshift.tasks.losses import main

PARAMETERS, BUFFERS = "weights", "buffers"
"""Parts of a change in `SiteUpdate.scaled`."""
FLOOR = 1e-3
"""No site's part falls below this."""


class Config(Strict):
    """Options of FedCE.

    ``join``: how the two estimates are joined.
    """

    join: Literal["sum", "product"] = "sum"


def prediction_error(run: base.Run, data: base.TrainingSamples) -> float:
    """1 − accuracy, or 1 − Dice if every pixel has a class, of the network as it is now; from 0 to 1.

    Of findings the part of those that are known that is said wrongly, at 0.5; of regions 1 − their Dice. Over the
    validation samples, or over the training samples if the site has no others.
    """
    count = run.n_classes if run.regions is None else 1 + len(run.regions.names)
    hits, actual, guessed = (torch.zeros(count, dtype=torch.float64) for _ in range(3))
    for samples in (data.validation, data.chunks):
        with torch.no_grad():
            for logits, y in predicted(run, samples()):
                if run.findings:
                    known = ~y.isnan()
                    hits += ((main(logits) > 0).eq(y == 1) & known).sum(0).cpu()
                    actual += known.sum(0).cpu()
                    continue
                if run.regions is not None:
                    known = (y < run.n_classes).cpu()
                    for number, (mask, _) in enumerate(structures(y, run), start=1):
                        inside, wanted = ((main(logits)[:, number - 1] > 0).cpu() & known, mask.cpu())
                        for total, voxels in ((hits, inside & wanted), (actual, wanted), (guessed, inside)):
                            total[number] += voxels.sum()
                    continue
                guess, truth = main(logits).argmax(1).flatten().cpu(), y.flatten().cpu()
                guess, truth = guess[truth < run.n_classes], truth[truth < run.n_classes]
                hits += torch.bincount(truth[guess == truth], minlength=run.n_classes)
                actual += torch.bincount(truth, minlength=run.n_classes)
                guessed += torch.bincount(guess, minlength=run.n_classes)
        if actual.sum() > 0:
            break
    if not run.dense:
        if not actual.sum():
            return 1.0
        return float(1 - hits.sum() / actual.sum())
    dice = (2 * hits / (actual + guessed))[1:][actual[1:] > 0]
    return float(1 - dice.mean()) if len(dice) else 1.0


def without(weights: Mapping[str, Tensor], trained: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """The floating tensors of (w − p_i w_i) / (1 − p_i)."""
    rest = {
        key: (value.double() - share * trained[key].to(value.device).double()) / (1 - share)
        for key, value in weights.items()
        if value.is_floating_point()
    }
    rest = {key: value.clamp(min=0) if key.endswith("running_var") else value for key, value in rest.items()}
    return {key: value.to(weights[key].dtype) for key, value in rest.items()}


class Client(base.Client[Config]):
    """Sends the error of the last aggregate without its own model.

    State: ``own.<key>`` is the network after the site's last training round, ``received.<key>`` what the server sent.
    """

    in_ranks = frozenset({"begin", "end"})
    needs = (base.Rule("two sites", "each is compared with the others"),)

    def up(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        return {
            "error": base.ArraySpec(
                (),
                "float64",
                low=0,
                high=1,
                reveals="how often the other sites' model is wrong on the site's validation samples, or on its "
                "training samples if it has no others",
                kind="loss",
            )
        }

    def receive(self, arrays: Arrays, ctx: base.Context) -> None:
        self._arrays = arrays

    def begin(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        self._error = 1.0
        if ctx.round == 1 or not self._arrays:  # the latter: a final model, which nobody asks the error of
            return
        share = float(self._arrays["weights"][ctx.run.sites.index(ctx.run.site)])
        net, trained = ctx.run.net, self._site_model(ctx)
        if not trained or not 0 < share < 1:  # the site has no part in the model, or is alone in it
            self._error = prediction_error(ctx.run, data)
            return
        received = {key: value.clone() for key, value in net.state_dict().items()}
        averaged = {
            key: value for key, value in received.items() if np.array_equal(value.cpu(), ctx.run.received[key])
        }  # not the layers that a site keeps for itself
        try:
            net.load_state_dict(without(averaged, trained, share), strict=False)
            self._error = prediction_error(ctx.run, data)
        finally:
            net.load_state_dict(received)

    def end(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        """The error; keeps the received and the trained model for the next round."""
        for key, value in ctx.run.net.state_dict().items():
            if value.is_floating_point():
                ctx.state[f"own.{key}"] = value.detach().cpu().clone()
                ctx.state[f"received.{key}"] = torch.tensor(ctx.run.received[key])
        return {"error": np.asarray(self._error)}

    def _site_model(self, ctx: base.Context) -> dict[str, Tensor]:
        """The site's model of its last round as the server used it, without integers; empty before any."""
        place = ctx.run.sites.index(ctx.run.site)
        parts = dict(zip((PARAMETERS, BUFFERS), self._arrays["used"][place].tolist(), strict=True))
        parameters = {name for name, _ in ctx.run.net.named_parameters()}
        trained = {key.removeprefix("own."): value for key, value in ctx.state.items() if key.startswith("own.")}
        for key, value in trained.items():
            part = parts[PARAMETERS if key in parameters else BUFFERS]
            if part != 1:
                trained[key] = (1 - part) * ctx.state[f"received.{key}"] + part * value
        return trained


def cosines(products: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """cos(Δ_i, Δ_−i) of every site, 0 where either did not move: changes' inner products (K, K), p (K,) -> (K,)."""
    result = np.zeros(len(shares))
    for site in range(len(shares)):
        others = np.where(np.arange(len(shares)) == site, 0.0, shares)
        along = np.einsum("i,i->", products[site], others)
        length = np.einsum("i,ij,j->", others, products, others) * products[site, site]
        if length > 0:
            result[site] = np.clip(along / np.sqrt(length), -1, 1)
    return result


def joined(apart: np.ndarray, errors: np.ndarray, *, join: str) -> np.ndarray:
    """The new p, with sum 1, from s and e: (K,), (K,) -> (K,)."""
    parts = [np.maximum(_normalised(values), FLOOR) for values in (apart, errors)]
    product = np.maximum(_normalised(parts[0] * parts[1] if join == "product" else parts[0] + parts[1]), FLOOR)
    return _normalised(product)


def _normalised(values: np.ndarray) -> np.ndarray:
    total = values.sum()
    shares: np.ndarray = values / total if total > 0 else np.full(len(values), 1 / len(values))
    return shares


class Server(base.Server[Config]):
    """Estimates contributions, then averages with them.

    State, with one number for each site: ``weights`` of the last aggregate, 0 for sites not in it; ``estimate``, each
    site's last weight; ``cosines`` and ``errors``, sums over its ``rounds``. ``used`` has two, of the last aggregate.
    """

    owns = frozenset({"combine"})
    tells_sites_apart = True

    def down(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        return {
            "weights": base.ArraySpec(
                ("sites",), "float64", low=0, high=1, keep=False, reveals="every site's weight in the received model"
            ),
            "used": base.ArraySpec(
                ("sites", 2),
                "float64",
                low=0,
                high=1,
                keep=False,
                reveals="the parts of every site's change of parameters and of buffers that the server's limits left",
            ),
        }

    def start(self, net: nn.Module, ctx: base.ServerContext) -> None:
        n = len(ctx.sites)
        zeros: dict[str, Any] = {name: np.zeros(n) for name in ("weights", "cosines", "errors", "rounds")}
        self.state = {**zeros, "estimate": np.full(n, 1 / n), "used": np.ones((n, 2))}

    def combine(self, weights: Weights, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> Weights:
        """Estimate p from this round and the earlier ones, and return Σ_i p_i w_i."""
        present = places(updates, ctx)
        state = {name: value.copy() for name, value in self.state.items()}
        before = _normalised(state["estimate"][present])
        products = inner_products(weights, updates, trainable=ctx.trainable)
        state["cosines"][present] += cosines(products, before)
        state["errors"][present] += [float(update.arrays["fedce"]["error"]) for update in updates]
        state["rounds"][present] += 1
        rounds = state["rounds"][present]
        apart = 1 - state["cosines"][present] / rounds
        shares = joined(apart, state["errors"][present] / rounds, join=self.config.join)
        state["estimate"][present] = shares
        state["weights"] = np.zeros(len(ctx.sites))
        state["weights"][present] = shares
        state["used"] = np.ones((len(ctx.sites), 2))
        state["used"][present] = [
            [update.scaled.get(part, 1.0) for part in (PARAMETERS, BUFFERS)] for update in updates
        ]
        self.state = state
        return average(weights, updates, shares.tolist())

    def contributions(self, ctx: base.ServerContext) -> Mapping[str, float]:
        shares = zip(ctx.sites, self.state["weights"].tolist(), strict=True)
        return {site: share for site, share in shares if share > 0}

    def broadcast(self, ctx: base.ServerContext) -> Arrays:
        return {"weights": self.state["weights"], "used": self.state["used"]}
