"""Which jobs may send their weights in fewer bytes (``federation.weights_as``, `fedshift.schema.compression`)."""

from __future__ import annotations

from collections.abc import Sequence

from fedshift.methods import Method
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec

OPTION = "federation.weights_as"


def check(loaded: Sequence[Method], job: JobSpec) -> None:
    """Refuse a job in which nothing could be packed.

    Raises:
        ConfigError: its updates are encrypted, or it sends nothing at all.
    """
    if job.federation.weights_as == "fp32":
        return
    if job.federation.encryption is not None:
        raise ConfigError(
            f"{OPTION}: with federation.encryption sites send ciphertexts, which cannot be made smaller: leave one out"
        )
    for method in loaded:
        if method.is_pooled:
            raise ConfigError(f"{OPTION}: method {method.name} trains where all images are, so nothing is sent")
