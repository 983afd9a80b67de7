"""Where a site's prepared folder is. Only the site knows; the path never travels and is never in a job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import field_validator

from fedshift.schema.errors import DataError
from fedshift.schema.job import read_yaml
from fedshift.schema.manifest import FILE_NAME
from fedshift.schema.policy import Policy
from fedshift.schema.strict import Strict
from fedshift.schema.task_files import tasks

SITE_FILE = "fedshift.yaml"


class SiteSettings(Strict):
    """A site's own ``local/fedshift.yaml``.

    ``data``: data set -> absolute path of the site's prepared folder. ``device``: where to train, as torch names it.
    ``privacy``: what may leave, and with how much noise; without it all that the job's methods send.
    """

    data: dict[str, str] = {}
    device: str = "auto"
    privacy: Policy | None = None

    @field_validator("privacy", mode="before")
    @classmethod
    def _not_empty(cls, value: object) -> object:
        """A key without a value would look like a policy and be none."""
        if value is None:
            raise ValueError("holds nothing: give options, or {} for the policy without any, or leave the key out")
        return value


def read_settings(local: Path | None, environ: Mapping[str, str] = os.environ) -> SiteSettings:
    """The settings in a kit's ``local`` folder; without a device there, ``$FEDSHIFT_DEVICE`` names it.

    Raises:
        ConfigError: not YAML, or a key that does not fit.
    """
    path = local / SITE_FILE if local else None
    given = read_yaml(path) if path and path.is_file() else {}
    return SiteSettings.parse({"device": environ.get("FEDSHIFT_DEVICE") or "auto", **given}, where=str(path))


def data_home(environ: Mapping[str, str] = os.environ) -> Path:
    """``$XDG_DATA_HOME/fedshift``, by default ``~/.local/share/fedshift``."""
    return Path(environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "fedshift"


def phantom_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Where ``fedshift data phantom`` puts its sites."""
    return data_home(environ) / "phantom"


def find_site(
    dataset: str,
    site: str,
    *,
    local: Path | None,
    simulator: bool,
    environ: Mapping[str, str] = os.environ,
) -> Path:
    """The prepared folder of a site.

    Looked at in this order: ``local/fedshift.yaml`` of the site's kit; ``$FEDSHIFT_DATA/<dataset>/<site>``;
    `data_home`; and in the simulator only, the phantom. The first that is set or exists wins.

    Args:
        dataset: the task's data set.
        site: the site.
        local: the kit's ``local`` folder, if there is one.
        simulator: whether this is FLARE's simulator or a single process, not a provisioned site.
        environ: environment variables.

    Raises:
        DataError: nothing there; the sentence names every folder looked at and the command that makes one.
    """
    path = read_settings(local, environ).data.get(dataset)
    if local and path is not None:
        if not Path(path).is_absolute():
            raise DataError(f"{local / SITE_FILE}: data.{dataset} must be an absolute path, not {path!r}")
        if not (Path(path) / FILE_NAME).is_file():
            raise DataError(f"{local / SITE_FILE}: data.{dataset} names {path}, which holds no {FILE_NAME}")
        return Path(path)
    roots = [Path(environ["FEDSHIFT_DATA"]).absolute()] if environ.get("FEDSHIFT_DATA") else []
    roots.append(data_home(environ))
    if simulator:
        roots.append(phantom_home(environ))
    folders = [root / dataset / site for root in roots]
    for folder in folders:
        if (folder / FILE_NAME).is_file():
            return folder
    # A task may have several data sets, such as cifar10_dirichlet_0.3, which docs/data.md tells apart.
    prepare = max((name for name in tasks() if dataset.startswith(name)), key=len, default="")
    makes = f"'fedshift data prepare {prepare}'" if prepare else "'fedshift data prepare'"
    makes += " (--help says with which options)" if prepare != dataset else ""
    makes += " or 'fedshift data phantom'" if simulator and prepare == "prostate" else ""
    looked = ", ".join(str(folder) for folder in folders)
    raise DataError(f"no {dataset} data for site {site}: looked in {looked}; {makes} makes one")
