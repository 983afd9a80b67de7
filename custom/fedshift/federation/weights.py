"""A network's weights as NumPy arrays, and back."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fedshift.schema.errors import DataError
from fedshift.schema.messages import Weights


def read_weights(net: nn.Module) -> Weights:
    """Copy a network's ``state_dict`` into NumPy arrays."""
    return {key: value.detach().cpu().numpy().copy() for key, value in net.state_dict().items()}


def require_weights(net: nn.Module, weights: Weights, who: str) -> None:
    """Refuse received weights that are not those of the network. ``who`` begins the sentence.

    Raises:
        DataError: a key is missing, unknown or of another shape; it is named.
    """
    own = {key: tuple(value.shape) for key, value in net.state_dict().items()}
    for key in sorted(own.keys() | weights.keys()):
        sent = weights[key].shape if key in weights else "not at all"
        wanted = own.get(key, "no such array")
        if sent != wanted:
            raise DataError(
                f"{who}: the server sent {key} {sent}, the job's network has {wanted}: use the same fedshift at both"
            )


def load_weights(net: nn.Module, weights: Weights) -> None:
    """Load weights into a network. PyTorch raises RuntimeError for missing or extra keys and wrong shapes."""
    net.load_state_dict({key: torch.from_numpy(np.asarray(value)) for key, value in weights.items()})
