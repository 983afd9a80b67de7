"""The owner's files in ``local/`` of a startup kit: what they hold, how they are written, and how they are checked.

FLARE prefers ``resources.json``, ``authorization.json`` and ``log_config.json`` to the ``.default`` file beside each.
The first two are made from their ``.default``, so that what the federation has set (GPUs, encryption) stays as it is.
"""

from __future__ import annotations

import importlib
import json
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

from nvflare.apis.fl_constant import WorkspaceConstants
from nvflare.private.fed.utils.site_config import project_site_config

from fedshift.data.locate import SITE_FILE, read_settings
from fedshift.flare.job_kinds import client_configs, server_configs
from fedshift.flare.kit import STARTUP, Kit, Role, jobs_folder, read_json, snapshots_folder
from fedshift.flare.launchers.connection import COMM_CONFIG, comm_config, connection_fault
from fedshift.flare.log_lines import OneEntry
from fedshift.schema.errors import ConfigError
from fedshift.schema.launcher import Launcher
from fedshift.schema.settings import meanings
from fedshift.schema.strict import Strict
from flare_armour.guard.console import ROLES, rights

ALLOWED = "class_allow_list"
STREAMING = "allow_log_streaming"
ONE_JOB = 1
"""Jobs that run at a time: each needs a site's memory and processors. FLARE's default for kits is 4."""

RESOURCES, AUTHORIZATION, LOGS = "resources.json", "authorization.json", "log_config.json"
OURS = "fedshift.flare.guard"
"""The module with the components that kits name."""
LAUNCHER = "nvflare.app_common.job_launcher"
LAUNCHERS = {
    f"{LAUNCHER}.client_process_launcher.ClientProcessJobLauncher": f"{OURS}.SiteJobLauncher",
    f"{LAUNCHER}.server_process_launcher.ServerProcessJobLauncher": f"{OURS}.ServerJobLauncher",
}
"""FLARE's launchers of job processes → ours."""
GUARD = {"id": "guard", "path": f"{OURS}.Guard", "args": {}}
VALIDATOR = {"path": f"{OURS}.AppFiles", "args": {}}
READMISSION = {"id": "readmission", "path": f"{OURS}.Readmission", "args": {}}
SILENCE = 120
"""Seconds without a byte after which a site asks the server again, after a network failure; FLARE's default is 300."""
NEVER = "none"
"""FLARE's name for nowhere."""
CODE = "byoc"
"""The right to send code with a job."""
SETTINGS = """\
# This site's own settings. Nothing of this file leaves the site, and no job can change it.

# Data set: this site's prepared folder, as an absolute path.
data:
{folders}

# Where to train: auto (a GPU if there is one), cpu, cuda, cuda:1, ...
device: auto
# How many such devices share each batch: GPUs from that one on, or with cpu so many cores.
devices: 1
# Folder of the files that jobs train adapters beside (network.adapters), as an absolute path.
# weights: /srv/bases

# What may leave beside the network's weights and scores. A job whose methods send more is refused here.
privacy:
  train: {train}                         # false: this site only scores models, for jobs that hold it out
  allow: [statistics, control, loss]  # of: statistics, prototypes, images, generator, control, loss, other
  min_cases: 1                        # patients (or pictures) to train on before any of these leaves
  min_sites_in_sum: 3                 # fewest sites in a sum that a server may unmask (federation.encryption: masks)
  case_scores: false                  # true: a final model's score of every single case leaves too, without ids
  survey_cases: 3                     # cases before a survey gets more than their number; groups of a validation too
  scanners: false                     # true: a survey is told the scanners' makes and models
  # strata: [vendor]                  # columns of the site's table by which validations tell scores (default: all)
  # packages: {{}}                      # installed packages that jobs may use: 'fedshift site packages KIT' tells
  # encryption: required              # refuse jobs in which the server could read single updates
  # Gaussian noise: epsilon and delta for the whole job together, or, in their place, multiplier for one message
  # statistics: {{epsilon: 8.0, delta: 1.0e-5, clip: 1.0}}
  # weights: {{epsilon: 8.0, delta: 1.0e-5, clip: 1.0}}
  # in place of weights, noise on every step of training; its clip is for the gradient of one case
  # dp_sgd: {{epsilon: 8.0, delta: 1.0e-5, clip: 1.0}}
  # budget: {{epsilon: 20.0, delta: 1.0e-5}}  # all jobs together, ever: 'fedshift site ledger' shows what is spent
"""
"""``fedshift.yaml``: the default policy, and valid examples in comments."""


# --- what the files hold --------------------------------------------------------------------------------


