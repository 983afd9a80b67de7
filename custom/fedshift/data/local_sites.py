"""The simulator's sites are all on one machine: their data can be looked for before any of them is started."""

from __future__ import annotations

from pathlib import Path

from fedshift.data.locate import find_site
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import read_manifest


def find_sites(job: JobSpec) -> dict[str, Path]:
    """Every site's prepared folder.

    Raises:
        DataError: a site has none, or a broken manifest; the sentence says where it was looked for.
        ConfigError: simulated and real data would be mixed.
    """
    folders = {site: find_site(job.task.dataset, site, local=None, simulator=True) for site in job.task.everyone}
    simulated = [site for site, folder in folders.items() if read_manifest(folder).kind == "phantom"]
    if simulated and len(simulated) < len(folders):
        raise ConfigError(
            f"sites {', '.join(simulated)} have simulated data and the others have not: a job uses either simulated "
            "data everywhere or nowhere; choose sites with 'fedshift job --sites'"
        )
    return folders
