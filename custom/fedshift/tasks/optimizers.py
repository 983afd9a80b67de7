"""Torch's optimisers without its compiler.

Torch wraps the methods of its optimisers so that a program that is compiled leaves them out. At the first call the
wrapper imports all of ``torch._dynamo``, also where nothing is compiled, as here: more than a second and 70 MB for each
process that trains. These classes have the methods that are wrapped; the numbers are the same, bit for bit.
"""

from __future__ import annotations

import inspect
from typing import TypeVar

import torch
from torch.optim import Optimizer

Kind = TypeVar("Kind", bound=Optimizer)
WRAPPED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


def _uncompiled(kind: type[Kind]) -> type[Kind]:
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in WRAPPED}
    step = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), {**methods, "step": step})


SGD = _uncompiled(torch.optim.SGD)
Adam = _uncompiled(torch.optim.Adam)
AdamW = _uncompiled(torch.optim.AdamW)
