"""Processes of jobs as Pods beside the site's own, which is a Deployment of the same cluster.

Both see the kit at the same path, on one volume, and the data to read only. NVFlare's own launcher copies the kit with
the site's private key into a Secret, and brings ``local/`` over a connection before the guard is there. Its class for a
Pod that runs (`K8sJobHandle`) is used here.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import FLContextKey, JobConstants
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.job_launcher_spec import JobHandleSpec, JobProcessArgs
from nvflare.app_opt.job_launcher.k8s_launcher import JobState, K8sJobHandle
from nvflare.utils.job_launcher_utils import get_client_job_args, get_credential_env

from fedshift.flare.launchers.connection import to_host
from fedshift.flare.launchers.starter import require_no_orders
from fedshift.schema.launcher import Kubernetes
from flare_armour.restart import Kill

log = logging.getLogger(__name__)

GONE = 404
"""HTTP's code for an object that is not there."""
LEAVE = 120.0
"""Seconds in which a deleted Pod is gone."""
LONGEST = 40
"""Characters of a site's or a job's name in that of an object, which has 63 at most."""


class KubernetesStarter:
    """For `fedshift.flare.guard.SiteJobLauncher`."""

    def __init__(self, kit: Path, settings: Kubernetes, api: Any = None) -> None:
        """``api``: Kubernetes' CoreV1Api; by default that of the cluster that this process runs in."""
        self._kit, self._settings, self._api = kit.absolute(), settings, api
        self._started: list[Pod] = []

    def begin(self, fl_ctx: FLContext) -> None:
        """Delete the Pods that a former process of this site has left."""
        if self._kit != Path(self._settings.kit_path):
            raise UnsafeComponentError(
                f"launcher.k8s.kit_path is {self._settings.kit_path}, and this kit is {self._kit}: mount it there"
            )
        if self._api is None:
            self._api = cluster_api()
        chosen = ",".join(f"{key}={value}" for key, value in job_labels(fl_ctx.get_identity_name()).items())
        try:
            pods = self._api.list_namespaced_pod(self._settings.namespace, label_selector=chosen)
        except Exception as error:  # of the client's many kinds
            text = f"Kubernetes lets this site see no Pods of {self._settings.namespace} ({_short(error)})"
            raise UnsafeComponentError(f"{text}: apply what 'fedshift site manifests' writes") from None
        for pod in pods.items:
            log.warning("a former process of this site has left the Pod %s: it is deleted", pod.metadata.name)
            self._delete(pod.metadata.name)

    def start(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        require_no_orders(job_meta)
        site, job = fl_ctx.get_identity_name(), job_meta[JobConstants.JOB_ID]
        arguments = fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS)
        name = object_name(job, site)
        self._delete(name)
        secret = {"metadata": {"name": name, "labels": labels(site)}, "stringData": get_credential_env(arguments)}
        self._api.create_namespaced_secret(self._settings.namespace, secret)
        handle = Pod(self._api, arguments, self._settings, site=site, name=name)
        self._started.append(handle)
        self._api.create_namespaced_pod(self._settings.namespace, handle.get_manifest())
        log.info("the job process waits as the Pod %s", name)
        return handle

    def killed(self, process: Any) -> Kill | None:
        assert isinstance(process, Pod)
        return process.kill

    def close(self) -> None:
        for handle in self._started:
            handle.terminate()

    def _delete(self, name: str) -> None:
        """Delete a Pod and its secret, and wait until the Pod is gone."""
        delete_secret(self._api, self._settings.namespace, name)
        end = time.monotonic() + LEAVE
        while _exists(partial(self._api.delete_namespaced_pod, name, self._settings.namespace, grace_period_seconds=0)):
            if time.monotonic() > end:
                raise RuntimeError(f"the Pod {name} of a former process does not go away: kubectl delete pod {name}")
            time.sleep(1.0)


class Pod(K8sJobHandle):
    """NVFlare's handle of a Pod, which also notes how the Pod ended."""

    kill: Kill | None = None

    def __init__(self, api: Any, job_args: dict[str, Any], settings: Kubernetes, *, site: str, name: str) -> None:
        super().__init__(
            name,
            api,
            pod_options(settings, job_args, site=site, name=name),
            namespace=settings.namespace,
            pending_timeout=settings.wait_hours * 3600,
            python_path="python3",
            pod_manifest_template=template(settings, site),
        )
        self._asked_to_end = False

    def terminate(self) -> None:
        self._asked_to_end = True
        super().terminate()

    def wait(self) -> None:
        """Wait for the end, note how it came, and delete the Pod's secret."""
        super().wait()
        if not self._asked_to_end:
            self.kill = killed_pod(self.pod_name, _read(self.api_instance, self.namespace, self.pod_name))
            if self.kill is None and self.terminal_state == JobState.TERMINATED:
                log.error("the Pod %s has failed: see 'kubectl logs %s'", self.pod_name, self.pod_name)
        delete_secret(self.api_instance, self.namespace, self.pod_name)


