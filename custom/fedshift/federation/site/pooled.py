"""All sites' training images in one place, for centralised references."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedshift.data.samples import EverySite, Union
from fedshift.federation.site.outbound import Outbound
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.methods.chain import ClientChain
from fedshift.methods.method_set import pooled_reference
from fedshift.schema.errors import DataError
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import manifest_sha256
from fedshift.tasks.kinds import build_task


class PooledSite(Site):
    """A site that trains on the images of all. It has no data to score on."""

    def __init__(self, job: JobSpec, data: Mapping[str, Path], options: SiteOptions) -> None:
        """``data``: each site's prepared folder; the rest as for `Site`."""
        task = build_task(job)
        opened = {site: task.open(data[site], site) for site in job.task.sites}
        if len({site_data.manifest.annotated for site_data in opened.values()}) > 1:
            raise DataError(
                "other-classes",
                "sites that outline different classes cannot be pooled: choose sites that outline the same",
            )
        domains = [Union([opened[site] for site in sites]) for sites in job.task.groups]
        reference = pooled_reference(job.methods)
        mixed = reference is not None and reference.client().trains_on == "union"
        self._manifest_sha256 = " ".join(manifest_sha256(data[site]) for site in job.task.sites)
        task = task.at(next(iter(opened.values())))
        self._set_up(job, "all sites", task, Union(domains) if mixed else EverySite(domains), options)
        self._outbound = Outbound(self._methods)

    def require_training(self) -> None:
        """It stands for all sites that train."""

    def _round_scores(self, chain: ClientChain, round_: int) -> dict[str, float]:
        return {}
