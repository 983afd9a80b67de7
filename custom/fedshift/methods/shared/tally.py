"""A value that every site keeps and whose mean the server keeps, though updates are lost and limits scale them down.

In each round site k changes its value v_k (SCAFFOLD's c_k, FedDyn's l_k) by Δ_k, and the server adds 1/N Σ_S Δ_k over
the updates that it uses. Updates can be lost or refused, and of one that goes beyond a limit the server uses a part
(`SiteUpdate.scaled`). It therefore sends, for each site, ``accepted``, the last round whose update it used, and
``used``, the part of that update's change. A site that changed v_k from ``counted`` to ``sent`` in its last round goes
on from::

    v_k = counted + used (sent − counted)   if the server used that round's update,     counted   if not

Without that, one such update would leave the server's mean wrong permanently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedshift.methods.base import ArraySpec, Context, ServerContext, SiteUpdate
from fedshift.schema.messages import Arrays

ACCEPTED, USED = "accepted", "used"
COUNTED, SENT, ROUND = "counted", "sent", "round"
"""Names in a site's state: ``counted.<parameter>`` and ``sent.<parameter>`` of ``round``."""


# --- at a site ----------------------------------------------------------------------------------------


def value_at_site(arrays: Arrays, ctx: Context) -> dict[str, Tensor]:
    """The site's value by parameter, as it is in the server's mean; 0 at first. ``arrays`` are the server's."""
    place = ctx.run.sites.index(ctx.run.site)
    was_used = int(ctx.state.get(ROUND, torch.tensor(0))) <= int(arrays[ACCEPTED][place])
    part = float(arrays[USED][place])
    values = {}
    for name, parameter in ctx.run.net.named_parameters():
        counted, sent = (ctx.state.get(f"{k}.{name}", torch.zeros(parameter.shape)) for k in (COUNTED, SENT))
        if not was_used:
            values[name] = counted.to(parameter)
        else:  # in full it is `sent` to the last bit
            values[name] = (sent if part == 1 else counted + part * (sent - counted)).to(parameter)
    return values


def keep(counted: Mapping[str, Tensor], sent: Mapping[str, Tensor], ctx: Context) -> None:
    """Keep the value from which the round's change began, and that at which it ended, by parameter."""
    for name, value in sent.items():
        ctx.state[f"{COUNTED}.{name}"], ctx.state[f"{SENT}.{name}"] = counted[name].cpu(), value.cpu()
    ctx.state[ROUND] = torch.tensor(ctx.round)


# --- at the server ------------------------------------------------------------------------------------


def specs() -> dict[str, ArraySpec]:
    return {
        ACCEPTED: ArraySpec(
            ("sites",), "int64", low=0, reveals="the last round whose update the server used, for each site", keep=False
        ),
        USED: ArraySpec(
            ("sites",),
            "float64",
            low=0,
            high=1,
            reveals="the part of that update's change that the server's limits left, for each site",
            keep=False,
        ),
    }


def start(sites: Sequence[str]) -> Arrays:
    return {ACCEPTED: np.zeros(len(sites), np.int64), USED: np.ones(len(sites))}


def note(state: Arrays, updates: Sequence[SiteUpdate], ctx: ServerContext, *, change: str) -> Arrays:
    """Both arrays after a round's updates; ``change`` names, as in `SiteUpdate.scaled`, what the server adds up."""
    accepted, used = state[ACCEPTED].copy(), state[USED].copy()
    for update in updates:
        place = ctx.sites.index(update.site)
        accepted[place], used[place] = ctx.round, update.scaled.get(change, 1.0)
    return {ACCEPTED: accepted, USED: used}
