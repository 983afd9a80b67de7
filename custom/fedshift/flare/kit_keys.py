"""A site's masks under FLARE: with the key of its kit, or without one in the simulator."""

from __future__ import annotations

import logging
from pathlib import Path

from nvflare.apis.fl_context import FLContext

from fedshift.federation.encryption.kit_keys import KitIdentity
from fedshift.federation.encryption.masks.protocol import FEWEST
from fedshift.federation.encryption.masks.site import SiteMasks
from fedshift.flare.context import startup_folder
from fedshift.schema.job import JobSpec
from fedshift.schema.policy import Policy

log = logging.getLogger("fedshift")


def site_masks(
    job: JobSpec, site: str, *, folder: Path, fl_ctx: FLContext, simulated: bool, policy: Policy | None
) -> SiteMasks:
    """A site's masks in a job: with the identity of its kit, or without one in FLARE's simulator.

    A site without a policy keeps to the usual fewest sites in a sum all the same.

    Raises:
        ConfigError: the kit has no key that signs.
        PolicyError: the job has fewer sites than the policy wants in a sum.
    """
    least = (policy or Policy()).min_sites_in_sum
    if simulated:
        log.warning("site %s: FLARE's simulator has no kits: the sites' keys are not signed", site)
        identity, least = None, FEWEST if policy is None else least
    else:
        identity = KitIdentity(startup_folder(fl_ctx))
    return SiteMasks(job, site, folder=folder, run=fl_ctx.get_job_id(), identity=identity, least=least)
