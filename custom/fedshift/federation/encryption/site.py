"""Encryption at a site: encrypt updates, decrypt the server's sums, and redo the server's work on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedshift.federation.encryption.keys import Keys
from fedshift.federation.encryption.vector import COUNTS, Layout, Segment, SummedUpdate, summed_updates
from fedshift.federation.model_files import add_references, add_thresholds, header_of, read_model_file, write_model_file
from fedshift.federation.refusals import ENCRYPTION, server_context
from fedshift.federation.tensors import to_arrays
from fedshift.schema.errors import ConfigError, DataError, PolicyError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Broadcast, MethodArrays, Update, Weights
from fedshift.tasks.starting import base_weights

LARGEST = 2.0**40
"""Largest absolute value that is encrypted; a larger one would cost other values of the ciphertext their precision."""


class SiteEncryption:
    """Decrypts what a site receives and encrypts what it sends; see `fedshift.federation.encryption`."""

    def __init__(self, job: JobSpec, keys: Keys) -> None:
        """Prepare for one job; ConfigError if the keys cannot decrypt, or the job cannot be encrypted."""
        if not keys.can_decrypt:
            raise ConfigError(
                "wrong-keys", f"{ENCRYPTION}: these keys are the server's, which decrypt nothing: use those of a site"
            )
        self._job, self._keys = job, keys
        self._layout = Layout(job, keys.slots)

    def seal(self, update: Update, broadcast: Broadcast) -> Update:
        """Encrypt the answer to ``broadcast``; both are in clear.

        Raises:
            DataError: a number that cannot be encrypted.
        """
        if update.round == 0:
            return update
        rows = []
        for segment, row in self._layout.rows(update, broadcast):
            if not (np.abs(row) <= LARGEST).all():  # NaN is not, either
                raise DataError(
                    "too-large",
                    f"site {update.site}, round {update.round}: {segment.label} holds numbers that cannot be encrypted "
                    f"(NaN, or beyond {LARGEST:.0g}): lower optimizer.lr",
                )
            rows.append(row)
        pieces = self._layout.pieces(np.concatenate(rows))
        sealed = {name: self._keys.encrypt(values) for name, values in pieces.items()}
        counters = {key: value for key, value in update.weights.items() if key in self._layout.clear}
        return replace(update, weights={**counters, **sealed}, arrays={})

    def unmask(self, broadcast: Broadcast) -> Update:
        """Nothing is masked.

        Raises:
            PolicyError: always.
        """
        raise PolicyError(
            "nothing-masked", f"{ENCRYPTION}: ckks has no masks, and the server asks to unmask a sum: it gets no answer"
        )

    def open(self, broadcast: Broadcast) -> Broadcast:
        """Decrypt a broadcast. Those of rounds 0 and 1 are in clear; ConfigError if it cannot be decrypted."""
        if broadcast.round <= 1:
            return broadcast
        layout, received = self._layout, broadcast.weights
        factors, n_sites = self._counts(received)
        try:
            pieces = [self._keys.decrypt(received[name], size) for name, size in layout.chunks.items()]
        except KeyError as error:
            raise _unreadable(f"{error.args[0]} is missing") from None
        except ValueError as error:
            raise _unreadable(f"a part {error}") from None
        sums = layout.split(np.concatenate(pieces))
        largest = max(float(np.abs(total).max(initial=0.0)) for total in sums.values())
        if not largest <= 2 * n_sites * LARGEST:  # twice, because a sum is approximate
            raise _unreadable(f"it has numbers up to {largest:.1g}, which no site may encrypt: one has sent nonsense")
        clear = {key: received[key] for key in layout.template if key in layout.withheld | layout.clear}
        counters = {key: value for key, value in clear.items() if key not in layout.withheld}
        updates = summed_updates(sums, factors=factors, n_sites=n_sites, clear=counters)
        weights, arrays = self._server_halves(broadcast.round, {**layout.template, **clear}, updates, sums)
        return replace(broadcast, weights=weights, arrays=arrays)

    def _counts(self, weights: Weights) -> tuple[int, int]:
        counts = weights.get(COUNTS)
        if type(counts) is not np.ndarray or counts.dtype != np.int64 or counts.shape != (2,):
            raise _unreadable("it does not say how many are in the sum")
        factors, n_sites = counts.tolist()
        if not 1 <= n_sites <= min(factors, len(self._job.task.sites)):
            raise _unreadable(f"{n_sites} sites with {factors} in all cannot be in the sum")
        return factors, n_sites

    def _server_halves(
        self, round_: int, weights: Weights, updates: Sequence[SummedUpdate], sums: Mapping[Segment, np.ndarray]
    ) -> tuple[Weights, MethodArrays]:
        """Do the server's work for the round before: returns new weights, and the methods' arrays for this round."""
        methods = self._layout.methods
        context = server_context(self._job, methods.trainable, round_ - 1)
        arrays: MethodArrays = {}
        for method in methods:
            half = method.server()
            half.start(methods.net, replace(context, round=0))
            for segment, total in sums.items():
                if segment.origin == "received" and segment.method == method.name:
                    half.state[segment.name] = np.asarray(total / len(updates), segment.dtype)
            half.receive(updates, context)
            if "combine" in half.owns:
                weights = half.combine(weights, updates[:1], context)
            named = dict(half.broadcast(replace(context, round=round_)))
            if named:
                arrays[method.name] = named
        return weights, arrays


def _unreadable(reason: str) -> ConfigError:
    return ConfigError("cannot-decrypt", f"{ENCRYPTION}: the server's message cannot be decrypted: {reason}")


def decrypt_model(model: Path, out: Path, keys: Keys, *, weights: Path | None = None) -> int:
    """Write an ordinary model file from an encrypted one. Returns the model's round.

    ``weights``: the site's folder with the base of adapters.

    Raises:
        ConfigError: ``model`` is not a model file, not encrypted, or encrypted with other keys; or adapters were
            trained, and their base is not here.
    """
    content = read_model_file(model)
    header = header_of(content, where=str(model))
    if not header.encrypted:
        raise ConfigError("not-encrypted", f"{model} is not encrypted: use it as it is")
    job = header.job
    encryption = SiteEncryption(job, keys)
    round_: int = content["round"]
    opened = encryption.open(Broadcast(round=round_ + 1, best_round=0, weights=to_arrays(content["weights"])))
    write_model_file(
        out,
        job=job,
        round_=round_,
        weights=opened.weights,
        methods=opened.arrays,
        personal=header.personal,
        scores=header.scores,
        kind=header.kind,
        sites=header.sites,
        lineage=header.lineage,
        statistics=header.statistics,
        initial_weights=header.initial_weights,
        base=None if job.task.network.adapters is None else base_weights(job, weights=weights),
    )
    if header.references:
        add_references(out, header.references)
    if header.thresholds or header.specific:
        add_thresholds(out, thresholds=header.thresholds, specific=header.specific)
    return round_
