"""What travels between server and sites, as plain dataclasses of numpy arrays.

``flare/wire.py`` is the one place where these become FLARE's DXOs and come back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fedshift.schema.compression import Packed
from fedshift.schema.evaluation import Evaluation

Weights = dict[str, np.ndarray]
"""Network state: plain ``state_dict`` keys to arrays, float32 parameters and buffers, int64 counters."""

Arrays = dict[str, np.ndarray]
"""Named arrays of one method."""

MethodArrays = dict[str, Arrays]
"""Method name -> its named arrays."""


@dataclass(frozen=True)
class Broadcast:
    """Server to sites. ``round`` counts from 1; round 0 is the statistics round.

    ``weights`` are those that round ``round`` starts from, i.e. the aggregate of ``round - 1``.
    ``best_round`` is the best aggregate known so far (0: none yet); sites keep what they hold of it.
    ``sites`` are asked to answer. ``packed`` are those of the weights that travel in fewer bytes
    (`fedshift.schema.compression`); they are not among ``weights``.
    """

    round: int
    best_round: int
    weights: Weights
    arrays: MethodArrays = field(default_factory=dict)
    sites: tuple[str, ...] = ()
    packed: dict[str, Packed] = field(default_factory=dict)

    def unpacked(self) -> Broadcast:
        """The same with all weights as arrays; itself if nothing is packed."""
        if not self.packed:
            return self
        opened = {key: packed.unpack() for key, packed in self.packed.items()}
        return replace(self, weights={**self.weights, **opened}, packed={})


@dataclass(frozen=True)
class Update:
    """One site's answer to a round.

    ``metrics`` are scores of the *received* model on the validation split, plus ``train_loss``.
    ``weights`` lack the keys that a method withholds. ``packed`` are, for keys that are not among ``weights``, changes
    against what the site received (`fedshift.schema.compression`).
    """

    site: str
    round: int
    n_samples: int
    n_steps: int
    weights: Weights = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    arrays: MethodArrays = field(default_factory=dict)
    packed: dict[str, Packed] = field(default_factory=dict)

    def restored(self, reference: Mapping[str, np.ndarray]) -> Update:
        """The same with the packed changes added to ``reference``, in its order; itself if nothing is packed."""
        if not self.packed:
            return self
        with np.errstate(over="ignore", invalid="ignore"):  # the guard refuses what is not finite
            moved = {key: reference[key] + packed.unpack() for key, packed in self.packed.items()}
        weights = {**self.weights, **moved}
        ordered = {key: weights[key] for key in reference if key in weights}
        return replace(self, weights={**ordered, **weights}, packed={})


@dataclass(frozen=True)
class SiteInfo:
    """What a site tells with its answers: its data's counts and fingerprint, and on what it computes; no paths, no ids.

    ``device`` is ``cpu`` or a GPU's model, ``precision`` fp32 or bf16, ``threads`` torch's.
    """

    site: str
    kind: str  # patients, images or phantom
    n_train: int
    n_val: int
    n_test: int
    manifest_sha256: str
    split_rule: str
    device: str = "cpu"
    precision: str = "fp32"
    threads: int = 1


@dataclass(frozen=True)
class Scores:
    """Scores of one model at one site: split name -> metric name -> value.

    ``personal`` are those of the model after the site has fine-tuned it for itself, where a method does that.
    ``evaluations`` say more of some splits, and ``personal_evaluation`` of the personal model's test split.
    """

    site: str
    round: int
    values: dict[str, dict[str, float]]
    personal: dict[str, dict[str, float]] = field(default_factory=dict)
    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    personal_evaluation: Evaluation | None = None
