"""fedshift's jobs as a FLARE recipe, for the environments `SimEnv`, `PocEnv` and `ProdEnv`.

Three lines of Python make a job and run it::

    recipe = FeatureShiftRecipe(task="prostate", method="fedfa+fedrdn", sites=["BIDMC", "HK", "UCL"])
    run = recipe.run(SimEnv(clients=recipe.clients))
    print(run.get_result())

The job folder is byte for byte what ``fedshift job`` writes for the same arguments. ``nvflare recipe list`` shows only
recipes of FLARE's own packages, so this one is not in it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml
from nvflare.job_config.api import FedJob
from nvflare.recipe.prod_env import ProdEnv
from nvflare.recipe.spec import ExecEnv, Recipe

from fedshift.federation.resolve import resolve
from fedshift.flare.export import hosts, meta, write_job
from fedshift.flare.simulate import simulate
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec

CLOSED = (
    "nothing can be added to a fedshift job: sites read only the job itself; set job keys with options=…, and what may "
    "leave a site in the site's fedshift.yaml"
)


class FeatureShiftRecipe(Recipe):
    """A task and the methods to train it with."""

    def __init__(
        self,
        *,
        task: str,
        method: str,
        protocol: str | None = None,
        sites: Sequence[str] | None = None,
        held_out: Sequence[str] | None = None,
        options: Mapping[str, Any] | Sequence[str] = (),
        seed: int = 0,
        name: str | None = None,
        production: bool | None = None,
    ) -> None:
        """Resolve the job.

        Args:
            task: a task's name (``fedshift tasks`` lists them), or the path of a ``.yaml`` file of one.
            method: method names joined by ``+``.
            protocol: one of the task's.
            sites: the task's sites that train; by default all.
            held_out: the task's sites that only score the final models.
            options: any keys of the job: ``{"schedule.rounds": 80, "fedfa.p": 0.3}``, or as after ``--set``.
            seed: decides every random number.
            name: the job's; by default methods and task joined by ``_``.
            production: write the job for sites that allow fedshift's components by name, without the marker that a
                simulator and the kits of ``nvflare poc`` need. By default true for `ProdEnv` only.

        Raises:
            ConfigError: any name, key or value that does not fit.
        """
        self.spec = resolve(
            task,
            method,
            protocol=protocol,
            sites=sites,
            held_out=held_out,
            options=as_options(options) if isinstance(options, Mapping) else options,
            seed=seed,
            name=name,
        )
        self._production = production
        self._folder = JobFolder(self.spec, production=bool(production))
        super().__init__(self._folder)

    @property
    def clients(self) -> list[str]:
        """Names of the job's FLARE clients, for `SimEnv` and `PocEnv`: its sites, unless the job has hosts."""
        return list(hosts(self.spec))

    def process_env(self, env: ExecEnv) -> None:
        """Choose how the job is written for this environment."""
        if self._production is None:
            self._folder.production = isinstance(env, ProdEnv)

    def _apply_per_site_config(self, config: dict[str, dict[str, Any]]) -> NoReturn:
        raise ConfigError("job-fixed", CLOSED)


class JobFolder(FedJob):
    """A job folder in the form that recipes need: an object that writes one."""

    def __init__(self, spec: JobSpec, *, production: bool) -> None:
        """``production``: as for `fedshift.flare.export.write_job`."""
        super().__init__(name=spec.name, min_clients=meta(spec)["min_clients"])
        self.spec, self.production = spec, production

    def to(self, obj: Any, target: str, **kwargs: Any) -> NoReturn:
        """Refuse to add anything.

        Raises:
            ConfigError: always. Ignoring the call could drop a filter that was meant to keep something private.
        """
        raise ConfigError("job-fixed", CLOSED)

    def export_job(self, job_root: str) -> None:
        """Write the folder into ``job_root``."""
        write_job(self.spec, Path(job_root) / self.name, production=self.production)

    def simulator_run(
        self,
        workspace: str,
        n_clients: int | None = None,
        clients: Sequence[str] | None = None,
        threads: int | None = None,
        gpu: str | None = None,
        log_config: str | None = None,
    ) -> int:
        """Run the job in FLARE's simulator, as ``fedshift run`` does; returns 0.

        Raises:
            ConfigError: the clients are not the job's, or the environment asks for what the job decides.
            RunFailed: the run ended without a model.
        """
        ours = list(hosts(self.spec))
        if (n_clients or len(ours)) != len(ours) or set(clients or ours) != set(ours):
            raise ConfigError("other-site", f"job {self.name} has other clients: use SimEnv(clients={ours})")
        if gpu or log_config:
            raise ConfigError(
                "options-clash", "SimEnv's gpu_config and log_config do not apply: $FEDSHIFT_DEVICE chooses a device"
            )
        with tempfile.TemporaryDirectory() as folder:
            job = write_job(self.spec, Path(folder) / self.name)
            simulate(self.spec, job, Path(workspace), parallel=threads, on_line=_print)
        return 0


def as_options(values: Mapping[str, Any]) -> list[str]:
    """Settings in the form that `fedshift.federation.resolve.resolve` takes.

    Raises:
        ConfigError: a value that a job cannot hold.
    """
    options = []
    for path, value in values.items():
        try:
            text = yaml.safe_dump(value, default_flow_style=True, width=sys.maxsize)
        except yaml.YAMLError:
            kind = type(value).__name__
            raise ConfigError(
                "invalid-value", f"option {path}: a job holds numbers, texts and lists of them, no {kind}"
            ) from None
        scalar = text.removesuffix("...\n").strip()  # YAML's end of a document
        options.append(f"{path}={scalar}")
    return options


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
