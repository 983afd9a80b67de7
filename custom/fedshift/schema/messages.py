"""Messages between server and sites: plain dataclasses of NumPy arrays.

Only ``flare/codec.py`` converts them to FLARE's DXOs and back, and only ``mailbox/content.py`` to bytes of letters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedshift.schema.compression import Packed
from fedshift.schema.evaluation import Evaluation
from fedshift.schema.fingerprint import Reference
from fedshift.schema.guarantee import RiskCurves
from fedshift.schema.paired import LocalComparison
from fedshift.schema.policy import LedgerHead

Weights = dict[str, np.ndarray]
"""Network state: plain ``state_dict`` keys to arrays, float32 parameters and buffers, int64 counters."""

Arrays = dict[str, np.ndarray]
"""Named arrays of one method."""

MethodArrays = dict[str, Arrays]
"""Method name -> its named arrays."""


@dataclass(frozen=True)
class Broadcast:
    """What the server sends to the sites in a round. Rounds count from 1; round 0 is the statistics round.

    ``weights``: the model that this round starts from, the aggregate of ``round - 1``. ``best_round``: the best
    aggregate so far (0: none yet); sites keep their state of that round. ``sites``: those that should answer.
    ``packed``: the weights that are sent in fewer bytes (`fedshift.schema.compression`); they are not in ``weights``.
    ``ledgers``: of each site, what the server has seen of its privacy ledger; no part of what is asked.
    """

    round: int
    best_round: int
    weights: Weights
    arrays: MethodArrays = field(default_factory=dict)
    sites: tuple[str, ...] = ()
    packed: dict[str, Packed] = field(default_factory=dict)
    ledgers: dict[str, LedgerHead] = field(default_factory=dict)

    def unpacked(self) -> Broadcast:
        """The broadcast with all weights as arrays; itself if nothing is packed."""
        if not self.packed:
            return self
        opened = {key: packed.unpack() for key, packed in self.packed.items()}
        return replace(self, weights={**self.weights, **opened}, packed={})


TEST_PREFIX = "test_"
"""Before the name of a test score in `Update.metrics`."""


@dataclass(frozen=True)
class Update:
    """One site's result of a round.

    ``metrics``: scores of the *received* model on the validation split, and ``train_loss``; where the job has test
    scores of rounds, these too, with `TEST_PREFIX` before their names; ``parts`` of each batch, if batches went through
    the network in parts for want of memory. ``weights``: without the keys that a method withholds. ``packed``: for keys
    that are not in ``weights``, the packed change relative to the received weights (`fedshift.schema.compression`).
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
        """The update with packed changes added to ``reference``, keys in its order; itself if nothing is packed."""
        if not self.packed:
            return self
        with np.errstate(over="ignore", invalid="ignore"):  # the guard refuses what is not finite
            moved = {key: reference[key] + packed.unpack() for key, packed in self.packed.items()}
        weights = {**self.weights, **moved}
        ordered = {key: weights[key] for key in reference if key in weights}
        return replace(self, weights={**ordered, **weights}, packed={})


@dataclass(frozen=True)
class SiteInfo:
    """What a site reports with its answers: counts, manifest fingerprint, hardware. No paths, no case ids.

    ``cases``: the number of cases of each split, of which the samples (slices, patches, pictures) are.
    ``device``: model name of the GPU or the processor. ``precision``: fp32 or bf16. ``threads``: PyTorch threads.
    ``devices``: how many such devices, or cores of the processor, share each batch.
    ``unknown_spacing``: headers of some cases hold no voxel size, so distances in mm mean nothing. ``simulated``: what
    was simulated of real scans, such as their scanners. ``phantom``: `fedshift.schema.manifest.PhantomOptions` of scans
    that are simulated as a whole.
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
    devices: int = 1
    unknown_spacing: bool = False
    simulated: str = ""
    phantom: dict[str, Any] | None = None
    cases: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Scores:
    """Scores of one model at one site: split name -> metric name -> value.

    ``personal``: scores after local fine-tuning, if a method does that. ``evaluations``: full evaluations of some
    splits; ``personal_evaluation``: that of the fine-tuned model on the test split. ``against_local``: the model, as
    the site would use it, compared with the one that the site trained alone, if the job asks for it.
    ``reference``: what the site tells of its scans, if the job asks for it and the site's policy lets it leave;
    ``risks`` likewise, of the model.
    """

    site: str
    round: int
    values: dict[str, dict[str, float]]
    personal: dict[str, dict[str, float]] = field(default_factory=dict)
    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    personal_evaluation: Evaluation | None = None
    against_local: LocalComparison | None = None
    reference: Reference | None = None
    risks: RiskCurves | None = None


@dataclass(frozen=True)
class Failure:
    """A site could not do its task; ``reason`` is one sentence."""

    site: str
    round: int
    reason: str


@dataclass(frozen=True)
class Answer:
    """A site's answer to a request; it has ``info`` if the site could open its data, ``ledger`` if it has one."""

    content: Update | Scores | Failure
    info: SiteInfo | None = None
    ledger: LedgerHead | None = None
