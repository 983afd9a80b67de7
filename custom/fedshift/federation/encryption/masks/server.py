"""Masks at the server: relay keys, check what can be checked, ask for the shares of a round, and take the sum."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import numpy as np

from fedshift.federation.encryption.masks.primitives import Checker, Pair, SiteKey, add_stream, decode, new_private_key
from fedshift.federation.encryption.masks.protocol import (
    HASH_BYTES,
    HASHES,
    KEY,
    KEYS,
    LONGEST_KEY,
    MASKS,
    SHARES,
    VECTOR,
    Question,
    Unmasking,
    digest_of,
    form_fault,
    sealed_bytes,
    threshold,
)
from fedshift.federation.encryption.vector import VectorLayout, summed_updates
from fedshift.federation.server.coordinator import Callbacks, Coordinator, payload_bytes
from fedshift.federation.server.global_model import GlobalModel
from fedshift.federation.server.robust import Limits
from fedshift.federation.server.spool import SpooledUpdate
from fedshift.federation.server.update_check import Change, Received, Rejected, UpdateCheck
from fedshift.methods.method_set import MethodSet
from fedshift.schema.errors import AFTER_AN_END, ConfigError, QuorumError
from fedshift.schema.files import write_text
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Arrays, Broadcast, MethodArrays, SiteInfo, Update, Weights
from fedshift.schema.results import UNMASKING, Rejection
from fedshift.tasks.base import Task

log = logging.getLogger("fedshift")


class MaskedCoordinator(Coordinator):
    """A coordinator that sees sums only. Between the updates of a round and its end it asks to unmask their sum."""

    model: MaskedModel

    _unmasking: Unmasking | None = None
    _keyed: tuple[str, ...] = ()
    _digest = b""

    def __init__(
        self,
        job: JobSpec,
        folder: Path,
        *,
        run: str = "",
        checker: Checker | None = None,
        **callbacks: Unpack[Callbacks],
    ) -> None:
        """``checker`` checks that sites have signed their keys for ``run``; the rest as for `Coordinator`.

        Without one only the sites do that.
        """
        self._run, self._checker = run, checker
        super().__init__(job, folder, **callbacks)

    # --- what can be asked of it ------------------------------------------------------------------

    @property
    def invited(self) -> tuple[str, ...]:
        """Sites asked: in the sum, while it is being unmasked."""
        return super().invited if self._unmasking is None else self._unmasking.members

    @property
    def needed(self) -> int:
        """Minimum usable answers."""
        if self._unmasking is not None:
            return self._unmasking.threshold
        return max(super().needed, threshold(len(self._keyed))) if self._trains else super().needed

    @property
    def usable(self) -> int:
        """Usable answers so far."""
        return super().usable if self._unmasking is None else len(self._unmasking.answers)

    @property
    def hopeless(self) -> bool:
        """Whether too few sites can still answer."""
        unmasking = self._unmasking
        if unmasking is None:
            out = {*self._keyed} & {*self.rejected} - {*self.answered}
            return super().hopeless or (self._trains and len(self._keyed) - len(out) < threshold(len(self._keyed)))
        return len(unmasking.members) - len(unmasking.refused) < unmasking.threshold

    # --- a round ----------------------------------------------------------------------------------

    def start_anew(self) -> None:
        """Delete what an earlier run left in this folder."""
        super().start_anew()
        (self.folder / UNMASKING).unlink(missing_ok=True)

    def open(self, round_: int) -> Broadcast:
        """Begin a round and make its message."""
        self._unmasking, self.model.unmasking = None, None
        self.model.joining.clear()
        broadcast = super().open(round_)
        self._keyed = self.model.keyed
        if not self._trains:
            return broadcast
        broadcast = replace(broadcast, arrays={**broadcast.arrays, MASKS: self.model.messages_keys()})
        self._digest, self._down_bytes = digest_of(broadcast), payload_bytes(broadcast)
        return broadcast

    def open_unmasking(self) -> Broadcast | None:
        """Fix who is in the sum, and ask them for their shares. None if the round has too few updates."""
        if not self._trains:
            return None
        super()._reject_outliers()
        self._hold_to_former_question()
        members = [site for site in self._keyed if site in self._updates]
        if len(members) < self.needed:
            return None
        numbers = tuple(self._keyed.index(site) for site in members)
        self._note_question(members)
        named = {site: self._updates[site].arrays[MASKS] for site in members}
        question = Question(self.round, self._digest, numbers, np.stack([named[s][SHARES] for s in members]))
        self._unmasking = Unmasking(self._keyed, question, {site: arrays[HASHES] for site, arrays in named.items()})
        self._on_progress(self)
        return question.broadcast(members)

    def accept(self, update: Update, info: SiteInfo | None = None) -> bool:
        """Take an update, or shares while a sum is being unmasked; False if it was rejected."""
        if self._unmasking is None:
            return super().accept(update, info)
        try:
            self._unmasking.add(update)
        except Rejected as fault:
            self.reject(update.site, fault.key, fault.reason)
            return False
        self._on_progress(self)
        return True

    def reject(self, site: str, key: str, reason: str) -> None:
        """Leave a site out; one that does not help to unmask a sum stays in it."""
        if self._unmasking is None:
            super().reject(site, key, reason)
            return
        log.warning("round %d: site %s does not help to unmask the sum: %s: %s", self.round, site, key, reason)
        if site in self._unmasking.members and site not in self._unmasking.answers:
            self._unmasking.refused[site] = f"{key}: {reason}"
        self._on_reject(Rejection(site=site, key=key, reason=reason), self.round)

    def take_out(self, site: str, key: str, reason: str) -> None:
        """Leave a site out; one whose update is in the sum that is being unmasked stays in it, and gives no shares."""
        if self._unmasking is None:
            super().take_out(site, key, reason)
        else:
            self.reject(site, key, reason)

    def close(self) -> None:
        """End a round, as `Coordinator.close`, with the sum of the updates; QuorumError if it can't be unmasked."""
        self._unmasking, self.model.unmasking = None, self._unmasking
        super().close()

    @property
    def _trains(self) -> bool:
        """Whether the open round is one of training."""
        return 1 <= self.round <= self.rounds

    def _make_model(self, methods: MethodSet) -> GlobalModel:
        return MaskedModel(methods)

    def _make_update_check(self, methods: MethodSet) -> UpdateCheck:
        return MaskedUpdateCheck(methods, self._task, self.model, run=self._run, checker=self._checker)

    def _reject_outliers(self) -> None:
        """Done before the sum was unmasked: nobody can be left out of it now."""
        if self.round == 0:
            super()._reject_outliers()

    def _require(self, n_usable: int, what: str) -> None:
        super()._require(n_usable, what)
        least = threshold(len(self._keyed))
        if self._trains and n_usable < least:
            raise QuorumError(
                "too-few-answers",
                f"{what}: {n_usable} usable answers, and a sum of {len(self._keyed)} sites with masks needs "
                f"{least}: mend the others, or start the run again with the sites that answer",
            )

    # --- sites answer one question a round, also if the server is interrupted -------------------------

    def _hold_to_former_question(self) -> None:
        """If the round was interrupted after its question, the same sites must be in the sum; else a QuorumError."""
        path = self.folder / UNMASKING
        try:
            noted = json.loads(path.read_text(encoding="utf-8"))
            former = noted["members"] if (noted["round"], noted["digest"]) == (self.round, self._digest.hex()) else None
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError("file-damaged", f"{path} is damaged ({error}): start the run anew") from None
        if former is None:
            return
        for site in [site for site in self._updates if site not in former]:
            self._reject_accepted(site, Rejected("site", "was not in this round's sum before the interruption"))
        lost = [site for site in former if site not in self._updates]
        if lost:
            raise QuorumError(
                "other-sum",
                f"round {self.round}: before the interruption the sites were asked to unmask the sum of "
                f"{', '.join(former)}, and they answer for no other; without {', '.join(lost)}: mend these sites; "
                f"{AFTER_AN_END}",
            )

    def _note_question(self, members: Sequence[str]) -> None:
        noted = {"round": self.round, "digest": self._digest.hex(), "members": list(members)}
        self.files.disk.write(UNMASKING, lambda: write_text(self.folder / UNMASKING, json.dumps(noted)))


