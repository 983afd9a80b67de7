"""Gradient norms of domains that are divided among several sites, in one process.

"Mitigating Data Heterogeneity in Federated Learning with Data Augmentation" trains with twelve clients, parts of three
domains, and prints one gradient norm a domain (Tables 8 and 9). With g_k the gradient of the mean loss over the n_k
validation samples of site k, that of domain D is ::

    ‖Σ_{k ∈ D} n_k g_k‖ / Σ_{k ∈ D} n_k

which the norms ‖g_k‖ do not tell. Sites of a federation do not send gradients of the final models, so only a run in one
process has it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.site.site import Site
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Broadcast


class DomainGradients:
    """Adds up the gradients of a job's domains (``domains`` of its task), model by model."""

    def __init__(self, domains: Mapping[str, tuple[str, ...]]) -> None:
        """``domains``: the sites of each."""
        self._domains, self._sums = domains, dict[tuple[int, str], list[Tensor]]()
        self._samples, self._sites = dict[tuple[int, str], int](), dict[tuple[int, str], set[str]]()

    @classmethod
    def of_job(cls, job: JobSpec, *, own_models: bool) -> DomainGradients:
        """None are wanted if the job does not ask for gradient norms, or sites score models of their own."""
        return cls(job.task.domains if job.evaluation.gradient_norm and not own_models else {})

    @property
    def wanted(self) -> bool:
        """Whether there is a domain whose gradients are wanted."""
        return bool(self._domains)

    def add(self, site: Site, broadcast: Broadcast) -> None:
        """Add a site's gradient of a final model over its validation samples, if it is in a domain."""
        domain = next((name for name, sites in self._domains.items() if site.name in sites), None)
        if domain is None:
            return
        key, n = (broadcast.round - 1, domain), site.info().n_val
        self._sites.setdefault(key, set()).add(site.name)
        if not n:
            return
        with site.loaded(broadcast) as model:
            parts = [n * part.cpu() for part in model.gradient("val")]
        before = self._sums.get(key)
        self._sums[key] = parts if before is None else [a + b for a, b in zip(before, parts, strict=True)]
        self._samples[key] = self._samples.get(key, 0) + n

    def norms(self, round_: int) -> dict[str, float]:
        """Norm of each domain of which every site was added, for the model that ``round_`` made."""
        norms = {}
        for domain, sites in self._domains.items():
            parts = self._sums.get((round_, domain))
            if parts is not None and self._sites[round_, domain] == set(sites):
                length = torch.stack([part.square().sum() for part in parts]).sum().sqrt()
                norms[domain] = float(length) / self._samples[round_, domain]
        return norms

    def record(self, coordinator: Coordinator) -> None:
        """Write the norms of the final models into the record of a run."""
        final = coordinator.results.final
        assert final is not None
        for scores in (final.best, final.last):
            scores.domain_gradient_norms = self.norms(scores.round)
        coordinator.files.write_results()
