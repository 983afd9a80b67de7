"""Parties that a deployed federation must not let in, and a site whose fedshift is another."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from conftest import small_image_job
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from nvflare.fuel.flare_api.flare_api import new_secure_session
from nvflare.lighter.utils import load_crt

from fedshift import __version__
from fedshift.cli import main

from .conftest import ROOT, image_sites
from .deployed import LEAD, OWNER, PROJECT, SERVER, Deployed, DeployedRun, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedRun]:
    """Site A as it should be, B with another fedshift, C with an expired certificate; D is of another project.

    E's certificate is valid in two hours, as if its clock, or the project's, were wrong by two hours.
    """
    folder = tmp_path_factory.mktemp("guarded")
    data = image_sites(folder / "data")
    data["E"] = data["C"]
    other = folder / "other_version"
    shutil.copytree(ROOT / "custom", other, ignore=shutil.ignore_patterns("__pycache__"))
    init = other / "fedshift" / "__init__.py"
    init.write_text(init.read_text(encoding="utf-8") + "\n__version__ = '99.0'\n", encoding="utf-8")
    with (
        Deployed(folder / "ours", data) as federation,
        Deployed(folder / "theirs", {"D": data["C"]}, port=federation.port) as stranger,
    ):
        set_times(federation, "C", start=-timedelta(days=30), end=-timedelta(days=1))
        set_times(federation, "E", start=timedelta(hours=2), end=timedelta(days=30))
        federation.start(SERVER, "A", "C", "E")
        federation.start("B", environment={"PYTHONPATH": os.pathsep.join([str(other), str(ROOT)])})
        federation.connected(["A", "B"])
        stranger.start("D")
        options = ("schedule.rounds=2", "federation.min_sites=1", "federation.grace=2")
        job = small_image_job("fedavg", *options, sites=("A", "B", "C"))
        run = DeployedRun.submit(federation, job).end()
        wait_for(lambda: "CERTIFICATE_VERIFY_FAILED" in stranger.log("D"), 240, "D to be refused")
        # A person whose certificate has expired does not get as far as the login either.
        set_times(federation, OWNER, start=-timedelta(days=30), end=-timedelta(hours=2))
        yield run


def set_times(federation: Deployed, party: str, *, start: timedelta, end: timedelta) -> None:
    """Put a certificate into a kit that was signed by its project, and is valid between these times from now."""
    startup = federation.kits / party / "startup"
    old = load_crt(startup / "client.crt")
    key = federation.root_key()
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(old.issuer)
        .public_key(old.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + start)
        .not_valid_after(now + end)
    )
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    certificate = builder.sign(key, hashes.SHA256())
    (startup / "client.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def test_only_sites_of_the_project_with_a_valid_certificate_get_in(guarded: DeployedRun) -> None:
    connected = {client.name for client in guarded.federation.session.get_connected_client_list()}
    assert connected == {"A", "B"}
    for name in ("C", "D", "E"):
        assert f"Client: New client {name}@" not in guarded.federation.log(SERVER)


def test_a_site_can_see_that_its_certificate_has_expired(
    guarded: DeployedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["site", "check", str(guarded.federation.kits / "C")]) == 1
    assert re.search(r"certificate.*(expired|ended)", capsys.readouterr().out)


def test_the_server_and_the_sites_check_say_that_a_certificate_is_out_of_time(
    guarded: DeployedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    federation = guarded.federation
    for site, ours, theirs in (
        ("C", "it has expired, ask the project's owner for a new kit", "certificate has expired"),
        ("E", "not yet (it is ", "certificate is not yet valid"),
    ):
        assert main(["site", "check", str(federation.kits / site)]) == 1
        assert ours in " ".join(capsys.readouterr().out.split())
        said = f"because of the certificate of whoever connected: {theirs}; the clock of this machine says"
        wait_for(lambda said=said: said in federation.log(SERVER), 120, f"the server to say why it refuses {site}")


def test_a_person_with_an_expired_certificate_does_not_log_in(guarded: DeployedRun) -> None:
    federation = guarded.federation
    with pytest.raises(Exception, match=r"(?i)connect|login|session|certificate|timed out"):
        new_secure_session(OWNER, str(federation.kits / OWNER), timeout=20)
    assert f"user session for {LEAD}" in federation.log(SERVER)
    assert f"user session for {OWNER}" not in federation.log(SERVER)


def test_a_site_can_see_that_its_kit_is_of_another_project(
    guarded: DeployedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    kit = guarded.federation.folder.parent / "theirs" / "provisioned" / PROJECT / "prod_00" / "D"
    assert main(["site", "check", str(kit)]) == 1
    assert f"of project {PROJECT}" in " ".join(capsys.readouterr().out.split())


def test_a_site_with_another_fedshift_is_left_out_and_both_versions_are_named(guarded: DeployedRun) -> None:
    for record in guarded.results.rounds:
        assert guarded.trained(record.round) == {"A"}
        (rejected,) = record.rejected
        assert (rejected.site, rejected.key) == ("B", "version")
        assert "fedshift 99.0" in rejected.reason and f"fedshift {__version__}" in rejected.reason


def test_what_is_left_out_is_in_the_audit_log(guarded: DeployedRun) -> None:
    logs = [path.read_text(encoding="utf-8") for path in guarded.folder.rglob("*audit*") if path.is_file()]
    assert any("version: " in text and "fedshift 99.0" in text for text in logs)