class MaskedModel(GlobalModel):
    """A global model made from sums, and the keys of the sites."""

    def __init__(self, methods: MethodSet) -> None:
        self.layout = VectorLayout(methods.job, received=False)
        self.keys: Arrays = {}
        """Site -> its key as it travels."""
        self.joining: Arrays = {}
        """Keys that have come in the open round, and are sent from the next one on."""
        self.unmasking: Unmasking | None = None
        super().__init__(methods)

    @property
    def keyed(self) -> tuple[str, ...]:
        """The sites with keys, in the job's order."""
        return tuple(site for site in self._job.task.sites if site in self.keys)

    @property
    def method_state(self) -> MethodArrays:
        """What must be remembered from round to round, with the keys."""
        return super().method_state | {MASKS: self.keys}

    def restore(self, weights: Weights, methods: MethodArrays) -> None:
        """Go on from saved weights and method state."""
        super().restore(weights, methods)
        self.keys = methods.get(MASKS, {})

    def messages_keys(self) -> Arrays:
        """The keys as a round's message holds them."""
        return {f"{KEYS}{site}": self.keys[site] for site in self.keyed}

    def _combine(self, stored: Sequence[SpooledUpdate], round_: int, limits: Limits | None) -> None:
        """Add the vectors, take the masks off, and pass the sums to the methods."""
        if round_ == 0:
            super()._combine(stored, round_, limits)
            accepted = {update.site for update in stored}
            self.keys = {site: key for site, key in self.joining.items() if site in accepted}
            return
        layout, context = self.layout, self._context(round_)
        sums = layout.split(decode(self._sum(stored)))
        clear = {
            key: np.asarray(np.max([update.weights[key] for update in stored], axis=0))
            for key in layout.template
            if key in layout.clear and key not in layout.withheld
        }
        factors = sum(layout.factor(update.n_samples) for update in stored)
        updates = summed_updates(sums, factors=factors, n_sites=len(stored), clear=clear)
        for _, half in self.halves:
            half.receive(updates, context)
        owner = next(half for _, half in self.halves if "combine" in half.owns)
        combined = owner.combine(self.weights, updates[:1], context)
        self._require_moderate(combined, round_)
        self.weights = combined
        self.keys = {**self.keys, **self.joining}

    def _sum(self, stored: Sequence[SpooledUpdate]) -> np.ndarray:
        """The sum of the sites' vectors without masks, in steps, int64."""
        unmasking = self.unmasking
        assert unmasking is not None and [update.site for update in stored] == list(unmasking.members)
        seeds = unmasking.seeds()
        total = np.zeros(self.layout.size, np.uint64)
        for update in stored:
            total += update.weights[VECTOR].view(np.uint64)
        for member, other, seed in seeds:
            # A site adds its own mask and those of pairs with later sites, and subtracts those with earlier ones.
            add_stream(total, seed, subtract=other >= member)
        return total.view(np.int64)

    def _require_moderate(self, combined: Weights, round_: int) -> None:
        """Refuse a sum that no honest sites can have made. The single updates cannot be checked."""
        pairs = [(combined[key], self.weights[key]) for key in sorted(self.trainable & combined.keys())]
        moved, size = (
            float(np.sqrt(sum(float(np.square(part.astype(np.float64)).sum()) for part in parts)))
            for parts in ([new - old.astype(np.float64) for new, old in pairs], [old for _, old in pairs])
        )
        limit = self._job.federation.max_update_norm * max(1.0, size)
        if not moved <= limit:
            raise QuorumError(
                "sum-too-far",
                f"round {round_}: the mean of the updates moved by {moved:.3g}, and each may move by {limit:.3g} "
                "(federation.max_update_norm): a site has sent nonsense, and with masks nobody can tell which",
            )


