"""FedBN: every site keeps its normalisation layers to itself; the rest is averaged.

Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021. With N the
``state_dict`` keys of normalisation layers (scale, shift, running statistics, batch counter)::

    w[k] ← Σ_i c_i w_i[k]    k not in N        (c from the method that combines)
    w_i[k] stays at site i   k in N

A site trains and is evaluated with its own N. The paper averages with 1/K: ``--set fedavg.weights=uniform``.

Deviation: layers are found by type. The released code looks for "bn" in a key and so misses normalisation inside
``nn.Sequential``.

Variants:

- ``norms`` is which layers N are.
- ``unseen`` says what a site that has never trained, and so has no N, uses; `results.final.newcomers` lists such sites.
  With ``re-estimated`` N never leaves a site: a new one passes its own un-augmented images through the network, with
  the initial scale and shift. That matches the authors' server, whose N stays as initialised, and keeps the
  brightness and contrast of a site's features at the site. With ``averaged`` only new sites use the average.

When: sites differ in scale, contrast or colour and each site should get its own model. In a network without
normalisation layers it is FedAvg, and with instance norm alone (``norms: all``) only scales and shifts stay: there are
no running statistics.
"""

from __future__ import annotations

import logging
from typing import Literal

from torch import nn

from fedshift.methods import base
from fedshift.methods.shared.norms import Norms, norm_keys, re_estimate
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.strict import Strict

log = logging.getLogger("fedshift")


class Config(Strict):
    """Options of FedBN.

    ``norms``: which layers stay at a site; ``batch`` is every module with running_mean and running_var, ``all`` adds
    group, layer, RMS and instance norm. ``unseen``: what a site that has never trained uses; ``re-estimated`` takes
    running statistics from its own training images, without labels; with ``averaged`` sites send theirs to the server,
    which averages them for such sites only.
    """

    norms: Norms = "batch"
    unseen: Literal["re-estimated", "averaged"] = "re-estimated"


class Client(base.Client[Config]):
    """Keeps normalisation layers at the site."""

    needs = (base.Rule("norms that are trained"),)
    idle = (
        base.Rule(
            "norms",
            "all norms of network {case.job.task.network.name} are batch norms",
            lambda case: norm_keys(case.net, "all") == norm_keys(case.net, "batch"),
        ),
    )

    def check(self, job: JobSpec, net: nn.Module) -> None:
        if not norm_keys(net, self.config.norms):
            network = job.task.network.name
            if norm_keys(net, "all"):
                raise ConfigError(
                    "method-needs",
                    f"method fedbn: keeps batch norms at a site, and network {network} has none, only norms of another "
                    "kind (instance, group or layer norm): add --set fedbn.norms=all to keep those",
                )
            # FedFA's Table 3 has this row, of a LeNet.
            log.warning(
                "method fedbn: network %s has no norm with weights or statistics: FedBN is FedAvg here", network
            )
        if self.config.unseen == "averaged" and job.methods.get("fedavg", {}).get("buffers") == "local":
            raise ConfigError(
                "methods-clash",
                "method fedbn: unseen=averaged needs running statistics to be sent, and fedavg.buffers=local keeps "
                "them at the site: use --set fedavg.buffers=average or fedbn.unseen=re-estimated",
            )

    def personal(self, net: nn.Module) -> frozenset[str]:
        """Keys of normalisation layers; batch counters that are sent are left out, they count all sites' batches."""
        keys, state = norm_keys(net, self.config.norms), net.state_dict()
        if self.config.unseen == "averaged":
            return frozenset(key for key in keys if state[key].is_floating_point())
        return keys

    def withheld(self, net: nn.Module) -> frozenset[str]:
        return frozenset() if self.config.unseen == "averaged" else self.personal(net)

    def newcomer(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        if self.config.unseen == "re-estimated":
            re_estimate(ctx.run.net, data, ctx.run)
