"""Sites that come late or come back, and jobs that a stopped server left unfinished. FLARE has no way for either.

`Readmission` is a component of the server's ``local/resources.json`` and lives in the server's parent process. Whenever
a site is connected that a running job names and that takes no part in it, the job is started there: a site that was
restarted goes on from its state, one that was not there at the start begins. When the server itself was stopped in the
middle of a job, that job is started again under the same id as soon as one of its sites is back; its workflow goes on
after the last closed round. `update_clients` tells the job's own process who takes part now.

FLARE's parts that this leans on are not public; pyproject.toml therefore holds nvflare to one minor version, and
tests/flare/test_deployed_faults.py shows that it works with it.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import RunProcessKey, SystemComponents
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import Job, JobMetaKey, RunStatus
from nvflare.apis.job_scheduler_spec import DispatchInfo
from nvflare.private.admin_defs import MsgHeader, ReturnCode
from nvflare.private.defs import ERROR_MSG_PREFIX

from fedshift.schema.job import FILE_NAME

log = logging.getLogger("fedshift")

LOOK = 2.0
"""Seconds between looks at who is connected, and before a site that refused is asked again; then twice as long."""
LONGEST = 60.0
"""Seconds between two such questions at most."""
SEVERAL = 8
"""Refusals after which the log speaks of an error."""
STILL_RUNS = "Client app already started."
LACKS_APP = "Client app does not exist"
"""Said by FLARE's sites."""
PATIENCE = 20.0
"""Seconds for a site to take a job's folder."""