def local_files(
    kit: Kit,
    *,
    data: Mapping[str, Path] | None = None,
    train: bool = True,
    allow_code: bool = False,
    launcher: Launcher | None = None,
) -> dict[str, str]:
    """The files for a kit's ``local/``: name → text.

    For a site, ``data`` is data set → prepared folder, and ``train`` is False if it only scores models. ``allow_code``
    accepts jobs that bring their own code. ``launcher`` says where the processes of jobs run, if not beside the site's.

    Raises:
        ConfigError: a ``.default`` file is missing or not as expected.
    """
    contents = {
        RESOURCES: resources(kit),
        AUTHORIZATION: authorization(kit, allow_code=allow_code),
        LOGS: log_config(),
    }
    connection = comm_config(kit.folder, launcher)
    if connection is not None:
        contents[COMM_CONFIG] = connection
    files = {name: json.dumps(content, indent=2) + "\n" for name, content in contents.items()}
    if kit.role == "server":
        return files
    return files | {SITE_FILE: site_settings(data or {}, train=train, launcher=launcher)}


def components(role: Role) -> tuple[str, ...]:
    """Full names of the classes that our jobs name for a party. FLARE's own need no permission."""
    configs = server_configs() if role == "server" else client_configs()
    return tuple(sorted({path for config in configs for path in _paths(config)}))


def resources(kit: Kit) -> dict[str, Any]:
    """``resources.json``: the kit's, restricted to jobs of our components, and with job processes that are restarted.

    A site's file holds no path, because FLARE sends top-level keys that it does not know to the server.
    """
    content = read_json(kit.local / f"{RESOURCES}.default")
    content["class_list_enforcement_mode"] = "enforce"
    content[ALLOWED] = list(components(kit.role))
    try:
        named = {component["id"]: component for component in content["components"]}
        launcher = named["process_launcher"]
        launcher["path"] = LAUNCHERS.get(launcher["path"], launcher["path"])
        content["components"].insert(0, GUARD)
        if kit.role == "site":
            content[STREAMING] = False
            content["client"]["communication_timeout"] = SILENCE
        else:
            folder = kit.folder.absolute()
            content["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(snapshots_folder(folder))
            named["job_manager"]["args"]["uri_root"] = str(jobs_folder(folder))
            named["job_scheduler"]["args"]["max_jobs"] = ONE_JOB
            content["components"].remove(named["log_receiver"])  # which would write files that others name
            content["components"].append(READMISSION)
            content["app_validator"] = VALIDATOR
    except (KeyError, TypeError) as error:
        raise ConfigError(
            "other-version",
            f"{kit.local / RESOURCES}.default is not as NVFlare 2.9 makes it (no {error}): provision with that version",
        ) from None
    return content


def authorization(kit: Kit, *, allow_code: bool = False) -> dict[str, Any]:
    """``authorization.json``: the rights of the table of commands, and none to send code or to read a party's files.

    FLARE's default lets project admins and leads send code, lets the former read a party's files, and lets whoever may
    look reset what others look at. It does not let a lead read the server's log of the lead's own jobs
    (``nvflare job logs``). ``allow_code`` keeps the default's right to send code.
    """
    content = read_json(kit.local / f"{AUTHORIZATION}.default")
    permissions = content.get("permissions")
    if not isinstance(permissions, dict):
        raise ConfigError(
            "damaged-kit", f"{kit.local / AUTHORIZATION}.default has no permissions: unpack the kit again"
        )
    content["permissions"] = {
        role: {**rights(role), CODE: _code(permissions.get(role, NEVER)) if allow_code else NEVER} for role in ROLES
    }
    return content


def _code(role_permissions: Any) -> Any:
    """Where a role may send code. A role may have one answer for all rights."""
    return role_permissions.get(CODE, NEVER) if isinstance(role_permissions, dict) else role_permissions


def log_config() -> dict[str, Any]:
    """``log_config.json``: one entry an event, at most 60 MB for a job and as much for the processes between jobs.

    FLARE's default writes everything three times, keeps 880 MB of each, and lets a message forge further entries.
    """
    line = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    file = {"class": "logging.handlers.RotatingFileHandler", "formatter": "line", "encoding": "utf-8"}
    errors = WorkspaceConstants.ERROR_LOG_FILE_NAME
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": f"{OneEntry.__module__}.{OneEntry.__qualname__}", "fmt": line}},
        "handlers": {
            "console": {"class": "logging.StreamHandler", "formatter": "line", "stream": "ext://sys.stdout"},
            "log": file | {"filename": WorkspaceConstants.LOG_FILE_NAME, "maxBytes": 10_000_000, "backupCount": 4},
            "errors": file | {"filename": errors, "level": "ERROR", "maxBytes": 5_000_000, "backupCount": 1},
        },
        "loggers": {"root": {"level": "INFO", "handlers": ["console", "log", "errors"]}},
    }


