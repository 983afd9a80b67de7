"""A cluster of one's own for a test: Debian's Slurm with its accounting, one node, all on this machine.

Nothing of it is outside of its folder. It has the daemons that a hospital's cluster has: munge, a data base, slurmdbd,
slurmctld and slurmd. Its node is this machine, and says that it has more processors than that.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

PATH = "/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin:/sbin:/bin"
PROGRAMS = ("munged", "mariadbd", "mariadb-install-db", "slurmdbd", "slurmctld", "slurmd", "sbatch", "scancel")
NODE = socket.gethostname().partition(".")[0]
PASSWORD = "not-a-secret-in-a-test"
needs_slurm = pytest.mark.skipif(
    any(shutil.which(name, path=PATH) is None for name in PROGRAMS) or os.geteuid() != 0,
    reason="needs a cluster, as root: apt-get install --no-install-recommends slurmctld slurmd slurmdbd slurm-client "
    "munge mariadb-server",
)


@dataclass(frozen=True)
class Slurm:
    """A running cluster. ``environment`` is what its commands, and whoever calls them, need beside their own."""

    folder: Path
    environment: Mapping[str, str]

    def ask(self, *command: str) -> str:
        """What one of Slurm's commands prints."""
        result = subprocess.run(
            command,
            env={**os.environ, **self.environment},
            capture_output=True,
            encoding="utf-8",
            timeout=30,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout.strip()

    def jobs(self) -> list[tuple[str, str]]:
        """Number and state of every job that was ever submitted, by the accounting."""
        rows = self.ask("sacct", "-X", "-n", "-P", "--format=JobIDRaw,State").splitlines()
        return [(number, state.split()[0]) for number, state in (row.split("|") for row in rows)]

    def queue(self) -> list[str]:
        """Numbers of the jobs that wait or run."""
        return self.ask("squeue", "-h", "--format=%i").split()

    def fail_node(self) -> None:
        """What a node that crashes is for Slurm; it is used again at once."""
        self.ask("scontrol", "update", f"NodeName={NODE}", "State=DOWN", "Reason=test")
        self.open_node()

    def close_node(self) -> None:
        """Jobs wait from now on."""
        self.ask("scontrol", "update", f"NodeName={NODE}", "State=DRAIN", "Reason=test")

    def open_node(self) -> None:
        self.ask("scontrol", "update", f"NodeName={NODE}", "State=RESUME")

    def job_named(self, start: str) -> str:
        """Number of the job in the queue whose name begins so."""
        rows = [line.split() for line in self.ask("squeue", "-h", "--format=%i %j").splitlines()]
        (number,) = [number for number, name in rows if name.startswith(start)]
        return number


@contextmanager
def running_slurm(folder: Path) -> Iterator[Slurm]:
    """An empty cluster whose files are in ``folder``; it ends with the block."""
    for name in ("munge", "state", "spool", "logs", "cgroup"):
        (folder / name).mkdir(parents=True)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    data_base, accounting, controller, node = _free_ports(4)
    (folder / "slurm.conf").write_text(_settings(folder, accounting, controller, node), encoding="utf-8")
    (folder / "slurmdbd.conf").write_text(_accounting(folder, accounting, data_base), encoding="utf-8")
    (folder / "slurmdbd.conf").chmod(0o600)
    (folder / "cgroup.conf").write_text(
        f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={folder}/cgroup\nCgroupAutomount=no\n", encoding="utf-8"
    )
    cluster = Slurm(folder, {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{os.environ['PATH']}:{PATH}"})
    with ExitStack() as daemons:
        start = _Starter(cluster, daemons)
        munge = folder / "munge"
        files = (f"--key-file={key}", f"--socket={_socket(folder)}", f"--pid-file={munge / 'pid'}")
        # Its folder is a test's, which nobody else can enter: munge would have it open to all.
        start("munged", "--foreground", "--force", *files, f"--seed-file={munge / 'seed'}")
        _until(_socket(folder).exists, "munged", folder)
        _data_base(start, folder, data_base)
        start("slurmdbd", "-D")
        _until(lambda: _listens(accounting), "slurmdbd", folder)
        start("slurmctld", "-D")
        _until(lambda: _listens(controller), "slurmctld", folder)
        start("slurmd", "-D")
        _until(lambda: cluster.ask("sinfo", "-h", "--format=%T") == "idle", "slurmd", folder)
        try:
            yield cluster
        finally:  # a daemon that ends leaves its jobs' processes
            cluster.ask("scancel", "--me")
            _until(lambda: not cluster.queue(), "slurmctld", folder)


@dataclass(frozen=True)
class _Starter:
    """Starts daemons in the foreground; they end in the other order with the block."""

    cluster: Slurm
    daemons: ExitStack

    def __call__(self, program: str, *options: str) -> None:
        path = shutil.which(program, path=PATH)
        assert path is not None
        with (self.cluster.folder / "logs" / program).open("wb") as log:
            environment = {**os.environ, **self.cluster.environment}
            process = subprocess.Popen(
                [path, *options], env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        self.daemons.callback(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _data_base(start: _Starter, folder: Path, port: int) -> None:
    data, local = folder / "data", folder / "mariadb.socket"
    install = shutil.which("mariadb-install-db", path=PATH)
    assert install is not None
    options = ("--no-defaults", "--user=root", f"--datadir={data}", "--skip-test-db")
    subprocess.run(
        [install, *options, "--auth-root-authentication-method=normal"], check=True, capture_output=True, timeout=120
    )
    sizes = ("--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900", "--innodb-flush-log-at-trx-commit=0")
    where = (f"--socket={local}", "--bind-address=127.0.0.1", f"--port={port}", f"--pid-file={folder / 'mariadb.pid'}")
    start("mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", *where, *sizes)
    _until(lambda: _listens(port), "mariadbd", folder)
    orders = (
        f"create database slurm; create user slurm@'127.0.0.1' identified by '{PASSWORD}'; "
        "grant all on slurm.* to slurm@'127.0.0.1'"
    )
    subprocess.run(["mariadb", "--no-defaults", f"--socket={local}", "-e", orders], check=True, timeout=60)


def _socket(folder: Path) -> Path:
    return folder / "munge" / "socket"


def _settings(folder: Path, accounting: int, controller: int, node: int) -> str:
    return f"""\
ClusterName=test
SlurmctldHost={NODE}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
AuthType=auth/munge
AuthInfo=socket={_socket(folder)}
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={accounting}
AccountingStoragePass={_socket(folder)}
JobAcctGatherType=jobacct_gather/none
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
KillWait=2
ReturnToService=2
NodeName={NODE} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=main Nodes={NODE} Default=YES MaxTime=24:00:00 State=UP
"""


def _accounting(folder: Path, port: int, data_base: int) -> str:
    return f"""\
AuthType=auth/munge
AuthInfo=socket={_socket(folder)}
DbdHost=localhost
DbdPort={port}
SlurmUser=root
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={data_base}
StorageUser=slurm
StoragePass={PASSWORD}
StorageLoc=slurm
"""


def _free_ports(count: int) -> Sequence[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _until(condition: Callable[[], bool], program: str, folder: Path) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, (folder / "logs" / program).read_text(encoding="utf-8", errors="replace")
        time.sleep(0.2)
