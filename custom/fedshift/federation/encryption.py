"""Homomorphic encryption of updates: the server adds up what it cannot read. ``federation.encryption: ckks``.

CKKS (Cheon et al., "Homomorphic Encryption for Arithmetic of Approximate Numbers", ASIACRYPT 2017) by TenSEAL, with the
keys that FLARE's HEBuilder puts into the kits: one secret key that all sites share, and none at the server.

A site lays everything that is to be summed into one vector, multiplied by its factor f_k (`Server.factor`; FedAvg's is
its sample count, or 1)::

    f_k · floating tensors of the network      arrays that methods mark with reduce="sum"      what it received of those

The third part is how the sum stands on its own: a site that was absent need not remember what a sum is relative to.
The server adds ciphertexts in site order and sends their sum, the sum of f_k and the number of sites. Each site
decrypts, and does what the server would have done with the sums: every method's server half runs at every site,
with the same result, as all decrypt the same bytes.

In clear stay the initial model, batch counters, counts of samples and steps, losses and scores. What the server saves
as models are ciphertexts, which `decrypted` makes readable at a site.

A sum of this kind is not exact, and never the same bytes twice: encryption draws random numbers. With FLARE's default
keys one ciphertext is off by about 2⁻²⁷.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from fedshift.federation.model_files import header_of, load_checkpoint, save_checkpoint
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.server.guard import Change, Received, Rejected, check_update
from fedshift.federation.server.spool import StoredUpdate
from fedshift.federation.site.site import read_weights
from fedshift.methods import method_set
from fedshift.methods.base import ServerContext
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Arrays, Broadcast, MethodArrays, Update, Weights
from fedshift.schema.results import Rejection
from fedshift.tasks.base import build_task

if TYPE_CHECKING:
    from fedshift.methods import Method

OPTION = "federation.encryption"
PREFIX = "ckks."
"""Of a ciphertext's name, where a network's keys would be."""
COUNTS = "ckks.counts"
"""Name of the sum of factors and the number of sites, int64, beside a sum's ciphertexts."""
LARGEST = 2.0**40
"""Of a number to be encrypted: one that is larger costs its neighbours their precision."""


def check(loaded: Sequence[Method], job: JobSpec, net: nn.Module) -> None:
    """Refuse what needs more than sums, when the job is made.

    Raises:
        ConfigError: a method, a rule or a number of sites with which encryption cannot be, or would protect nothing.
    """
    if job.federation.encryption is None:
        return
    if job.federation.robust is not None:
        raise ConfigError(
            f"{OPTION}: federation.robust compares single updates, which the server cannot read: leave one out"
        )
    if job.federation.min_sites < 2:
        raise ConfigError(f"{OPTION}: a sum over one site is that site's update: --set federation.min_sites=2 or more")
    for method in loaded:
        half = method.server()
        if method.is_pooled:
            raise ConfigError(f"{OPTION}: method {method.name} trains where all images are, so nothing is sent")
        if "combine" in half.owns and half.factor(1) is None:
            raise ConfigError(
                f"{OPTION}: method {method.name} makes more of the sites' updates than a weighted sum, and the server "
                "cannot read them: use fedavg"
            )
        for name, spec in method.client().up(net).items():
            if spec.reduce != "sum" or spec.when != "round":
                sums = " (--set fedfa.share=sums)" if method.name == "fedfa" else ""
                raise ConfigError(
                    f"{OPTION}: method {method.name} sends {name!r} for the server to read, not only to add up: "
                    f"use another method{sums}"
                )
        context = _context(job, net, 0)
        half.start(net, context)
        if half.broadcast(context).keys() != half.state.keys():
            raise ConfigError(
                f"{OPTION}: method {method.name} remembers at the server what sites do not receive: use another method"
            )
    withheld = frozenset().union(*(method.client().withheld(net) for method in loaded))
    if withheld >= {name for name, _ in net.named_parameters()}:
        raise ConfigError(
            f"{OPTION}: with method {' and '.join(m.name for m in loaded)} no parameter leaves a site: leave it out"
        )


# --- ciphertexts ----------------------------------------------------------------------------------------


