"""NVFlare's own `FedAvgRecipe` with clients that do nothing, for `flare_overhead`.

python idle_nvflare.py WORKSPACE ROUNDS CLIENTS FEATURES
"""

from __future__ import annotations

import sys
from pathlib import Path

from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

from fedshift.tasks.networks import build

SCRIPT = Path(__file__).with_name("idle_nvflare_client.py")


def main() -> None:
    """Run it."""
    workspace, rounds, clients, features = sys.argv[1], *map(int, sys.argv[2:5])
    recipe = FedAvgRecipe(
        name="idle",
        model=build("unet", {"features": features}, in_channels=1, n_classes=2, seed=0),
        min_clients=clients,
        num_rounds=rounds,
        train_script=str(SCRIPT),
    )
    recipe.execute(SimEnv(num_clients=clients, num_threads=clients, workspace_root=workspace))


if __name__ == "__main__":
    main()
