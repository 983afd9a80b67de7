"""Adapters: small layers that are trained in place of the weights of a large network (``network.adapters``)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from fedshift.schema.names import Line
from fedshift.schema.strict import Sparse

MOST_RANK = 1024
SHARED, PRIVATE = "shared", "private"
"""Names of the adapters of a layer: the one that all sites train together, and the one of each site."""


class AdaptersSpec(Sparse):
    """Adapters of low rank beside the frozen weights of ``network.weights``, the base (`fedshift.tasks.adapters`).

    ``kind``: LoRA is the only one. ``rank``: of the product of matrices that is added to a layer's weights. ``scale``:
    what the product is multiplied by; papers write it as alpha / rank. ``on``: which layers have one: the linear layers
    of ``attention`` blocks, or the convolutions (``conv``). ``trained``: parts of the network that are trained, and
    travel, whole beside the adapters: ``head`` for its last layer, ``norms`` for its normalisation layers with their
    running statistics, or names of its modules, such as ``decoder1``. ``private``: the rank of a second adapter beside
    each, which a site trains for itself and never sends; 0 for none.
    """

    RARE = ("private",)

    kind: Literal["lora"] = "lora"
    rank: int = Field(default=8, ge=1, le=MOST_RANK)
    scale: float = Field(default=2.0, gt=0, le=100, allow_inf_nan=False)
    on: Literal["attention", "conv"]
    trained: tuple[Line, ...] = ("head",)
    private: int = Field(default=0, ge=0, le=MOST_RANK)

    @model_validator(mode="before")
    @classmethod
    def _on_is_a_key(cls, raw: Any) -> Any:
        """YAML 1.1 reads the word ``on`` as true."""
        return {"on" if key is True else key: value for key, value in raw.items()} if isinstance(raw, dict) else raw
