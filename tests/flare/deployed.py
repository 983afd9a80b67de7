"""A provisioned federation on this machine: real kits, real certificates, a process for the server and each site.

`Deployed` is a context manager. Whatever happens in its body, it ends every process that it has started, and all
that it wrote is below its folder.
"""

from __future__ import annotations

import json
import math
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import psutil
import yaml
from cryptography.hazmat.primitives import serialization
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from fedshift.flare.export import write_job
from fedshift.flare.kit import open_kit
from fedshift.flare.kit_files import RESOURCES, lay, local_files
from fedshift.reporting.progress import Progress, read_progress
from fedshift.schema.job import JobSpec
from fedshift.schema.launcher import Launcher
from fedshift.schema.results import Results, read_results

ROOT = Path(__file__).resolve().parents[2]
PROJECT, SERVER, LEAD, OWNER = "test_federation", "localhost", "lead@hub.org", "admin@hub.org"
BUILDERS = "nvflare.lighter.impl"
SILENCE = 12.0
"""Seconds after which a site notices that its question was lost with a killed process; in real kits two minutes."""
ANSWER = 60.0
"""Seconds for the server to answer the coordinator, on a busy machine."""


class Deployed:
    """One server and some sites."""

    def __init__(
        self,
        folder: Path,
        data: Mapping[str, Path],
        *,
        lines: Mapping[str, Way] | None = None,
        port: int | None = None,
        keys: bool = False,
        within: Mapping[str, Sequence[str]] | None = None,
        people: Mapping[str, tuple[str, str]] | None = None,
        launchers: Mapping[str, Launcher] | None = None,
    ) -> None:
        """Provision the federation and lay out its kits; no process is started.

        Args:
            folder: holds everything.
            data: each site's prepared folder.
            lines: sites that do not reach the server directly.
            port: where another federation's server listens, for a stranger who tries to get in.
            keys: whether kits have keys for encrypted updates, of FLARE's HEBuilder.
            within: a party's processes are started by this command.
            people: beside the lead and the project's admin, each with organisation and role.
            launchers: where processes of jobs run, of sites where that is not beside the site's own.
        """
        self.launchers = launchers or {}
        self.lines, self.within, self.people = lines or {}, within or {}, people or {}
        self.folder = folder
        self.sites, self.data = tuple(data), dict(data)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._session: Session | None = None
        self._keys = keys
        own_port, admin_port = free_ports(2)
        self.port = port or own_port
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "home").mkdir(exist_ok=True)
        project = folder / "project.yml"
        project.write_text(yaml.safe_dump(self._project(admin_port)), encoding="utf-8")
        self.command("nvflare.cli", "provision", "-p", str(project), "-w", str(folder / "provisioned"), "--force")
        self.kits = folder / "provisioned" / PROJECT / "prod_00"
        self.lay_out(SERVER)
        for site, path in data.items():
            self.lay_out(site, {path.parent.name: path})

    def lay_out(self, name: str, data: Mapping[str, Path] | None = None) -> None:
        """What a party's owner does with ``fedshift site init``."""
        kit = open_kit(self.kits / name)
        files = local_files(kit, data=data, launcher=self.launchers.get(name))
        silence = self.lines[name].silence if name in self.lines else SILENCE
        if name != SERVER and silence is not None:
            resources = json.loads(files[RESOURCES])
            resources["client"]["communication_timeout"] = silence
            files[RESOURCES] = json.dumps(resources)
        lay(files, kit.local, force=True)

    # --- processes ------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Nothing is started by itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all processes, whatever has happened."""
        self.close_session()
        for name in list(self.processes):
            self.kill(name)

    def start(self, *names: str, environment: Mapping[str, str] | None = None) -> None:
        """Start the server or sites, each as a process of its own."""
        for name in names:
            self.start_from(name, self.kits / name, name, environment=environment)

    def start_from(self, process: str, kit: Path, name: str, *, environment: Mapping[str, str] | None = None) -> None:
        """Start a party, called ``process`` here, from any kit with this name."""
        role = "server" if name == SERVER else "client"
        options = ["secure_train=true", f"org={org(name)}", "config_folder=config"]
        command = [
            *self.within.get(name, ()),
            *(sys.executable, "-u", "-m", f"nvflare.private.fed.app.{role}.{role}_train"),
            *("-m", str(kit), "-s", f"fed_{role}.json", "--set", *options),
            *([] if name == SERVER else [f"uid={name}"]),
        ]
        with (self.folder / f"{process}.log").open("ab") as log:
            self.processes[process] = subprocess.Popen(
                command,
                cwd=kit,
                env={**self.environment(), **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start_all(self) -> None:
        """Server and sites; returns when the sites are connected."""
        self.start(SERVER, *self.sites)
        self.connected(self.sites)

    def kill(self, name: str) -> None:
        """SIGKILL to a party's parent process and to everything that it has started."""
        process = self.processes.pop(name)
        for one in self.family(process.pid):
            try:
                one.kill()
            except psutil.NoSuchProcess:
                continue
        process.kill()
        process.wait()
        wait_for(lambda: not [p for p in self._of_kit(name) if p.is_running()], 120, f"{name} to be gone")

    def job_process(self, name: str, job_id: str) -> psutil.Process | None:
        """The process that a party runs a job in."""
        for process in self.family(self.processes[name].pid):
            try:
                command = process.cmdline()
            except psutil.Error:
                continue
            module = "server.runner_process" if name == SERVER else "client.worker_process"
            if job_id in command and any(part.endswith(module) for part in command):
                return process
        return None

    def family(self, pid: int) -> list[psutil.Process]:
        """A process's children, their children and so on."""
        try:
            return psutil.Process(pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def _of_kit(self, name: str) -> list[psutil.Process]:
        """Also those that outlived their parent: FLARE starts a job process in a session of its own."""
        kit, found = str(self.kits / name), []
        for process in psutil.process_iter():
            try:
                if kit in process.cmdline():
                    process.kill()
                    found.append(process)
            except psutil.Error:
                continue
        return found

    # --- what a coordinator does -----------------------------------------------------------------------

    @property
    def session(self) -> Session:
        """The coordinator's session with the server."""
        if self._session is None:
            self._session = new_secure_session(LEAD, str(self.kits / LEAD), timeout=180)
            self._session.set_timeout(ANSWER)
        return self._session

    @contextmanager
    def console(self, person: str) -> Iterator[Session]:
        """A session of another person than the coordinator."""
        session = new_secure_session(person, str(self.kits / person), timeout=180)
        session.set_timeout(ANSWER)
        try:
            yield session
        finally:
            session.close()

    def close_session(self) -> None:
        """Also before the server is stopped: a session does not survive that."""
        if self._session is not None:
            session, self._session = self._session, None
            session.close()

    def connected(self, sites: Sequence[str], timeout: float = 300) -> None:
        """Wait until these sites are connected."""
        wait_for(
            lambda: {client.name for client in self.session.get_connected_client_list()} >= set(sites),
            timeout,
            f"{', '.join(sites)} to connect",
        )

    def submit(self, job: Path) -> str:
        """Submit a job folder; returns the job's id."""
        return str(self.session.submit_job(str(job)))

    def progress(self, job_id: str) -> Progress | None:
        """How far the job is, read where the server writes it."""
        return read_progress(self.kits / SERVER / job_id)

    def reaches(self, job_id: str, round_: int, timeout: float = 300) -> None:
        """Wait until a round of the job is open."""
        wait_for(
            lambda: (p := self.progress(job_id)) is not None and p.round >= round_, timeout, f"round {round_} to open"
        )

    def results(self, job_id: str) -> Results | None:
        """Of the rounds that are closed, read where the server writes them."""
        folder = self.kits / SERVER / job_id
        return read_results(folder) if (folder / "results.json").is_file() else None

    def trains(self, site: str, job_id: str, timeout: float = 300) -> int:
        """Wait until a site has trained in a round that opens from now on; returns the round."""
        results = self.results(job_id)
        after = len(results.rounds) + 1 if results else 0

        def found() -> int:
            results = self.results(job_id)
            later = results.rounds[after:] if results else []
            return next((r.round for r in later if site in r.sites and r.sites[site].steps), 0)

        wait_for(lambda: found() > 0, timeout, f"site {site} to train")
        return found()

    def finished(self, job_id: str, timeout: float = 600) -> str:
        """Wait for the job's end; returns its status."""
        wait_for(lambda: self.status(job_id).startswith("FINISHED"), timeout, f"the job's end ({self.status(job_id)})")
        return self.status(job_id)

    def status(self, job_id: str) -> str:
        """What FLARE says of the job."""
        return str(self.session.get_job_meta(job_id)["status"])

    def download(self, job_id: str) -> Path:
        """The job's folder at the server, as the coordinator receives it."""
        folder = Path(self.session.download_job_result(job_id, str(self.folder / "downloads")))
        (results,) = folder.rglob("results.json")
        return results.parent

    # --- helpers ---------------------------------------------------------------------------------------

    def root_key(self) -> Any:
        """What the project signs certificates with."""
        state = json.loads((self.kits.parent / "state" / "cert.json").read_text(encoding="utf-8"))
        return serialization.load_pem_private_key(state["root_pri_key"].encode(), None)

    def log(self, name: str) -> str:
        """What a party's processes printed."""
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def command(self, module: str, *arguments: str, timeout: float = 300) -> str:
        """Run a Python module's command; returns what it printed."""
        result = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            env=self.environment(),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=timeout,
            check=False,
        )
        assert result.returncode == 0, result.stdout
        return result.stdout

    def environment(self) -> dict[str, str]:
        """Nothing of the user's is read or written."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("FEDSHIFT_", "XDG_"))}
        return kept | {
            "HOME": str(self.folder / "home"),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "custom"), str(ROOT)]),
            "OMP_NUM_THREADS": "1",
        }

    def _way(self, site: str) -> dict[str, Any]:
        line = self.lines.get(site)
        if line is None:
            return {}
        host, port = line.lead_to(self.port)
        return {"connect_to": {"host": host, "port": port}}

    def _project(self, admin_port: int) -> dict[str, Any]:
        person = {"type": "admin", "org": "hub"}
        return {
            "api_version": 3,
            "name": PROJECT,
            "participants": [
                {"name": SERVER, "type": "server", "org": "hub", "fed_learn_port": self.port, "admin_port": admin_port},
                *({"name": site, "type": "client", "org": org(site), **self._way(site)} for site in self.sites),
                {"name": OWNER, "role": "project_admin", **person},
                *({"name": name, "type": "admin", "org": of, "role": role} for name, (of, role) in self.people.items()),
                {"name": LEAD, "role": "lead", **person},
            ],
            "builders": [
                {"path": f"{BUILDERS}.workspace.WorkspaceBuilder", "args": {"template_file": ["master_template.yml"]}},
                {"path": f"{BUILDERS}.static_file.StaticFileBuilder", "args": {"config_folder": "config"}},
                {"path": f"{BUILDERS}.cert.CertBuilder"},
                *([{"path": f"{BUILDERS}.he.HEBuilder", "args": {}}] if self._keys else []),
                {"path": f"{BUILDERS}.signature.SignatureBuilder"},
            ],
        }


@dataclass
class DeployedRun:
    """A job in a federation; ``struck`` says in which round what was done."""

    job: JobSpec
    federation: Deployed
    job_id: str
    struck: dict[str, int] = field(default_factory=dict)
    folder: Path = Path()

    @classmethod
    def submit(cls, federation: Deployed, job: JobSpec) -> Self:
        folder = write_job(job, federation.folder / "jobs" / "job", production=True)
        return cls(job, federation, federation.submit(folder))

    @property
    def results(self) -> Results:
        return read_results(self.folder)

    def wait(self, fault: str) -> None:
        """Until a round begins after the last that something was done in, and not the first."""
        self.struck[fault] = max(self.struck.values(), default=1) + 1
        self.federation.reaches(self.job_id, self.struck[fault])

    def trained(self, round_: int) -> set[str]:
        return {site for site, told in self.results.rounds[round_ - 1].sites.items() if told.steps}

    def end(self, status: str = "FINISHED:COMPLETED", timeout: float = 600) -> Self:
        """Wait for the job's end and fetch what it left."""
        ended = self.federation.finished(self.job_id, timeout)
        assert ended == status, self.federation.log(SERVER)[-3000:]
        self.folder = self.federation.download(self.job_id)
        return self

    def job_process(self, name: str) -> psutil.Process:
        process = self.federation.job_process(name, self.job_id)
        assert process is not None
        return process


class Way(Protocol):
    """How a site reaches the server."""

    silence: float | None
    """Seconds after which it asks again, if not those of every kit."""

    def lead_to(self, port: int) -> tuple[str, int]:
        """Host and port to connect to, for a port of the server's."""
        ...


class Line:
    """A network connection that has a rate and can be cut. What is under way then is lost, which is noticed soon."""

    silence: float | None = 8.0

    def __init__(self, *, rate_mbit: float = math.inf) -> None:
        """``rate_mbit``: Mbit/s in each direction, of all connections together."""
        self._listener = socket.create_server(("localhost", 0))
        self.port: int = self._listener.getsockname()[1]
        self._leads_to = 0
        self._open = threading.Event()
        self._open.set()
        self._ends: list[socket.socket] = []
        self.up, self.down = _Direction(rate_mbit), _Direction(rate_mbit)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.set()
        self._listener.close()
        self._close()

    def lead_to(self, port: int) -> tuple[str, int]:
        """Lead to a port of this machine; returns where to connect for that."""
        self._leads_to = port
        return SERVER, self.port

    def cut(self) -> None:
        """Nothing passes any more, and nobody is told."""
        self._open.clear()

    def mend(self) -> None:
        """New connections pass. Those of before are gone, as routers forget them."""
        self._close()
        self._open.set()

    def _close(self) -> None:
        ends, self._ends = self._ends, []
        for end in ends:
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("localhost", self._leads_to))
            except OSError:
                if self._listener.fileno() < 0:
                    return
                near.close()  # the server is not there yet
                continue
            self._ends += [near, far]
            for source, target, direction in ((near, far, self.up), (far, near, self.down)):
                threading.Thread(target=self._pass_on, args=(source, target, direction), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, direction: _Direction) -> None:
        try:
            while data := source.recv(65536):
                direction.take(len(data))
                self._open.wait()
                target.sendall(data)
        except OSError:
            data = b""  # one of the two has gone, and so does the other
        source.close()
        target.close()


class _Direction:
    """What passes a line one way."""

    def __init__(self, rate_mbit: float) -> None:
        self.passed = 0
        """Bytes so far."""
        self._rate, self._free, self._lock = rate_mbit * 125_000, 0.0, threading.Lock()

    def take(self, size: int) -> None:
        """Wait until so many more bytes have passed at the line's rate."""
        with self._lock:
            self.passed += size
            self._free = max(self._free, time.monotonic()) + size / self._rate
            wait = self._free - time.monotonic()
        time.sleep(max(wait, 0.0))


def org(name: str) -> str:
    """Every site is an organisation of its own."""
    return "hub" if name == SERVER else name.lower()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, and that no system gives to those who ask for any, as FLARE's processes do."""
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().randrange(15000, 30000)
        try:
            socket.create_server(("localhost", port)).close()
        except OSError:
            continue
        found.append(port)
    return found


def wait_for(condition: Callable[[], bool], timeout: float, what: str) -> None:
    """Look again and again; an error if it takes longer than ``timeout`` seconds."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"waited {timeout:g} s for {what}"
        time.sleep(0.2)