class MaskedUpdateCheck(UpdateCheck):
    """Checks what can be checked of masked updates."""

    _model: MaskedModel

    def __init__(
        self, methods: MethodSet, task: Task, model: MaskedModel, *, run: str, checker: Checker | None
    ) -> None:
        """``run`` and ``checker`` are as for `MaskedCoordinator`; the rest as for the base."""
        self._layout, self._run, self._checker = model.layout, run, checker
        super().__init__(methods, task, model)

    def _compared_with(self) -> Received:
        """What is in clear: batch counters."""
        clear = {key: value for key, value in self._model.weights.items() if key in self._layout.clear}
        return Received(clear, trainable=frozenset(), withheld=self._withheld)

    def _check(self, update: Update, round_: int, n_samples: int) -> Change:
        """Check everything that is in clear, and the forms of all else."""
        masks = update.arrays.get(MASKS, {})
        rest = {name: named for name, named in update.arrays.items() if name != MASKS}
        if round_ == 0:
            change = super()._check(replace(update, arrays=rest), round_, n_samples)
            self._take_key(update.site, masks)
            return change
        if KEY in masks and not update.weights:
            self._take_key(update.site, masks)
            raise Rejected(KEY, "has come now: the site takes part from the next round on")
        masked = {key: value for key, value in update.weights.items() if key == VECTOR}
        clear = {key: value for key, value in update.weights.items() if key not in masked}
        self._check_clear(replace(update, weights=clear, arrays=rest), round_, n_samples, specs={})
        n = len(self._model.keys)
        if update.site not in self._model.keys:
            raise Rejected(KEY, "was not in the round's message")
        fault = form_fault(masked, {VECTOR: (np.int64, (self._layout.size,))}) or form_fault(
            masks, {SHARES: (np.uint8, (n, sealed_bytes(n))), HASHES: (np.uint8, (n, n + 1, HASH_BYTES))}
        )
        if fault is not None:
            raise Rejected(*fault)
        return Change()

    def _take_key(self, site: str, masks: Arrays) -> None:
        """Keep a site's key for the next message, in which one that no site takes would end the run for all."""
        key = masks.get(KEY)
        if masks.keys() != {KEY} or type(key) is not np.ndarray or key.dtype != np.uint8 or key.ndim != 1:
            raise Rejected(KEY, "is no row of bytes")
        if key.size > LONGEST_KEY:
            raise Rejected(KEY, f"has {key.size} bytes, allowed are {LONGEST_KEY}")
        try:
            read = SiteKey.read(key.tobytes())
            read.verify(site, run=self._run, checker=self._checker)
            Pair.agreed(new_private_key(), bytes.fromhex(read.public))
        except ValueError as error:
            raise Rejected(KEY, str(error)) from None
        self._model.joining[site] = key
