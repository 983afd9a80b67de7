"""PartialFed: a site loads only some modules of the global model and keeps its own version of the others.

Sun et al., "PartialFed: Cross-Domain Personalized Federated Learning via Partial Initialization", NeurIPS 2021. At
the start of a round, with the received w and the site's own weights v from the last round in which it trained, for
each module m that holds parameters::

    w_i[m] = v[m] if m is kept else w[m]
    fixed (PartialFed-Fix):           the modules named in ``keep`` are kept
    adaptive (PartialFed-Adaptive):   modules with a_m,local > a_m,global are kept; the logits a are learned on the
               site's images by
               f(π_m w[m] + (1 − π_m) v[m]),   π = one-hot argmax softmax((a + Gumbel noise) / τ), straight through

All weights are sent and averaged. A site is evaluated with its own mixture. In a site's first round, and at a site that
has never trained, every module is global.

No code was published, and the paper's text was not available; FRAug's authors, too, wrote their own. What is known of
it: the abstract names PartialFed-Fix, loading strategies chosen by hand, and PartialFed-Adaptive, which chooses one for
each client, and says that a small fraction of the layers is initialised locally. A summary of the paper
(https://qiao1.top/posts/2cb917ce.html, read in November 2026) reports of PartialFed-Fix that sharing lower layers is
better than sharing upper ones, that loading the global classifier hurts, that not loading batch norm helps, and that
both were tried together. Hence the default ``keep: [norm, head]``. ``[norm]`` alone would be FedBN, ``[]`` FedAvg.

Deviations from the paper: these details were chosen here:

- ``keep``: ``norm`` stands for normalisation layers. The other names refer to groups in order of definition; a group is
  a layer of weights with the modules that follow it (normalisation, activation) up to the next layer of weights.
  ``first`` is the first group, ``head`` the network's head (the last group if the network has no ``head``), ``last``
  the group before the head.
- The search takes ``search_steps`` Adam steps with ``search_lr`` on random, un-augmented batches of ``search_batch``
  training images, before training. Batch norm normalises with batch statistics and updates no running statistics.
- Logits start at 0, which selects the global model, and persist over rounds.

When: ``adaptive``: it is not known which part of a network should be personal; ``fixed``: it is known and includes more
than batch norm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedshift.methods import base
from fedshift.methods.shared.norms import is_norm, module_keys
from fedshift.methods.shared.passes import frozen_statistics
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Arrays
from fedshift.schema.strict import Strict

Place = Literal["norm", "first", "last", "head"]
GLOBAL, LOCAL = 0, 1


class Config(Strict):
    """Options of PartialFed.

    ``mode``: ``fixed`` or ``adaptive``. ``keep``: for ``fixed``, any of ``norm``, ``first``, ``last``, ``head``; [norm]
    is FedBN and [] FedAvg. For ``adaptive``: ``search_steps``, ``search_batch``, ``search_lr`` and ``temperature`` (τ).
    """

    mode: Literal["fixed", "adaptive"] = "fixed"
    keep: tuple[Place, ...] = ("norm", "head")
    search_steps: int = Field(default=10, ge=1)
    search_batch: int = Field(default=16, ge=2)
    search_lr: float = Field(default=0.1, gt=0)
    temperature: float = Field(default=1.0, gt=0)


def units(net: nn.Module) -> dict[str, tuple[str, ...]]:
    """Modules that directly hold parameters, by name, with their ``state_dict`` keys."""
    return {
        name: keys
        for name, module, keys in module_keys(net)
        if next(module.parameters(recurse=False), None) is not None
    }


def places(net: nn.Module) -> dict[Place, frozenset[str]]:
    """Names of the modules that each word of ``keep`` stands for."""
    modules = dict(net.named_modules(remove_duplicate=False))
    groups: list[list[str]] = []
    for name in units(net):
        weighs = any(parameter.dim() > 1 for parameter in modules[name].parameters(recurse=False))
        if weighs or not groups:
            groups.append([])
        groups[-1].append(name)
    head = getattr(net, "head", None)
    inside = {id(module) for module in head.modules()} if isinstance(head, nn.Module) else set()
    with_head = (i for i, group in enumerate(groups) if any(id(modules[name]) in inside for name in group))
    at = next(with_head, len(groups) - 1)
    return {
        "norm": frozenset(name for name in units(net) if is_norm(modules[name], "all")),
        "first": frozenset(groups[0]),
        "last": frozenset(groups[max(at - 1, 0)]),
        "head": frozenset(name for name in units(net) if id(modules[name]) in inside) or frozenset(groups[at]),
    }


def one_hot_sample(logits: Tensor, *, temperature: float, rng: torch.Generator) -> Tensor:
    """Straight-through Gumbel-softmax: one-hot draws with the gradient of the soft ones, (M, 2) -> (M, 2)."""
    uniform = torch.rand(logits.shape, generator=rng).clamp_min(1e-20)
    soft = torch.softmax((logits - (-uniform.log()).log()) / temperature, 1)
    hard = functional.one_hot(soft.argmax(1), 2).to(soft)
    return hard + soft - soft.detach()


def random_batches(
    data: base.TrainingSamples, *, steps: int, size: int, rng: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """``steps`` batches of random training samples, read in one pass; samples repeat only if there are too few."""
    epochs = -(-steps * size // data.n_train)
    drawn = torch.cat([torch.randperm(data.n_train, generator=rng) for _ in range(epochs)])[: steps * size]
    wanted, start = torch.from_numpy(np.unique(drawn.numpy())), 0
    images, targets = [], []
    for x, y in data.chunks():
        inside = wanted[(wanted >= start) & (wanted < start + len(x))] - start
        images.append(x[inside])
        targets.append(y[inside])
        start += len(x)
    x, y = torch.cat(images), torch.cat(targets)
    for index in torch.searchsorted(wanted, drawn).reshape(steps, size):
        yield x[index], y[index]


class Client(base.Client[Config]):
    """Keeps a copy of its model and mixes it with the received one."""

    in_ranks = frozenset({"begin", "end"})
    clashes = (base.Rule("keeps parts of the model at the site", "decides that too"),)
    idle = (
        base.Rule("keep", "mode adaptive learns what to keep", {"mode": "adaptive"}),
        base.Rule(
            "search_steps search_batch search_lr temperature",
            "mode fixed does not search: --set partialfed.mode=adaptive",
            {"mode": "fixed"},
        ),
    )

    def check(self, job: JobSpec, net: nn.Module) -> None:
        if self.config.mode == "fixed" and self.config.keep and not self.kept_modules(net, {}):
            raise ConfigError(
                "method-needs",
                f"method partialfed: network {job.task.network.name} has no normalisation layers, so with keep=[norm] "
                "this would be FedAvg: name other places, such as --set partialfed.keep=[head]",
            )

    def keeps(self, net: nn.Module) -> frozenset[str]:
        """The keys of ``keep``, or all that ``adaptive`` may choose."""
        modules = units(net)
        names = modules.keys() if self.config.mode == "adaptive" else self.kept_modules(net, {})
        return frozenset(key for name in names for key in modules[name])

    def scores_own_model(self, net: nn.Module) -> bool:
        return self.config.mode == "adaptive" or bool(self.config.keep)

    def receive(self, arrays: Arrays, ctx: base.Context) -> None:
        self._load_kept(ctx)

    def begin(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        if self.config.mode == "adaptive" and any(key.startswith("own.") for key in ctx.state):
            self._search(data, ctx)
            ctx.run.net.load_state_dict({key: torch.as_tensor(value) for key, value in ctx.run.received.items()})
            self._load_kept(ctx)

    def end(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        if self.scores_own_model(ctx.run.net):
            for key, value in ctx.run.net.state_dict().items():
                ctx.state[f"own.{key}"] = value.detach().cpu().clone()
        return {}

    def kept_modules(self, net: nn.Module, state: Mapping[str, Tensor]) -> frozenset[str]:
        if self.config.mode == "fixed":
            chosen = places(net)
            return frozenset().union(*(chosen[place] for place in self.config.keep))
        if "logits" not in state:
            return frozenset()
        local = state["logits"][:, LOCAL] > state["logits"][:, GLOBAL]
        return frozenset(name for name, keep in zip(units(net), local.tolist(), strict=True) if keep)

    def _load_kept(self, ctx: base.Context) -> None:
        net = ctx.run.net
        local = {
            key: ctx.state[f"own.{key}"]
            for name, keys in units(net).items()
            if name in self.kept_modules(net, ctx.state)
            for key in keys
            # Batch counters (integers) are not kept: they count the batches of all sites.
            if f"own.{key}" in ctx.state and ctx.state[f"own.{key}"].is_floating_point()
        }
        net.load_state_dict(local, strict=False)

    def _search(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        """Update the logits; the network's weights do not change."""
        net, config = ctx.run.net, self.config
        device = ctx.run.device
        modules = units(net)
        floating = {
            key: (torch.as_tensor(ctx.run.received[key]).to(device), ctx.state[f"own.{key}"].to(device), row)
            for row, keys in enumerate(modules.values())
            for key in keys
            if ctx.state[f"own.{key}"].is_floating_point()
        }
        logits = ctx.state.get("logits", torch.zeros(len(modules), 2)).clone().requires_grad_()
        optimizer = torch.optim.Adam([logits], lr=config.search_lr)
        was_training, rng = net.training, ctx.rng("search")
        net.eval()
        for module in net.modules():
            module.train(is_norm(module, "batch"))
        with frozen_statistics(net):
            for x, y in random_batches(data, steps=config.search_steps, size=config.search_batch, rng=rng):
                share = one_hot_sample(logits, temperature=config.temperature, rng=rng).to(device)
                mixed = {
                    key: share[row, GLOBAL] * shared + share[row, LOCAL] * local
                    for key, (shared, local, row) in floating.items()
                }
                answer = functional_call(net, mixed, (ctx.run.normalise(x.to(device), training=True),))
                (logits.grad,) = torch.autograd.grad(ctx.run.objective(answer, y.to(device)), logits)
                optimizer.step()
        net.train(was_training)
        ctx.state["logits"] = logits.detach()
