"""Ditto: every site trains a personal model beside the global one, and holds it near the global one.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021, Algorithm 1. At every local
step of site k, with w the received global model, w_k the site's copy of it, which is trained and sent, and v_k the
site's personal model, which stays::

    w_k ← optimiser step of f_k(w_k)                                     the method that combines averages them
    v_k ← optimiser step of f_k(v_k) + λ/2 ‖v_k − w‖²

The global model is trained as if there were no v_k, bit for bit, and every site is
evaluated with its v_k. As in the authors' code both steps use the same batch and take equally many steps, and w is the
model at the start of the round. (The code takes v_k's step first, which changes nothing: neither sees the other.)

Choices:

- v_k has an optimiser of the task's type with the task's settings, whose state is kept between rounds if that of the
  task's optimiser is. The paper uses plain SGD.
- v_k's batch norms have their own scale, shift and running statistics; ‖v_k − w‖ is over parameters.
- What other methods add to the loss or to the gradients concerns w_k alone; what they change in images or in the
  network concerns both, with FedWon's clipping of gradients.
- v_k is w in a site's first round, which the code has for sites of round 1; one that first trains later begins there
  with the initial model.
- λ = 1, that of the code's scripts. With SGD, λ times the learning rate must be below 2: at 2 a step leads past w, and
  no nearer to it.
- A parameter that the loss of v_k does not depend on stays as it is, as that of w_k does.
- A site that has never trained is evaluated with the global model.

The code's choice of λ on validation data (``dynamic_lam``) is not offered: draw it with `fedshift compare`.

Read: the authors' code (litian96/ditto, ``flearn/trainers_MTL/ditto.py`` and ``fedbase.py``). The paper's text was not
at hand for a second reading.

When: sites differ so much that one model does not serve all, and a site alone has too few images.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from fedshift.methods import base
from fedshift.methods.shared import search
from fedshift.methods.shared.auxiliary import like, optimizer_tensors, restore_optimizer, under
from fedshift.methods.shared.passes import at_weights, extra_pass, same_precision
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Arrays
from fedshift.schema.strict import Strict

SEARCH = {"lam": search.log(0.05, 2)}

PERSONAL = "own."
OPTIMIZER = "optimizer."


class Config(Strict):
    """Options of Ditto.

    ``lam``: λ; 0 trains the model of a site alone. With SGD ``optimizer.lr`` times it must be below 2.
    """

    lam: float = Field(default=1.0, ge=0)


class Client(base.Client[Config]):
    """Trains and keeps the personal model. State: its network keys under ``own.``, its optimiser's under the other."""

    clashes = (
        base.Rule("keeps a model, or parts of it, at the site", "decides which model a site is evaluated with"),
        base.Rule("fine-tunes the final model", "decides which model a site is evaluated with"),
        base.Rule("sends a loss of the received model", "has a site's own model there"),
    )

    def check(self, job: JobSpec, net: nn.Module) -> None:
        optimizer, lam = job.task.optimizer, self.config.lam
        if optimizer.name == "sgd" and optimizer.lr * lam >= 2:
            raise ConfigError(
                "options-clash",
                f"method ditto: optimizer.lr {optimizer.lr:g} times ditto.lam {lam:g} must be below 2, or a step leads "
                "past the received model and no nearer to it: lower one of them",
            )

    def scores_own_model(self, net: nn.Module) -> bool:
        return True

    def receive(self, arrays: Arrays, ctx: base.Context) -> None:
        """Put the personal model in place of the received one, to be evaluated."""
        personal = under(PERSONAL, ctx.state)
        if personal:
            ctx.run.net.load_state_dict(personal)

    def begin(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        """Put the received model back, and set up the personal one beside it."""
        run = ctx.run
        assert run.optimizer is not None
        run.net.load_state_dict({key: torch.as_tensor(value) for key, value in run.received.items()})
        personal = under(PERSONAL, ctx.state) or {key: value.detach() for key, value in run.net.state_dict().items()}
        personal = {key: value.to(run.device, copy=True) for key, value in personal.items()}
        self._anchor = {name: received for name, _, received in run.received_parameters()}
        self._parameters = {name: personal.pop(name).requires_grad_() for name in self._anchor}
        self._buffers = personal
        self._optimizer = like(run.optimizer, list(self._parameters.values()))
        if run.optimizer.state:  # it was restored, so the task keeps it
            restore_optimizer(self._optimizer, under(OPTIMIZER, ctx.state))

    def loss(self, batch: base.Batch, logits: Tensor, loss: Tensor, ctx: base.Context) -> Tensor:
        """Note the batch; the loss stays as it is."""
        self._batch, self._logits = batch, logits.detach()
        return loss

    def gradients(self, ctx: base.Context) -> None:
        """Take the personal model's step: the global model's pass is over, and its gradients are there."""
        run = ctx.run
        if run.replay:
            return
        x, y = self._batch.x, self._batch.y
        with extra_pass(run, x.device):
            with same_precision(self._logits):
                answer = functional_call(run.net, {**self._parameters, **self._buffers}, (x,))
            loss = run.objective(answer, y)
            gradients = torch.autograd.grad(loss, list(self._parameters.values()), allow_unused=True)
        with torch.no_grad():
            for (name, parameter), gradient in zip(self._parameters.items(), gradients, strict=True):
                pull = self.config.lam * (parameter - self._anchor[name])
                parameter.grad = None if gradient is None else gradient + pull
        with at_weights(run.net, {shared: self._parameters[name] for name, shared in run.net.named_parameters()}):
            run.clip_gradients()
        if run.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters.values(), run.clip_norm)
        self._optimizer.step()

    def checkpoint(self, ctx: base.Context) -> dict[str, Tensor]:
        personal = {PERSONAL + key: value.detach() for key, value in {**self._parameters, **self._buffers}.items()}
        return personal | {OPTIMIZER + key: value for key, value in optimizer_tensors(self._optimizer).items()}

    @torch.no_grad()
    def restore(self, kept: Mapping[str, Tensor], ctx: base.Context) -> None:
        held = {**self._parameters, **self._buffers}
        for key, value in under(PERSONAL, kept).items():
            held[key].copy_(value)
        restore_optimizer(self._optimizer, under(OPTIMIZER, kept))

    def end(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        """Keep the personal model at the site; sends nothing.

        Raises:
            DataError: it diverged.
        """
        held = {key: value.cpu().clone() for key, value in self.checkpoint(ctx).items()}
        if not all(bool(value.isfinite().all()) for value in under(PERSONAL, held).values()):
            raise DataError(
                "not-finite",
                f"site {ctx.run.site}, round {ctx.round}: the personal model is not finite after training: lower "
                "ditto.lam or optimizer.lr",
            )
        ctx.state.clear()
        ctx.state.update(held)
        return {}
