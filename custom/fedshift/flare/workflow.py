"""The round loop under FLARE: the coordinator's requests go to FLARE's clients, and their answers come back::

    for request in coordinator.requests():    # statistics, the training rounds, the last evaluation
        send its task to the clients of the invited sites
        pass each answer to the aggregator when it comes, and write the curves of earlier rounds meanwhile
        until all have answered, or enough have and the others had as long again, or the time is over
        name who has not answered
                                              # taking the next request combines the updates and saves the round

Clients answer at any time or never, so each request has a deadline (`RoundDeadline`).
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import Task, TaskCompletionStatus
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ServerCommandKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.fuel.sec.audit import AuditService

from fedshift.data.locate import find_sites
from fedshift.federation.ledger_heads import LedgerHeads
from fedshift.federation.message_limits import MessageLimits
from fedshift.federation.server.coordinator import Coordinator
from fedshift.flare import codec
from fedshift.flare.aggregator import FedshiftAggregator
from fedshift.flare.context import deployed_job, local_folder, run_folder, server_is_simulated, startup_folder
from fedshift.flare.export import hosts
from fedshift.flare.round_answers import DisabledClients, RoundAnswers, RoundDeadline
from fedshift.flare.stats import add_progress, add_stats, server_stats
from fedshift.flare.workspaces import take_server_back
from fedshift.reporting.events import Events
from fedshift.reporting.progress import Progress, ProgressFile
from fedshift.reporting.recent_log import RecentLog
from fedshift.reporting.table import site_names
from fedshift.reporting.trackers import make_trackers
from fedshift.schema.components import admit
from fedshift.schema.errors import FedshiftError, Stopped
from fedshift.schema.job import JobSpec
from fedshift.schema.results import Rejection
from fedshift.tasks.libraries import libraries
from flare_armour.patch import ArmourError
from flare_armour.patches.server_memory import collect_after_round
from flare_armour.patches.simulator import use_in_bare_simulator
from flare_armour.protected import ServerProtection, protected_server
from flare_armour.readmission import update_clients

log = logging.getLogger("fedshift")

LOOK = 0.1
"""Seconds between looks at the clock and at the abort signal."""
ADMIT = 1.0
"""Seconds between looks at who takes part."""


class FedshiftWorkflow(Controller):
    """The server's controller of a job. Every round ends, whatever its clients do.

    Attributes:
        answers: who has answered the open round.
        progress: the job's ``progress.json``, once it runs.
        protection: of this process of the job, once it runs.
    """

    _fl_ctx: FLContext
    _abort: Signal
    _aggregator: FedshiftAggregator
    _disabled: DisabledClients
    _events: Events
    _ledgers: LedgerHeads | None
    _patience: RoundDeadline

    def __init__(self, aggregator_id: str = "aggregator") -> None:
        """``aggregator_id`` names the job's `FedshiftAggregator`."""
        super().__init__()
        self._aggregator_id = aggregator_id
        self.answers = RoundAnswers()
        self.progress: ProgressFile | None = None
        self.protection = ServerProtection()

    # --- the rounds -----------------------------------------------------------------------------------

    def _ask_all(self, coordinator: Coordinator) -> None:
        """Ask the clients whatever the job asks, until it has its final scores."""
        before = codec.VALIDATE
        for request in coordinator.requests():
            if before != codec.VALIDATE and request.task != codec.UNMASK:
                _log_closed_round(coordinator)
            before = request.task
            # FLARE's tasks and answers form reference cycles: without this, old models would stay in memory.
            collect_after_round()
            known = {} if self._ledgers is None else self._ledgers.known(coordinator.invited)
            data = codec.encode_task(replace(request.broadcast, ledgers=known))
            self._ask(request.task, data)
            del request, data
        self._events.update(coordinator.results)
        log.info("finished: the best model is that of round %d", coordinator.best_round)

    def _ask(self, name: str, data: Shareable) -> None:
        """Send a task to the invited clients and take their answers until the round is over.

        Raises:
            Stopped: the job was aborted.
            DiskFull, OSError: an answer can't be stored on this machine.
        """
        coordinator, answers = self._aggregator.coordinator, self.answers
        asked = self._clients(coordinator.invited)
        awaited = self._clients({*coordinator.invited} & {*coordinator.job.task.held_out})
        patience = replace(self._patience, clients=asked, min_sites=coordinator.needed, awaited=awaited)
        task = Task(name, data=data, result_received_cb=answers.receive)
        self.protection.begin_round(task, asked, place=_place(coordinator))
        started = time.monotonic() - coordinator.waited
        answers.open(asked, self._aggregator)
        self._disabled.leave_out()
        if asked:  # to FLARE, nobody is everybody
            self.broadcast(task, self._fl_ctx, targets=sorted(asked), min_responses=len(asked))
        self.protection.requests.notify()
        try:
            if name == codec.STATISTICS:
                self._events.prepare()
            elif name == codec.TRAIN:  # in the evaluation, answers change the scores that this writes
                self._events.update(coordinator.results)
            self._wait(task, patience, started=started)
        finally:
            answers.close()
            self.cancel_task(task, completion_status=TaskCompletionStatus.OK)
            moved = self.protection.moved()
            self.protection.end_round()
        if answers.fault is not None:
            raise answers.fault
        silent = answers.note_silent(moved.keys())
        if silent and not coordinator.hopeless:
            log.warning("%s: no answer from %s", _place(coordinator), ", ".join(sorted(silent)))

    def _wait(self, task: Task, patience: RoundDeadline, *, started: float) -> None:
        """Wait until the round is over; answers come in other threads."""
        coordinator, answers = self._aggregator.coordinator, self.answers
        quorum_after: float | None = None
        with answers.changed:
            while answers.fault is None:
                answers.leave_out_unusable()
                self._disabled.leave_out()
                elapsed = time.monotonic() - started - coordinator.waited
                usable = coordinator.usable
                if quorum_after is None and usable >= patience.min_sites:
                    quorum_after = elapsed
                end = patience.deadline(
                    answered=answers.answered,
                    usable=usable,
                    quorum_after=quorum_after,
                    silent_before=answers.silent,
                    moved=self.protection.moved(since=started + coordinator.waited),
                )
                # FLARE itself ends a task when only dead clients are left.
                if elapsed >= end or coordinator.hopeless or task.completion_status is not None:
                    return
                if self.progress is not None:
                    self.progress.catch_up()
                if self._abort.triggered:
                    raise Stopped("stopped", answers.why_stopped(patience.min_sites, _place(coordinator)))
                answers.changed.wait(min(LOOK, max(end - elapsed, 0.0)))

    def _clients(self, sites: tuple[str, ...] | set[str]) -> frozenset[str]:
        """The clients that work for any of these sites and are not disabled."""
        hosting = hosts(self._aggregator.coordinator.job).items()
        return frozenset(client for client, hosted in hosting if {*sites} & {*hosted}) - self._disabled.names

    # --- the job around them --------------------------------------------------------------------------

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Find the aggregator; in FLARE's simulator, replace its way to start workers before there are any."""
        if server_is_simulated(fl_ctx):
            imported: tuple[str, ...] = ()
            with suppress(FedshiftError):  # `_run` will find what is wrong with the job
                imported = libraries(deployed_job(fl_ctx).task)
            use_in_bare_simulator(("fedshift.flare.executor", *imported))
        self._aggregator = self._engine.get_component(self._aggregator_id)
        if not isinstance(self._aggregator, FedshiftAggregator):
            self.system_panic(f"the job has no FedshiftAggregator named {self._aggregator_id!r}", fl_ctx)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing is left open."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the job. An error ends it with one sentence in the log and in ``progress.json``."""
        self._fl_ctx, self._abort = fl_ctx, abort_signal
        recent = RecentLog()
        logging.getLogger("flare_armour").addHandler(recent)
        self.progress = progress = ProgressFile(run_folder(fl_ctx), recent=recent)
        ended = threading.Event()
        if not server_is_simulated(fl_ctx):
            threading.Thread(target=self._admit, args=(fl_ctx.get_job_id(), ended), daemon=True).start()
        try:
            self._run(progress)
        except Stopped as error:
            progress.fail(str(error))
            # An administrator's abort is no error; in the simulator nobody aborts but a dying process.
            if server_is_simulated(fl_ctx):
                self.system_panic(str(error), fl_ctx)
        except (FedshiftError, ArmourError) as error:
            self._fail(str(error), progress)
        except Exception as error:
            log.exception("the server's workflow failed")
            self._fail(f"{type(error).__name__} at the server (its log has the details)", progress)
        finally:
            ended.set()
            logging.getLogger("flare_armour").removeHandler(recent)
            recent.close()
            coordinator = getattr(self._aggregator, "coordinator", None)
            if coordinator is not None:
                coordinator.discard_waiting()

    def _run(self, progress: ProgressFile) -> None:
        job, folder = deployed_job(self._fl_ctx), run_folder(self._fl_ctx)
        simulated = server_is_simulated(self._fl_ctx)
        if simulated:
            find_sites(job)
            take_server_back(folder)
        admit(job.packages, where="the server")
        limits, federation = MessageLimits.from_job(job, most=max(map(len, hosts(job).values()))), job.federation
        self._ledgers = None if simulated else LedgerHeads(local_folder(self._fl_ctx))
        self._patience = RoundDeadline(
            frozenset(hosts(job)),
            federation.min_sites,
            federation.round_timeout,
            federation.grace,
            transfer=limits.seconds,
        )
        with protected_server(
            self._fl_ctx,
            folder,
            clients=len(hosts(job)),
            largest_answer=limits.answer,
            simulated=simulated,
            unusable=self.answers.unusable,
            on_transfer=self._show_transfer,
        ) as self.protection:
            trackers = make_trackers(federation.tracking, job=job.name, folder=folder)
            self._events = Events(folder, trackers=trackers)
            try:
                coordinator = self._begin(job, folder, progress)
                if coordinator.results.final is not None:
                    log.warning("the run had been finished when it was interrupted: nothing is left to do")
                    coordinator.results.write(folder)
                    progress.update(coordinator)
                    return
                log.info("job %s: %s, %d rounds", job.name, site_names(job.task.sites), coordinator.rounds)
                if coordinator.next_round:
                    place = _place(coordinator, coordinator.next_round)
                    log.warning("the run was interrupted: it goes on with %s", place)
                gc.collect()
                gc.freeze()  # objects made so far stay for the whole run: later collections need not visit them
                self._ask_all(coordinator)
            finally:
                self._events.close()
                gc.unfreeze()

    def _begin(self, job: JobSpec, folder: Path, progress: ProgressFile) -> Coordinator:
        """Make the coordinator, with what an interrupted run has left."""
        self._aggregator.begin(
            job,
            folder,
            on_progress=progress.update,
            on_reject=self._audit,
            startup=startup_folder(self._fl_ctx),
            run=self._fl_ctx.get_job_id(),
            ledgers=self._ledgers,
            stopped=lambda: bool(self._abort.triggered),
        )
        coordinator = self._aggregator.coordinator
        self._disabled = DisabledClients(coordinator, self.answers, self.protection.disabled)
        self._events.update(coordinator.results)  # after a restart the curves are written again from round 1
        return coordinator

    def _fail(self, reason: str, progress: ProgressFile) -> None:
        coordinator = getattr(self._aggregator, "coordinator", None)
        if coordinator is not None:
            try:
                coordinator.results.write(coordinator.folder)
            except OSError as error:
                log.warning("results.json is that of the last saved round, because it cannot be written: %s", error)
        progress.fail(reason)
        log.error("%s", reason)
        self.system_panic(reason, self._fl_ctx)

    def _admit(self, job_id: str, ended: threading.Event) -> None:
        """Let clients take part that the server's parent process has admitted since the job began."""
        while not ended.wait(ADMIT):
            try:
                update_clients(self._engine, job_id)
            except Exception:
                log.exception("asking who takes part failed; asked again in %g s", ADMIT)

    # --- what FLARE reports, and what is shown --------------------------------------------------------

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Answer ``show_stats`` of the console; look at every answer that comes in."""
        if event_type == EventType.BEFORE_PROCESS_SUBMISSION:
            client = fl_ctx.get_prop(FLContextKey.TASK_RESULT).get_header(ServerCommandKey.FL_CLIENT)
            if isinstance(client, Client):
                self.answers.repeated(client.name)
        elif event_type == EventType.BEFORE_TASK_RESULT_FILTER:
            result = fl_ctx.get_prop(FLContextKey.TASK_RESULT)
            self.protection.restore(result.get_header(ServerCommandKey.FL_CLIENT), result)
        elif event_type == EventType.CLIENT_DISCONNECTED:
            self.answers.gone(str(fl_ctx.get_prop(FLContextKey.DISCONNECTED_CLIENT_NAME)))
        elif event_type == EventType.CLIENT_RECONNECTED:
            self.answers.back(str(fl_ctx.get_prop(FLContextKey.RECONNECTED_CLIENT_NAME)))
        add_stats(event_type, fl_ctx, lambda: server_stats(self._latest()))
        add_progress(event_type, fl_ctx, self._latest)

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """FLARE calls this for an answer that came after its round had ended."""
        self.answers.stale(client.name, task_name)

    def _latest(self) -> Progress | None:
        return None if self.progress is None else self.progress.latest()

    def _show_transfer(self) -> None:
        """Write ``progress.json`` again, with the line of the log about a transfer."""
        with self.answers.changed:
            if self.answers.is_open and self.progress is not None:
                self.progress.update(self._aggregator.coordinator)

    def _audit(self, fault: Rejection, round_: int) -> None:
        """Write a line to FLARE's audit log of the job; the simulator keeps none."""
        message = f"round {round_}: site {fault.site} is left out: {fault.key}: {fault.reason}"
        job_id = self._fl_ctx.get_job_id()
        AuditService.add_job_event(job_id=job_id, task_name="fedshift.guard", task_id=str(round_), msg=message)


def _place(coordinator: Coordinator, round_: int | None = None) -> str:
    """Where a run is, or will be in another round than the open one."""
    round_ = coordinator.round if round_ is None else round_
    if round_ == 0:
        return "the statistics round"
    return f"round {round_}" if round_ <= coordinator.rounds else "the last evaluation"


def _log_closed_round(coordinator: Coordinator) -> None:
    round_ = coordinator.next_round - 1
    if round_ == 0:
        kinds = sorted({site.kind for site in coordinator.results.data.values()})
        log.info("statistics round done; data: %s", ", ".join(kinds))
        if "phantom" in kinds:
            log.warning("the data are the phantom: simulated scans, not patients")
        return
    score = coordinator.mean_score(round_ - 1)
    known = "" if score is None else f"; round {round_ - 1} validates at {coordinator.metric} {score:.4f}"
    took = coordinator.results.rounds[-1].seconds
    log.info("round %d of %d done in %.1f s%s", round_, coordinator.rounds, took, known)
