"""``fedshift doctor``: what is wrong is named, with the mend; what cannot be checked says so; nothing takes long."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from importlib import metadata
from pathlib import Path

import pytest
from conftest import make_image_site, make_site, small_image_job
from kits import SERVER

from cli.conftest import NAME
from fedshift import cli
from fedshift.cli.checks import data as data_checks
from fedshift.cli.checks import job as job_checks
from fedshift.cli.checks import machine as machine_checks
from fedshift.cli.checks import server as server_checks
from fedshift.cli.checks.kit import about_certificate, about_permissions
from fedshift.cli.checks.launcher import about_launcher
from fedshift.cli.checks.remark import Remark, within
from fedshift.federation.memory import Need
from fedshift.flare.export import write_job
from fedshift.flare.kit import Kit, is_root, open_kit
from fedshift.flare.kit_files import lay, local_files
from fedshift.schema.errors import ConfigError
from fedshift.schema.launcher import Kind, parse_launcher

CONSOLE = "coordinator@coordination.example"


@pytest.fixture
def ready(kit: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A site's kit as ``fedshift site init`` leaves it."""
    data = make_image_site(tmp_path / "data", NAME)
    assert cli.main(["site", "init", str(kit), "--data", str(data), "--phantom", "--allow-root"]) == 0
    capsys.readouterr()
    return kit


def doctor(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, dict[str, list[Remark]]]:
    """Exit code, and the remarks by what they are about."""
    capsys.readouterr()
    code = cli.main(["doctor", "--json", *map(str, words)])
    remarks: dict[str, list[Remark]] = {}
    for remark in json.loads(capsys.readouterr().out)["checks"]:
        remarks.setdefault(remark["about"], []).append(Remark(**remark))
    return code, remarks


def levels(remarks: Iterator[Remark] | list[Remark]) -> list[str]:
    return [remark.level for remark in remarks]


# --- as a command -------------------------------------------------------------------------------------------


