"""Gradient norms of domains that are divided among several sites, in one process.

"Mitigating Data Heterogeneity in Federated Learning with Data Augmentation" trains with twelve clients, parts of three
domains, and prints one gradient norm a domain (Tables 8 and 9). With g_k the gradient of the mean loss over the n_k
validation samples of site k, that of domain D is ::

    ‖Σ_{k ∈ D} n_k g_k‖ / Σ_{k ∈ D} n_k

which the norms ‖g_k‖ do not tell. Sites of a federation do not send gradients of the final models, so only a run in one
process has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fedshift.schema.job import JobSpec


class DomainGradients:
    """Adds up the gradients of a job's domains (``domains`` of its task), model by model."""

    def __init__(self, job: JobSpec, *, wanted: bool) -> None:
        """Nothing is added up unless ``wanted``, and the job asks for gradient norms."""
        chosen = job.task.domains if wanted and job.evaluation.gradient_norm else {}
        self._domains: Mapping[str, tuple[str, ...]] = chosen
        self._sums: dict[tuple[int, str], list[Tensor]] = {}
        self._samples: dict[tuple[int, str], int] = {}
        self._sites: dict[tuple[int, str], set[str]] = {}

    @property
    def wanted(self) -> bool:
        """Whether there is a domain whose gradients are wanted."""
        return bool(self._domains)

    def add(self, site: str, round_: int, n: int, gradient: Callable[[], list[Tensor]]) -> None:
        """Add a site's gradient of the model that ``round_`` made, over ``n`` samples, if it is in a domain."""
        domain = next((name for name, sites in self._domains.items() if site in sites), None)
        if domain is None:
            return
        key = round_, domain
        self._sites.setdefault(key, set()).add(site)
        if not n:
            return
        parts = [n * part.cpu() for part in gradient()]
        before = self._sums.get(key)
        self._sums[key] = parts if before is None else [a + b for a, b in zip(before, parts, strict=True)]
        self._samples[key] = self._samples.get(key, 0) + n

    def norms(self, round_: int) -> dict[str, float]:
        """Norm of each domain of which every site was added, for the model that ``round_`` made."""
        found = {}
        for domain, sites in self._domains.items():
            parts = self._sums.get((round_, domain))
            if parts is not None and self._sites[round_, domain] == set(sites):
                length = torch.stack([part.square().sum() for part in parts]).sum().sqrt()
                found[domain] = float(length) / self._samples[round_, domain]
        return found
