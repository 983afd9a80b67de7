"""Flower's simulation with clients that do nothing, for `flare_overhead`; run by the Python that Flower is in.

    python idle_flower.py ARRAYS.npz ROUNDS CLIENTS

Prints the moments at which rounds ended, in seconds since 1970, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation


class Idle(NumPyClient):
    """Sends back the arrays that it got."""

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        """No training."""
        return parameters, 1, {}


class Watched(FedAvg):
    """Notes when rounds end."""

    ended: list[float]

    def aggregate_fit(self, *args: Any, **named: Any) -> Any:
        """As Flower's."""
        result = super().aggregate_fit(*args, **named)
        self.ended.append(time.time())
        return result


def main() -> None:
    """Run it."""
    path, rounds, clients = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with np.load(path) as file:
        arrays = [file[key] for key in file.files]
    strategy = Watched(
        fraction_evaluate=0.0,
        min_fit_clients=clients,
        min_available_clients=clients,
        initial_parameters=ndarrays_to_parameters(arrays),
    )
    strategy.ended = []

    def client(context: Context) -> Any:
        return Idle().to_client()

    def server(context: Context) -> ServerAppComponents:
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))

    run_simulation(
        server_app=ServerApp(server_fn=server),
        client_app=ClientApp(client_fn=client),
        num_supernodes=clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    print("ended:" + json.dumps(strategy.ended), flush=True)


if __name__ == "__main__":
    main()
