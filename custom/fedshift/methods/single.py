"""Single: every site trains alone, the reference that a federation has to beat.

"Single" in the tables of Chen et al., "FRAug: Tackling Federated Learning with Non-IID Features via Representation
Augmentation", arXiv 2022::

    w_k stays at site k;    the server's model stays as it was initialised

No weights leave a site. All sites start from the same initial weights and train for as many rounds as a federation.
The round is selected by the mean of their validation scores, as with every method.

When: the lower reference: a federation is useful only if it beats this.
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
    """Keeps all weights at the site."""

    def personal(self, net: nn.Module) -> frozenset[str]:
        return frozenset(net.state_dict())


class Server(base.Server[Config]):
    """Combines nothing."""

    owns = frozenset({"combine"})

    def combine(self, weights: Weights, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> Weights:
        return weights
