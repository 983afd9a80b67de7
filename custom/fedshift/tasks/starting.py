"""The network that a job starts from, with the weights of the job's file.

Without adapters only the server reads the file, and sites receive what was in it. With adapters (``network.adapters``)
the file is the base, of which nothing travels: the server and every site read their own copy, by its hash.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.task import WeightsSpec
from fedshift.tasks import adapters, pretrained
from fedshift.tasks.kinds import build_task


def starting_network(job: JobSpec, *, weights: Path | None = None) -> tuple[nn.Module, str]:
    """The job's network as its file has it, and what was loaded, for the log.

    ``weights``: where this site keeps such files, as for `fedshift.tasks.pretrained.find`.

    Raises:
        ConfigError: the file is not here, or does not fit the network.
    """
    return network_from(job, pretrained.find(_file(job), site_folder=weights))


def network_from(job: JobSpec, path: Path) -> tuple[nn.Module, str]:
    """As `starting_network`, from the job's file at ``path``."""
    net, weights = _plain(job, path)
    loaded, network = pretrained.describe(_file(job), weights), job.task.network
    if network.adapters is None:
        return net, loaded
    plain = net.state_dict()
    adapters.adapt(net, network, seed=job.seed)
    for key in sorted(plain.keys() - weights.arrays.keys() - net.state_dict().keys()):
        if plain[key].is_floating_point():  # others are counters, and tables that the network makes itself
            raise ConfigError(
                "adapters-unfit",
                f"{_file(job).file} has no {key} that fits network {network.name}, and the job does not train it: add "
                f"the part that it is in to network.adapters.trained ({', '.join(network.adapters.trained)}), or name "
                "another file",
            )
    return net, f"{loaded}; {adapters.describe(net, network.adapters)}"


def base_weights(job: JobSpec, *, weights: Path | None = None) -> dict[str, Tensor]:
    """The weights beside which a job's adapters are trained, by their names without adapters.

    Arguments and errors are those of `starting_network`.
    """
    return _plain(job, pretrained.find(_file(job), site_folder=weights))[0].state_dict()


def _plain(job: JobSpec, path: Path) -> tuple[nn.Module, pretrained.LoadedArrays]:
    """The job's network without adapters, and what it took of a file."""
    net = build_task(adapters.with_adapters(job, None)).network()
    weights = pretrained.select(net, _file(job), path)
    net.load_state_dict(weights.arrays, strict=False)
    return net, weights


def _file(job: JobSpec) -> WeightsSpec:
    assert job.task.network.weights is not None
    return job.task.network.weights