class Keys:
    """A TenSEAL context: what a party of a project can do with ciphertexts."""

    def __init__(self, content: bytes, *, where: str) -> None:
        """Read a context that FLARE's provisioning wrote.

        Args:
            content: of ``client_context.tenseal`` or ``server_context.tenseal``.
            where: its name in errors.

        Raises:
            ConfigError: TenSEAL is not installed, or this is no context for CKKS.
        """
        self._ts = _tenseal()
        try:
            self._context: Any = self._ts.context_from(content)
            self._scale = float(self._context.global_scale)
            data = self._context.seal_context().data
            self.slots = int(data.key_context_data().parms().poly_modulus_degree()) // 2
            self._parameters = list(data.first_parms_id())
        except (ValueError, RuntimeError) as error:
            raise ConfigError(
                f"{where} cannot be used ({str(error).splitlines()[0]}): provision the project with FLARE's HEBuilder "
                "and scheme CKKS"
            ) from None

    @property
    def can_decrypt(self) -> bool:
        """Whether the secret key is among them."""
        return bool(self._context.has_secret_key())

    def encrypt(self, values: np.ndarray) -> np.ndarray:
        """At most ``slots`` numbers, float64, as the bytes of one ciphertext, uint8."""
        vector = self._ts.ckks_vector(self._context, values.tolist())
        return np.frombuffer(bytearray(vector.serialize()), np.uint8)  # of its own, so that it may be written

    def decrypt(self, ciphertext: np.ndarray, size: int) -> np.ndarray:
        """The ``size`` numbers of a ciphertext, float64.

        Raises:
            ValueError: it is none of this context.
        """
        return np.array(self._read(ciphertext, size).decrypt(), np.float64)

    def add(self, ciphertexts: Iterable[np.ndarray], size: int) -> np.ndarray:
        """The sum of ciphertexts of ``size`` numbers each, one after the other.

        Raises:
            ValueError: one of them is none of this context.
        """
        total: Any = None
        for ciphertext in ciphertexts:
            vector = self._read(ciphertext, size)
            total = vector if total is None else total.add_(vector)
        return np.frombuffer(bytearray(total.serialize()), np.uint8)

    def check(self, ciphertext: np.ndarray, size: int) -> None:
        """Whether this can be added to others.

        Raises:
            ValueError: it cannot; in words.
        """
        self._read(ciphertext, size)

    def _read(self, ciphertext: np.ndarray, size: int) -> Any:
        if type(ciphertext) is not np.ndarray or ciphertext.dtype != np.uint8 or ciphertext.ndim != 1:
            raise ValueError("is no row of bytes")
        try:
            vector = self._ts.ckks_vector_from(self._context, ciphertext.tobytes())
            parts = vector.ciphertext()
            facts = [(list(p.parms_id()), p.scale, p.size(), p.is_transparent()) for p in parts]
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"is no ciphertext of this project's keys ({str(error).splitlines()[0]})") from None
        if vector.size() != size or facts != [(self._parameters, self._scale, 2, False)]:
            raise ValueError(f"is no fresh ciphertext or sum of {size} numbers")
        return vector


def _tenseal() -> Any:
    try:
        import tenseal
    except ImportError:
        raise ConfigError(
            f"{OPTION} needs TenSEAL, which is not installed here: pip install 'fedshift[he]' at the server and at "
            "every site"
        ) from None
    return tenseal


# --- what is where --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A tensor's place in the vector: of the ``network``, ``sent`` by a method, or ``received`` with it."""

    kind: str
    method: str
    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Numbers in it."""
        return prod(self.shape)


class Layout:
    """The vector of a job: the same at every site and at the server."""

    def __init__(self, job: JobSpec, slots: int) -> None:
        """``slots`` is how many numbers a ciphertext holds.

        Raises:
            ConfigError: the job cannot be encrypted.
        """
        task = build_task(job)
        self.net = task.network()
        self.methods = method_set.load(job.methods)
        check(self.methods, job, self.net)
        self.template = read_weights(self.net)
        self.withheld = frozenset().union(*(m.client().withheld(self.net) for m in self.methods))
        self.clear = frozenset(k for k, v in self.template.items() if not np.issubdtype(v.dtype, np.floating))
        """Batch counters: of these the largest is taken, which needs them in clear."""
        parts = [
            Part("network", "", key, value.shape, str(value.dtype))
            for key, value in self.template.items()
            if key not in self.withheld | self.clear
        ]
        for method in self.methods:
            sent, received = method.client().up(self.net), method.server().down(self.net)
            for kind, specs in (("sent", sent), ("received", received if sent else {})):
                for name, spec in specs.items():
                    shape = tuple(int(length) for length in spec.sized(task.sizes).shape)
                    parts.append(Part(kind, method.name, name, shape, spec.dtype))
        self.parts = tuple(parts)
        total = sum(part.size for part in parts)
        self.chunks = {
            f"{PREFIX}{number:05d}": min(slots, total - number * slots) for number in range(ceil(total / slots))
        }
        """Name of each ciphertext and how many numbers are in it."""
        self._slots = slots

    def factor(self, n_samples: int) -> int:
        """By what a site multiplies its network."""
        owner = next(m.server() for m in self.methods if "combine" in m.server().owns)
        factor = owner.factor(n_samples)
        assert factor is not None
        return factor

    def pieces(self, vector: np.ndarray) -> Mapping[str, np.ndarray]:
        """A vector cut for encryption."""
        return {
            name: vector[n * self._slots : n * self._slots + size] for n, (name, size) in enumerate(self.chunks.items())
        }

    def split(self, vector: np.ndarray) -> Mapping[Part, np.ndarray]:
        """A vector's tensors, float64."""
        ends = np.cumsum([part.size for part in self.parts])[:-1]
        return {p: values.reshape(p.shape) for p, values in zip(self.parts, np.split(vector, ends), strict=True)}


