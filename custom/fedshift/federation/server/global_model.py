"""The global model at the server: its weights, the server halves of the methods, and what each round sends of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
from torch import nn

from fedshift.federation.refusals import server_context
from fedshift.federation.server.robust import Limits, present
from fedshift.federation.server.spool import SpooledUpdate
from fedshift.federation.tensors import read_weights
from fedshift.methods.base import ServerContext, SiteUpdate
from fedshift.methods.method_set import MethodSet, without
from fedshift.schema import compression
from fedshift.schema.compression import Packed, packed_keys
from fedshift.schema.errors import QuorumError
from fedshift.schema.messages import Arrays, Broadcast, MethodArrays, Weights
from fedshift.schema.results import Lineage
from fedshift.tasks import pretrained
from fedshift.tasks.starting import starting_network

AVERAGE_STATE = "model_average"
"""Name of the average's arrays beside those of the methods in the server's state."""


class GlobalModel:
    """Weights and method state, replaced by `combine` once a round."""

    _outgoing: Broadcast | None = None

    def __init__(self, methods: MethodSet) -> None:
        """Take the initial weights from the network of ``methods``."""
        self._job, self._specs, self._training_only = methods.job, methods.up, methods.training_only
        self.weights, self.trainable = read_weights(methods.net), methods.trainable
        self.halves = [(m.name, m.server()) for m in methods]
        decay = methods.job.federation.model_average
        self._average = None if decay is None else ModelAverage(decay)
        self._start(methods.net)

    def load_starting_weights(self, *, weights: Path | None = None) -> tuple[str, Lineage]:
        """Start from the job's file. Returns what was loaded, and the sites that trained it.

        ``weights``: a folder to look in first.

        Raises:
            ConfigError: the file is not here or does not fit the network.
        """
        spec = self._job.task.network.weights
        assert spec is not None
        net, loaded = starting_network(self._job, weights=weights)
        self.weights, self._outgoing = read_weights(net), None
        self._start(net)
        return loaded, pretrained.trained_by(spec, site_folder=weights)

    def restore(self, weights: Weights, methods: MethodArrays) -> None:
        """Go on from saved weights and method state."""
        self.weights, self._outgoing = weights, None
        for name, half in self.halves:
            half.state = methods.get(name, {})
        if self._average is not None:
            self._average.state = methods.get(AVERAGE_STATE, {})

    @cached_property
    def packed_keys(self) -> frozenset[str]:
        """Keys of the weights that travel in fewer bytes."""
        return packed_keys(self.weights, self.trainable, self._job.federation.weights_as)

    @property
    def method_state(self) -> MethodArrays:
        """What the methods' server halves, and the model's average, must remember from round to round."""
        average = {} if self._average is None else {AVERAGE_STATE: self._average.state}
        return {name: half.state for name, half in self.halves} | average

    def contributions(self, round_: int) -> dict[str, dict[str, float]]:
        """What the methods say of each site's part in the round that `combine` closed: method -> site -> share."""
        by_method = {name: half.contributions(self._context(round_)) for name, half in self.halves}
        return {
            name: {site: float(share) for site, share in shares.items()} for name, shares in by_method.items() if shares
        }

    # --- what is sent -----------------------------------------------------------------------------

    def broadcast(self, round_: int, *, best_round: int, sites: tuple[str, ...], is_final: bool = False) -> Broadcast:
        """The message that opens a round, or with ``is_final`` the evaluation of the last model.

        The latter has what a model file has: held-out sites get it too, and the best model comes from such a file.
        """
        message = self._outgoing_for(round_)
        arrays = without(message.arrays, self._training_only) if is_final else message.arrays
        return replace(message, best_round=best_round, arrays=arrays, sites=sites)

    def stored_broadcast(
        self, round_: int, weights: Weights, arrays: MethodArrays, *, best_round: int, sites: tuple[str, ...]
    ) -> Broadcast:
        """A message with a model read from a model file in place of the current one."""
        return replace(self._message(round_, weights, arrays), best_round=best_round, sites=sites)

    def as_sent(self, round_: int) -> tuple[Weights, MethodArrays]:
        """Weights and arrays as the sites have them in a round: what they score, and so what a model file holds."""
        message = self._outgoing_for(round_)
        return {**self.weights, **message.unpacked().weights}, message.arrays

    def _outgoing_for(self, round_: int) -> Broadcast:
        """Made once a round: first saved with the round's model, then sent, then saved again if it is the best."""
        if self._outgoing is None or self._outgoing.round != round_:
            self._outgoing = None  # the former one need not stay in memory while this is made
            self._outgoing = self._message(round_, self.weights, self._arrays(round_))
        return self._outgoing

    def _message(self, round_: int, weights: Weights, arrays: MethodArrays) -> Broadcast:
        packed = self._pack(weights)
        plain = {key: value for key, value in weights.items() if key not in packed}
        return Broadcast(round_, 0, plain, arrays, packed=packed)

    def _pack(self, weights: Weights) -> dict[str, Packed]:
        """The weights that travel in fewer bytes."""
        weights_as = self._job.federation.weights_as
        return {key: compression.pack(value, weights_as) for key, value in weights.items() if key in self.packed_keys}

    def _arrays(self, round_: int) -> MethodArrays:
        named = {name: half.broadcast(self._context(round_)) for name, half in self.halves}
        return {name: dict(values) for name, values in named.items() if values}

    # --- what is made of updates ------------------------------------------------------------------

    def combine(
        self, stored: Sequence[SpooledUpdate], round_: int, *, limits: Limits | None = None, is_last: bool = False
    ) -> None:
        """Pass a round's updates to the methods and replace the weights; round 0 has only the methods' arrays.

        Args:
            stored: the accepted updates, in site order.
            round_: the round that is closed.
            limits: limits of the updates, for jobs without ``federation.robust``.
            is_last: whether no training round follows.

        Raises:
            QuorumError: the result is not finite.
        """
        self._outgoing = None
        self._combine(stored, round_, limits)
        self._check_weights(round_)
        if round_ and self._average is not None:
            self._average.add(self.weights)
            self.weights = self._average.value(self.weights) if is_last else self.weights

    def _combine(self, stored: Sequence[SpooledUpdate], round_: int, limits: Limits | None) -> None:
        context = self._context(round_)
        updates: Sequence[SiteUpdate] = stored
        rule, weights, trainable = self._job.federation.robust, self.weights, self.trainable
        if rule is not None or limits is not None:
            updates = present(stored, rule, limits=limits, weights=weights, trainable=trainable, specs=self._specs)
        for _, half in self.halves:
            half.receive(updates, context)
        if round_:
            owner = next(half for _, half in self.halves if "combine" in half.owns)
            self.weights = owner.combine(self.weights, updates, context)

    def _check_weights(self, round_: int) -> None:
        """Refuse weights that no round could go on from, whichever rule made them."""
        for key, value in self.weights.items():
            fault = "is not finite; the job cannot go on" if not np.isfinite(value).all() else ""
            if not fault and key.endswith("running_var") and value.min(initial=0) < 0:
                fault = "has a negative variance"
            if fault:
                raise QuorumError("diverged", f"round {round_}: the aggregate's {key} {fault}")

    def _start(self, net: nn.Module) -> None:
        for _, half in self.halves:
            half.start(net, self._context(0))

    def _context(self, round_: int) -> ServerContext:
        return server_context(self._job, self.trainable, round_)


