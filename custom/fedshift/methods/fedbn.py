"""FedBN: every site keeps its normalisation layers to itself; the rest is averaged.

Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021. With the keys N
of normalisation layers (scale, shift, running statistics, batch counter)::

    w[k] ← Σ_i c_i w_i[k]    k not in N        (c as the method that combines says)
    w_i[k] stays at site i   k in N

A site trains and is scored with its own N. Layers are found by their type: the released code looks for the letters
"bn" in a key and so misses normalisation inside ``nn.Sequential``. ``norms`` is ``batch`` (batch norm, and every
module with the buffers running_mean and running_var) or ``all`` (group, layer and instance norm too).

The paper averages with 1/K: ``--set fedavg.weights=uniform``.

A site that has never trained has no N. ``unseen`` says what it uses; `results.final.newcomers` names such sites.
``re-estimated`` (default): N never leaves a site; a newcomer passes its own un-augmented training images through
the network and takes their statistics, without labels and with scale and shift as initialised. ``averaged``: N is
sent and averaged as in FedAvg, but only a newcomer uses the average. The default is what the authors' server does
(its N stays as initialised), and what keeps brightness and contrast of a site's features at the site.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from fedshift.methods import base
from fedshift.methods.shared.norms import Norms, norm_keys, re_estimate
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.strict import Strict


class Config(Strict):
    """Options of FedBN."""

    norms: Norms = "batch"
    unseen: Literal["re-estimated", "averaged"] = "re-estimated"


class Client(base.Client[Config]):
    """Keeps normalisation layers."""

    def check(self, job: JobSpec, net: nn.Module) -> None:
        """An average needs everything to be sent."""
        if self.config.unseen == "averaged" and job.methods.get("fedavg", {}).get("buffers") == "local":
            raise ConfigError(
                "method fedbn: unseen=averaged needs running statistics to be sent, and fedavg.buffers=local keeps "
                "them at the site: use --set fedavg.buffers=average or fedbn.unseen=re-estimated"
            )

    def personal(self, net: nn.Module) -> frozenset[str]:
        """All that normalisation layers hold; batch counters that are sent are all sites' together."""
        keys, state = norm_keys(net, self.config.norms), net.state_dict()
        if self.config.unseen == "averaged":
            return frozenset(key for key in keys if state[key].is_floating_point())
        return keys

    def withheld(self, net: nn.Module) -> frozenset[str]:
        """The same, unless newcomers are to get the average."""
        return frozenset() if self.config.unseen == "averaged" else self.personal(net)

    def newcomer(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        """Running statistics of the site's own images, or the received average."""
        if self.config.unseen == "re-estimated":
            re_estimate(ctx.run.net, data, ctx.run)
