"""Sites that start late or come back join a running job, and jobs that a stopped server left unfinished continue.

NVFlare 2.9: a site takes part in a job only if it was connected when the job started. A job that runs when the server
is stopped shows as running for ever and cannot be aborted, deleted or downloaded. A server works in a store that
another one uses, and waits for a port that another one has.
Cost: the site's data for the rest of the run; with a stopped server the whole run; with two servers the jobs of one.
Instead: `Readmission`, a component of the server's ``local/resources.json``, lives in the server's parent process. When
a site is connected that a running job names and that does not take part in it, it starts the job there: a restarted
site continues from its state, a late one begins. A job that ran when the server was stopped is started again under the
same id as soon as one of its sites is connected; its workflow continues after the last closed round. `update_clients`
tells the job's own process at the server who takes part now. What a site reports of its part is noted, and ends
nothing. Jobs that a stopped server left are given up here, so a server does not start in a store that another one uses
(`flare_armour.locks`), and gives up none in a store outside its kit. tests/flare/test_deployed_faults.py runs all this.
Fixed in NVFlare when: a site that is killed and restarted during a job takes part in its next round.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import RunProcessKey, SystemComponents
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.job_def import Job, JobMetaKey, RunStatus
from nvflare.apis.job_launcher_spec import JobReturnCode
from nvflare.apis.job_scheduler_spec import DispatchInfo
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.private.admin_defs import MsgHeader, ReturnCode
from nvflare.private.defs import ERROR_MSG_PREFIX, JobFailureMsgKey

from flare_armour.disabled_sites import DISABLED
from flare_armour.locks import InUseError, hold_store
from flare_armour.patch import Patch

log = logging.getLogger("flare_armour")

INTERVAL = 2.0
"""Seconds between checks of who is connected, and before a site that refused is asked again; then twice as long."""
LONGEST_PAUSE = 60.0
"""Seconds before a site that refused is asked again, at most."""
SEVERAL = 8
"""Refusals after which the log reports an error."""
STILL_RUNS = "Client app already started."
LACKS_APP = "Client app does not exist"
"""Replies of NVFlare's sites."""
DEPLOY_TIMEOUT = 20.0
"""Seconds for a site to take a job's folder."""
CONFIG = "config"
"""The folder of a job's app with its settings, whatever a kit's script calls it."""
RUNNER = "nvflare.private.fed.server.job_runner:JobRunner"
ENGINE = "nvflare.private.fed.server.server_engine:ServerEngine"
SERVER = "nvflare.private.fed.server.fed_server:FederatedServer"
PATCH = Patch(
    name="readmission",
    kind="correct",
    without="sites that come late or come back do not join a running job",
    sources={
        f"{RUNNER}.resolve_client_outcome": "afb54d5edf1b",
        f"{RUNNER}.restore_running_job": "494fa53497fd",
    },
    calls={
        f"{RUNNER}.abort_client_run": "self, job_id, client_sites, fl_ctx",
        f"{RUNNER}._make_deploy_message": "job, app_data, app_name, fl_ctx",
        f"{ENGINE}.check_client_resources": "self, job, resource_reqs, fl_ctx",
        f"{ENGINE}.start_client_job": "self, job, client_sites, fl_ctx",
        f"{ENGINE}._retrieve_clients_data": "self, job_id",
        f"{ENGINE}.get_clients": "self",
    },
)


