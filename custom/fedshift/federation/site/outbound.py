"""What leaves a site goes through here: the site's policy, then packing, then encryption.

The policy decides whether a task may be done at all, and which arrays and weights may leave, with how much noise.
Packing (``federation.weights_as``) and its error feedback act on what the policy has released, so neither what is sent
nor what is carried over to the next round holds more than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from fedshift.federation.tensors import to_arrays
from fedshift.methods.method_set import MethodSet
from fedshift.schema.compression import CODES, feed_back, packed_keys
from fedshift.schema.errors import ConfigError, PolicyError
from fedshift.schema.messages import Broadcast, Update, Weights

if TYPE_CHECKING:
    from fedshift.federation.site.privacy.gate import Gate


class Encryption(Protocol):
    """Encryption of a job at a site: `fedshift.federation.encryption.site.SiteEncryption`, or masks beside it."""

    def open(self, broadcast: Broadcast) -> Broadcast:
        """Decrypt a broadcast."""
        ...

    def seal(self, update: Update, broadcast: Broadcast) -> Update:
        """Encrypt the answer to ``broadcast``, which has been decrypted."""
        ...

    def unmask(self, broadcast: Broadcast) -> Update:
        """Answer the server's question for what unmasks a sum; PolicyError if the site may not."""
        ...


@dataclass(frozen=True)
class Outbound:
    """The outbound pipeline of one site in one job, and the opening of broadcasts that corresponds to it."""

    methods: MethodSet
    gate: Gate | None = None
    encryption: Encryption | None = None

    def open(self, broadcast: Broadcast) -> Broadcast:
        """Decrypt and unpack a broadcast.

        Raises:
            ConfigError: it cannot be decrypted, or is packed as the job does not pack.
        """
        if broadcast.packed:
            self._require_packed_as_agreed(broadcast)
        return (broadcast if self.encryption is None else self.encryption.open(broadcast)).unpacked()

    def _require_packed_as_agreed(self, broadcast: Broadcast) -> None:
        """Refuse weights in another form than the job's: what is encrypted, masked or given out has one form only."""
        packed, weights_as = broadcast.packed, self.methods.job.federation.weights_as
        faults = sorted(packed.keys() & broadcast.weights.keys())
        if self.encryption is None:
            expected = packed_keys(broadcast.unpacked().weights, self.methods.trainable, weights_as)
            faults += sorted(packed.keys() ^ expected)
            faults += sorted(key for key, value in packed.items() if value.codes.dtype != CODES.get(weights_as))
        else:
            faults += sorted(packed)
        if faults:
            raise ConfigError(
                "packing",
                f"the server's message of round {broadcast.round} has {faults[0]} packed in another way than the job "
                "says (federation.weights_as), which no honest server sends: ask who runs it",
            )

    def admit(self, broadcast: Broadcast) -> str:
        """Ask the policy before any work is done, which may forbid it (PolicyError). Returns a permit for `send`."""
        return "" if self.gate is None else self.gate.admit(broadcast)

    def send(
        self, update: Update, broadcast: Broadcast, *, permit: str, residual: Mapping[str, Tensor]
    ) -> tuple[Update, dict[str, Tensor]]:
        """Turn a method's answer into the message that leaves. Returns it, and what packing has left out so far.

        ``broadcast`` is the opened one that it answers, ``permit`` the result of `admit` for it, ``residual`` what
        packing left out of earlier answers.

        Raises:
            PolicyError: the policy forbids that it leaves.
            DataError: a number that cannot be encrypted.
        """
        if self.gate is not None:
            update = self.gate.release(update, broadcast, permit)
        update, left_out = self._pack(update, broadcast.weights, residual)
        return update if self.encryption is None else self.encryption.seal(update, broadcast), left_out

    def unmask(self, broadcast: Broadcast) -> Update:
        """What the server may have to unmask the sum of a round; PolicyError if that is nothing."""
        if self.encryption is None:
            raise PolicyError(
                "nothing-masked", "the job has no masks, and the server asks to unmask a sum: it gets no answer"
            )
        return self.encryption.unmask(broadcast)

    def _pack(
        self, update: Update, received: Weights, residual: Mapping[str, Tensor]
    ) -> tuple[Update, dict[str, Tensor]]:
        """Replace weights by packed changes against ``received``."""
        weights_as = self.methods.job.federation.weights_as
        keys = packed_keys(update.weights, self.methods.trainable, weights_as)
        if not keys:
            return update, {}
        change = {key: update.weights[key] - received[key] for key in update.weights if key in keys}
        packed, left_out = feed_back(change, to_arrays(residual), weights_as)
        plain = {key: value for key, value in update.weights.items() if key not in keys}
        return replace(update, weights=plain, packed=packed), {k: torch.from_numpy(v) for k, v in left_out.items()}
