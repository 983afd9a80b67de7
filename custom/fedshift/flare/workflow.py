"""Carries the coordinator's requests to FLARE's clients and their answers back.

The sequence of a run is `Coordinator.requests`. Clients answer at any time or never, so each request has a deadline.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
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
from fedshift.federation.server.coordinator import Coordinator
from fedshift.flare import codec
from fedshift.flare.aggregator import FedshiftAggregator
from fedshift.flare.disabled_clients import DisabledClients
from fedshift.flare.executor import job_of
from fedshift.flare.hosts import hosts
from fedshift.flare.ledger_heads import heads_of
from fedshift.flare.message_limits import MessageLimits
from fedshift.flare.round_answers import RoundAnswers
from fedshift.flare.round_deadline import RoundDeadline
from fedshift.flare.simulated import server_is_simulated
from fedshift.flare.simulator_state import take_server_back
from fedshift.flare.stats import add_progress, add_stats, server_stats
from fedshift.reporting.events import Events
from fedshift.reporting.progress import ProgressFile
from fedshift.reporting.recent_log import RecentLog
from fedshift.reporting.table import site_names
from fedshift.reporting.trackers import make_trackers
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
    """

    def __init__(self, aggregator_id: str = "aggregator") -> None:
        """``aggregator_id`` names the job's `FedshiftAggregator` component."""
        super().__init__()
        self._aggregator_id = aggregator_id
        self.answers = RoundAnswers()
        self._progress: ProgressFile | None = None
        self._protection = ServerProtection()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Answer ``show_stats`` of the console; look at every answer that comes in."""
        if event_type == EventType.BEFORE_PROCESS_SUBMISSION:
            client = fl_ctx.get_prop(FLContextKey.TASK_RESULT).get_header(ServerCommandKey.FL_CLIENT)
            if isinstance(client, Client):
                self.answers.repeated(client.name)
        elif event_type == EventType.BEFORE_TASK_RESULT_FILTER:
            result = fl_ctx.get_prop(FLContextKey.TASK_RESULT)
            self._protection.restore(result.get_header(ServerCommandKey.FL_CLIENT), result)
        elif event_type == EventType.CLIENT_DISCONNECTED:
            self.answers.gone(str(fl_ctx.get_prop(FLContextKey.DISCONNECTED_CLIENT_NAME)))
        elif event_type == EventType.CLIENT_RECONNECTED:
            self.answers.back(str(fl_ctx.get_prop(FLContextKey.RECONNECTED_CLIENT_NAME)))
        progress = self._progress
        add_stats(event_type, fl_ctx, lambda: server_stats(None if progress is None else progress.latest()))
        add_progress(event_type, fl_ctx, lambda: None if progress is None else progress.latest())

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Find the aggregator; in FLARE's simulator, replace its way to start workers before there are any."""
        if server_is_simulated(fl_ctx):
            use_in_bare_simulator(("fedshift.flare.executor", *_libraries(fl_ctx)))
        self._aggregator: FedshiftAggregator = self._engine.get_component(self._aggregator_id)
        if not isinstance(self._aggregator, FedshiftAggregator):
            self.system_panic(f"the job has no FedshiftAggregator named {self._aggregator_id!r}", fl_ctx)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing is left open."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the job. An error ends it with one sentence in the log and in ``progress.json``."""
        folder = Path(fl_ctx.get_workspace().get_run_dir(fl_ctx.get_job_id()))
        recent = RecentLog()
        logging.getLogger("flare_armour").addHandler(recent)
        progress = self._progress = ProgressFile(folder, recent=recent)
        ended = threading.Event()
        if not server_is_simulated(fl_ctx):
            threading.Thread(target=self._admit, args=(fl_ctx.get_job_id(), ended), daemon=True).start()
        try:
            self._run(folder, progress, abort_signal, fl_ctx)
        except Stopped as error:
            progress.fail(str(error))
            # An administrator's abort is no error; in the simulator nobody aborts but a dying process.
            if server_is_simulated(fl_ctx):
                self.system_panic(str(error), fl_ctx)
        except (FedshiftError, ArmourError) as error:
            self._fail(str(error), progress, fl_ctx)
        except Exception as error:
            log.exception("the server's workflow failed")
            self._fail(f"{type(error).__name__} at the server (its log has the details)", progress, fl_ctx)
        finally:
            ended.set()
            logging.getLogger("flare_armour").removeHandler(recent)
            recent.close()
            coordinator = getattr(self._aggregator, "coordinator", None)
            if coordinator is not None:
                coordinator.discard_waiting()

    def _admit(self, job_id: str, ended: threading.Event) -> None:
        """Let clients take part that the server's parent process has admitted since the job began."""
        while not ended.wait(ADMIT):
            try:
                update_clients(self._engine, job_id)
            except Exception:
                log.exception("asking who takes part failed; asked again in %g s", ADMIT)

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """FLARE calls this for an answer that came after its round had ended."""
        self.answers.stale(client.name, task_name)

    # --- the run --------------------------------------------------------------------------------------

    def _run(self, folder: Path, progress: ProgressFile, abort_signal: Signal, fl_ctx: FLContext) -> None:
        job, simulated = job_of(fl_ctx), server_is_simulated(fl_ctx)
        if simulated:
            find_sites(job)
            take_server_back(folder)
        limits = MessageLimits.of(job)
        with protected_server(
            fl_ctx,
            folder,
            clients=len(hosts(job)),
            largest_answer=limits.answer,
            simulated=simulated,
            unusable=self.answers.unusable,
            on_transfer=self._show,
        ) as self._protection:
            self._rounds(job, folder, progress, limits, abort_signal, fl_ctx)

    def _rounds(
        self,
        job: JobSpec,
        folder: Path,
        progress: ProgressFile,
        limits: MessageLimits,
        abort_signal: Signal,
        fl_ctx: FLContext,
    ) -> None:
        aggregator, federation = self._aggregator, job.federation
        ledgers = None if server_is_simulated(fl_ctx) else heads_of(fl_ctx)
        patience = RoundDeadline(
            frozenset(hosts(job)),
            federation.min_sites,
            federation.round_timeout,
            federation.grace,
            transfer=limits.seconds,
        )
        events = Events(folder, trackers=make_trackers(federation.tracking, job=job.name, folder=folder))
        try:
            startup = Path(fl_ctx.get_workspace().get_startup_kit_dir())
            audit = partial(_audit, fl_ctx.get_job_id())
            aggregator.begin(
                job,
                folder,
                on_progress=progress.update,
                on_reject=audit,
                startup=startup,
                run=fl_ctx.get_job_id(),
                ledgers=ledgers,
                stopped=lambda: bool(abort_signal.triggered),
            )
            coordinator = aggregator.coordinator
            self._disabled = DisabledClients(coordinator, self.answers, self._protection.disabled)
            events.update(coordinator.results)  # after a restart the curves are written again from round 1
            if coordinator.results.final is not None:
                log.warning("the run had been finished when it was interrupted: nothing is left to do")
                coordinator.results.write(folder)
                progress.update(coordinator)
                return
            log.info("job %s: %s, %d rounds", job.name, site_names(job.task.sites), coordinator.rounds)
            if coordinator.next_round:
                log.warning("the run was interrupted: it goes on with %s", _place(coordinator, coordinator.next_round))
            gc.collect()
            gc.freeze()  # objects made so far stay for the whole run: later collections need not visit them
            before = None
            for request in coordinator.requests():
                if before in (codec.STATISTICS, codec.TRAIN, codec.UNMASK) and request.task != codec.UNMASK:
                    _log_closed_round(coordinator)
                before = request.task
                # FLARE's tasks and answers form reference cycles: without this, old models would stay in memory.
                collect_after_round()
                known = {} if ledgers is None else ledgers.of(coordinator.invited)
                data = codec.encode_task(replace(request.broadcast, ledgers=known))
                self._gather(request.task, data, patience, events, abort_signal, fl_ctx)
                del request, data
            events.update(coordinator.results)
            log.info("finished: the best model is that of round %d", coordinator.best_round)
        finally:
            events.close()
            gc.unfreeze()

    def _gather(
        self,
        name: str,
        data: Shareable,
        patience: RoundDeadline,
        events: Events,
        abort_signal: Signal,
        fl_ctx: FLContext,
    ) -> None:
        """Send a task to the invited clients and take their answers until the round is over.

        The curves of earlier rounds are written while the clients work.

        Raises:
            Stopped: the job was aborted.
            DiskFull, OSError: an answer can't be stored on this machine.
        """
        coordinator, answers = self._aggregator.coordinator, self.answers
        invited = set(coordinator.invited)
        asked = frozenset(client for client, sites in hosts(coordinator.job).items() if invited & set(sites))
        out = invited & set(coordinator.job.task.held_out)
        awaited = frozenset(client for client, sites in hosts(coordinator.job).items() if out & set(sites))
        asked, awaited = asked - self._disabled.names, awaited - self._disabled.names
        patience = replace(patience, clients=asked, min_sites=coordinator.needed, awaited=awaited)
        task = Task(name, data=data, result_received_cb=answers.receive)
        self._protection.begin_round(task, asked, place=_place(coordinator, coordinator.round))
        started = time.monotonic() - coordinator.waited
        quorum_after: float | None = None
        answers.open(asked, self._aggregator)
        self._disabled.leave_out()
        if asked:  # to FLARE, nobody is everybody
            self.broadcast(task, fl_ctx, targets=sorted(asked), min_responses=len(asked))
        self._protection.requests.notify()
        try:
            if name == codec.STATISTICS:
                events.prepare()
            elif name == codec.TRAIN:  # in the evaluation, answers change the scores that this writes
                events.update(coordinator.results)
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
                        moved=self._protection.moved(since=started + coordinator.waited),
                    )
                    # FLARE itself ends a task when only dead clients are left.
                    if elapsed >= end or coordinator.hopeless or task.completion_status is not None:
                        break
                    if abort_signal.triggered:
                        place = _place(coordinator, coordinator.round)
                        raise Stopped("stopped", answers.why_stopped(patience.min_sites, place))
                    answers.changed.wait(min(LOOK, max(end - elapsed, 0.0)))
        finally:
            answers.close()
            self.cancel_task(task, completion_status=TaskCompletionStatus.OK)
            moved = self._protection.moved()
            self._protection.end_round()
        if answers.fault is not None:
            raise answers.fault
        silent = answers.note_silent(moved.keys())
        if silent and not coordinator.hopeless:
            log.warning("%s: no answer from %s", _place(coordinator, coordinator.round), ", ".join(sorted(silent)))

    def _show(self) -> None:
        """Write ``progress.json`` again, with the line of the log about a transfer."""
        with self.answers.changed:
            if self.answers.is_open and self._progress is not None:
                self._progress.update(self._aggregator.coordinator)

    def _fail(self, reason: str, progress: ProgressFile, fl_ctx: FLContext) -> None:
        coordinator = getattr(self._aggregator, "coordinator", None)
        if coordinator is not None:
            try:
                coordinator.results.write(coordinator.folder)
            except OSError as error:
                log.warning("results.json is that of the last saved round, because it cannot be written: %s", error)
        progress.fail(reason)
        log.error("%s", reason)
        self.system_panic(reason, fl_ctx)


def _audit(job_id: str, fault: Rejection, round_: int) -> None:
    """Write a line to FLARE's audit log of the job; the simulator keeps none."""
    message = f"round {round_}: site {fault.site} is left out: {fault.key}: {fault.reason}"
    AuditService.add_job_event(job_id=job_id, task_name="fedshift.guard", task_id=str(round_), msg=message)


def _libraries(fl_ctx: FLContext) -> tuple[str, ...]:
    with suppress(FedshiftError):  # `_run` will find what is wrong with the job
        return libraries(job_of(fl_ctx).task)
    return ()


def _place(coordinator: Coordinator, round_: int) -> str:
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
