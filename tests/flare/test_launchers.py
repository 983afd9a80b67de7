"""Processes of jobs elsewhere: what Docker and Kubernetes are told, what comes of it, and what no job may decide."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from kubernetes import client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, JobConstants
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.job_launcher_spec import JobProcessArgs, JobReturnCode
from nvflare.apis.workspace import Workspace

from fedshift.data.locate import SITE_FILE
from fedshift.flare.guard import SiteJobLauncher
from fedshift.flare.kit_files import site_settings
from fedshift.flare.launchers.choice import starter
from fedshift.flare.launchers.connection import COMM_CONFIG, comm_config, connection_fault
from fedshift.flare.launchers.docker import DockerStarter
from fedshift.flare.launchers.kubernetes import KubernetesStarter, manifests, object_name
from fedshift.flare.launchers.slurm import end_orphans, killed_by_queue
from fedshift.schema.launcher import Kubernetes, Launcher, parse_launcher

JOB = "3f509f41-3a7e-406e-88f6-69672abb2e34"
ARGUMENTS: dict[str, tuple[str, str]] = {
    JobProcessArgs.EXE_MODULE: ("-m", "nvflare.private.fed.app.client.worker_process"),
    JobProcessArgs.WORKSPACE: ("-m", "/kit"),
    JobProcessArgs.JOB_ID: ("-n", JOB),
    JobProcessArgs.PARENT_URL: ("-p", "stcp://0.0.0.0:8102"),
    JobProcessArgs.PARENT_CONN_SEC: ("--parent_conn_sec", "mtls"),
    JobProcessArgs.AUTH_TOKEN: ("-t", "token-of-the-site"),
    JobProcessArgs.TOKEN_SIGNATURE: ("-ts", "signature-of-the-token"),
    JobProcessArgs.SSID: ("-d", "session-of-the-server"),
    JobProcessArgs.OPTIONS: ("--set", " secure_train=true uid=HK"),
}
SECRETS = ("token-of-the-site", "signature-of-the-token", "session-of-the-server")


def context(kit: Path) -> FLContext:
    """As NVFlare has it where it starts a job's process."""
    (kit / "startup").mkdir(parents=True, exist_ok=True)
    (kit / "local").mkdir(exist_ok=True)
    workspace = Workspace(str(kit), "HK")
    (kit / JOB).mkdir(exist_ok=True)
    made = FLContextManager(identity_name="HK", job_id="", public_stickers={}, private_stickers={}).new_context()
    made.set_prop(FLContextKey.WORKSPACE_OBJECT, workspace, private=True, sticky=False)
    made.set_prop(FLContextKey.JOB_PROCESS_ARGS, dict(ARGUMENTS), private=True, sticky=False)
    return made


# --- the kit ------------------------------------------------------------------------------------------------


def lay(kit: Path, launcher: Launcher | None, connection: Launcher | None) -> None:
    (kit / "local").mkdir(parents=True)
    text = site_settings({"prostate": Path("/data")}, launcher=launcher)
    (kit / "local" / SITE_FILE).write_text(text, encoding="utf-8")
    content = comm_config(kit, connection)
    if content is not None:
        (kit / "local" / COMM_CONFIG).write_text(json.dumps(content), encoding="utf-8")


NETWORK = parse_launcher("slurm", {"host": "login1"})
FILES = parse_launcher("slurm", {"connection": "files"})
DOCKER = parse_launcher("docker", {"image": "fedshift:1", "memory_gb": 4})


@pytest.mark.parametrize("launcher", [NETWORK, FILES, DOCKER, None])
@pytest.mark.parametrize("connection", [NETWORK, FILES, DOCKER, None])
def test_a_site_is_open_to_other_machines_only_if_its_launcher_needs_that(
    launcher: Launcher | None, connection: Launcher | None, tmp_path: Path
) -> None:
    lay(tmp_path, launcher, connection)
    fits = comm_config(tmp_path, launcher) == comm_config(tmp_path, connection)
    assert (connection_fault(tmp_path, launcher) is None) is fits
    component = SiteJobLauncher.__new__(SiteJobLauncher)
    if launcher is not None and not fits:
        with pytest.raises(UnsafeComponentError, match=COMM_CONFIG):
            component.handle_event(EventType.SYSTEM_BOOTSTRAP, context(tmp_path))
    else:
        assert (starter(tmp_path) is None) is (launcher is None)


def test_what_is_open_to_other_machines_wants_the_sites_certificate_or_its_folder(tmp_path: Path) -> None:
    by_network, by_files = comm_config(tmp_path, NETWORK), comm_config(tmp_path, FILES)
    assert by_network is not None and by_network["internal"]["resources"]["connection_security"] == "mtls"
    assert by_files is not None and by_files["internal"]["resources"]["dir_mode"] == "0o700"
    for content in (by_network, by_files):
        assert content["backbone_conn_gen"] == 1, "a node needs no way to the server"