class Readmission(FLComponent):
    """Starts running jobs at sites that should take part and do not."""

    def __init__(self) -> None:
        """Its work begins when the server has started."""
        super().__init__()
        self._stop = threading.Event()
        self._left: dict[str, Job] = {}
        self._resumed: set[str] = set()
        self._admitted: set[tuple[str, str]] = set()
        self._refusals: dict[tuple[str, str], tuple[int, float]] = {}

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Begin with the server, and end with it."""
        if event_type == EventType.SYSTEM_START:
            self._look_back(fl_ctx)
            engine = fl_ctx.get_engine()
            threading.Thread(target=self._run, args=(engine,), name="readmission", daemon=True).start()
        elif event_type == EventType.SYSTEM_END:
            self._stop.set()

    def _look_back(self, fl_ctx: FLContext) -> None:
        """Jobs that ran when the server was stopped: to be gone on with, or cleared away."""
        manager = fl_ctx.get_engine().get_component(SystemComponents.JOB_MANAGER)
        for job in manager.get_jobs_by_status([RunStatus.RUNNING, RunStatus.DISPATCHED], fl_ctx):
            if (Path(fl_ctx.get_workspace().get_app_config_dir(job.job_id)) / FILE_NAME).is_file():
                log.warning("job %s ran when the server was stopped: it goes on when a site is back", job.job_id)
                self._left[job.job_id] = job
            else:
                log.error("job %s ran when the server was stopped and left nothing to go on from", job.job_id)
                manager.set_status(job.job_id, RunStatus.ABANDONED, fl_ctx)

    def _run(self, engine: Any) -> None:
        while not self._stop.wait(LOOK):
            try:
                with engine.new_context() as fl_ctx:
                    self._look(engine, fl_ctx)
            except Exception:
                log.exception("looking for sites to admit failed; tried again in %g s", LOOK)

    def _look(self, engine: Any, fl_ctx: FLContext) -> None:
        runner = engine.job_runner
        for job_id in list(runner.running_jobs):
            # FLARE would fail a job whose every site does not end well: here its workflow's quorum decides alone.
            for name in list(runner._pending_client_outcomes.get(job_id, ())):
                runner.resolve_client_outcome(job_id, name)
        for job in [*self._left.values(), *list(runner.running_jobs.values())]:
            for client in engine.get_clients():
                app = next((app for app, sites in job.get_deployment().items() if client.name in sites), None)
                if app is None:
                    continue
                if job.job_id in self._left and not self._go_on(job, client, engine, fl_ctx):
                    break
                running = engine.run_processes.get(job.job_id)
                if running is not None:
                    self._admit(client, job, app, running, engine, fl_ctx)

    def _go_on(self, job: Job, first: Client, engine: Any, fl_ctx: FLContext) -> bool:
        """Start the server's process of a job that was left. FLARE starts none without a site: this is the first."""
        del self._left[job.job_id]
        manager, runner = engine.get_component(SystemComponents.JOB_MANAGER), engine.job_runner
        known = manager.get_job(job.job_id, fl_ctx)
        if known is None or known.meta.get(JobMetaKey.STATUS) not in (RunStatus.RUNNING, RunStatus.DISPATCHED):
            return False  # aborted or deleted meanwhile
        log.warning("job %s goes on: site %s is back", job.job_id, first.name)
        self._resumed.add(job.job_id)
        runner.restore_running_job(job.job_id, {first.token: first}, None, fl_ctx)
        if job.job_id not in runner.running_jobs:
            log.error("job %s cannot go on: FLARE's log has the reason", job.job_id)
            manager.set_status(job.job_id, RunStatus.ABANDONED, fl_ctx)
            return False
        manager.set_status(job.job_id, RunStatus.RUNNING, fl_ctx)
        return True

    def _admit(
        self, client: Client, job: Job, app: str, running: dict[str, Any], engine: Any, fl_ctx: FLContext
    ) -> None:
        participants: dict[str, Client] = running[RunProcessKey.PARTICIPANTS]
        key = job.job_id, client.token
        # After the server was stopped no site runs the job for it, the first one included.
        if key in self._admitted or (client.token in participants and job.job_id not in self._resumed):
            return
        refusals, again = self._refusals.get(key, (0, 0.0))
        if time.monotonic() < again:
            return
        refusal = self._start(client, job, app, engine, fl_ctx)
        if refusal is not None:
            self._refusals[key] = refusals + 1, time.monotonic() + min(LOOK * 2**refusals, LONGEST)
            level = logging.ERROR if refusals == SEVERAL else logging.INFO
            log.log(level, "job %s cannot start at site %s: %s", job.job_id, client.name, refusal)
            return
        # A new one, as FLARE's threads go through it; without what the site was before it was restarted.
        others = {token: other for token, other in participants.items() if other.name != client.name}
        running[RunProcessKey.PARTICIPANTS] = {**others, client.token: client}
        self._admitted.add(key)
        log.warning("site %s takes part in job %s from now on", client.name, job.job_id)

    def _start(self, client: Client, job: Job, app: str, engine: Any, fl_ctx: FLContext) -> str | None:
        """Start the job at a site, which is given the job's folder if it lacks it. Returns why it cannot."""
        needs = (job.resource_spec or {}).get(client.name, {})
        job.meta[JobMetaKey.JOB_CLIENTS] = [client.to_dict()]
        for _ in range(2):
            checks = engine.check_client_resources(job, {client.name: needs}, fl_ctx)
            enough, token = checks.get(client.name, (False, "it does not answer"))
            if not enough:
                return f"its resources do not suffice ({token})"
            replies = engine.start_client_job(job, {client.name: DispatchInfo(app, needs, token)}, fl_ctx)
            said = next((str(reply.reply.body) for reply in replies if reply.reply), None)
            if said is None:
                return "it does not answer"
            if said == STILL_RUNS and job.job_id in self._resumed:
                # Of before the server was stopped. It may be about to end, and knows nothing of the new process here.
                engine.job_runner.abort_client_run(job.job_id, [client.name], fl_ctx)
                return "its former process has not ended yet"
            if not said.startswith(ERROR_MSG_PREFIX):
                return None
            if LACKS_APP not in said:
                return said
            refusal = self._deploy(client, job, app, engine, fl_ctx)
            if refusal is not None:
                return refusal
        return "it has lost the job's folder"

    @staticmethod
    def _deploy(client: Client, job: Job, app: str, engine: Any, fl_ctx: FLContext) -> str | None:
        message = engine.job_runner._make_deploy_message(job, job.get_application(app, fl_ctx), app, fl_ctx)
        admin = engine.server.admin_server
        reply = admin.send_requests_and_get_reply_dict({client.token: message}, timeout_secs=PATIENCE)[client.token]
        if reply is None:
            return "it does not answer"
        refused = reply.get_header(MsgHeader.RETURN_CODE, ReturnCode.OK) != ReturnCode.OK
        return str(reply.body) if refused else None


def update_clients(engine: Any, job_id: str) -> None:
    """In a job's process at the server: learn from the parent who takes part now."""
    clients = engine._retrieve_clients_data(job_id)
    if clients and set(clients) != set(engine.client_manager.clients):
        manager = engine.client_manager
        manager.name_to_clients, manager.clients = {client.name: client for client in clients.values()}, clients
