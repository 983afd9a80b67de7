"""A certificate that is out of time, or of another project, is said to be so in the log of whoever refuses it."""

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

from flare_armour.once_a_minute import OnceAMinute
from flare_armour.patches import tls_faults

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
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_utils, "get_ssl_context", net_utils.get_ssl_context)
    monkeypatch.setattr(tls_faults, "_TOLD", OnceAMinute())
    tls_faults.apply()


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
    with caplog.at_level(logging.ERROR, "fedshift"):
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
