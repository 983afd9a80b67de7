"""NVFlare's log under a flood, and what it says of certificates."""

from __future__ import annotations

import asyncio
import logging
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from nvflare.fuel.f3.drivers import net_utils
from nvflare.fuel.f3.drivers.driver_params import DriverParams

from flare_armour import patches
from flare_armour.patches import logs
from flare_armour.patches.logs import LOGGERS, MOST, PERIOD, LogRate

patches.install()


def test_a_line_of_code_logs_so_often_and_says_what_was_left_out() -> None:
    now = [0.0]
    rate, passed = LogRate(lambda: now[0]), list[str]()

    def log(line: int, text: str = "%s: late") -> None:
        record = logging.LogRecord("x", logging.ERROR, "x.py", line, text, ("a piece",), None)
        if rate.filter(record):
            passed.append(record.getMessage())

    for _ in range(3 * MOST):
        log(1)
    log(2)
    assert len(passed) == MOST + 1
    now[0] = PERIOD
    log(1)
    assert passed[-1] == f"a piece: late ({2 * MOST} like this were left out)"
    log(1)
    assert passed[-1] == "a piece: late"


@pytest.mark.parametrize("name", LOGGERS)
def test_it_is_before_every_logger_that_a_message_can_reach(name: str) -> None:
    assert sum(isinstance(one, LogRate) for one in logging.getLogger(name).filters) == 1


def test_the_loggers_are_nvflare_s() -> None:
    from nvflare.fuel.f3.cellnet.cell import Adapter, Cell
    from nvflare.fuel.f3.cellnet.core_cell import CoreCell
    from nvflare.fuel.f3.sfm import conn_manager
    from nvflare.fuel.f3.streaming import blob_streamer, byte_receiver, byte_streamer, stream_types

    modules = {m.log.name for m in (conn_manager, blob_streamer, byte_receiver, byte_streamer, stream_types)}
    classes = {f"{kind.__module__}.{kind.__qualname__}" for kind in (Adapter, Cell, CoreCell)}
    assert modules | classes == set(logs.LOGGERS)


NOW, TWO_HOURS = datetime.now(UTC), timedelta(hours=2)
LONG = timedelta(days=10)


class Project:
    """A root certificate, and parties with certificates of any times."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self._key = rsa.generate_private_key(65537, 2048)
        self.root = self._make("root", self._key, NOW - LONG, NOW + LONG)

    def party(self, name: str, start: datetime, end: datetime) -> tuple[Path, Path]:
        """The files of its certificate and its key."""
        key = rsa.generate_private_key(65537, 2048)
        path = self._folder / f"{name}.key"
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        path.write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
        return self._make(name, key, start, end), path

    def _make(self, name: str, key: rsa.RSAPrivateKey, start: datetime, end: datetime) -> Path:
        names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in (name, "root")]
        builder = (
            x509.CertificateBuilder(names[1], names[0], key.public_key(), x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=name == "root", path_length=None), critical=True)
        )
        path = self._folder / f"{name}.crt"
        path.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return path


@pytest.fixture(autouse=True)
def again() -> None:
    logs.CERTIFICATES.clear()


def meet(server: tuple[Path, Path], client: tuple[Path, Path], *, theirs: Path, ours: Path) -> None:
    """Connect, with NVFlare's own contexts, if they can. ``theirs``: the root of the server, ``ours`` of the site."""
    params = {"scheme": "https", "secure": True}
    listen = {DriverParams.CA_CERT: theirs, DriverParams.SERVER_CERT: server[0], DriverParams.SERVER_KEY: server[1]}
    call = {DriverParams.CA_CERT: ours, DriverParams.CLIENT_CERT: client[0], DriverParams.CLIENT_KEY: client[1]}
    contexts = [
        net_utils.get_ssl_context(params | {key.value: str(path) for key, path in files.items()}, is_server)
        for files, is_server in ((listen, True), (call, False))
    ]
    assert all(context is not None for context in contexts)

    async def run() -> None:
        async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        listener = await asyncio.start_server(closes, "localhost", 0, ssl=contexts[0])
        port = listener.sockets[0].getsockname()[1]
        try:
            reader, writer = await asyncio.open_connection("localhost", port, ssl=contexts[1])
            await asyncio.wait_for(reader.read(1), 5)
            writer.close()
        except (ssl.SSLError, ConnectionError):
            assert listener.is_serving()
        listener.close()

    asyncio.run(run())


VALID, EARLY, LATE = (
    (NOW - TWO_HOURS, NOW + LONG),
    (NOW + TWO_HOURS, NOW + LONG),
    (NOW - LONG, NOW - TWO_HOURS),
)


@pytest.mark.parametrize(
    ("server", "site", "said"),
    [
        (VALID, VALID, None),
        (VALID, EARLY, "of whoever connected: certificate is not yet valid"),
        (VALID, LATE, "of whoever connected: certificate has expired"),
        (EARLY, VALID, "of the server: certificate is not yet valid"),
        (LATE, VALID, "of the server: certificate has expired"),
    ],
)
def test_a_certificate_two_hours_off_is_told_once_with_this_machines_time(
    server: tuple[datetime, datetime],
    site: tuple[datetime, datetime],
    said: str | None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    project = Project(tmp_path / "project")
    files = project.party("server", *server), project.party("site", *site)
    with caplog.at_level(logging.ERROR, "flare_armour"):
        for _ in range(3):
            meet(*files, theirs=project.root, ours=project.root)
    told = [text for text in caplog.messages if "because of the certificate" in text]
    assert len(told) == (said is not None)
    if said is not None:
        assert said in told[0] and f"{datetime.now(UTC):%Y-%m-%d %H:}" in told[0] and "compare the clocks" in told[0]


def test_a_site_of_another_project_is_told_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, other = Project(tmp_path / "one"), Project(tmp_path / "other")
    meet(one.party("server", *VALID), other.party("site", *VALID), theirs=one.root, ours=one.root)
    assert "of whoever connected: " in caplog.text and "certificate" in caplog.text