# --- what Kubernetes is told --------------------------------------------------------------------------------


def pod_options(settings: Kubernetes, job_args: dict[str, Any], *, site: str, name: str) -> dict[str, Any]:
    """What NVFlare's handle makes a Pod of: the job's process, which sees the kit and the data."""
    volumes, mounts = _volumes(settings)
    arguments = to_host(job_args, service_name(site))
    module = arguments[JobProcessArgs.EXE_MODULE][1]
    wanted = [arguments.get(each) for each in get_client_job_args(include_exe_module=False, include_set_options=False)]
    options = str(arguments.get(JobProcessArgs.OPTIONS, ("", ""))[1]).split()
    return {
        "name": name,
        "image": settings.image,
        "container_name": "job",
        "command": module,
        "module_args": {flag: value for flag, value in filter(None, wanted)},
        "set_list": options,
        "volume_list": volumes,
        "volume_mount_list": mounts,
        "env": environment(settings),
        "secret_env": [{"name": key, "source": name, "key": key} for key in get_credential_env(job_args)],
        "resources": resources(settings),
        "security_context": pod_security(settings),
        "image_pull_secrets": list(settings.pull_secrets),
    }


def template(settings: Kubernetes, site: str) -> dict[str, Any]:
    """What NVFlare's handle has no option for."""
    container = {
        "name": "job",
        "imagePullPolicy": "IfNotPresent",
        "workingDir": settings.kit_path,
        "securityContext": CONTAINER_SECURITY,
    }
    spec = {"automountServiceAccountToken": False, "enableServiceLinks": False, "containers": [container]}
    return {"metadata": {"namespace": settings.namespace, "labels": job_labels(site)}, "spec": spec}


def manifests(kit_name: str, settings: Kubernetes) -> list[dict[str, Any]]:
    """The objects of a site: its rights, its address for its Pods, and the site itself."""
    name, space = service_name(kit_name), settings.namespace
    named = {"name": name, "namespace": space, "labels": labels(kit_name)}
    volumes, mounts = _volumes(settings)
    site = {
        "name": "site",
        "image": settings.image,
        "imagePullPolicy": "IfNotPresent",
        "workingDir": settings.kit_path,
        "command": ["/bin/sh", "-c", "startup/sub_start.sh --once && test ! -e restart.fl"],
        "ports": [{"containerPort": settings.port}],
        "env": [{"name": key, "value": value} for key, value in environment(settings).items()],
        "resources": {"requests": {"cpu": "500m", "memory": "2Gi"}, "limits": {"memory": "4Gi"}},
        "volumeMounts": mounts,
        "securityContext": CONTAINER_SECURITY,
    }
    pod = {
        "serviceAccountName": name,
        "enableServiceLinks": False,
        "securityContext": pod_security(settings),
        "containers": [site],
        "volumes": volumes,
        **({"imagePullSecrets": [{"name": each} for each in settings.pull_secrets]} if settings.pull_secrets else {}),
    }
    chosen = site_labels(kit_name)
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": named,
            "rules": [
                {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete", "get", "list"]},
                {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]},
                {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "delete"]},
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": named,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": space}],
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": named,
            "spec": {"selector": chosen, "ports": [{"port": settings.port, "targetPort": settings.port}]},
        },
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": named,
            "spec": {
                "podSelector": {"matchLabels": chosen},
                "policyTypes": ["Ingress"],
                "ingress": [
                    {
                        "from": [{"podSelector": {"matchLabels": job_labels(kit_name)}}],
                        "ports": [{"protocol": "TCP", "port": settings.port}],
                    }
                ],
            },
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": named,
            "spec": {
                "replicas": 1,
                "strategy": {"type": "Recreate"},
                "selector": {"matchLabels": dict(chosen)},
                "template": {"metadata": {"labels": dict(chosen)}, "spec": pod},
            },
        },
    ]


CONTAINER_SECURITY: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def pod_security(settings: Kubernetes) -> dict[str, Any]:
    user = settings.user
    # Without fsGroup, which would let the group read the kit's key.
    run_as = {"runAsNonRoot": True, "runAsUser": user, "runAsGroup": user}
    return run_as | {"seccompProfile": {"type": "RuntimeDefault"}}