class ModelAverage:
    """An exponential average of the rounds' models, which becomes the last one's (``federation.model_average``).

    With w_k the model that round k made and d the option's value, of R rounds::

        w̄ = Σ_k d^(R−k) w_k / Σ_k d^(R−k)

    Sites go on training from w_k in every round. After the last one w̄ takes the place of w_R, is scored, and can be
    selected as the best model. Running statistics are averaged too; integer buffers (batch counters) are those of w_R.
    ``state`` is all that it keeps between rounds.
    """

    def __init__(self, decay: float) -> None:
        """``decay`` is d, above 0 and below 1."""
        self._decay = decay
        self.state: Arrays = {}

    def add(self, weights: Weights) -> None:
        """Count a round's model."""
        old = self.state
        self.state = {"divisor": np.asarray(self._decay * float(old.get("divisor", 0.0)) + 1)}
        for key, value in weights.items():
            if np.issubdtype(value.dtype, np.floating):
                before = old.get(f"sum.{key}", np.zeros(value.shape))
                self.state[f"sum.{key}"] = self._decay * before + value.astype(np.float64)

    def value(self, weights: Weights) -> Weights:
        """The average; keys that are not averaged are those of ``weights``."""
        divisor = float(self.state["divisor"])
        return {
            key: np.asarray(self.state[f"sum.{key}"] / divisor, value.dtype) if f"sum.{key}" in self.state else value
            for key, value in weights.items()
        }
