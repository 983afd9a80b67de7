"""FedPer: every site keeps its own head on a body that all share, and trains both together.

Arivazhagan et al., "Federated Learning with Personalization Layers", arXiv:1912.00818, 2019. With the received body φ
and the site's own head h_k, at every local step of site k::

    φ_k, h_k ← optimiser step of f_k(φ_k, h_k) in both                   φ_k = φ at the start of a round
    server:    φ ← Σ c_k φ_k                                             (c from the method that combines)

The head is the network's last layer; everything else, running statistics too, is the body. FedRep differs only in that
it trains the head before the body.

Deviations from the paper: its personal layers are the last layer and, for K_P above 1, the last K_P − 1 blocks before
it; here the head alone. ``partialfed.keep=[last, head]`` keeps more, and ``partialfed.keep=[head]`` trains the same
bodies and heads as FedPer, but sends the heads too. All sites start with the same initial head, where the paper lets
each draw its own. Held-out sites, which may not train a head, are refused.

Choices: a site that has never trained has the initial head (`results.final.newcomers` lists such sites). Applies to
segmentation too, where the head is the layer that gives the classes of a pixel or voxel, as in FL-MedSegBench
(arXiv:2603.11659).

Read: FL-MedSegBench's code, and TL-System/plato's example of the method, which names no code of the authors'. The
paper's text was not at hand for a second reading.

When: sites agree on features but not on what to make of them.
"""

from __future__ import annotations

from torch import nn

from fedshift.methods import base
from fedshift.methods.shared.head import head_keys, refuse_held_out
from fedshift.schema.job import JobSpec
from fedshift.schema.strict import Strict


class Config(Strict):
    """No options."""


class Client(base.Client[Config]):
    """Keeps the head at the site."""

    needs = (base.Rule("a named head"),)
    clashes = (base.Rule("may keep the head at the site", "keeps it too"),)

    def check(self, job: JobSpec, net: nn.Module) -> None:
        refuse_held_out("fedper", job)

    def personal(self, net: nn.Module) -> frozenset[str]:
        return head_keys(net)