# --- at a site ------------------------------------------------------------------------------------------


class SiteEncryption:
    """Between a site and the wire: what comes in is decrypted, what leaves is encrypted."""

    def __init__(self, job: JobSpec, keys: Keys) -> None:
        """For one job.

        Raises:
            ConfigError: these keys cannot decrypt, or the job cannot be encrypted.
        """
        if not keys.can_decrypt:
            raise ConfigError(f"{OPTION}: these keys are the server's, which decrypt nothing: use those of a site")
        self._job, self._keys = job, keys
        self._layout = Layout(job, keys.slots)

    def seal(self, update: Update, broadcast: Broadcast) -> Update:
        """An answer to ``broadcast`` (both in clear) as it may leave.

        Raises:
            DataError: a number that cannot be encrypted.
        """
        if update.round == 0:
            return update
        factor = self._layout.factor(update.n_samples)
        rows = []
        for part in self._layout.parts:
            if part.kind == "network":
                rows.append(factor * update.weights[part.name].astype(np.float64).ravel())
            else:
                arrays = update.arrays if part.kind == "sent" else broadcast.arrays
                rows.append(arrays[part.method][part.name].astype(np.float64).ravel())
            if not (np.abs(rows[-1]) <= LARGEST).all():  # NaN is not, either
                what = "/".join(word for word in (part.method, part.name) if word)
                raise DataError(
                    f"site {update.site}, round {update.round}: {what} holds numbers that cannot be encrypted "
                    f"(NaN, or beyond {LARGEST:.0g}): lower optimizer.lr"
                )
        pieces = self._layout.pieces(np.concatenate(rows))
        sealed = {name: self._keys.encrypt(values) for name, values in pieces.items()}
        counters = {key: value for key, value in update.weights.items() if key in self._layout.clear}
        return replace(update, weights={**counters, **sealed}, arrays={})

    def open(self, broadcast: Broadcast) -> Broadcast:
        """A task as the site's half understands it. The first round's comes in clear.

        Raises:
            ConfigError: it is not encrypted as it should be.
        """
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
        clear = {key: received[key] for key in layout.template if key in layout.withheld | layout.clear}
        mean = {}
        for part, total in sums.items():
            if part.kind == "network":
                # A variance of 0 may come out just below.
                value = np.maximum(total, 0) if part.name.endswith("running_var") else total
                mean[part.name] = np.asarray(value / factors, part.dtype)
        update = _Summed(weights={**mean, **{k: v for k, v in clear.items() if k not in layout.withheld}})
        weights, arrays = self._server_halves(broadcast.round, {**layout.template, **clear}, update, sums, n_sites)
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
        self, round_: int, weights: Weights, update: _Summed, sums: Mapping[Part, np.ndarray], n_sites: int
    ) -> tuple[Weights, MethodArrays]:
        """What the server would have made of the round before: its new weights, and its arrays for this one."""
        context = _context(self._job, self._layout.net, round_ - 1)
        updates = []
        for number in range(n_sites):
            # Of the arrays only the sum is known, and only the sum may be used: one site has it all.
            share: dict[str, Arrays] = {}
            for part, total in sums.items():
                if part.kind == "sent":
                    share.setdefault(part.method, {})[part.name] = total if number == 0 else np.zeros_like(total)
            updates.append(replace(update, arrays=share))
        arrays: MethodArrays = {}
        for method in self._layout.methods:
            half = method.server()
            half.start(self._layout.net, replace(context, round=0))
            for part, total in sums.items():
                if part.kind == "received" and part.method == method.name:
                    half.state[part.name] = np.asarray(total / n_sites, part.dtype)
            half.receive(updates, context)
            if "combine" in half.owns:
                weights = half.combine(weights, updates[:1], context)
            named = dict(half.broadcast(replace(context, round=round_)))
            if named:
                arrays[method.name] = named
        return weights, arrays


