"""Find the data of all sites of a simulation before any of them is started: they are all on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedshift.data.locate import find_site
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import read_manifest


def find_sites(job: JobSpec) -> dict[str, Path]:
    """Return every site's prepared folder.

    Raises:
        DataError: a site has no data or a broken manifest; the message names the folders that were tried.
        ConfigError: some sites' data are simulated and others' are not.
    """
    folders = {site: find_site(job.task.dataset, site, local=None, simulator=True) for site in job.task.everyone}
    simulated = _simulated(folders)
    if simulated and len(simulated) < len(folders):
        raise ConfigError(
            "phantom-mixed",
            f"sites {', '.join(simulated)} have simulated data and the others have not: a job uses either simulated "
            "data everywhere or nowhere; choose sites with 'fedshift job --sites'",
        )
    return folders


def is_phantom(folders: Mapping[str, Path]) -> bool:
    """Whether any of these sites' data are simulated."""
    return bool(_simulated(folders))


def _simulated(folders: Mapping[str, Path]) -> list[str]:
    return [site for site, folder in folders.items() if read_manifest(folder).kind == "phantom"]