def site_settings(data: Mapping[str, Path], *, train: bool = True, launcher: Launcher | None = None) -> str:
    """``fedshift.yaml``, with every setting that it can have."""
    folders = "\n".join(f"  {name}: {json.dumps(str(path), ensure_ascii=False)}" for name, path in data.items())
    return SETTINGS.format(folders=folders, train=str(train).lower()) + launcher_settings(launcher)


def launcher_settings(launcher: Launcher | None) -> str:
    """``launcher`` of ``fedshift.yaml``, with a comment on every option; nothing without one."""
    if launcher is None:
        return ""
    options: Strict = getattr(launcher, launcher.kind)
    lines = ["", "# Where the processes of jobs run.", "launcher:", f"  {launcher.kind}:"]
    meant, values = meanings(type(options)), options.model_dump(mode="json")
    for name in type(options).model_fields:
        is_set = name in options.model_fields_set
        value = json.dumps(values[name], ensure_ascii=False)
        lines += [*wrap(meant[name], 110, initial_indent="    # ", subsequent_indent="    # ")]
        lines.append(f"    {name}: {value}" if is_set else f"    # {name}: {value}")
    return "\n".join(lines) + "\n"


# --- writing --------------------------------------------------------------------------------------------


def lay(files: Mapping[str, str], local: Path, *, force: bool = False) -> list[str]:
    """Write the files; returns the names of those that are new or changed.

    With ``force`` a file with other contents is replaced, and kept as ``.old``.

    Raises:
        ConfigError: without ``force``, a file has other contents, or not all can be written; then all stay as they are.
    """
    new = [name for name in files if not (local / name).is_file()]
    changed = [
        name
        for name, text in files.items()
        if name not in new and (local / name).read_text(encoding="utf-8", errors="replace") != text
    ]
    if changed and not force:
        raise ConfigError(
            "output-exists", f"{local} has other contents in {', '.join(changed)}: check them, or use --force"
        )
    written = [name for name in files if name in new or name in changed]
    # All bytes are on the disk before the first file is replaced: a kit must not be left without its settings.
    copies = {name: local / f".{name}.old.partial" for name in changed}
    partial = {name: local / f".{name}.partial" for name in written}
    try:
        for name, copy in copies.items():
            shutil.copy2(local / name, copy)
        for name, path in partial.items():
            path.write_text(files[name], encoding="utf-8")
        for name, path in partial.items():
            if name in copies:
                copies[name].replace(local / f"{name}.old")
            path.replace(local / name)
    except OSError as error:
        for path in (*copies.values(), *partial.values()):
            with suppress(OSError):
                path.unlink(missing_ok=True)
        raise ConfigError(
            "folder-unwritable", f"{local} cannot be written ({error.strerror}): see to its disk and its permissions"
        ) from None
    return written


# --- checks ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """Something in ``local/`` that is less safe than what we write; not ``grave`` if it may be intended."""

    sentence: str
    grave: bool = True


def faults(kit: Kit) -> Iterator[Fault]:
    """Whatever keeps jobs from running, or makes ``local/`` less safe than `local_files`."""
    if shlex.split(str(kit.folder.absolute())) != [str(kit.folder.absolute())]:
        yield Fault(f"FLARE starts no job in a folder with blanks or quotes in its name: move {kit.folder.absolute()}")
    for name, check in ((RESOURCES, _resource_faults), (AUTHORIZATION, _authorization_faults)):
        path = kit.local / name
        if path.is_file():
            yield from check(kit, path, read_json(path))
        else:
            yield Fault(f"{path} is missing, so FLARE's default holds: run 'fedshift site init'")
    if kit.role == "site":
        with suppress(ConfigError):  # of the settings, which the check of the data tells
            launcher = read_settings(kit.local).launcher
            text = connection_fault(kit.folder, launcher)
            if text is not None:
                yield Fault(text)


