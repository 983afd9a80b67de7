"""A PACS of one's own for a test: Debian's Orthanc with its DICOMweb plugin, on a free port of this machine."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

PLUGIN = Path("/usr/share/orthanc/plugins/libOrthancDicomWeb.so")
PROGRAM = shutil.which("Orthanc", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
TITLE = "ORTHANC"
USER, PASSWORD = "engineer", "not-a-secret-in-a-test"
needs_orthanc = pytest.mark.skipif(
    PROGRAM is None or not PLUGIN.exists(),
    reason="needs a PACS: apt-get install --no-install-recommends orthanc orthanc-dicomweb",
)


@dataclass(frozen=True)
class Orthanc:
    """A running server. ``root`` is its own API, ``dicomweb`` the standard's, ``dimse`` its address as a node.

    It knows one node, FEDSHIFT, and sends to it at ``receive_port``.
    """

    root: str
    dimse_port: int = 0
    receive_port: int = 0

    @property
    def dimse(self) -> str:
        return f"dimse://{TITLE}@127.0.0.1:{self.dimse_port}"

    @property
    def dicomweb(self) -> str:
        return f"{self.root}/dicom-web"

    def add(self, folder: Path) -> None:
        """Give it all DICOM files below a folder, by its own API."""
        for file in sorted(folder.rglob("*.dcm")):
            answer = requests.post(f"{self.root}/instances", data=file.read_bytes(), auth=(USER, PASSWORD), timeout=30)
            answer.raise_for_status()

    def send(self, study: str) -> None:
        """Have it send a study to the node FEDSHIFT."""
        asked = {"Level": "Study", "Query": {"StudyInstanceUID": study}}
        (response,) = requests.post(f"{self.root}/tools/find", json=asked, auth=(USER, PASSWORD), timeout=30).json()
        answer = requests.post(f"{self.root}/modalities/ours/store", data=response, auth=(USER, PASSWORD), timeout=30)
        answer.raise_for_status()

    def files(self, modality: str) -> list[bytes]:
        """The files of all instances of a modality, by its own API."""
        asked = {"Level": "Instance", "Query": {"Modality": modality}}
        response = requests.post(f"{self.root}/tools/find", json=asked, auth=(USER, PASSWORD), timeout=30).json()
        return [
            requests.get(f"{self.root}/instances/{name}/file", auth=(USER, PASSWORD), timeout=30).content
            for name in response
        ]


@contextmanager
def running_orthanc(folder: Path, *, encrypted: Mapping[str, object] | None = None) -> Iterator[Orthanc]:
    """An empty PACS whose files are in ``folder``; it ends with the block.

    ``encrypted``: the settings by which its node speaks TLS.
    """
    assert PROGRAM is not None
    folder.mkdir(parents=True, exist_ok=True)
    port, dimse_port, receive_port = free_ports(3)
    tls = {"DicomTlsEnabled": True, **encrypted} if encrypted else {}
    settings = {
        "Name": "test",
        "StorageDirectory": str(folder / "storage"),
        "IndexDirectory": str(folder / "index"),
        "Plugins": [str(PLUGIN)],
        "HttpPort": port,
        "RemoteAccessAllowed": False,
        "AuthenticationEnabled": True,
        "RegisteredUsers": {USER: PASSWORD},
        "DicomServerEnabled": True,
        "DicomAet": TITLE,
        "DicomPort": dimse_port,
        "DicomCheckCalledAet": True,
        "DicomAlwaysAllowEcho": False,
        "DicomAlwaysAllowStore": False,
        "DicomModalities": {"ours": node("FEDSHIFT", receive_port, tls=bool(tls))},
        **tls,
        "DicomWeb": {"Enable": True, "Root": "/dicom-web/"},
    }
    (folder / "orthanc.json").write_text(json.dumps(settings), encoding="utf-8")
    with (folder / "orthanc.log").open("w", encoding="utf-8") as log:
        server = subprocess.Popen([PROGRAM, str(folder / "orthanc.json")], stdout=log, stderr=log)
        running = Orthanc(f"http://127.0.0.1:{port}", dimse_port, receive_port)
        try:
            _wait_for(running, server, folder / "orthanc.log")
            yield running
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def node(title: str, port: int, *, tls: bool) -> dict[str, object]:
    """A node of this machine, as Orthanc's settings name it."""
    return {"AET": title, "Host": "127.0.0.1", "Port": port, "UseDicomTls": tls}


def free_ports(count: int) -> list[int]:
    """Ports of this machine at which nothing listens."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def _wait_for(made: Orthanc, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(200):
        assert server.poll() is None, log.read_text(encoding="utf-8")
        try:
            if requests.get(f"{made.dicomweb}/studies", auth=(USER, PASSWORD), timeout=5).ok:
                return
        except requests.ConnectionError:
            pass
        time.sleep(0.1)
    raise AssertionError(log.read_text(encoding="utf-8"))
