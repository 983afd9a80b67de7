"""NVFlare's own `FedAvgRecipe` with clients that train in a plain loop, for `training_peers`.

python training_nvflare.py WORKSPACE JOB DATA
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

from fedshift.flare.export import read_job_folder
from fedshift.tasks.kinds import build_task

SCRIPT = Path(__file__).with_name("training_nvflare_client.py")


def main() -> None:
    """Run it."""
    workspace, folder, data = sys.argv[1:4]
    job = read_job_folder(Path(folder))
    network = build_task(job).network()
    # The recipe makes the network anew from its class, with other random numbers.
    start = Path(workspace).with_suffix(".pt").absolute()
    torch.save(network.state_dict(), start)
    recipe = FedAvgRecipe(
        name="training",
        model=network,
        initial_ckpt=str(start),
        min_clients=len(job.task.sites),
        num_rounds=job.task.schedule.rounds,
        train_script=str(SCRIPT),
        train_args=f"{folder} {data}",
    )
    clients = list(job.task.sites)
    recipe.execute(SimEnv(clients=clients, num_threads=len(clients), workspace_root=workspace))


if __name__ == "__main__":
    main()
