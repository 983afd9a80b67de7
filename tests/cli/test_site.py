"""``fedshift site``: what the owner of a kit is told, and that a dry run shows what a run sends, and sends nothing."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import socket
import ssl
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from adapted import VIT, with_base
from conftest import make_image_site, small_image_job
from errors import raises
from kits import SERVER
from nvflare.lighter.utils import Identity, generate_cert, generate_keys, serialize_cert, serialize_pri_key

from cli.conftest import NAME, Refused
from fedshift import cli
from fedshift.data.locate import SiteSettings, read_settings
from fedshift.federation.in_process import run_in_process
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.flare import codec
from fedshift.flare.dry_run import Sent, contents, dry_run
from fedshift.flare.export import write_job
from fedshift.flare.kit import jobs_folder
from fedshift.schema.errors import PolicyError
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import read_manifest
from fedshift.schema.messages import Answer
from flare_armour.locks import hold_store

OTHERS = ("caltech", "webcam")


@pytest.fixture
def server(kits: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kits / SERVER, tmp_path / "kits" / SERVER))


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Path]:
    """Three sites of a data set that is not simulated, as far as their manifests say."""
    folders = {name: make_image_site(tmp_path / "data", name) for name in (NAME, *OTHERS)}
    for folder in folders.values():
        set_manifest(folder, kind="images")
    return folders


def change(file: Path, before: str, after: str) -> None:
    file.write_text(file.read_text(encoding="utf-8").replace(before, after), encoding="utf-8")


def set_manifest(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def site(*arguments: str | Path) -> int:
    return cli.main(["site", *map(str, arguments)])


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def tls_server(kit: Path) -> Iterator[int]:
    """A port at which a server's kit shows its certificate, and wants one; nothing more."""
    startup = kit / "startup"
    ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(startup / "rootCA.pem"))
    ours.load_cert_chain(startup / "server.crt", startup / "server.key")
    ours.verify_mode = ssl.CERT_REQUIRED

    def serve(listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with suppress(OSError), ours.wrap_socket(connection, server_side=True) as secured:
                secured.recv(1)

    with socket.create_server(("localhost", 0)) as listening:
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def certify(startup: Path, role: str, name: str, *, since: int, until: int, keys: Any = None) -> None:
    """Certificates of the project and of a party, valid from and until so many days from now."""
    private, public = keys or generate_keys()
    project, now = Identity("fedshift_office_caltech"), datetime.datetime.now(datetime.UTC)
    for file, whose, days, is_root in (
        ("rootCA.pem", project, (-400, 400), True),
        (f"{role}.crt", Identity(name, "amazon"), (since, until), False),
    ):
        first, last = (now + datetime.timedelta(days=number) for number in days)
        options = {"ca": is_root, "not_valid_before": first, "not_valid_after": last}
        (startup / file).write_bytes(serialize_cert(generate_cert(whose, project, private, public, **options)))
    (startup / f"{role}.key").write_bytes(serialize_pri_key(private))


@pytest.fixture(autouse=True)
def not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Continuous integration runs as root."""
    monkeypatch.setattr("fedshift.flare.kit.is_root", lambda: False)


# --- init ---------------------------------------------------------------------------------------------------


def test_init_makes_a_site_ready_and_says_what_it_has(
    kit: Path, data: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert site("init", kit, "--data", data[NAME]) == 0
    told = capsys.readouterr().out
    assert told.splitlines()[-1] == "ready"
    manifest = read_manifest(data[NAME])
    counts = ", ".join(f"{len(manifest.by_split(split))} {split}" for split in ("train", "val", "test"))
    assert f"shapes, 48 pictures ({counts}), kind images, in {data[NAME]}" in told
    for word in ("site amazon of project fedshift_office_caltech", "NVFlare 2.", "torch ", "valid from", "GB free"):
        assert word in told
    assert site("init", kit, "--data", data[NAME]) == 0
    assert "wrote" not in capsys.readouterr().out


def test_init_says_whether_the_server_can_be_reached(
    kit: Path, server: Path, data: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with tls_server(server) as port:
        change(kit / "startup" / "fed_client.json", ":8002", f":{port}")
        assert site("init", kit, "--data", data[NAME]) == 0
        assert f"localhost:{port} answers" in capsys.readouterr().out
    assert site("check", kit) == 0, "a server that does not run yet is no fault of the site"
    assert f"localhost:{port} does not answer" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "code", "naming"),
    [
        ({"site": "caltech"}, "other-data", ("caltech", "amazon")),
        ({"kind": "phantom"}, "phantom-data", "--phantom"),
        ({"pictures": []}, "invalid-value", "pictures"),
    ],
)
def test_init_refuses_data_that_are_not_the_sites_own(
    change: dict[str, object],
    code: str,
    naming: str | tuple[str, ...],
    kit: Path,
    data: dict[str, Path],
    refused: Refused,
) -> None:
    set_manifest(data[NAME], **change)
    before = tree(kit)
    refused("site", "init", kit, "--data", data[NAME], code=code, naming=naming)
    assert tree(kit) == before


def test_a_folder_above_the_sites_is_told_from_one_that_is_not_prepared(
    kit: Path, data: dict[str, Path], tmp_path: Path, refused: Refused
) -> None:
    own = data[NAME]
    for folder, code, naming in (
        (own.parent, "not-prepared", f"{own}?"),
        (own.parent.parent, "not-prepared", f"{own}?"),
        (own.parent / "caltech" / "arrays", "not-prepared", "arrays"),
        (own.parent / "nowhere", "not-a-folder", "nowhere"),
    ):
        refused("site", "init", kit, "--data", folder, code=code, naming=naming)
    shutil.rmtree(own)
    refused("site", "init", kit, "--data", own.parent, code="several-sites", naming="caltech, webcam")
    refused("site", "init", kit, "--data", tmp_path, code="not-prepared", naming="manifest.json")


def test_the_phantom_is_taken_if_it_is_asked_for_and_named(
    kit: Path, data: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    set_manifest(data[NAME], kind="phantom")
    assert site("init", kit, "--data", data[NAME], "--phantom") == 0
    assert "they are simulated" in capsys.readouterr().out


def test_a_kit_is_given_what_is_its_own(
    kit: Path, server: Path, data: dict[str, Path], capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    refused("site", "init", kit, code="no-data", naming="--data")
    refused("site", "init", server, "--data", data[NAME], code="wrong-kit", naming="--data")
    with socket.create_server(("", 0)) as listening:
        port = listening.getsockname()[1]
        change(server / "startup" / "fed_server.json", ":8002", f":{port}")
        assert site("init", server) == 1
        assert re.search(rf"error +port: +{port} .*\(Address already in use\)", capsys.readouterr().out)
        store = hold_store(jobs_folder(server))
        assert store is not None
        assert site("check", server) == 0, "its own server is no fault"
        assert f"(process {os.getpid()})" in capsys.readouterr().out
        store.close()
        (server / "pid.fl").write_text(f"{os.getpid()}\n", encoding="utf-8")
        assert site("check", server) == 0, "nor is one that was started before servers locked their store"
        (server / "pid.fl").write_text("4194304\n", encoding="utf-8")
        assert site("check", server) == 1, "the process is gone"
        capsys.readouterr()
    assert site("check", server) == 0
    assert f"{port} is free" in capsys.readouterr().out
    assert not (server / "local" / "fedshift.yaml").exists()
    stores = json.loads((server / "local" / "resources.json").read_text(encoding="utf-8"))
    assert "/tmp/nvflare" not in json.dumps(stores) and str(server / "store" / "jobs") in json.dumps(stores)


def test_root_is_refused_unless_that_is_meant(
    kit: Path, data: dict[str, Path], refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedshift.flare.kit.is_root", lambda: True)
    before = tree(kit)
    refused("site", "init", kit, "--data", data[NAME], code="root", naming="--allow-root")
    assert tree(kit) == before
    assert site("init", kit, "--data", data[NAME], "--allow-root") == 0


def test_init_keeps_what_somebody_has_changed(kit: Path, data: dict[str, Path], refused: Refused) -> None:
    site("init", kit, "--data", data[NAME])
    settings = kit / "local" / "fedshift.yaml"
    edited = settings.read_text(encoding="utf-8").replace("device: auto", "device: cpu")
    settings.write_text(edited, encoding="utf-8")
    refused("site", "init", kit, "--data", data[NAME], code="output-exists", naming="fedshift.yaml")
    assert settings.read_text(encoding="utf-8") == edited
    assert site("init", kit, "--data", data[NAME], "--force") == 0
    assert (kit / "local" / "fedshift.yaml.old").read_text(encoding="utf-8") == edited


def test_code_is_allowed_only_on_purpose_and_the_report_says_so(
    kit: Path, data: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert site("init", kit, "--data", data[NAME], "--allow-code") == 0
    assert re.search(r"warning +settings: .* lead .* code", capsys.readouterr().out)


# --- check --------------------------------------------------------------------------------------------------


def test_check_writes_nothing_and_says_what_is_missing(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(kit)
    assert site("check", kit) == 1
    told = capsys.readouterr().out
    assert "resources.json is missing" in told and "fedshift.yaml names none" in told
    assert told.splitlines()[-1] == "not ready"
    assert tree(kit) == before


def test_a_site_whose_data_do_not_pass_the_check_is_not_ready(
    kit: Path, data: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    site("init", kit, "--data", data[NAME])
    raw = json.loads((data[NAME] / "manifest.json").read_text(encoding="utf-8"))
    tested = next(picture for picture in raw["pictures"] if picture["split"] == "test")
    tested |= {"sha256": raw["pictures"][0]["sha256"]}
    set_manifest(data[NAME], **raw)
    capsys.readouterr()
    assert site("check", kit) == 1
    told = capsys.readouterr().out
    assert re.search(r"error +data: .* \d+ \(test\).* 0000 \(train\)", told)
    shutil.rmtree(data[NAME])
    assert site("check", kit) == 1
    assert "holds no manifest.json" in capsys.readouterr().out


def test_a_policy_under_which_next_to_nothing_leaves_is_told(
    kit: Path, data: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert site("init", kit, "--data", data[NAME]) == 0
    assert "min_cases" not in capsys.readouterr().out
    change(kit / "local" / "fedshift.yaml", "min_cases: 1 ", "min_cases: 50 ")
    trained = len(read_manifest(data[NAME]).by_split("train"))
    assert 0 < trained < 50
    assert site("check", kit) == 0
    assert re.search(rf"note +policy: +min_cases 50.* {trained} training pictures", capsys.readouterr().out)
    for methods, code in (("fedfa", 2), ("fedavg", 0)):
        write_job(job(methods=methods), tmp_path / methods, production=True)
        assert site("dry-run", kit, tmp_path / methods) == code, "what the note says is so"
        assert ("privacy.min_cases: 50" in capsys.readouterr().err) == bool(code)


def test_an_expired_certificate_is_told_before_the_server_refuses_it(
    kit: Path, data: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    site("init", kit, "--data", data[NAME])
    for until, code, said in ((-1, 1, "it has expired"), (20, 0, "19 days left")):
        certify(kit / "startup", "client", NAME, since=-400, until=until)
        capsys.readouterr()
        assert site("check", kit) == code
        assert said in capsys.readouterr().out


def test_a_key_that_is_missing_or_of_another_certificate_is_named_at_site_and_server(
    kit: Path, server: Path, data: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    site("init", kit, "--data", data[NAME])
    site("init", server)
    for folder, name in ((kit, "client.key"), (server, "server.key")):
        key = folder / "startup" / name
        key.write_bytes(serialize_pri_key(generate_keys()[0]))
        for said in ("is not of this certificate", "is no private key", "is missing"):
            capsys.readouterr()
            assert site("check", folder) == 1
            told = capsys.readouterr().out
            assert re.search(rf"error +certificate: {key} {said}", told)
            assert " server: " not in told, "without its key the server says nothing worth knowing"
            key.unlink() if said == "is no private key" else key.write_text("no key", encoding="utf-8")


def test_a_device_that_the_site_does_not_have_is_named(
    kit: Path, data: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    site("init", kit, "--data", data[NAME])
    settings = kit / "local" / "fedshift.yaml"
    change(settings, "device: auto", "device: cuda:63")
    capsys.readouterr()
    assert site("check", kit) == 1
    told = capsys.readouterr().out
    assert re.search(rf"error +device: +{settings}: .*'cuda:63'", told)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (2, 100, r"valid from .*: not yet \(it is \d{4}-\d\d-\d\d \d\d:\d\d UTC\), set this machine's clock"),
        (-100, -2, "it has expired, ask the project's owner for a new kit"),
    ],
)
def test_clocks_that_disagree_with_certificates_are_named(
    before: int,
    after: int,
    said: str,
    kit: Path,
    data: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The site's own certificate, and the server's as it is shown."""
    site("init", kit, "--data", data[NAME])
    server = tmp_path / "server"
    (server / "startup").mkdir(parents=True)
    keys = generate_keys()
    certify(kit / "startup", "client", NAME, since=before, until=after, keys=keys)
    certify(server / "startup", "server", "localhost", since=before, until=after, keys=keys)
    capsys.readouterr()
    with tls_server(server) as port:
        change(kit / "startup" / "fed_client.json", ":8002", f":{port}")
        assert site("check", kit) == 1
    told = capsys.readouterr().out
    assert re.search(rf"error +certificate: .*{said}", told)
    which = "is not valid yet" if before > 0 else "has expired"
    assert re.search(rf"error +server: .* localhost:{port} {which}", told)


# --- dry-run ------------------------------------------------------------------------------------------------


def job(
    *options: str,
    sites: tuple[str, ...] = (NAME, *OTHERS),
    held_out: tuple[str, ...] = (),
    methods: str = "fedfa+fedrdn",
) -> JobSpec:
    """A job with FedFA and FedRDN for these sites."""
    raw = small_image_job(methods, "schedule.rounds=2", *options).dump()
    raw["task"] |= {"sites": sites, "held_out": held_out}
    raw["federation"]["min_sites"] = len(sites)
    return JobSpec.parse(raw, where="test")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_dry_run_shows_every_array_and_leaves_nothing(
    kit: Path, data: dict[str, Path], scratch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site("init", kit, "--data", data[NAME])
    write_job(job(), tmp_path / "job", production=True)
    before, images = tree(kit), tree(data[NAME])
    capsys.readouterr()
    assert site("dry-run", kit, tmp_path / "job", "--all") == 0
    told = capsys.readouterr().out
    assert "answer to 'statistics'" in told and "answer to 'train'" in told
    assert re.search(r"amazon/arrays/fedrdn/mean +3 float64 +24\n", told)
    assert re.search(r"amazon/info/n_train +36 *\n", told)
    assert told.splitlines()[-1].startswith("nothing was sent")
    assert str(data[NAME]) not in told
    assert not list(scratch.glob("fedshift-*")) and tree(kit) == before and tree(data[NAME]) == images


def test_a_dry_run_trains_with_the_jobs_methods_and_sends_what_a_run_sends(
    data: dict[str, Path], tmp_path: Path
) -> None:
    """Names, shapes and types of everything; the values differ, since here no other site takes part."""
    spec = job("schedule.local_steps=1")
    rehearsed = dry_run(spec, NAME, data[NAME], tmp_path / "dry", settings=SiteSettings(device="cpu"))
    real: list[Sent] = []
    info = Site(spec, NAME, data[NAME], SiteOptions(tmp_path / "info", device="cpu")).info()
    run_in_process(
        spec,
        data,
        tmp_path / "run",
        device="cpu",
        on_update=lambda _, update: (
            real.append(contents(codec.TRAIN, Answer(update, info))) if update.site == NAME else None
        ),
    )
    shown = {item.name: item for item in rehearsed[1].items}
    sent = {item.name: item for item in real[0].items}
    assert list(shown) == list(sent)
    for name, item in sent.items():
        if isinstance(item.value, np.ndarray):
            assert shown[name].shape == item.shape
    assert shown[f"{NAME}/n_steps"].value == 1


def test_a_dry_run_trains_adapters_beside_the_sites_own_base(data: dict[str, Path], tmp_path: Path) -> None:
    def make(methods: str, *options: str) -> JobSpec:
        return job(*options, methods=methods)

    spec, _ = with_base(make, tmp_path / "bases", "fedavg", *VIT)
    settings = SiteSettings(device="cpu", weights=tmp_path / "bases")
    shown = dry_run(spec, NAME, data[NAME], tmp_path / "dry", settings=settings)[1].items
    assert {item.name.rpartition(".lora_")[2] for item in shown if ".lora_" in item.name} == {
        f"{factor}.shared.weight" for factor in "AB"
    }
    with raises("weights-missing", naming="base.pt"):
        dry_run(spec, NAME, data[NAME], tmp_path / "none", settings=SiteSettings(device="cpu"))


def test_a_dry_run_holds_to_the_sites_policy(
    kit: Path, data: dict[str, Path], scratch: Path, tmp_path: Path, refused: Refused
) -> None:
    site("init", kit, "--data", data[NAME])
    change(kit / "local" / "fedshift.yaml", "allow: [statistics, ", "allow: [")
    write_job(job(), tmp_path / "job", production=True)
    refused("site", "dry-run", kit, tmp_path / "job", code="not-allowed", naming="privacy.allow")
    assert not list(scratch.glob("fedshift-*"))


@pytest.mark.parametrize("rules", [{}, {"encryption": "required"}])
@pytest.mark.parametrize("encryption", ["null", "masks"])
def test_a_dry_run_refuses_what_a_policy_wants_encrypted_only_if_the_job_does_not(
    encryption: str, rules: dict[str, str], data: dict[str, Path], tmp_path: Path
) -> None:
    spec = job(f"federation.encryption={encryption}", methods="fedavg")
    settings = SiteSettings.parse({"device": "cpu", "privacy": {"min_cases": 1, **rules}}, where="test")
    if rules and encryption == "null":
        with pytest.raises(PolicyError, match=r"privacy\.encryption: required"):
            dry_run(spec, NAME, data[NAME], tmp_path / "dry", settings=settings)
    else:
        assert len(dry_run(spec, NAME, data[NAME], tmp_path / "dry", settings=settings)) == 2


def test_a_dry_run_needs_no_file_of_starting_weights(data: dict[str, Path], tmp_path: Path) -> None:
    """That is at the server only."""
    raw = job().dump()
    raw["task"]["network"]["weights"] = {"file": "not_here.pt", "sha256": "0" * 64}
    spec = JobSpec.parse(raw, where="test")
    assert len(dry_run(spec, NAME, data[NAME], tmp_path / "dry", settings=SiteSettings(device="cpu"))) == 2


def test_a_site_that_is_held_out_would_send_scores_only(data: dict[str, Path], tmp_path: Path) -> None:
    raw = json.loads((data[NAME] / "manifest.json").read_text(encoding="utf-8"))
    set_manifest(data[NAME], pictures=[picture | {"split": "test"} for picture in raw["pictures"]])
    spec = job(sites=OTHERS, held_out=(NAME,))
    (scores,) = dry_run(spec, NAME, data[NAME], tmp_path / "dry", settings=SiteSettings(device="cpu"))
    assert scores.task == codec.VALIDATE
    assert {item.name.split("/")[1] for item in scores.items if item.name.startswith(NAME)} == {
        "kind",
        "round",
        "info",
        "values",
        "evaluations",
        "personal_evaluation",
    }
    assert not [item.name for item in scores.items if item.name.endswith("/cases") and item.value is not None]
    assert not sum(item.bytes for item in scores.items)


def test_a_site_that_only_evaluates_does_not_train_whatever_the_job_says(
    kit: Path,
    data: dict[str, Path],
    scratch: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    refused: Refused,
) -> None:
    assert site("init", kit, "--data", data[NAME], "--evaluation-only") == 0
    assert "only scores models" in capsys.readouterr().out
    write_job(job(), tmp_path / "train", production=True)
    refused("site", "dry-run", kit, tmp_path / "train", code="no-training", naming=("amazon", "privacy.train"))
    write_job(job(sites=OTHERS, held_out=(NAME,)), tmp_path / "evaluate", production=True)
    assert site("dry-run", kit, tmp_path / "evaluate") == 0
    assert "answer to 'validate'" in capsys.readouterr().out


def test_a_dry_run_is_a_sites_that_the_job_asks(
    kit: Path, server: Path, data: dict[str, Path], tmp_path: Path, refused: Refused
) -> None:
    site("init", kit, "--data", data[NAME])
    write_job(job(sites=OTHERS), tmp_path / "job", production=True)
    refused("site", "dry-run", kit, tmp_path / "job", code="other-site", naming=("caltech, webcam", "amazon"))
    refused("site", "dry-run", server, tmp_path / "job", code="wrong-kit")


# --- where processes of jobs run ----------------------------------------------------------------------------


def test_init_writes_what_a_launcher_needs_and_manifests_are_for_kubernetes(
    kit: Path, data: dict[str, Path], capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    words = ("site", "init", str(kit), "--data", str(data[NAME]), "--phantom", "--allow-root", "--launcher")
    refused(*words, "slurm", "--set", "hots=login1", code="unknown-key", naming="host")
    assert not (kit / "local" / "fedshift.yaml").exists()
    options = ("image=fedshift:1", "kit_claim=kit", "kit_path=/kit")
    cli.main([*words, "k8s", "--set", *options])
    assert read_settings(kit / "local").launcher is not None
    assert json.loads((kit / "local" / "comm_config.json").read_text(encoding="utf-8"))["backbone_conn_gen"] == 1
    capsys.readouterr()
    assert cli.main(["site", "manifests", str(kit)]) == 0
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [each["kind"] for each in objects][-1] == "Deployment"
    cli.main([*words, "process", "--force"])
    refused("site", "manifests", str(kit), code="wrong-launcher", naming="k8s")
