"""Flower's simulation with clients that train in a plain loop, for `training_peers`; run by the Python it is in.

    python training_flower.py JOB DATA OUT.npz

Writes the last weights, and prints the moments at which rounds ended, in seconds since 1970, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.performance.plain_party import Party, party
from fedshift.schema.job import FILE_NAME, read_job


class Trains(NumPyClient):
    """A site."""

    def __init__(self, party: Party) -> None:
        """``party`` does the work."""
        self._party = party

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        """A round."""
        keys = self._party.keys
        weights, n, scores = self._party.train(dict(zip(keys, parameters, strict=True)), int(config["round"]))
        return [weights[key] for key in keys], n, dict(scores)


class Watched(FedAvg):
    """Notes when rounds end, and the last weights."""

    ended: list[float]
    last: list[np.ndarray]

    def aggregate_fit(self, *args: Any, **named: Any) -> Any:
        """As Flower's."""
        result = super().aggregate_fit(*args, **named)
        self.ended.append(time.time())
        assert result[0] is not None
        self.last = parameters_to_ndarrays(result[0])
        return result


def main() -> None:
    """Run it."""
    folder, data, out = map(Path, sys.argv[1:4])
    job = read_job(next(folder.rglob(FILE_NAME)))
    sites = job.task.sites
    initial = Party(folder, data, sites[0]).initial
    strategy = Watched(
        fraction_evaluate=0.0,
        min_fit_clients=len(sites),
        min_available_clients=len(sites),
        initial_parameters=ndarrays_to_parameters(list(initial.values())),
        on_fit_config_fn=lambda round_: {"round": round_},
    )
    strategy.ended = []

    def client(context: Context) -> Any:
        return Trains(party(folder, data, sites[int(context.node_config["partition-id"])])).to_client()

    def server(context: Context) -> ServerAppComponents:
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=job.task.schedule.rounds))

    run_simulation(
        server_app=ServerApp(server_fn=server),
        client_app=ClientApp(client_fn=client),
        num_supernodes=len(sites),
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    np.savez(out, **dict(zip(initial, strategy.last, strict=True)))
    print("ended:" + json.dumps(strategy.ended), flush=True)


if __name__ == "__main__":
    main()
