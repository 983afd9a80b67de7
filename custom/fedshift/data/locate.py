"""Find a site's prepared folder. Only the site knows the path: it is never part of a job or a message."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import Field, field_validator

from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.job import JobSpec
from fedshift.schema.launcher import Launcher
from fedshift.schema.manifest import FILE_NAME, read_manifest
from fedshift.schema.names import few_names
from fedshift.schema.policy import Policy
from fedshift.schema.strict import Strict
from fedshift.schema.task_files import apps_dir, tasks
from fedshift.schema.yaml_file import read_yaml

SITE_FILE = "fedshift.yaml"
DATA = "FEDSHIFT_DATA"  # environment variable: the root folder of prepared data, ``<root>/<data set>/<site>``
DEVICE = "FEDSHIFT_DEVICE"  # environment variable: the device to train on, as `SiteSettings.device`
DEVICES = "FEDSHIFT_DEVICES"  # environment variable: how many of them, as `SiteSettings.devices`
MOST_NAMED = 12  # sites that an error lists by name
PHANTOM = "phantom"  # key of a task file: whether ``fedshift data phantom`` makes data for the task


class SiteSettings(Strict):
    """A site's own ``local/fedshift.yaml``.

    Attributes:
        data: data set -> absolute path of the site's prepared folder.
        device: torch's name of the device to train on, or ``auto``.
        devices: how many such devices share each batch: GPUs from that one on, or cores of the processor.
        weights: absolute path of the folder with files that jobs train adapters beside (``network.adapters``).
        privacy: what may leave the site, and with how much noise. Without it, all that the job's methods send may.
        launcher: where the processes of jobs run; without it, beside the site's own.
    """

    data: dict[str, str] = {}
    weights: Path | None = None
    device: str = "auto"
    devices: int = Field(default=1, strict=True, ge=1)
    privacy: Policy | None = None
    launcher: Launcher | None = None

    @field_validator("weights")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_absolute():
            raise ValueError("must be an absolute path")
        return value

    @field_validator("privacy", mode="before")
    @classmethod
    def _not_empty(cls, value: object) -> object:
        """Refuse ``privacy:`` without a value: it looks like a policy but would switch none on."""
        if value is None:
            raise ValueError("holds nothing: give options, or {} for the policy without any, or leave the key out")
        return value

    @field_validator("launcher", mode="before")
    @classmethod
    def _names_a_launcher(cls, value: object) -> object:
        if value is None:
            raise ValueError("holds nothing: name a launcher with its options, or leave the key out")
        return value


def read_settings(local: Path | None, environ: Mapping[str, str] = os.environ) -> SiteSettings:
    """Read the settings in a kit's ``local`` folder.

    ``$FEDSHIFT_DEVICE`` and ``$FEDSHIFT_DEVICES`` are device and devices if the file names none.

    Raises:
        ConfigError: the file is not YAML, or a key or value in it is not valid, or one of the variables.
    """
    path = local / SITE_FILE if local else None
    settings = read_yaml(path) if path and path.is_file() else {}
    number = environ.get(DEVICES) or "1"
    if not (number.isdecimal() and int(number)):
        raise ConfigError("invalid-value", f"${DEVICES} is {number!r}: set it to a whole number from 1")
    by_environment = {"device": environ.get(DEVICE) or "auto", "devices": int(number)}
    return SiteSettings.parse({**by_environment, **settings}, where=str(path))


def data_home(environ: Mapping[str, str] = os.environ) -> Path:
    """``$XDG_DATA_HOME/fedshift``, by default ``~/.local/share/fedshift``."""
    return Path(environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "fedshift"


def phantom_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Where ``fedshift data phantom`` writes its sites."""
    return data_home(environ) / "phantom"


def settle_root() -> None:
    """Make ``$FEDSHIFT_DATA`` absolute, for processes that work in another folder than the one it was given in."""
    named = os.environ.get(DATA)
    if named:
        os.environ[DATA] = str(Path(named).absolute())


def find_site(
    dataset: str, site: str, *, local: Path | None, simulator: bool, environ: Mapping[str, str] | None = None
) -> Path:
    """Return the prepared folder of a site.

    The first of these that is set decides; if the site is not there, that is an error and the next is not tried:

    1. ``local/fedshift.yaml`` of the site's kit, whose ``local`` folder is given,
    2. ``$FEDSHIFT_DATA/<dataset>/<site>``.

    If neither is set, the first of these that exists: `data_home`, and in FLARE's simulator or a single process only
    (``simulator``), `phantom_home`.

    Raises:
        DataError: the site has no prepared folder there. The message names the folders that were tried, the nearest
            folder that would fit, and the command that prepares the data.
    """
    environ = os.environ if environ is None else environ
    by_kit = read_settings(local, environ).data
    if local and by_kit:
        return _from_site_file(local / SITE_FILE, by_kit, dataset, site)
    named = environ.get(DATA)
    if named:
        return _from_environment(named, dataset, site, environ)
    roots = [data_home(environ), *([phantom_home(environ)] if simulator else [])]
    folders = [root / dataset / site for root in roots]
    for folder in folders:
        if _is_site(folder):
            return folder
    looked = ", ".join(str(folder) for folder in folders)
    hint = _hint(roots[0], dataset, site, phantom=phantom_home(environ))
    what = f"no {dataset} data for site {site}: looked in {looked}{hint}; {_makes(dataset, simulator)} makes one"
    raise DataError("site-missing", what)


