"""Encryption at the server: check and add ciphertexts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import numpy as np

from fedshift.federation.encryption.keys import Keys
from fedshift.federation.encryption.vector import COUNTS, PREFIX, Layout
from fedshift.federation.refusals import ENCRYPTION
from fedshift.federation.server.coordinator import Callbacks, Coordinator
from fedshift.federation.server.global_model import GlobalModel
from fedshift.federation.server.robust import Limits
from fedshift.federation.server.spool import SpooledUpdate
from fedshift.federation.server.update_check import Change, Received, Rejected, UpdateCheck
from fedshift.methods.method_set import MethodSet
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import MethodArrays, Update, Weights
from fedshift.tasks.base import Task


class EncryptedCoordinator(Coordinator):
    """A coordinator that adds ciphertexts. From round 1 on its weights and model files are ciphertexts."""

    def __init__(self, job: JobSpec, folder: Path, *, keys: Keys, **callbacks: Unpack[Callbacks]) -> None:
        """``keys`` are the server's; the rest as for `Coordinator`.

        Raises:
            ConfigError: the keys could decrypt, or the job cannot be encrypted.
        """
        if keys.can_decrypt:
            raise ConfigError(
                "wrong-keys",
                f"{ENCRYPTION}: the server's keys could decrypt what sites send: provision the project again, and "
                "never copy a site's context to the server",
            )
        self._keys, self._layout = keys, Layout(job, keys.slots)
        super().__init__(job, folder, **callbacks)

    def _make_model(self, methods: MethodSet) -> GlobalModel:
        return EncryptedModel(methods, keys=self._keys, layout=self._layout)

    def _make_update_check(self, methods: MethodSet) -> UpdateCheck:
        return EncryptedUpdateCheck(methods, self._task, self.model, keys=self._keys, layout=self._layout)


class EncryptedModel(GlobalModel):
    """A global model whose weights are sums of ciphertexts from round 1 on."""

    def __init__(self, methods: MethodSet, *, keys: Keys, layout: Layout) -> None:
        self._keys, self._layout = keys, layout
        super().__init__(methods)

    def _combine(self, stored: Sequence[SpooledUpdate], round_: int, limits: Limits | None) -> None:
        """Add the ciphertexts in site order. Limits can't be applied to what the server can't read."""
        if round_ == 0:
            super()._combine(stored, round_, limits)
            return
        layout = self._layout
        factors = sum(layout.factor(update.n_samples) for update in stored)
        total: Weights = {}
        for key in layout.template:
            if key in layout.withheld:
                total[key] = self.weights[key]
            elif key in layout.clear:
                total[key] = np.asarray(np.max([update.weights[key] for update in stored], axis=0))
        for key, size in layout.chunks.items():
            total[key] = self._keys.add((update.weights[key] for update in stored), size)
        total[COUNTS] = np.array([factors, len(stored)], np.int64)
        self.weights = total

    def _arrays(self, round_: int) -> MethodArrays:
        """The methods' first arrays. The sites compute later ones from the sum."""
        return super()._arrays(round_) if round_ <= 1 else {}


class EncryptedUpdateCheck(UpdateCheck):
    """Checks what can be checked of ciphertexts without the secret key."""

    def __init__(self, methods: MethodSet, task: Task, model: GlobalModel, *, keys: Keys, layout: Layout) -> None:
        self._keys, self._layout = keys, layout
        super().__init__(methods, task, model)

    def _compared_with(self) -> Received:
        """What is in clear: batch counters."""
        clear = {key: value for key, value in self._model.weights.items() if key in self._layout.clear}
        return Received(clear, trainable=frozenset(), withheld=self._withheld)

    def _check(self, update: Update, round_: int, n_samples: int) -> Change:
        """Check everything that is in clear, and that the ciphertexts can be added."""
        if round_ == 0:
            return super()._check(update, round_, n_samples)
        sealed = {key: value for key, value in update.weights.items() if str(key).startswith(PREFIX)}
        clear = {key: value for key, value in update.weights.items() if key not in sealed}
        self._check_clear(replace(update, weights=clear), round_, n_samples, specs={})
        for key in sealed.keys() ^ self._layout.chunks.keys():
            raise Rejected(key, "is not expected in weights" if key in sealed else "is missing from weights")
        for key, size in self._layout.chunks.items():
            try:
                self._keys.check(sealed[key], size)
            except ValueError as error:
                raise Rejected(key, str(error)) from None
        return Change()
