"""Whether a party runs in FLARE's simulator, and not in a provisioned federation."""

from __future__ import annotations

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.private.fed.simulator.simulator_const import SimulatorConstants


def client_is_simulated(fl_ctx: FLContext) -> bool:
    """Whether a client does."""
    return bool(fl_ctx.get_prop(FLContextKey.SIMULATE_MODE, False))


def server_is_simulated(fl_ctx: FLContext) -> bool:
    """Whether the server does. SIMULATE_MODE, which clients have, is not set there."""
    return bool(fl_ctx.get_job_id() == SimulatorConstants.JOB_NAME)