class Readmission(FLComponent):
    """Looks every few seconds, as long as the server runs, for sites that should take part in a job and do not.

    Attributes:
        resumable: name of a file in a job's ``config/`` that only jobs have whose workflow can go on.
    """

    resumable = "resumable"

    def __init__(self) -> None:
        """Its work begins when the server has started; only what a failed site can do is settled before."""
        super().__init__()
        PATCH.install()
        self._stop = threading.Event()
        self._admission = Admission(resumable=self.resumable)
        self._store: IO[str] | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Start and stop with the server.

        Raises:
            UnsafeComponentError: another server uses the store; NVFlare then ends the process.
        """
        if event_type == EventType.SYSTEM_BOOTSTRAP:  # in the server's own process only, before it asks for jobs
            self._hold_store(fl_ctx)
        elif event_type == EventType.SYSTEM_START and PATCH.fits():
            self._admission.look_back(fl_ctx)
            engine = fl_ctx.get_engine()
            threading.Thread(target=self._run, args=(engine,), name="readmission", daemon=True).start()
        elif event_type == EventType.SYSTEM_END:
            self._stop.set()

    def _hold_store(self, fl_ctx: FLContext) -> None:
        manager = fl_ctx.get_engine().get_component(SystemComponents.JOB_MANAGER)
        try:
            self._store = hold_store(Path(manager.uri_root))
        except InUseError as error:
            log.error("%s", error)
            raise UnsafeComponentError(str(error)) from None

    def _run(self, engine: Any) -> None:
        while not self._stop.wait(INTERVAL):
            try:
                with engine.new_context() as fl_ctx:
                    self._admission.look(engine, fl_ctx)
            except Exception:
                log.exception("looking for sites to admit failed; tried again in %g s", INTERVAL)


class Admission:
    """Starts running jobs at sites that should take part and do not."""

    def __init__(self, *, resumable: str, clock: Callable[[], float] = time.monotonic) -> None:
        """``resumable`` as `Readmission.resumable`; ``clock`` gives seconds."""
        self._resumable, self._clock = resumable, clock
        self._interrupted: dict[str, Job] = {}
        self._resumed: set[str] = set()
        self._admitted: set[tuple[str, str]] = set()
        self._refusals: dict[tuple[str, str], tuple[int, float]] = {}

    def look_back(self, fl_ctx: FLContext) -> None:
        """Find jobs that ran when the server was stopped: keep those that can continue, abandon the others.

        In a store outside this kit nothing is abandoned: what the jobs left is then in another kit.
        """
        manager = fl_ctx.get_engine().get_component(SystemComponents.JOB_MANAGER)
        kit = Path(fl_ctx.get_workspace().get_root_dir()).resolve()
        in_kit = Path(manager.uri_root).resolve().is_relative_to(kit)
        for job in manager.get_jobs_by_status([RunStatus.RUNNING, RunStatus.DISPATCHED], fl_ctx):
            if (Path(fl_ctx.get_workspace().get_app_dir(job.job_id)) / CONFIG / self._resumable).is_file():
                log.warning("job %s ran when the server was stopped: it goes on when a site is back", job.job_id)
                self._interrupted[job.job_id] = job
            elif not in_kit:
                log.error(
                    "job %s ran in a server whose store this is, %s, which is not in this kit: it is left as it is. "
                    "See that local/resources.json names a store in this kit",
                    job.job_id,
                    manager.uri_root,
                )
            else:
                log.error("job %s ran when the server was stopped and left nothing to continue from", job.job_id)
                manager.set_status(job.job_id, RunStatus.ABANDONED, fl_ctx)

    def look(self, engine: Any, fl_ctx: FLContext) -> None:
        """Start each job, also one that was left, at the connected sites that it names and that have no part in it."""
        runner = engine.job_runner
        _without_disabled(engine)
        for job_id in list(runner.running_jobs):
            # NVFlare fails a job unless every site ends well. Here only the workflow's quorum decides.
            for name in list(runner._pending_client_outcomes.get(job_id, ())):
                runner.resolve_client_outcome(job_id, name)
        for job in [*self._interrupted.values(), *list(runner.running_jobs.values())]:
            for client in engine.get_clients():
                app = next((app for app, sites in job.get_deployment().items() if client.name in sites), None)
                if app is None:
                    continue
                if job.job_id in self._interrupted and not self._resume(job, client, engine, fl_ctx):
                    break
                running = engine.run_processes.get(job.job_id)
                if running is not None:
                    self._admit(client, job, app, running, engine, fl_ctx)

    def _resume(self, job: Job, first: Client, engine: Any, fl_ctx: FLContext) -> bool:
        """Start the server's process of a job that was left. NVFlare needs a site for that: ``first``."""
        del self._interrupted[job.job_id]
        manager, runner = engine.get_component(SystemComponents.JOB_MANAGER), engine.job_runner
        known = manager.get_job(job.job_id, fl_ctx)
        if known is None or known.meta.get(JobMetaKey.STATUS) not in (RunStatus.RUNNING, RunStatus.DISPATCHED):
            return False  # aborted or deleted meanwhile
        log.warning("job %s goes on: site %s is back", job.job_id, first.name)
        self._resumed.add(job.job_id)
        runner.restore_running_job(job.job_id, {first.token: first}, None, fl_ctx)
        if job.job_id not in runner.running_jobs:
            log.error("job %s cannot continue: NVFlare's log has the reason", job.job_id)
            manager.set_status(job.job_id, RunStatus.ABANDONED, fl_ctx)
            return False
        manager.set_status(job.job_id, RunStatus.RUNNING, fl_ctx)
        return True

    def _admit(
        self, client: Client, job: Job, app: str, running: dict[str, Any], engine: Any, fl_ctx: FLContext
    ) -> None:
        participants: dict[str, Client] = running[RunProcessKey.PARTICIPANTS]
        key = job.job_id, client.token
        # After the server was stopped no site runs the job any more, not even the one that it was resumed with.
        if client.token in participants and (key in self._admitted or job.job_id not in self._resumed):
            return
        refusals, again = self._refusals.get(key, (0, 0.0))
        if self._clock() < again:
            return
        refusal = self._start(client, job, app, engine, fl_ctx)
        if refusal is not None:
            self._refusals[key] = refusals + 1, self._clock() + min(INTERVAL * 2**refusals, LONGEST_PAUSE)
            level = logging.ERROR if refusals == SEVERAL else logging.INFO
            log.log(level, "job %s cannot start at site %s: %s", job.job_id, client.name, refusal)
            return
        if any(other.name == client.name and token != client.token for token, other in participants.items()):
            log.warning(
                "site %s has registered again, and only this last registration takes part from now on; if nobody has "
                "started the site anew: is it there twice, with a copy of its kit?",
                client.name,
            )
        # A new dictionary, as NVFlare's threads iterate over the old one; without the site's entry before its restart.
        others = {token: other for token, other in participants.items() if other.name != client.name}
        running[RunProcessKey.PARTICIPANTS] = {**others, client.token: client}
        self._admitted.add(key)
        log.warning("site %s takes part in job %s from now on", client.name, job.job_id)

    def _start(self, client: Client, job: Job, app: str, engine: Any, fl_ctx: FLContext) -> str | None:
        """Start the job at a site, and send it the job's folder if needed. Returns why it cannot start, or None."""
        needs = (job.resource_spec or {}).get(client.name, {})
        job.meta[JobMetaKey.JOB_CLIENTS] = [client.to_dict()]
        for _ in range(2):
            checks = engine.check_client_resources(job, {client.name: needs}, fl_ctx)
            enough, token = checks.get(client.name, (False, "it does not answer"))
            if not enough:
                return f"its resources do not suffice ({token})"
            replies = engine.start_client_job(job, {client.name: DispatchInfo(app, needs, token)}, fl_ctx)
            reply_text = next((str(reply.reply.body) for reply in replies if reply.reply), None)
            if reply_text is None:
                return "it does not answer"
            if reply_text == STILL_RUNS and job.job_id in self._resumed:
                # A process from before the server was stopped, which does not know the server's new process.
                engine.job_runner.abort_client_run(job.job_id, [client.name], fl_ctx)
                return "its former process has not ended yet"
            if not reply_text.startswith(ERROR_MSG_PREFIX):
                return None
            if LACKS_APP not in reply_text:
                return reply_text
            refusal = self._deploy(client, job, app, engine, fl_ctx)
            if refusal is not None:
                return refusal
        return "it has lost the job's folder"

    @staticmethod
    def _deploy(client: Client, job: Job, app: str, engine: Any, fl_ctx: FLContext) -> str | None:
        message = engine.job_runner._make_deploy_message(job, job.get_application(app, fl_ctx), app, fl_ctx)
        admin = engine.server.admin_server
        reply = admin.send_requests_and_get_reply_dict({client.token: message}, timeout_secs=DEPLOY_TIMEOUT)[
            client.token
        ]
        if reply is None:
            return "it does not answer"
        refused = reply.get_header(MsgHeader.RETURN_CODE, ReturnCode.OK) != ReturnCode.OK
        return str(reply.body) if refused else None