def find_sites(job: JobSpec) -> dict[str, Path]:
    """The prepared folder of every site of a simulation, all on this machine, before any of them is started.

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
    return bool(_simulated(folders))


def _simulated(folders: Mapping[str, Path]) -> list[str]:
    return [site for site, folder in folders.items() if read_manifest(folder).kind == "phantom"]


def prepared_sites(dataset: str, environ: Mapping[str, str] | None = None) -> list[str]:
    """Names of the sites of a data set that are prepared on this machine, where `find_site` looks in a simulation."""
    environ = os.environ if environ is None else environ
    named = environ.get(DATA)
    roots = [Path(named).absolute()] if named else [data_home(environ), phantom_home(environ)]
    return next((sites for root in roots if (sites := _sites_in(root / dataset))), [])


def prepared_datasets(environ: Mapping[str, str] | None = None) -> list[str]:
    """Names of the data sets that have a prepared site on this machine."""
    environ = os.environ if environ is None else environ
    named = environ.get(DATA)
    roots = [Path(named).absolute()] if named else [data_home(environ), phantom_home(environ)]
    return sorted({folder.name for root in roots for folder in _folders(root) if _sites_in(folder)})


def _from_site_file(file: Path, by_kit: Mapping[str, str], dataset: str, site: str) -> Path:
    if dataset not in by_kit:
        raise DataError(
            "site-missing",
            f"{file} names data of {few_names(sorted(by_kit), most=MOST_NAMED)}, and none of {dataset}: add it with "
            f"'fedshift site init KIT --data DIR' if site {site} takes part in jobs on {dataset}",
        )
    named = by_kit[dataset]
    if not Path(named).is_absolute():
        raise DataError("relative-path", f"{file}: data.{dataset} must be an absolute path, not {named!r}")
    folder = Path(named)
    if _is_site(folder):
        return folder
    fitting = next((near for near in _around(folder, dataset, site) if _is_site(near)), None)
    hint = (
        f"; {fitting} holds one: name that folder"
        if fitting
        else ": name the folder that 'fedshift data prepare' wrote"
    )
    raise DataError("site-missing", f"{file}: data.{dataset} names {named!r}, which holds no {FILE_NAME}{hint}")


def _from_environment(named: str, dataset: str, site: str, environ: Mapping[str, str]) -> Path:
    root = Path(named).absolute()
    folder = root / dataset / site
    if _is_site(folder):
        return folder
    phantom = phantom_home(environ).absolute()
    if root == phantom:
        what, remedy = "no phantom data", f"{_makes(dataset, True)} makes one"
    else:
        what, remedy = f"${DATA} is {named!r}, which holds no data", f"correct ${DATA}, or unset it"
        remedy += f", or prepare the data there ({_makes(dataset, False)})"
    hint = _hint(root, dataset, site, phantom=phantom)
    raise DataError("site-missing", f"{what} of {dataset} for site {site}: looked in {folder}{hint}; {remedy}")


def _is_site(folder: Path) -> bool:
    return (folder / FILE_NAME).is_file()


def _hint(root: Path, dataset: str, site: str, *, phantom: Path) -> str:
    """What is there instead of ``root/dataset/site``, as a part of a sentence; empty if nothing near fits."""
    for other in _other_roots(root):
        if other != phantom and _is_site(other / dataset / site):
            return f"; {other / dataset / site} is there: set {DATA}={other}"
    sites = _sites_in(root / dataset)
    if sites:
        close = {name.casefold(): name for name in sites}.get(site.casefold()) or _closest(site, sites)
        meant = f" ({close} is nearest)" if close else ""
        return f"; {root / dataset} holds {few_names(sites, most=MOST_NAMED)}{meant}"
    sets = [folder.name for folder in _folders(root) if _sites_in(folder)]
    if sets:
        close = _closest(dataset, [name for name in sets if _is_site(root / name / site)] or sets)
        meant = f" ({close} is nearest)" if close else ""
        return f"; {root} holds data of {few_names(sets, most=MOST_NAMED)}{meant}"
    if not root.is_dir():
        close = _closest(root.name, [folder.name for folder in _folders(root.parent)])
        return f"; {root} does not exist" + (f", {root.parent / close} does" if close else "")
    return ""


def _closest(name: str, known: Sequence[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.5)), None)


def _other_roots(root: Path) -> Iterator[Path]:
    """Roots that may have been meant: without stray spaces, up to two levels above ``root``, or one below."""
    yield _without_spaces(root)
    yield root.parent
    yield root.parent.parent
    yield from _folders(root)


def _without_spaces(path: Path) -> Path:
    return Path(*(part.strip() or part for part in path.parts))


def _around(folder: Path, dataset: str, site: str) -> Iterator[Path]:
    """Folders of a site that may have been meant: below ``folder``, above it, or without stray spaces."""
    yield _without_spaces(folder)
    yield folder / site
    yield folder / dataset / site
    yield folder.parent


def _sites_in(folder: Path) -> list[str]:
    return [path.name for path in _folders(folder) if _is_site(path)]


def _folders(folder: Path) -> list[Path]:
    """Folders in a folder, by name; none if it cannot be listed."""
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError:
        return []


def _makes(dataset: str, simulator: bool) -> str:
    """The command that prepares a data set. Several data sets may belong to one task (cifar10_dirichlet_0.3)."""
    prepare = max((name for name in tasks() if dataset.startswith(name)), key=len, default="")
    makes = f"'fedshift data prepare {prepare}'" if prepare else "'fedshift data prepare'"
    makes += " (--help says with which options)" if prepare != dataset else ""
    phantom = simulator and prepare and read_yaml(apps_dir() / f"{prepare}.yaml").get(PHANTOM)
    return makes + (" or 'fedshift data phantom'" if phantom else "")
