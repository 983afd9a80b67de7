"""What FLARE's context knows of a party: its job, its kit, and whether it runs in FLARE's simulator."""

from __future__ import annotations

from pathlib import Path

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.private.fed.simulator.simulator_const import SimulatorConstants

from fedshift.schema.job import FILE_NAME, JobSpec, read_job

CONFIG = "config"
"""The folder of a job's app with what FLARE and fedshift read."""


def client_is_simulated(fl_ctx: FLContext) -> bool:
    """Whether a client is in the simulator, and not in a provisioned federation."""
    return bool(fl_ctx.get_prop(FLContextKey.SIMULATE_MODE, False))


def server_is_simulated(fl_ctx: FLContext) -> bool:
    """Whether the server is. SIMULATE_MODE, which clients have, is not set there."""
    return bool(fl_ctx.get_job_id() == SimulatorConstants.JOB_NAME)


def deployed_job(fl_ctx: FLContext) -> JobSpec:
    """The job that FLARE has deployed at this party."""
    return read_job(config_folder(fl_ctx) / FILE_NAME)


def config_folder(fl_ctx: FLContext) -> Path:
    """Where the job's own files are at this party.

    NVFlare's `get_app_config_dir` names its parent in a kit of ``nvflare package``, whose script gives no name.
    """
    return Path(fl_ctx.get_workspace().get_app_dir(fl_ctx.get_job_id())) / CONFIG


def run_folder(fl_ctx: FLContext) -> Path:
    """Where this party keeps the files of its job."""
    return Path(fl_ctx.get_workspace().get_run_dir(fl_ctx.get_job_id()))


def local_folder(fl_ctx: FLContext) -> Path:
    """``local/`` of this party's kit."""
    return Path(fl_ctx.get_workspace().get_site_config_dir())


def startup_folder(fl_ctx: FLContext) -> Path:
    """``startup/`` of this party's kit."""
    return Path(fl_ctx.get_workspace().get_startup_kit_dir())
