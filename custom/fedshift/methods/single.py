"""Single: every site trains alone, the reference that a federation has to beat.

"Single" of the FRAug paper's tables (Chen et al.)::

    w_k stays at site k;    the server's model stays as it was initialised

Nothing of the network leaves a site. All sites begin with the same initial weights, have as many rounds as a
federation has, and the round is selected by the mean of their validation scores, as with every method.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedshift.methods import base
from fedshift.schema.messages import Weights
from fedshift.schema.strict import Strict


class Config(Strict):
    """No options."""


class Client(base.Client[Config]):
    """Keeps the whole network."""

    def personal(self, net: nn.Module) -> frozenset[str]:
        """Every key."""
        return frozenset(net.state_dict())


class Server(base.Server[Config]):
    """Has nothing to combine."""

    owns = frozenset({"combine"})

    def combine(self, weights: Weights, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> Weights:
        """The initial weights."""
        return weights
