"""Encrypted updates, with keys that FLARE has provisioned: the sum is right, and the server cannot read its parts.

tests/flare/test_deployed.py has such a job in a federation of real processes.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from adapted import VIT, with_base
from conftest import SHAPES, make_image_site, make_site, small_image_job, small_job
from errors import raises
from kits import ROOT, SERVER, provision_project

from fedshift import cli
from fedshift.federation.encryption.keys import Keys
from fedshift.federation.encryption.kit_keys import SERVER_KEYS, SITE_KEYS, read_keys
from fedshift.federation.encryption.server import EncryptedCoordinator
from fedshift.federation.encryption.site import SiteEncryption, decrypt_model
from fedshift.federation.encryption.vector import COUNTS, Layout
from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import ADAPTED, read_model_file
from fedshift.federation.resolve import resolve
from fedshift.federation.server.run_files import load_state
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.federation.tensors import read_weights
from fedshift.flare.export import write_job
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Broadcast, SiteInfo, Update
from fedshift.schema.results import BEST, LAST, Results
from fedshift_testing.serialised import Federation, Message

SITES = ("BIDMC", "HK", "UCL")
ENCRYPTED = "federation.encryption=ckks"
BUILDER = "nvflare.lighter.impl.he.HEBuilder"
SGD = ("optimizer.name=sgd", "optimizer.lr=0.1", "optimizer.momentum=0.9", "schedule.local_epochs=4")
"""Adam would make a whole step of a difference in the last digit, wherever a gradient is near 0."""
CLOSE = 1e-6
"""How far a weight may be from the plain mean of the same updates. Measured: 1e-7, which is float32."""


def project() -> dict[str, Any]:
    """The prostate project with FLARE's builder of keys before that of signatures."""
    content: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "project.yml").read_text(encoding="utf-8"))
    builders = content["builders"]
    at = next(n for n, builder in enumerate(builders) if builder["path"].endswith("SignatureBuilder"))
    builders.insert(at, {"path": BUILDER, "args": {}})
    return content


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All parties' kits, as ``nvflare provision`` makes them."""
    folder = tmp_path_factory.mktemp("encrypted")
    (folder / "project.yml").write_text(yaml.safe_dump(project()), encoding="utf-8")
    return provision_project(folder / "project.yml", folder)


@pytest.fixture(scope="module")
def site_keys(kits: Path) -> Keys:
    return read_keys(kits / "HK" / "startup", SITE_KEYS)


@pytest.fixture(scope="module")
def server_keys(kits: Path) -> Keys:
    return read_keys(kits / SERVER / "startup", SERVER_KEYS)


class Run:
    """A job that sums FedFA's statistics too: in clear in one process, and encrypted over FLARE's serialiser."""

    def __init__(self, kits: Path, folder: Path) -> None:
        options = ("fedfa.share=sums", "schedule.rounds=3", "federation.min_sites=3", *SGD)
        gains = {"BIDMC": (1.0, 0.0), "HK": (0.5, 20.0), "UCL": (1.4, -30.0)}
        data = {s: make_site(folder / "data", s, gain=g, offset=o) for s, (g, o) in gains.items()}
        self.job = small_job("fedfa", *options, ENCRYPTED)
        self.plain = folder / "plain"
        self.broadcasts: dict[int, Broadcast] = {}
        self.plain_results = run_in_process(
            small_job("fedfa", *options),
            data,
            self.plain,
            on_update=lambda broadcast, update: self.broadcasts.update({broadcast.round: broadcast}),
        ).results
        federation = Federation(self.job, data, folder / "flare", kits=kits)
        self.results: Results = federation.run().results
        self.messages: list[Message] = federation.messages
        self.server = folder / "flare" / "server"


