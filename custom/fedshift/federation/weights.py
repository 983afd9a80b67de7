"""A network's weights as NumPy arrays, and back."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fedshift.schema.messages import Weights


def read_weights(net: nn.Module) -> Weights:
    """Copy a network's ``state_dict`` into NumPy arrays."""
    return {key: value.detach().cpu().numpy().copy() for key, value in net.state_dict().items()}


def load_weights(net: nn.Module, weights: Weights) -> None:
    """Load weights into a network. PyTorch raises RuntimeError for missing or extra keys and wrong shapes."""
    net.load_state_dict({key: torch.from_numpy(np.asarray(value)) for key, value in weights.items()})