@pytest.mark.parametrize("key", [JobMetaKey.JOB_LAUNCHER_SPEC.value, JobMetaKey.RESOURCE_SPEC.value])
def test_a_job_does_not_say_how_it_is_started(key: str, tmp_path: Path) -> None:
    """An image that a job names would be code that it brings."""
    assert DOCKER is not None and DOCKER.docker is not None
    meta = {JobConstants.JOB_ID: JOB, key: {"HK": {"docker": {"image": "another"}}}}
    with pytest.raises(RuntimeError, match=key):
        DockerStarter(tmp_path, DOCKER.docker, folders=()).start(meta, context(tmp_path))


# --- Docker -------------------------------------------------------------------------------------------------

STAND_IN = """#!{python}
import os, signal, sys
open({record!r}, "a").write(repr((sys.argv[1:], {{k: v for k, v in os.environ.items() if "JOB_" in k}})) + "\\n")
if sys.argv[1] == "ps":
    print("left1")
if sys.argv[1] == "run":
    {body}
"""


def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Path:
    """A program in Docker's place, which notes what it is told; what it does as ``run`` is Python."""
    record, program = tmp_path / "record", tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(STAND_IN.format(python=sys.executable, record=str(record), body=body), encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return record


def told(record: Path) -> list[tuple[list[str], dict[str, str]]]:
    return [eval(line) for line in record.read_text(encoding="utf-8").splitlines()]


def docker_starter(tmp_path: Path) -> DockerStarter:
    assert DOCKER is not None and DOCKER.docker is not None
    return DockerStarter(tmp_path / "kit", DOCKER.docker, folders=(Path("/data/HK"),))


def test_a_container_gets_the_kit_the_data_to_read_and_no_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, kit = docker(tmp_path, monkeypatch, "sys.exit(0)"), tmp_path / "kit"
    starter = docker_starter(tmp_path)
    handle = starter.start({JobConstants.JOB_ID: JOB}, context(kit))
    handle.wait()
    assert handle.poll() == JobReturnCode.SUCCESS and starter.killed(handle) is None
    (removed, _), (command, environment) = told(record)
    name = f"fedshift-HK-{JOB}"
    assert removed == ["rm", "--force", name], "of a former start"
    options, process = command[: command.index("fedshift:1")], command[command.index("fedshift:1") + 1 :]
    assert {f"--volume={kit}:{kit}", "--volume=/data/HK:/data/HK:ro", "--memory=4g", "--read-only"} <= set(options)
    assert {"--cap-drop=ALL", "--security-opt=no-new-privileges", f"--user={os.getuid()}:{os.getgid()}"} <= set(options)
    assert process[:3] == ["python3", "-m", ARGUMENTS[JobProcessArgs.EXE_MODULE][1]]
    assert not any(secret in word for secret in SECRETS for word in command), "others of the machine see the command"
    assert set(SECRETS) == set(environment.values())


def test_whoever_ends_the_process_ends_its_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = docker(tmp_path, monkeypatch, "signal.pause()")
    starter = docker_starter(tmp_path)
    starter.start({JobConstants.JOB_ID: JOB}, context(tmp_path / "kit"))
    until(lambda: record.exists() and len(told(record)) == 2)
    starter.close()
    assert [words[:2] for words, _ in told(record)][2:] == [["rm", "--force"]]


def test_a_container_without_memory_was_killed_and_one_that_fails_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker(tmp_path, monkeypatch, "sys.exit(int(open(sys.argv[0] + '.code').read()))")
    for code, killed in ((137, True), (125, False), (1, False)):
        (tmp_path / "bin" / "docker.code").write_text(str(code), encoding="utf-8")
        starter = docker_starter(tmp_path)
        handle = starter.start({JobConstants.JOB_ID: JOB}, context(tmp_path / "kit"))
        handle.wait()
        assert (starter.killed(handle) is not None) is killed, code


def test_containers_that_a_killed_site_left_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = docker(tmp_path, monkeypatch, "sys.exit(0)")
    docker_starter(tmp_path).begin(context(tmp_path / "kit"))
    (asked, _), (removed, _) = told(record)
    assert "--filter=name=^fedshift-HK-" in asked and removed == ["rm", "--force", "left1"]
    (tmp_path / "bin" / "docker").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    with pytest.raises(UnsafeComponentError, match="docker gives no answer"):
        docker_starter(tmp_path).begin(context(tmp_path / "kit"))


# --- Kubernetes ---------------------------------------------------------------------------------------------


class Cluster:
    """What a site asks Kubernetes for, in memory, behind HTTP: objects are kept as they come, and checked."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.deleted: list[tuple[str, str]] = []

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        kind, _, name = path.partition("?")[0].removeprefix("/api/v1/namespaces/ward/").partition("/")
        if method == "POST":
            key = (kind, body["metadata"]["name"])
            if kind == "pods":
                kubernetes_validate.validate(body, "1.37", strict=True)
                body["status"] = {"phase": "Running"}
            if key in self.objects:
                return 409, {}
            self.objects[key] = body
            return 201, body
        if not name:
            return 200, {"items": [found for (of, _), found in self.objects.items() if of == kind]}
        if (kind, name) not in self.objects:
            return 404, {"reason": "NotFound"}
        if method == "DELETE":
            self.deleted.append((kind, name))
            return 200, self.objects.pop((kind, name))
        return 200, self.objects[kind, name]

    def ends(self, **status: Any) -> None:
        """Say of the only Pod how it is."""
        (pod,) = [found for (kind, _), found in self.objects.items() if kind == "pods"]
        pod["status"] = status


@pytest.fixture
def cluster() -> Iterator[tuple[Cluster, client.CoreV1Api]]:
    kept = Cluster()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.serve()

        def do_GET(self) -> None:
            self.serve()

        def do_DELETE(self) -> None:
            self.serve()

        def serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            code, content = kept.answer(self.command, self.path, body)
            text = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    settings = client.Configuration(host=f"http://127.0.0.1:{server.server_address[1]}")
    yield kept, client.CoreV1Api(client.ApiClient(settings))
    server.shutdown()
    server.server_close()


def settings_of(kit: Path) -> Kubernetes:
    chosen = {"image": "registry.example/fedshift:1", "kit_claim": "kit", "kit_path": str(kit), "namespace": "ward"}
    launcher = parse_launcher("k8s", chosen | {"data_claims": {"scans": "/data"}, "gpus": 1, "pull_secrets": ["pull"]})
    assert launcher is not None and launcher.k8s is not None
    return launcher.k8s


def started(kit: Path, api: client.CoreV1Api) -> tuple[KubernetesStarter, Any]:
    starter = KubernetesStarter(kit, settings_of(kit), api)
    return starter, starter.start({JobConstants.JOB_ID: JOB}, context(kit))


def test_a_pod_has_the_kit_the_data_to_read_and_no_rights(
    cluster: tuple[Cluster, client.CoreV1Api], tmp_path: Path
) -> None:
    kept, api = cluster
    started(tmp_path, api)
    name = object_name(JOB, "HK")
    pod, secret = kept.objects["pods", name], kept.objects["secrets", name]
    (container,) = pod["spec"]["containers"]
    assert pod["spec"]["securityContext"]["runAsNonRoot"] and not pod["spec"]["automountServiceAccountToken"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    claims = {
        v["persistentVolumeClaim"]["claimName"]: v["name"]
        for v in pod["spec"]["volumes"]
        if len(v) == 2 and "persistentVolumeClaim" in v
    }
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert mounts[claims["kit"]] == {"name": "kit", "mountPath": str(tmp_path)}
    assert mounts[claims["scans"]]["readOnly"] and mounts[claims["scans"]]["mountPath"] == "/data"
    assert set(SECRETS) == set(secret["stringData"].values())
    assert not any(text in json.dumps(pod) for text in SECRETS), "others of the cluster may read a Pod"
    site = next(m for m in manifests("HK", settings_of(tmp_path)) if m["kind"] == "Service")
    assert f"stcp://{site['metadata']['name']}:8102" in container["args"]


@pytest.mark.parametrize(
    ("status", "how", "again"),
    [
        ({"phase": "Succeeded"}, None, False),
        ({"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"}, "Evicted", True),
        ({"phase": "Failed", "containerStatuses": ("OOMKilled", 137)}, "OOMKilled", True),
        ({"phase": "Failed", "containerStatuses": ("Error", 1)}, None, False),
        (None, "deleted, not by this site", False),
    ],
)
def test_how_a_pod_ended_is_told_in_kubernetes_words(
    cluster: tuple[Cluster, client.CoreV1Api],
    status: dict[str, Any] | None,
    how: str | None,
    again: bool,
    tmp_path: Path,
) -> None:
    kept, api = cluster
    made, handle = started(tmp_path, api)
    if status is None:
        api.delete_namespaced_pod(object_name(JOB, "HK"), "ward")
    else:
        if "containerStatuses" in status:
            reason, code = status["containerStatuses"]
            ended = {"terminated": {"reason": reason, "exitCode": code}}
            container = {"name": "job", "image": "i", "imageID": "i", "ready": False, "restartCount": 0, "state": ended}
            status = {**status, "containerStatuses": [container]}
        kept.ends(**status)
    handle.wait()
    kill = made.killed(handle)
    assert (kill is None) is (how is None)
    assert kill is None or (how in kill.how and kill.again is again)
    assert not [kind for kind, _ in kept.objects if kind == "secrets"], "the credentials are gone with the Pod"


def test_no_pod_is_left_by_a_site_that_ends_or_was_killed(
    cluster: tuple[Cluster, client.CoreV1Api], tmp_path: Path
) -> None:
    kept, api = cluster
    started(tmp_path, api)
    another = KubernetesStarter(tmp_path, settings_of(tmp_path), api)  # after a kill
    another.begin(context(tmp_path))
    assert not kept.objects
    again = another.start({JobConstants.JOB_ID: JOB}, context(tmp_path))
    another.close()
    assert not [kind for kind, _ in kept.objects if kind == "pods"]
    again.wait()
    assert another.killed(again) is None and not kept.objects


def test_a_kit_that_pods_would_not_find_is_refused(cluster: tuple[Cluster, client.CoreV1Api], tmp_path: Path) -> None:
    with pytest.raises(UnsafeComponentError, match="kit_path"):
        KubernetesStarter(tmp_path / "elsewhere", settings_of(tmp_path), cluster[1]).begin(context(tmp_path))


def test_kubernetes_takes_what_a_site_needs(tmp_path: Path) -> None:
    objects = manifests("HK", settings_of(tmp_path))
    for each in objects:
        kubernetes_validate.validate(each, "1.37", strict=True)
    by_kind = {each["kind"]: each for each in objects}
    pod = by_kind["Deployment"]["spec"]["template"]
    assert by_kind["Service"]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert pod["spec"]["serviceAccountName"] == by_kind["ServiceAccount"]["metadata"]["name"]
    verbs = {verb for rule in by_kind["Role"]["rules"] for verb in rule["verbs"]}
    assert verbs == {"create", "delete", "get", "list"} and "secrets" not in by_kind["Role"]["rules"][0]["resources"]


def test_names_that_kubernetes_would_take_for_one_are_told_apart() -> None:
    names = [object_name("fedshift", site) for site in ("HK", "hk", "h_k", "H" * 300, "H" * 299)]
    assert len(set(names)) == len(names) and all(len(name) <= 63 for name in names)


# --- Slurm, without a cluster (tests/flare/test_slurm.py has one) -------------------------------------------


def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **answers: str) -> None:
    """Programs in the place of Slurm's, each with its answer."""
    for name, answer in answers.items():
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\necho \"$0 $@\" >> {tmp_path}/asked\nprintf '%s' '{answer}'\n", encoding="utf-8")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("row", "how", "again"),
    [
        ("COMPLETED|0:0|00:01:00|node7", None, False),
        ("FAILED|1:0|00:01:00|node7", None, False),
        ("FAILED|0:9|00:01:00|node7", "FAILED after 00:01:00 on node7 by signal 9", True),
        ("TIMEOUT|0:0|04:00:07|node7", "TIMEOUT after 04:00:07 on node7", True),
        ("OUT_OF_MEMORY|0:125|00:01:00|node7", "OUT_OF_MEMORY", True),
        ("PREEMPTED|0:0|00:01:00|node7", "PREEMPTED", True),
        ("CANCELLED by 0|0:0|00:00:00|None assigned", "CANCELLED by 0 after 00:00:00, not by this site", False),
    ],
)
def test_how_a_job_of_the_queue_ended_is_told_in_slurms_words(
    row: str, how: str | None, again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm(tmp_path, monkeypatch, sacct=row)
    kill = killed_by_queue("12", JobReturnCode.EXECUTION_ERROR, tmp_path)
    assert (kill is None) is (how is None)
    assert kill is None or (how in kill.how and "12" in kill.how and kill.again is again)


def test_only_what_this_site_has_left_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm(tmp_path, monkeypatch, scancel="", squeue="")
    left = tmp_path / "kit" / ".nvflare_slurm" / "jobs" / ("0a1b2c3d" + 56 * "0")
    left.mkdir(parents=True)
    end_orphans(tmp_path / "kit", "HK")
    asked = (tmp_path / "asked").read_text(encoding="utf-8").splitlines()
    assert "--me --name=nvfl-HK-0a1b2c3d" in asked[0] and not left.exists()
    end_orphans(tmp_path / "another", "HK")
    assert len((tmp_path / "asked").read_text(encoding="utf-8").splitlines()) == len(asked)


def until(condition: Any) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
