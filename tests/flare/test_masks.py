"""Masks over FLARE: the same bits as in one process, keys signed by kits, and nothing but sums at the server.

tests/flare/test_deployed.py has such a job in a federation of real processes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from conftest import make_site, small_image_job, small_job
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from errors import raises
from kits import SERVER
from modelfiles import assert_same_model

from fedshift import cli
from fedshift.federation.encryption.kit_keys import PADDING, KitIdentity, server_checker
from fedshift.federation.encryption.masks.protocol import KEYS, MASKS, VECTOR
from fedshift.federation.encryption.masks.site import FILE_NAME, SiteMasks
from fedshift.federation.encryption.vector import VectorLayout
from fedshift.federation.in_process import run_in_process
from fedshift.federation.message_limits import SLACK, MessageLimits
from fedshift.flare.aggregator import FedshiftAggregator
from fedshift.flare.export import write_job
from fedshift.schema.messages import Broadcast, SiteInfo, Update
from fedshift.schema.results import LAST
from fedshift_testing.serialised import Federation

from .conftest import image_sites

MASKED = "federation.encryption=masks"
SGD = ("optimizer.name=sgd", "optimizer.lr=0.1", "optimizer.momentum=0.9")


# --- a run ------------------------------------------------------------------------------------------------


def test_over_flares_serialiser_a_run_is_that_of_one_process_also_if_the_server_is_killed(tmp_path: Path) -> None:
    """Every task meets a new executor, so all that a site knows for unmasking is on its disk."""
    job = small_image_job("fedfa", "fedfa.share=sums", "schedule.rounds=2", "federation.min_sites=2", *SGD, MASKED)
    data = image_sites(tmp_path / "data")
    run_in_process(job, data, tmp_path / "here")
    federation = Federation(job, data, tmp_path / "flare")
    coordinator = federation.run(killed_in=2)
    assert_same_model(tmp_path / "flare" / "server" / LAST, tmp_path / "here" / LAST)
    assert all(not record.rejected and not record.absent for record in coordinator.results.rounds)
    vectors = 0
    for message in federation.messages:
        floating = [a for a in message.arrays("weights").values() if np.issubdtype(a.dtype, np.floating)]
        assert not (message.up and floating)
        vectors += message.up and VECTOR in {path[0] for path in message.arrays("weights")}
        if not message.up and message.task == "train":
            assert {path[1] for path in message.arrays("arrays") if path[0] == MASKS} == {KEYS + site for site in data}
    assert vectors == 7  # two rounds of three sites, and one of the round in which the server was killed
    assert {message.task for message in federation.messages} == {"statistics", "train", "unmask", "validate"}
    names = {path.parent.name for path in (tmp_path / "flare").rglob(FILE_NAME)}
    assert names == {*data}


def test_only_jobs_with_masks_have_the_task(tmp_path: Path) -> None:
    def tasks(*options: str) -> bool:
        job = small_job("fedavg", "federation.min_sites=2", *options)
        folder = write_job(job, tmp_path / str(len(options)))
        return '"unmask"' in (folder / "app" / "config" / "config_fed_client.json").read_text(encoding="utf-8")

    assert tasks(MASKED) and not tasks()


def test_masked_numbers_have_room_in_messages() -> None:
    job = small_job("fedavg", "federation.min_sites=2", MASKED)
    needed = 8 * VectorLayout(job, received=False).size
    assert 2 * needed <= MessageLimits.from_job(job).answer - SLACK <= 2 * needed + 10_000


# --- kits -------------------------------------------------------------------------------------------------


def test_a_kit_signs_and_checks(kits_of: Callable[[str], Path], tmp_path: Path) -> None:
    kits = kits_of("prostate")
    hk, ucl = (KitIdentity(kits / site / "startup") for site in ("HK", "UCL"))
    signature, certificate = ucl.sign(b"key")
    hk.check("UCL", b"key", signature, certificate)
    cut = certificate[: len(certificate) // 2]
    for site, content, signed, by, reason in (
        ("BIDMC", b"key", signature, certificate, "comes with the certificate of UCL"),
        ("UCL", b"other", signature, certificate, "is not signed by that site"),
        ("UCL", b"key", hk.sign(b"key")[0], certificate, "is not signed by that site"),
        ("UCL", b"key", *hk.sign(b"key"), "comes with the certificate of HK"),
        ("UCL", b"key", *self_signed("UCL"), "that the project's owner has not made"),
        ("UCL", b"key", b"", "", "is not signed"),
        ("UCL", b"key", signature, cut, "comes with no certificate"),
    ):
        with pytest.raises(ValueError, match=reason):
            hk.check(site, content, signed, by)
    for file, damage in (("client.key", lambda path: path.write_bytes(b"no key")), ("rootCA.pem", Path.unlink)):
        startup = Path(shutil.copytree(kits / "HK" / "startup", tmp_path / file))
        damage(startup / file)
        with raises("file-unreadable", naming=file):
            KitIdentity(startup)


@pytest.mark.parametrize("run", ["job", "another job"])
def test_the_server_takes_keys_that_are_signed_for_its_job(
    run: str, kits_of: Callable[[str], Path], tmp_path: Path
) -> None:
    kits, aggregator = kits_of("prostate"), FedshiftAggregator()
    job = small_job("fedavg", "federation.min_sites=2", MASKED, sites=("BIDMC", "HK", "UCL"))
    startup = kits / SERVER / "startup"
    aggregator.begin(job, tmp_path / "server", on_progress=lambda coordinator: None, startup=startup, run="job")
    aggregator.coordinator.open(0)
    aggregator.coordinator.register(SiteInfo("HK", "phantom", 8, 1, 1, "0" * 64, "case"))
    identity = KitIdentity(kits / "HK" / "startup")
    masks = SiteMasks(job, "HK", folder=tmp_path / "HK", run=run, identity=identity, least=3)
    taken = aggregator.coordinator.accept(masks.seal(Update("HK", 0, n_samples=8, n_steps=0), Broadcast(0, 0, {})))
    assert taken == (run == "job")
    assert taken or "not signed" in aggregator.coordinator.rejected["HK"]


def test_a_server_without_kits_leaves_keys_to_the_sites_and_one_with_a_damaged_root_says_so(tmp_path: Path) -> None:
    assert server_checker(tmp_path) is None
    (tmp_path / "rootCA.pem").write_text("no certificate", encoding="utf-8")
    with raises("file-unreadable", naming="rootCA.pem"):
        server_checker(tmp_path)


def self_signed(name: str) -> tuple[bytes, str]:
    """A signature of ``b"key"`` and a certificate from a root of one's own."""
    key = rsa.generate_private_key(65537, 2048)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(days=1))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    return key.sign(b"key", PADDING, hashes.SHA256()), builder.public_bytes(serialization.Encoding.PEM).decode()


def test_a_dry_run_of_a_masked_job_says_what_is_behind_the_masks(
    kits_of: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kit = Path(shutil.copytree(kits_of("prostate") / "HK", tmp_path / "HK"))
    site = make_site(tmp_path / "data", "HK")
    data, settings = f"data: {{prostate: {site}}}\n", kit / "local" / "fedshift.yaml"
    settings.write_text(data, encoding="utf-8")
    job = write_job(small_job("fedavg", "federation.min_sites=2", MASKED), tmp_path / "job", production=True)
    assert cli.main(["site", "dry-run", str(kit), str(job)]) == 0
    printed = capsys.readouterr().out
    assert "behind the masks" in printed
    assert "over 3 sites" in printed and "of 2 other sites" in printed
    settings.write_text(data + "privacy: {min_sites_in_sum: 7}\n", encoding="utf-8")
    assert cli.main(["site", "dry-run", str(kit), str(job)]) == 2
    error = capsys.readouterr().err
    assert "[too-few-sites]" in error and "over 7" in error
    settings.write_text(data, encoding="utf-8")
    (kit / "startup" / "client.key").unlink()
    assert cli.main(["site", "dry-run", str(kit), str(job)]) == 2
    assert "[file-unreadable]" in capsys.readouterr().err