@dataclass
class _Summed:
    """All sites' updates as one, or as many of which only the sum is right: see `SiteUpdate`."""

    site: str = ""
    n_samples: int = 1
    n_steps: int = 1
    metrics: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    arrays: Mapping[str, Arrays] = field(default_factory=dict)


def _unreadable(reason: str) -> ConfigError:
    return ConfigError(f"{OPTION}: the server's message cannot be decrypted: {reason}")


def _context(job: JobSpec, net: nn.Module, round_: int) -> ServerContext:
    trainable = frozenset(name for name, _ in net.named_parameters())
    task = job.task
    return ServerContext(round_, task.schedule.rounds, task.sites, trainable, task.optimizer, job.seed)


def decrypted(model: Path, out: Path, keys: Keys) -> int:
    """Make an ordinary model file of one that the server of an encrypted job has written; returns its round.

    Raises:
        ConfigError: no model, not encrypted, or with other keys.
    """
    content = load_checkpoint(model)
    header = header_of(content, where=str(model))
    if not header.encrypted:
        raise ConfigError(f"{model} is not encrypted: use it as it is")
    job = header.job
    encryption = SiteEncryption(job, keys)
    weights = {key: tensor.numpy() for key, tensor in content["weights"].items()}
    round_: int = content["round"]
    opened = encryption.open(Broadcast(round=round_ + 1, best_round=0, weights=weights))
    save_checkpoint(
        out,
        job=job,
        round_=round_,
        weights=opened.weights,
        methods=opened.arrays,
        personal=header.personal,
        scores=header.scores,
        kind=header.kind,
        sites=header.sites,
        statistics=header.statistics,
        initial_weights=header.initial_weights,
    )
    return round_


# --- at the server --------------------------------------------------------------------------------------


class EncryptedCoordinator(Coordinator):
    """A server that adds ciphertexts. From the first round on its weights, and its model files, are their sum."""

    def __init__(
        self,
        job: JobSpec,
        folder: Path,
        *,
        keys: Keys,
        on_progress: Callable[[Coordinator], None] | None = None,
        on_reject: Callable[[Rejection, int], None] = lambda rejection, round_: None,
    ) -> None:
        """``keys`` are the server's; the rest as for `Coordinator`.

        Raises:
            ConfigError: the keys could decrypt, or the job cannot be encrypted.
        """
        if keys.can_decrypt:
            raise ConfigError(
                f"{OPTION}: the server's keys could decrypt what sites send: provision the project again, and never "
                "copy a site's context to the server"
            )
        self._keys, self._layout = keys, Layout(job, keys.slots)
        super().__init__(job, folder, on_progress=on_progress, on_reject=on_reject)

    def _compared_with(self) -> Received:
        """What is in clear: buffers."""
        clear = {key: value for key, value in self._weights.items() if key in self._layout.clear}
        return Received(clear, trainable=frozenset(), withheld=self._withheld)

    def _check(self, update: Update, n_samples: int) -> Change:
        """All that can be checked without reading: everything in clear, and that ciphertexts can be added."""
        if self.round == 0:
            return super()._check(update, n_samples)
        sealed = {key: value for key, value in update.weights.items() if str(key).startswith(PREFIX)}
        check_update(
            replace(update, weights={key: value for key, value in update.weights.items() if key not in sealed}),
            round_=self.round,
            received=self._received,
            specs={},
            metrics=self._task.metrics,
            n_samples=n_samples,
            max_norm=self.job.federation.max_update_norm,
            n_steps=self._steps(n_samples),
        )
        for key in sealed.keys() ^ self._layout.chunks.keys():
            raise Rejected(key, "is not expected in weights" if key in sealed else "is missing from weights")
        for key, size in self._layout.chunks.items():
            try:
                self._keys.check(sealed[key], size)
            except ValueError as error:
                raise Rejected(key, str(error)) from None
        return Change()

    def _combine(self, stored: Sequence[StoredUpdate]) -> None:
        """The sum of ciphertexts, one after another, in site order."""
        if self.round == 0:
            super()._combine(stored)
            return
        layout = self._layout
        factors = sum(layout.factor(update.n_samples) for update in stored)
        total: Weights = {}
        for key in layout.template:
            if key in layout.withheld:
                total[key] = self._weights[key]
            elif key in layout.clear:
                total[key] = np.asarray(np.max([update.weights[key] for update in stored], axis=0))
        for key, size in layout.chunks.items():
            total[key] = self._keys.add((update.weights[key] for update in stored), size)
        total[COUNTS] = np.array([factors, len(stored)], np.int64)
        self._weights = total

    def _arrays(self, round_: int) -> MethodArrays:
        """The methods' first arrays; the later ones are made of the sum, at the sites."""
        return super()._arrays(round_) if round_ <= 1 else {}