def test_without_a_kit_the_machine_is_checked(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, remarks = doctor(capsys)
    assert code == 0
    assert {"software", "packages", "GPU", "memory", "disk", "data"} == set(remarks)
    assert levels(remarks["data"]) == ["note"]
    make_site(bare / "fedshift", "HK")
    _, remarks = doctor(capsys)
    assert "HK" in remarks["data"][0].text


def test_a_kit_that_is_ready_has_nothing_wrong_and_lines_for_people(
    ready: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, remarks = doctor(capsys, ready)
    assert code == 0 and not [each for of in remarks.values() for each in of if each.level == "error"], remarks
    about = {"settings", "permissions", "certificate", "name", "proxy", "server", "clock", "data"}
    assert about <= set(remarks)
    assert cli.main(["doctor", str(ready)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("nothing is wrong")
    assert len(lines) == 1 + sum(map(len, remarks.values()))


def test_a_kit_that_is_not_set_up_is_wrong_and_the_rest_is_checked_all_the_same(
    kit: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, remarks = doctor(capsys, kit)
    assert code == 1 and "error" in levels(remarks["settings"]) and levels(remarks["data"]) == ["error"]
    code, remarks = doctor(capsys, tmp_path)
    assert code == 1 and str(tmp_path) in remarks["kit"][0].text
    assert remarks["packages"]


def test_the_kits_of_server_and_console_are_checked_too(
    kits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Path(shutil.copytree(kits / SERVER, tmp_path / SERVER))
    (port,) = (free_port(),)
    file = server / "startup" / "fed_server.json"
    file.write_text(file.read_text(encoding="utf-8").replace(":8002", f":{port}"), encoding="utf-8")
    assert cli.main(["site", "init", str(server), "--allow-root"]) == 0
    code, remarks = doctor(capsys, server)
    assert code == 0 and levels(remarks["port"]) == ["ok"] and "server" not in remarks
    code, remarks = doctor(capsys, kits / CONSOLE)
    assert code == 0 and levels(remarks["certificate"]) == ["ok"]
    assert levels(remarks["server"]) == ["note"] and "settings" not in remarks


# --- the limit ----------------------------------------------------------------------------------------------


def test_a_check_that_does_not_end_says_so_after_what_it_has_found() -> None:
    go_on = threading.Event()

    def check() -> Iterator[Remark]:
        yield Remark("ok", "disk", "the first")
        go_on.wait()

    started = time.monotonic()
    first, second = within("disk", check, limit=0.2)
    go_on.set()
    assert time.monotonic() - started < 5
    assert first.text == "the first" and second.level == "note" and "0.2 s" in second.text


def test_a_check_that_fails_is_a_line_of_the_report() -> None:
    def refuse() -> Iterator[Remark]:
        raise ConfigError("code", "the sentence")
        yield

    def fail() -> Iterator[Remark]:
        raise PermissionError(13, "Permission denied", "here")
        yield

    def lack() -> Iterator[Remark]:
        raise ImportError("libcudart.so: no such file")
        yield

    (remark,) = within("GPU", lack)
    assert remark.level == "error" and "libcudart.so" in remark.text
    assert list(within("job", refuse)) == [Remark("error", "job", "the sentence")]
    (remark,) = within("disk", fail)
    assert remark.level == "note" and "here" in remark.text


# --- kit ----------------------------------------------------------------------------------------------------


def test_a_key_that_others_can_read_is_named_with_the_mend(kit: Path) -> None:
    key = kit / "startup" / "client.key"
    assert "error" not in levels(about_permissions(open_kit(kit)))
    key.chmod(0o640)
    wrong = [remark for remark in about_permissions(open_kit(kit)) if remark.level == "error"]
    assert len(wrong) == 1 and f"chmod 600 {key}" in wrong[0].text


@pytest.mark.skipif(is_root(), reason="root may write everywhere: run the tests as another user")
def test_a_kit_that_cannot_be_written_is_named(kit: Path) -> None:
    (kit / "local").chmod(0o500)
    (wrong,) = about_permissions(open_kit(kit))
    assert wrong.level == "error" and str(kit / "local") in wrong.text


@pytest.mark.parametrize(
    ("days", "root_days", "expected"),
    [(100, 1000, ["ok"]), (29, 1000, ["warning"]), (-1, 1000, ["error"]), (100, 20, ["ok", "warning"])],
)
def test_a_certificate_or_a_root_that_ends_soon_is_told(
    days: int, root_days: int, expected: list[str], kit: Path
) -> None:
    opened, now = open_kit(kit), datetime.now(UTC)
    certificate = replace(
        opened.certificate, since=now - timedelta(days=300), until=now + timedelta(days=days, hours=1)
    )
    root = replace(opened.root, until=now + timedelta(days=root_days))
    assert levels(about_certificate(replace(opened, certificate=certificate, root=root))) == expected


# --- network ------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("", 0)) as listening:
        return int(listening.getsockname()[1])


@contextmanager
def web_server(
    kits: Path, *, whose: str = SERVER, date: datetime | None = None, refuses: bool = False
) -> Iterator[int]:
    """A port at which a party's kit shows its certificate and answers as FLARE's server answers a browser."""
    startup, name = kits / whose / "startup", "server" if whose == SERVER else "client"
    ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(startup / "rootCA.pem"))
    if refuses:
        ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)  # it knows no root that signs a site's certificate
    ours.load_cert_chain(startup / f"{name}.crt", startup / f"{name}.key")
    ours.verify_mode = ssl.CERT_REQUIRED
    head = "" if date is None else f"Date: {format_datetime(date, usegmt=True)}\r\n"

    def serve(listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with suppress(OSError), ours.wrap_socket(connection, server_side=True) as secured:
                secured.recv(1000)
                secured.sendall(f"HTTP/1.1 404 Not Found\r\n{head}\r\n".encode())

    with socket.create_server(("localhost", 0)) as listening:
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def test_the_server_tells_its_clock(kits: Path) -> None:
    opened = open_kit(kits / NAME)
    for behind, level in ((0, "ok"), (600, "warning"), (-600, "warning")):
        date = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=behind)
        with web_server(kits, date=date) as port:
            answer = server_checks.ask_server(replace(opened, port=port))
        assert levels(list(answer.remarks)) == ["ok"] and answer.date == date
        (remark,) = server_checks.about_clock(opened, answer.date)
        assert remark.level == level
        assert behind == 0 or ("ahead" if behind > 0 else "behind") in remark.text
    assert levels(server_checks.about_clock(opened, None)) == ["note"]


def test_another_party_of_the_project_is_not_taken_for_the_server(kits: Path) -> None:
    with web_server(kits, whose="caltech") as port:
        (remark,) = server_checks.ask_server(replace(open_kit(kits / NAME), port=port)).remarks
    assert remark.level == "error" and "caltech" in remark.text and SERVER in remark.text


def test_a_server_that_refuses_the_kits_certificate_is_told(kits: Path) -> None:
    """With TLS 1.3 the handshake ends before the server has looked at it."""
    with web_server(kits, refuses=True) as port:
        (remark,) = server_checks.ask_server(replace(open_kit(kits / NAME), port=port)).remarks
    assert remark.level == "error" and "refuses" in remark.text


def test_a_server_that_says_nothing_does_not_hold_up_the_rest(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_checks, "PATIENCE", 0.3)
    with socket.create_server(("localhost", 0)) as silent:
        (remark,) = server_checks.ask_server(replace(open_kit(kits / NAME), port=silent.getsockname()[1])).remarks
    assert remark.level == "warning" and "firewall" in remark.text


def test_a_name_that_nobody_knows_is_told(kits: Path) -> None:
    (remark,) = server_checks.about_name(replace(open_kit(kits / NAME), host="no-such-host.invalid"))
    assert remark.level == "error" and "no-such-host.invalid" in remark.text
    assert levels(server_checks.about_name(open_kit(kits / NAME))) == ["ok"]


@pytest.mark.parametrize(
    ("scheme", "environment", "level"),
    [
        ("http", {}, "ok"),
        ("http", {"https_proxy": "http://proxy:3128"}, "note"),
        ("tcp", {"ALL_PROXY": "http://proxy:3128"}, "note"),
        ("grpc", {"https_proxy": "http://me:secret@proxy:3128"}, "warning"),
        ("grpc", {"https_proxy": "http://proxy:3128", "no_proxy": ".org, fl.example"}, "ok"),
        ("grpc", {"HTTPS_PROXY": "http://proxy:3128"}, "note"),
    ],
)
def test_a_proxy_is_told_as_the_kits_scheme_uses_it(
    scheme: str, environment: dict[str, str], level: str, kits: Path
) -> None:
    opened: Kit = replace(open_kit(kits / NAME), scheme=scheme, host="fl.example")
    (remark,) = server_checks.about_proxy(opened, environment)
    assert remark.level == level and "secret" not in remark.text
    assert level != "warning" or ("proxy:3128" in remark.text and "no_proxy=fl.example" in remark.text)


# --- data and machine ---------------------------------------------------------------------------------------


def test_data_are_looked_at_as_far_as_the_time_goes(tmp_path: Path) -> None:
    sound, damaged = make_image_site(tmp_path, NAME), make_site(tmp_path, "HK")
    assert not list(data_checks.in_short(sound, limit=60))
    assert "error" in levels(data_checks.in_short(damaged, limit=60))
    for folder in (sound, damaged):
        (remark,) = data_checks.in_short(folder, limit=-1)
        assert remark.level == "note" and f"fedshift data check {folder}" in remark.text


@pytest.mark.skipif(is_root(), reason="root may read everything: run the tests as another user")
def test_data_that_this_user_cannot_read_are_named(tmp_path: Path) -> None:
    folder = make_site(tmp_path, "HK")
    scan = sorted((folder / "volumes").iterdir())[0]
    scan.chmod(0)
    (remark,) = data_checks.in_short(folder)
    assert remark.level == "error" and str(scan) in remark.text


def test_a_package_out_of_its_range_or_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "error" not in levels(machine_checks.about_packages())
    have = metadata.version

    def other(name: str) -> str:
        if name == "monai":
            raise metadata.PackageNotFoundError(name)
        return {"nvflare": "2.8.0", "highdicom": "0.1"}.get(name) or have(name)

    monkeypatch.setattr(machine_checks.metadata, "version", other)
    remarks = list(machine_checks.about_packages())
    told = {remark.text.split()[0]: remark for remark in remarks}
    assert told["nvflare"].level == told["monai"].level == "error" and "<2.10" in told["nvflare"].text
    assert told["highdicom"].level == "warning", "of an extra"


def test_a_disk_that_is_nearly_full_and_little_memory_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_checks.shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10, 9, 1))
    monkeypatch.setattr(machine_checks, "free_memory", lambda: 10**9)
    assert levels(machine_checks.about_disk(tmp_path, tmp_path)) == ["warning"], "one disk is told of once"
    assert levels(machine_checks.about_memory()) == ["warning"]


def test_a_gpu_that_pytorch_cannot_use_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, 570.1'\n", encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), os.environ["PATH"]]))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for cuda, word in ((None, "processors"), ("12.8", "570.1")):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        (remark,) = machine_checks.about_gpu()
        assert remark.level == "warning" and "NVIDIA H200" in remark.text and word in remark.text


# --- job ----------------------------------------------------------------------------------------------------


def test_a_job_for_others_is_told_and_one_with_room_is_ok(
    ready: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_job(small_image_job("fedavg"), tmp_path / "job", production=True)
    code, remarks = doctor(capsys, ready, "--job", tmp_path / "job")
    assert code == 1 and levels(remarks["job"]) == ["error"] and NAME in remarks["job"][0].text
    code, remarks = doctor(capsys, ready, "--job", tmp_path)
    assert code == 1 and str(tmp_path) in remarks["job"][0].text


def test_memory_is_compared_with_what_a_job_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path))
    make_image_site(tmp_path, "A")
    job = small_image_job("fedavg")
    (remark,) = job_checks.about_job_memory(None, job)
    assert remark.level == "ok"
    need = Need(base=10**9, process=0, image=10**8, batch=32, free=2 * 10**9)
    for free, level, mend in ((2 * 10**9, "error", "batch_size=8"), (43 * 10**8, "warning", "tight")):
        monkeypatch.setattr(job_checks, "_needs", lambda kit, job, free=free: [replace(need, free=free)])
        (remark,) = job_checks.about_job_memory(None, job)
        assert remark.level == level and mend in remark.text


# --- where processes of jobs run ----------------------------------------------------------------------------


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch, **answers: str) -> None:
    """Programs that come first on the PATH: name → a line of shell."""
    folder.mkdir(exist_ok=True)
    for name, line in answers.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