@pytest.fixture(scope="module")
def run(kits: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(kits, tmp_path_factory.mktemp("run"))


# --- keys -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_servers_keys_decrypt_nothing(site_keys: Keys, server_keys: Keys) -> None:
    values = np.linspace(-3, 3, 50)
    ciphertext = site_keys.encrypt(values)
    assert site_keys.can_decrypt and not server_keys.can_decrypt
    assert np.abs(site_keys.decrypt(ciphertext, 50) - values).max() < 1e-6
    assert site_keys.encrypt(values).tobytes() != ciphertext.tobytes(), "two of the same differ"
    with pytest.raises(ValueError, match="secret_key"):
        server_keys.decrypt(ciphertext, 50)
    with raises("wrong-keys"):
        SiteEncryption(small_job("fedavg", ENCRYPTED), server_keys)


def test_a_server_with_the_secret_key_does_not_start(site_keys: Keys, tmp_path: Path) -> None:
    with raises("wrong-keys"):
        EncryptedCoordinator(small_job("fedavg", ENCRYPTED), tmp_path, keys=site_keys)


def test_keys_that_were_changed_or_are_not_there_are_refused(kits: Path, tmp_path: Path) -> None:
    startup = Path(shutil.copytree(kits / "HK" / "startup", tmp_path / "startup"))
    file = startup / SITE_KEYS
    for damage, code in (
        (lambda: file.write_bytes(file.read_bytes()[:-1] + b"\0"), "file-changed"),
        ((startup / "signature.json").unlink, "file-changed"),
        (file.unlink, "keys-missing"),
    ):
        damage()
        with raises(code, naming=SITE_KEYS):
            read_keys(startup, SITE_KEYS)
    with raises("wrong-keys", naming="x "):
        Keys(b"nonsense", where="x")


def test_without_tenseal_a_sentence_says_what_to_install(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_job("fedavg", ENCRYPTED)  # a job can be made without
    monkeypatch.setitem(sys.modules, "tenseal", None)
    small_job("fedavg", ENCRYPTED)
    with pytest.raises(ConfigError, match=r"TenSEAL.*pip install 'fedshift\[he\]'"):
        read_keys(kits / "HK" / "startup", SITE_KEYS)


# --- the sum ----------------------------------------------------------------------------------------------


def test_what_is_in_clear_is_checked_as_in_a_job_without_encryption(
    site_keys: Keys, server_keys: Keys, tmp_path: Path
) -> None:
    """Scores of rounds, and fewer steps where the clock ends a round."""
    job = small_image_job("fedavg", ENCRYPTED, "schedule.rounds=2", "schedule.minutes=0.0000001", "evaluation.every=1")
    server = EncryptedCoordinator(job, tmp_path / "server", keys=server_keys)
    sites = {
        name: Site(
            job,
            name,
            make_image_site(tmp_path / "data", name),
            SiteOptions(tmp_path / "state", device="cpu", encryption=SiteEncryption(job, site_keys)),
        )
        for name in job.task.sites
    }
    requests = server.requests()
    for task in ("statistics", "train", "train"):
        request = next(requests)
        assert request.task == task
        for site in sites.values():
            server.register(site.info())
            assert server.accept(site.statistics() if task == "statistics" else site.train(request.broadcast))
    next(requests)
    assert server.results.rounds[0].sites["A"].test, "of the aggregate of round 1"


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_the_encrypted_mean_is_the_mean(weights: str, site_keys: Keys, server_keys: Keys, tmp_path: Path) -> None:
    job = small_job("fedavg", f"fedavg.weights={weights}", ENCRYPTED)
    server = EncryptedCoordinator(job, tmp_path, keys=server_keys)
    updates = {site: made(server, site, number) for number, site in enumerate(SITES)}
    _, broadcast = after_a_round(server, SiteEncryption(job, site_keys), updates)
    opened = SiteEncryption(job, site_keys).open(broadcast)
    total = sum(u.n_samples for u in updates.values())
    shares = {s: 1 / 3 if weights == "uniform" else u.n_samples / total for s, u in updates.items()}
    for key, value in opened.weights.items():
        if np.issubdtype(value.dtype, np.integer):
            assert value == max(u.weights[key] for u in updates.values())
            continue
        mean = sum(shares[site] * u.weights[key].astype(np.float64) for site, u in updates.items())
        assert value.dtype == np.float32 and np.abs(value - mean).max() < CLOSE, key


@pytest.mark.slow
def test_what_sites_make_of_the_sums_is_what_the_server_makes_in_clear(run: Run, site_keys: Keys) -> None:
    """Of the first round, in which all sites have trained from the same."""
    sent = next(m for m in run.messages if not m.up and m.round == 2)
    weights = {path[0]: array for path, array in sent.arrays("weights").items()}
    opened, wanted = SiteEncryption(run.job, site_keys).open(Broadcast(2, 1, weights)), run.broadcasts[2]
    assert list(opened.weights) == list(wanted.weights)
    for key, value in wanted.weights.items():
        assert opened.weights[key].dtype == value.dtype
        assert np.abs(opened.weights[key] - value).max() < CLOSE, key
    assert opened.arrays["fedfa"].keys() == wanted.arrays["fedfa"].keys()
    for key, value in wanted.arrays["fedfa"].items():
        # A variance over sites is small beside what it is a variance of: the gammas have fewer digits.
        close = 1e-3 if key.startswith("gamma") else CLOSE
        assert opened.arrays["fedfa"][key].dtype == value.dtype
        assert np.allclose(opened.arrays["fedfa"][key], value, rtol=close, atol=close), key
        assert not key.startswith("gamma") or np.ptp(value) > 0.01, "the gammas of this job would not tell"


def test_the_end_of_a_job_is_that_of_fedavg_in_clear(run: Run, site_keys: Keys, tmp_path: Path) -> None:
    for name in (LAST, BEST):
        decrypt_model(run.server / name, tmp_path / name, site_keys)
        ours, theirs = read_model_file(tmp_path / name), read_model_file(run.plain / name)
        assert ours["round"] == theirs["round"]
        assert list(ours["weights"]) == list(theirs["weights"])
        for key, value in theirs["weights"].items():
            # Two rounds of training make more of a difference in the last digit: measured, 2e-4 to 1e-3.
            assert np.abs(ours["weights"][key].numpy() - value.numpy()).max() < 0.02, key
        assert ours["methods"]["fedfa"].keys() == theirs["methods"]["fedfa"].keys()
    assert run.results.selected == run.plain_results.selected
    for ours_round, theirs_round in zip(run.results.rounds, run.plain_results.rounds, strict=True):
        for site in SITES:
            got, wanted = ours_round.sites[site], theirs_round.sites[site]
            assert (got.n, got.steps) == (wanted.n, wanted.steps)
            assert got.val.keys() == wanted.val.keys()
            assert all(abs(got.val[m] - wanted.val[m]) < 0.02 for m in got.val)
            assert got.train_loss is not None and wanted.train_loss is not None
            assert abs(got.train_loss - wanted.train_loss) < 0.01
    assert run.plain_results.rounds[-1].sites["HK"].val["dice"] > 0.5  # and not equal because nothing was learned
    assert run.results.final is not None and not run.results.final.newcomers


def test_a_site_that_was_absent_knows_all_after_the_next_message(run: Run, site_keys: Keys) -> None:
    """Nothing is remembered from earlier messages: two fresh halves make the same of the last one."""
    last = [m for m in run.messages if not m.up and m.task == "train"][-1]
    broadcast = Broadcast(last.round, 0, {path[0]: array for path, array in last.arrays("weights").items()})
    one, two = (SiteEncryption(run.job, site_keys).open(broadcast) for _ in range(2))
    assert one.arrays["fedfa"].keys() == two.arrays["fedfa"].keys() and one.arrays["fedfa"]
    for key, value in one.weights.items():
        assert value.tobytes() == two.weights[key].tobytes()
    for key, value in one.arrays["fedfa"].items():
        assert value.tobytes() == two.arrays["fedfa"][key].tobytes()


@pytest.mark.slow
def test_an_interrupted_run_goes_on_from_the_sum(site_keys: Keys, server_keys: Keys, tmp_path: Path) -> None:
    job = small_image_job("fedavg", ENCRYPTED)
    server, encryption = EncryptedCoordinator(job, tmp_path, keys=server_keys), SiteEncryption(job, site_keys)
    updates = {site: made(server, site, number) for number, site in enumerate(job.task.sites)}
    _, before = after_a_round(server, encryption, updates)
    again = EncryptedCoordinator(job, tmp_path, keys=server_keys)
    assert again.resume() == 1
    after = again.open(2)
    assert encryption.open(after).weights.keys() == encryption.open(before).weights.keys()
    for key, value in encryption.open(before).weights.items():
        assert value.tobytes() == encryption.open(after).weights[key].tobytes()
    for update in updates.values():
        opened = encryption.open(after)
        second = replace(update, round=2, weights=opened.weights)
        assert again.accept(encryption.seal(second, opened)), again.rejected


def test_personal_layers_stay_at_the_site(site_keys: Keys) -> None:
    job = small_job("fedbn", ENCRYPTED)
    layout = Layout(job, site_keys.slots)
    assert layout.withheld
    assert not layout.withheld & {segment.name for segment in layout.segments}


# --- what others see --------------------------------------------------------------------------------------


def test_no_number_of_the_model_is_in_a_message(run: Run) -> None:
    """After the first round's task, which has the initial model, which everybody can make."""
    seen = 0
    for message in run.messages:
        if message.up or message.round > 1:
            for array in (v for v in message.content.values() if isinstance(v, np.ndarray)):
                assert not np.issubdtype(array.dtype, np.floating)
                seen += array.dtype == np.uint8
    layout = Layout(run.job, 4096)
    trained = 3 * 3  # sites, rounds
    sent_down = [m for m in run.messages if not m.up and m.round > 1]
    assert seen == (trained + len(sent_down)) * len(layout.chunks)


def test_what_the_server_writes_is_ciphertext(run: Run) -> None:
    net_keys = {key for key, value in Layout(run.job, 4096).template.items() if value.dtype == np.float32}
    for name in (LAST, BEST):
        content = read_model_file(run.server / name)
        assert not net_keys & content["weights"].keys()
        assert not content["methods"]
    state = load_state(run.server)
    assert state is not None and COUNTS in state.weights and not net_keys & state.weights.keys()


def test_bytes_of_ciphertexts_are_in_the_results(run: Run) -> None:
    plain, encrypted = run.plain_results.rounds[1].sites["HK"], run.results.rounds[1].sites["HK"]
    assert encrypted.bytes_up > 2 * plain.bytes_up
    assert encrypted.bytes_down > 2 * plain.bytes_down


# --- what a server can still refuse -----------------------------------------------------------------------


def made(server: EncryptedCoordinator, site: str, number: int) -> Update:
    """An update in clear around the initial model, with a sample count of its own."""
    rng = np.random.default_rng(number)
    weights = {
        key: value + rng.normal(0, 0.1, value.shape).astype(value.dtype)
        if value.dtype == np.float32
        else value + np.int64(number + 1)
        for key, value in read_weights(Layout(server.job, 4096).net).items()
    }
    weights = {k: np.abs(v) if k.endswith("running_var") else np.asarray(v) for k, v in weights.items()}
    n = 8 * (number + 2)
    return Update(site, 1, n_samples=n, n_steps=number + 2, weights=weights, metrics={"train_loss": 1.0})


def ready(server: EncryptedCoordinator, updates: dict[str, Update]) -> Broadcast:
    """The first round, open."""
    server.open(0)
    for site, update in updates.items():
        server.register(SiteInfo(site, "phantom", update.n_samples, 1, 1, "0" * 64, "case"))
        assert server.accept(Update(site, 0, n_samples=update.n_samples, n_steps=0))
    server.close()
    return server.open(1)


def after_a_round(
    server: EncryptedCoordinator, encryption: SiteEncryption, updates: dict[str, Update]
) -> tuple[Broadcast, Broadcast]:
    first = ready(server, updates)
    for update in updates.values():
        assert server.accept(encryption.seal(update, first)), server.rejected
    server.close()
    return first, server.open(2)


def test_what_cannot_be_added_is_refused_with_its_name(
    site_keys: Keys, server_keys: Keys, kits: Path, tmp_path: Path
) -> None:
    import tenseal

    job = small_job("fedavg", ENCRYPTED)
    server, encryption = EncryptedCoordinator(job, tmp_path, keys=server_keys), SiteEncryption(job, site_keys)
    updates = {site: made(server, site, number) for number, site in enumerate(SITES)}
    first = ready(server, updates)
    good = encryption.seal(updates["HK"], first)
    chunk, readable = "ckks.00000", next(k for k, v in updates["HK"].weights.items() if v.dtype == np.float32)
    other = tenseal.context(tenseal.SCHEME_TYPE.CKKS, 8192, -1, [60, 30, 40], tenseal.ENCRYPTION_TYPE.SYMMETRIC)
    other.global_scale = 2**30
    stranger = Keys(other.serialize(save_secret_key=True), where="others")
    for changes, key, reason in (
        ({chunk: np.zeros(9)}, chunk, "no row of bytes"),
        ({chunk: good.weights[chunk][:-20]}, chunk, "no ciphertext of this project's keys"),
        ({chunk: np.zeros(100, np.uint8)}, chunk, "no ciphertext of this project's keys"),
        ({chunk: stranger.encrypt(np.zeros(4096))}, chunk, "no "),
        ({chunk: site_keys.encrypt(np.zeros(7))}, chunk, "no ciphertext of this project's keys with 4096 numbers"),
        ({"ckks.99999": good.weights[chunk]}, "ckks.99999", "is not expected in weights"),
        ({readable: updates["HK"].weights[readable]}, readable, "is not expected in weights"),
    ):
        assert not server.accept(replace(good, weights={**good.weights, **changes}))
        fault = server.record.current.rejected[-1]
        assert fault.site == "HK" and fault.key == key and reason in fault.reason, fault
    short = {k: v for k, v in good.weights.items() if k != chunk}
    assert not server.accept(replace(good, weights=short))
    assert chunk in server.record.current.rejected[-1].key and "missing" in server.record.current.rejected[-1].reason
    for bad in (replace(good, n_samples=10**6), replace(good, round=2), replace(good, arrays={"fedfa": {}})):
        assert not server.accept(bad)
    assert server.accept(good)


def test_broken_ciphertexts_are_refused_whatever_they_are(site_keys: Keys, server_keys: Keys) -> None:
    whole, rng = site_keys.encrypt(np.arange(30.0)), np.random.default_rng(0)
    refused = 0
    for number in range(60):
        broken = whole.copy() if number % 3 else rng.integers(0, 256, 500, dtype=np.uint8)
        if number % 3 == 1:
            broken = broken[: rng.integers(len(whole))]
        elif number % 3 == 2:
            broken[rng.integers(0, 200, 4)] ^= 0x55
        try:
            server_keys.check(broken, 30)
        except ValueError:
            refused += 1
    assert refused > 55  # a few flips leave something that is as long as it should be


def test_a_site_encrypts_no_nonsense(site_keys: Keys, server_keys: Keys, tmp_path: Path) -> None:
    job = small_job("fedavg", ENCRYPTED)
    encryption = SiteEncryption(job, site_keys)
    update = made(EncryptedCoordinator(job, tmp_path, keys=server_keys), "HK", 0)
    key = next(k for k, v in update.weights.items() if v.dtype == np.float32)
    for value in (np.nan, np.inf, 1e30):
        weights = {**update.weights, key: np.full_like(update.weights[key], value)}
        with pytest.raises(DataError, match=f"site HK, round 1: {key} .* cannot be encrypted"):
            encryption.seal(replace(update, weights=weights), Broadcast(1, 0, {}))


def test_sites_see_that_a_sum_has_a_part_that_no_site_may_encrypt(
    site_keys: Keys, server_keys: Keys, tmp_path: Path
) -> None:
    """The server cannot see it, so it becomes part of the sum."""
    job = small_job("fedavg", ENCRYPTED)
    server, encryption = EncryptedCoordinator(job, tmp_path, keys=server_keys), SiteEncryption(job, site_keys)
    updates = {site: made(server, site, number) for number, site in enumerate(SITES)}
    first = ready(server, updates)
    sealed = {site: encryption.seal(update, first) for site, update in updates.items()}
    huge = {**sealed["HK"].weights, "ckks.00000": site_keys.encrypt(np.full(4096, 2.0**50))}
    assert all(server.accept(u) for u in (sealed["BIDMC"], replace(sealed["HK"], weights=huge), sealed["UCL"]))
    server.close()
    with pytest.raises(ConfigError, match=r"1e\+15"):
        encryption.open(server.open(2))


def test_a_message_that_is_not_encrypted_as_it_should_be_is_refused(site_keys: Keys, run: Run) -> None:
    encryption = SiteEncryption(run.job, site_keys)
    last = [m for m in run.messages if not m.up and m.task == "train"][-1]
    weights = {path[0]: array for path, array in last.arrays("weights").items()}
    chunk = "ckks.00000"
    for changed, reason in (
        (encryption.open(Broadcast(2, 0, weights)).weights, "does not say how many"),
        ({k: v for k, v in weights.items() if k != chunk}, "ckks.00000 is missing"),
        ({**weights, chunk: weights[chunk][:-5]}, "a part is no ciphertext of this project's keys"),
        ({**weights, COUNTS: np.array([48, 4], np.int64)}, "4 sites with 48 in all"),
        ({**weights, COUNTS: np.array([0, 0], np.int64)}, "0 sites with 0 in all"),
    ):
        with pytest.raises(ConfigError, match=reason):
            encryption.open(Broadcast(2, 0, changed))


# --- jobs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("methods", ["fedavg", "fedprox", "fedbn", "mixstyle", "fedsam"])
def test_methods_that_only_average_can_be_encrypted(methods: str) -> None:
    assert small_job(methods, ENCRYPTED).federation.encryption == "ckks"


def test_other_jobs_do_not_mention_encryption() -> None:
    assert "encryption" not in small_job("fedavg").dump()["federation"]


def test_one_process_has_nobody_to_hide_from(tmp_path: Path) -> None:
    with raises("encryption-in-process"):
        run_in_process(small_job("fedavg", ENCRYPTED), {}, tmp_path)


# --- taking a model home ----------------------------------------------------------------------------------


def test_a_site_makes_the_servers_model_readable(
    run: Run, kits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "best.pt"
    command = ["site", "decrypt", str(kits / "HK"), str(run.server / BEST), "--out", str(out)]
    assert cli.main(command) == 0
    assert str(out) in capsys.readouterr().out
    assert read_model_file(out)["round"] == read_model_file(run.server / BEST)["round"]
    assert cli.main([*command[:3], str(out), "--out", str(tmp_path / "twice.pt")]) == 2
    assert "[not-encrypted]" in capsys.readouterr().err
    assert cli.main(["site", "decrypt", str(kits / SERVER), *command[3:]]) == 2
    assert "decrypt" in capsys.readouterr().err


def test_a_dry_run_of_an_encrypted_job_needs_the_keys(
    kits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kit = Path(shutil.copytree(kits / "HK", tmp_path / "HK"))
    site = make_site(tmp_path / "data", "HK")
    (kit / "local" / "fedshift.yaml").write_text(f"data: {{prostate: {site}}}\n", encoding="utf-8")
    job = write_job(small_job("fedavg", ENCRYPTED), tmp_path / "job", production=True)
    assert cli.main(["site", "dry-run", str(kit), str(job)]) == 0
    assert "in the ciphertexts" in capsys.readouterr().out
    (kit / "startup" / SITE_KEYS).unlink()
    assert cli.main(["site", "dry-run", str(kit), str(job)]) == 2
    assert "[keys-missing]" in capsys.readouterr().err


def test_adapters_are_encrypted_and_merged_where_they_are_decrypted(
    kits: Path, site_keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSHIFT_WEIGHTS", str(tmp_path / "weights"))
    data = {site: make_image_site(tmp_path / "data", site) for site in SITES}
    task, options = tmp_path / "shapes.yaml", (*VIT, "schedule.rounds=1", "federation.min_sites=3")
    task.write_text(SHAPES.read_text(encoding="utf-8").replace("[A, B, C]", f"[{', '.join(SITES)}]"), encoding="utf-8")

    def make(methods: str, *options: str) -> JobSpec:
        return resolve(str(task), methods, options=options)

    plain, _ = with_base(make, tmp_path / "weights", "fedavg", *options)
    run_in_process(plain, data, tmp_path / "plain")
    job, _ = with_base(make, tmp_path / "weights", "fedavg", *options, ENCRYPTED)
    Federation(job, data, tmp_path / "flare", kits=kits).run()
    decrypt_model(tmp_path / "flare" / "server" / LAST, tmp_path / "open.pt", site_keys)
    ours, theirs = (read_model_file(path) for path in (tmp_path / "open.pt", tmp_path / "plain" / LAST))
    for part in ("weights", ADAPTED):
        assert ours[part].keys() == theirs[part].keys()
        for key, value in theirs[part].items():
            torch.testing.assert_close(ours[part][key], value, rtol=0, atol=1e-5)