def _without_disabled(engine: Any) -> None:
    """Take sites that were disabled off the running jobs, so that they are admitted again when they may come back."""
    disabled = DISABLED.all()
    for running in list(engine.run_processes.values()) if disabled else ():
        participants = running[RunProcessKey.PARTICIPANTS]
        kept = {token: client for token, client in participants.items() if client.name not in disabled}
        if len(kept) < len(participants):
            running[RunProcessKey.PARTICIPANTS] = kept


@PATCH.replaces(f"{SERVER}.process_job_failure", "4cbc71800f03")
def _note_failure(original: Callable[..., Any], self: Any, request: Any) -> Any:
    """A site's report that its part of a job has failed counts as one that it has ended, and is logged."""
    report = request.payload
    if isinstance(report, dict):
        if report.get(JobFailureMsgKey.CODE) not in (JobReturnCode.SUCCESS, JobReturnCode.ABORTED):
            job, site = report.get(JobFailureMsgKey.JOB_ID), request.get_header(MessageHeaderKey.ORIGIN)
            reason = report.get(JobFailureMsgKey.REASON)
            log.warning(
                "site %a has ended its part of job %a%s: its log has the reason",
                str(site)[:80],
                str(job)[:80],
                "" if reason is None else f" ({str(reason)[:80]!a})",
            )
        request.payload = report | {JobFailureMsgKey.CODE: JobReturnCode.SUCCESS}
    return original(self, request)


def update_clients(engine: Any, job_id: str) -> None:
    """In a job's process at the server: ask the parent process who takes part now."""
    if not PATCH.fits():
        return
    clients = engine._retrieve_clients_data(job_id)
    if clients and set(clients) != set(engine.client_manager.clients):
        manager = engine.client_manager
        manager.name_to_clients, manager.clients = {client.name: client for client in clients.values()}, clients