SLURM = dict.fromkeys(("sbatch", "squeue", "sacct", "scancel"), "true")
FAILS = "echo 'slurm_load_jobs error: no controller' >&2; exit 1"


@pytest.mark.parametrize(
    ("broken", "level", "named"),
    [
        ({}, "ok", "login1:8102"),
        ({"squeue": FAILS}, "error", "no controller"),
        ({"sacct": FAILS}, "error", "slurmdbd"),
        ({"sbatch": "echo 'invalid partition specified: gup' >&2; exit 1"}, "error", "gup"),
    ],
)
def test_a_queue_that_does_not_answer_or_would_take_no_job_is_named(
    broken: dict[str, str], level: str, named: str, kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = laid(kit, "slurm", host="login1", partition="gup")
    programs(tmp_path / "bin", monkeypatch, **(SLURM | broken))
    remarks = [remark for remark in about_launcher(open_kit(kit)) if remark.level != "warning"]
    assert [remark.level for remark in remarks] == [level] and named in remarks[0].text


def test_a_kit_that_slurm_would_refuse_is_named_before_the_site_is_started(
    kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = laid(kit, "slurm", connection="files")
    programs(tmp_path / "bin", monkeypatch, **SLURM)
    kit.chmod(0o755)
    assert [r.level for r in about_launcher(open_kit(kit)) if "chmod 700" in r.text] == ["error"]
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    (missing,) = about_launcher(open_kit(kit))
    assert missing.level == "error" and "sbatch" in missing.text


@pytest.mark.parametrize(
    ("line", "level", "named"),
    [
        ("true", "ok", "fedshift:1"),
        ("exit 1", "error", "docker"),
        ('[ "$1" = version ]', "error", "fedshift:1"),
    ],
)
def test_containers_need_a_daemon_and_the_image(
    line: str, level: str, named: str, kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = laid(kit, "docker", image="fedshift:1")
    programs(tmp_path / "bin", monkeypatch, docker=line)
    (remark,) = about_launcher(open_kit(kit))
    assert remark.level == level and named in remark.text


@pytest.mark.parametrize(("line", "level"), [("true", "ok"), ('[ "$2" = namespace ]', "error")])
def test_a_cluster_needs_the_claims(
    line: str, level: str, kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = laid(kit, "k8s", image="fedshift:1", kit_claim="kit-of-hk", kit_path=str(kit.absolute()))
    programs(tmp_path / "bin", monkeypatch, kubectl=line)
    (remark,) = about_launcher(open_kit(kit))
    assert remark.level == level
    assert level == "ok" or "kit-of-hk" in remark.text


def laid(kit: Path, launcher: Kind, **options: object) -> Path:
    """A site's kit with a launcher, closed to other users."""
    files = local_files(
        open_kit(kit), data={"office_caltech": Path("/data")}, launcher=parse_launcher(launcher, options)
    )
    lay(files, kit / "local")
    kit.chmod(0o700)
    return kit
