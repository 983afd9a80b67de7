"""FedRep: every site keeps its own head on a body that all share, and trains the head before the body.

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021, Algorithm 1. In a
round of T steps, of which the first τ are the head's, with the received body φ and the site's own head h_k::

    step 1 … τ:        h_k ← optimiser step of f_k(φ_k, h_k) in h_k,     φ_k = φ
    step τ + 1 … T:    φ_k ← optimiser step of f_k(φ_k, h_k) in φ_k,     h_k as it is now
    server:            φ ← Σ c_k φ_k                                     (c from the method that combines)

τ is ``head`` · T, rounded, with at least one step for each part. The head is the network's last layer; everything else,
running statistics too, is the body.

Deviations from the paper: it trains the head for ten epochs and then the body for one (five for some data sets), in
rounds longer than those of the methods that it compares with. Here both share the round that the task gives to every
method, in steps, so that comparisons have equal budgets; ``--set fedrep.head=0.91 schedule.local_epochs=11`` is the
paper's. In the code's last round every site trains its head alone, for ten epochs or more; here no round differs. The
paper's new clients train a head first. Here a site that has never trained has the initial head
(`results.final.newcomers` lists such sites), and held-out sites, which may not train, are refused.

Choices: batch norms of the body go on counting statistics in the head's steps, as in the authors' code. In a round of
one step both parts are trained. Applies to segmentation too, where the head is the layer that gives the classes of a
pixel or voxel.

Read: the authors' code, as a copy of it has it (AC-Amiya233/FedRep, ``main_fedrep.py``, ``models/Update.py``). The
paper's text was not at hand for a second reading.

When: sites agree on features but not on what to make of them.
"""

from __future__ import annotations

from pydantic import Field
from torch import nn

from fedshift.methods import base
from fedshift.methods.shared import search
from fedshift.methods.shared.head import head_keys, refuse_held_out
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.strict import Strict

SEARCH = {"head": search.uniform(0.2, 0.9)}


class Config(Strict):
    """Options of FedRep.

    ``head``: the share of a round's steps that train the head, at least one step for each part.
    """

    head: float = Field(default=0.5, gt=0, lt=1)


def head_steps(steps: int, share: float) -> int:
    """τ: how many of a round's steps are the head's; 0 if there is only one step, which then trains both parts."""
    return min(max(1, round(share * steps)), steps - 1) if steps > 1 else 0


class Client(base.Client[Config]):
    """Keeps the head at the site and trains one part at a time."""

    in_ranks = frozenset({"begin", "gradients"})
    needs = (base.Rule("a named head"),)
    traits = (base.Rule("trains parts of the network in turn"),)
    clashes = (base.Rule("may keep the head at the site", "keeps it too"),)

    def check(self, job: JobSpec, net: nn.Module) -> None:
        """Require a network that names its head, at least two steps a round, and no held-out sites."""
        if job.task.schedule.local_steps == 1:
            raise ConfigError(
                "method-needs",
                "method fedrep: trains the head before the body, which takes two steps a round: set "
                "schedule.local_steps to at least 2",
            )
        if job.task.schedule.minutes is not None:
            raise ConfigError(
                "method-needs",
                "method fedrep: divides the planned steps of a round between head and body, and schedule.minutes may "
                "end the round before the body's turn: use --set schedule.minutes=null, and schedule.local_steps for "
                "shorter rounds",
            )
        refuse_held_out("fedrep", job)

    def personal(self, net: nn.Module) -> frozenset[str]:
        return head_keys(net)

    def begin(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        self._head = head_keys(ctx.run.net)

    def gradients(self, ctx: base.Context) -> None:
        """Remove the gradients of the part that this step does not train, which optimisers then leave as it is."""
        if ctx.run.steps < 2:
            return
        trains_head = ctx.run.step < head_steps(ctx.run.steps, self.config.head)
        for name, parameter in ctx.run.net.named_parameters():
            if (name in self._head) != trains_head:
                parameter.grad = None
