"""Where a run in FLARE's simulator leaves its files. Reading this module does not import nvflare."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

JOB = "simulate_job"
"""The simulator's name for its only job, as in nvflare's ``SimulatorConstants.JOB_NAME``."""
LOG = "simulator.log"
SITES = "sites"
"""In a client's job folder: a folder of state for each site that works in this client."""


@dataclass(frozen=True)
class RunFolders:
    """The folders of a simulated run."""

    workspace: Path

    @property
    def server(self) -> Path:
        """The server's job folder: results, models, curves."""
        return self.workspace / "server" / JOB

    @property
    def log(self) -> Path:
        """Everything that the simulator and its workers printed."""
        return self.workspace / LOG

    @property
    def site_states(self) -> list[Path]:
        """The folders of the sites' states, in those of the clients that they worked in."""
        return sorted(path for path in self.workspace.glob(f"*/{JOB}/{SITES}/*") if path.is_dir())