def resources(settings: Kubernetes) -> dict[str, Any]:
    needed = {"cpu": str(settings.cpus), "memory": f"{settings.memory_gb}Gi"}
    if settings.gpus is not None:
        needed[settings.gpu_resource] = str(settings.gpus)
    return {"requests": dict(needed), "limits": dict(needed)}


def environment(settings: Kubernetes) -> dict[str, str]:
    return {"HOME": "/tmp", "USER": "fedshift", **settings.environment}


def labels(site: str) -> dict[str, str]:
    """Of all objects of a site."""
    return {"app.kubernetes.io/name": "fedshift", "fedshift/site": service_name(site)}


def site_labels(site: str) -> dict[str, str]:
    """Of the Pod of the site itself."""
    return {**labels(site), "app.kubernetes.io/component": "site"}


def job_labels(site: str) -> dict[str, str]:
    """Of the Pods of its jobs."""
    return {**labels(site), "app.kubernetes.io/component": "job"}


def service_name(site: str) -> str:
    return object_name("fedshift", site)


def object_name(*parts: str) -> str:
    """A name as Kubernetes wants it; a digest tells apart names that are alike but for capitals or other signs."""
    plain = [re.sub(r"[^a-z0-9-]", "-", part.lower()).strip("-") for part in parts]
    digest = hashlib.sha256("/".join(parts).encode()).hexdigest()[:8]
    start = "-".join(part for part in plain if part)[:LONGEST].strip("-")
    return f"{start if start[:1].isalpha() else f'j{start}'}-{digest}"


def _volumes(settings: Kubernetes) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes, and where a container sees them: the kit to write, the data to read, and what is gone at its end."""
    volumes: list[dict[str, Any]] = [
        {"name": "kit", "persistentVolumeClaim": {"claimName": settings.kit_claim}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}},  # what processes share
    ]
    mounts: list[dict[str, Any]] = [
        {"name": "kit", "mountPath": settings.kit_path},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "memory", "mountPath": "/dev/shm"},
    ]
    for number, (claim, path) in enumerate(settings.data_claims.items()):
        source = {"claimName": claim, "readOnly": True}
        volumes.append({"name": f"data-{number}", "persistentVolumeClaim": source})
        mounts.append({"name": f"data-{number}", "mountPath": path, "readOnly": True})
    return volumes, mounts


# --- what Kubernetes says -----------------------------------------------------------------------------------


def killed_pod(name: str, pod: Any) -> Kill | None:
    """That a Pod was killed, in Kubernetes' words; None if its process ended by itself.

    Args:
        name: the Pod's.
        pod: as Kubernetes' client reads it; None if it is not there any more.
    """
    if pod is None:
        return Kill(f"the Pod {name} was deleted, not by this site", again=False)
    if pod.status.reason:  # Evicted, DeadlineExceeded, NodeLost, Preempting, Shutdown, ...
        return Kill(f"Pod {name}: {pod.status.reason}, {pod.status.message or 'without more words'}")
    for container in pod.status.container_statuses or ():
        ended = container.state.terminated if container.state else None
        if ended is not None and (ended.reason == "OOMKilled" or ended.exit_code == 137):
            return Kill(f"Pod {name}: {ended.reason} with exit code {ended.exit_code}")
    return None


def cluster_api() -> Any:
    """Kubernetes' API, of the cluster that this process runs in.

    Raises:
        UnsafeComponentError: the client is not installed, or this is no Pod.
    """
    try:
        from kubernetes import client, config
    except ImportError:
        raise UnsafeComponentError("launcher.k8s needs Kubernetes' client: pip install 'fedshift[k8s]'") from None
    try:
        config.load_incluster_config()  # type: ignore[no-untyped-call]
    except config.ConfigException as error:
        text = "launcher.k8s is for a site that runs in the cluster itself: apply what 'fedshift site manifests' writes"
        raise UnsafeComponentError(f"{text} ({_short(error)})") from None
    return client.CoreV1Api()


def delete_secret(api: Any, namespace: str, name: str) -> None:
    _exists(partial(api.delete_namespaced_secret, name, namespace))


def _read(api: Any, namespace: str, name: str) -> Any:
    try:
        return api.read_namespaced_pod(name=name, namespace=namespace)
    except Exception as error:
        if getattr(error, "status", None) == GONE:
            return None
        raise


def _exists(ask: Any) -> bool:
    """Whether the object of a request exists, by the API's answer to it."""
    try:
        ask()
    except Exception as error:
        if getattr(error, "status", None) == GONE:
            return False
        raise
    return True


def _short(error: Exception) -> str:
    reason: Mapping[str, Any] | str | None = getattr(error, "reason", None)
    return str(reason or error).partition("\n")[0]