def _resource_faults(kit: Kit, path: Path, content: Mapping[str, Any]) -> Iterator[Fault]:
    if kit.role == "server":
        yield from _server_faults(kit, path, content)
    named = content.get("components")
    guarded = isinstance(named, list) and GUARD in named
    if not guarded or (kit.role == "server" and content.get("app_validator") != VALIDATOR):
        yield Fault(
            f"{path} lacks {VALIDATOR['path'] if guarded else GUARD['path']}, so others of the federation could give "
            "orders to this party: run 'fedshift site init' with --force"
        )
    if not isinstance(content.get(ALLOWED), list) or content.get("class_list_enforcement_mode") == "warn":
        yield Fault(f"{path} has no {ALLOWED}, or only warns: a job could build any of FLARE's components")
        return
    for name in sorted(_paths(content)):
        if name.startswith("fedshift.") and not _exists(name):
            yield Fault(f"{path} names {name}, which this fedshift lacks: run 'fedshift site init' with --force")
    allowed, needed = {str(name) for name in content[ALLOWED]}, {*components(kit.role)}
    for name in sorted(allowed - needed):
        yield Fault(f"{path} allows {name}, which our jobs do not need: take it out of {ALLOWED}")
    for name in sorted(needed - allowed):
        yield Fault(f"{path} does not allow {name}, which our jobs need: add it to {ALLOWED}")
    if kit.role == "server":
        return
    if content.get(STREAMING, True):
        yield Fault(f"{path} sends this site's error log to the server: set {STREAMING} to false")
    for value in _texts(registered(kit)):
        if value.startswith("/"):
            yield Fault(f"{path} tells the server of {value} when the site registers: keep paths in {SITE_FILE}")


def _server_faults(kit: Kit, path: Path, content: Mapping[str, Any]) -> Iterator[Fault]:
    """A store of another kit, whose jobs this server would take for its own, and jobs that run side by side."""
    manager, scheduler = (_component(content, name) for name in ("job_manager", "job_scheduler"))
    for what, place, expected in (
        ("jobs", _at(manager, "args", "uri_root"), jobs_folder(kit.folder)),
        (
            "snapshots",
            _at(content, "snapshot_persistor", "args", "storage", "args", "root_dir"),
            snapshots_folder(kit.folder),
        ),
    ):
        if isinstance(place, str) and (kit.folder.absolute() / place).resolve() != expected.resolve():
            yield Fault(
                f"{path} keeps {what} in {place}, not in this kit: it was moved or copied, and its server would meddle "
                f"with the jobs of another: run 'fedshift site init {kit.folder}' with --force"
            )
    most = _at(scheduler, "args", "max_jobs")
    if most not in (None, ONE_JOB):
        yield Fault(
            f"{path} lets {most} jobs run at a time, and each takes a site's memory: set max_jobs to {ONE_JOB} unless "
            "that is meant",
            grave=False,
        )


def _authorization_faults(kit: Kit, path: Path, content: Mapping[str, Any]) -> Iterator[Fault]:
    permissions = content.get("permissions")
    for role, commands in permissions.items() if isinstance(permissions, dict) else ():
        if _code(commands) != NEVER:
            yield Fault(f"{path} lets the role {role} send code with a job: set its {CODE} to {NEVER!r}", grave=False)
        ours = rights(role)
        theirs = commands if isinstance(commands, dict) else {"everything": commands}
        more = sorted(n for n, where in theirs.items() if n != CODE and where not in (NEVER, ours.get(n)))
        if more:
            yield Fault(
                f"{path} gives the role {role} other rights than fedshift's table of commands ({', '.join(more)}): "
                "run 'fedshift site init' with --force unless that is meant",
                grave=False,
            )


def registered(kit: Kit) -> dict[str, Any]:
    """What FLARE sends to the server of a site's configuration when the site registers."""
    local = kit.local / RESOURCES
    used = local if local.is_file() else local.with_name(f"{RESOURCES}.default")
    sent: dict[str, Any] = project_site_config(read_json(kit.folder / "startup" / STARTUP[kit.role]) | read_json(used))
    return sent


def _component(content: Mapping[str, Any], name: str) -> Any:
    """The component of ``resources.json`` with this id."""
    named = content.get("components")
    return next((part for part in named if _at(part, "id") == name), None) if isinstance(named, list) else None


def _at(content: Any, *keys: str) -> Any:
    """What is there in objects within each other; None if there is nothing."""
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content


def _paths(config: Any) -> Iterator[str]:
    """Paths of all components that a configuration names."""
    if isinstance(config, dict):
        if isinstance(config.get("path"), str):
            yield config["path"]
        config = list(config.values())
    if isinstance(config, list):
        for value in config:
            yield from _paths(value)


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, dict):
        content = list(content.values())
    if isinstance(content, list):
        for value in content:
            yield from _texts(value)
    elif isinstance(content, str):
        yield content


def _exists(name: str) -> bool:
    """Whether a class can be imported under its full name."""
    module, _, last = name.rpartition(".")
    try:
        return hasattr(importlib.import_module(module), last)
    except ImportError:
        return False
