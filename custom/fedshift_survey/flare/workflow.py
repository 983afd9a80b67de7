"""The server's side of a survey: ask every connected site once, and write ``survey.json``."""

from __future__ import annotations

import logging
from pathlib import Path

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fedshift.flare import codec
from fedshift.flare.context import server_is_simulated
from fedshift.flare.ledger_heads import LedgerHeads, heads_of
from fedshift.schema.errors import FedshiftError
from fedshift.schema.messages import Broadcast
from fedshift_survey.collect import Answers
from fedshift_survey.flare.executor import spec_of
from flare_armour.patches import require_protection
from flare_armour.patches.simulator import use_in_bare_simulator
from flare_armour.protected import allow_usual

log = logging.getLogger("fedshift")


class SurveyWorkflow(Controller):
    """The controller of a survey. It ends when all have answered or their time is over."""

    _answers: Answers
    _ledgers: LedgerHeads | None = None

    def start_controller(self, fl_ctx: FLContext) -> None:
        """In FLARE's simulator, replace its way to start workers before there are any."""
        if server_is_simulated(fl_ctx):
            use_in_bare_simulator(("fedshift.flare.executor",))

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing is left open."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the survey. An error ends it with one sentence in the log."""
        try:
            self._run(abort_signal, fl_ctx)
        except FedshiftError as error:
            log.error("%s", error)
            self.system_panic(str(error), fl_ctx)
        except Exception as error:
            log.exception("the survey failed")
            self.system_panic(f"{type(error).__name__} at the server (its log has the details)", fl_ctx)

    def process_result_of_unknown_task(
        self, client: object, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """FLARE calls this for an answer that came too late."""
        log.warning("site %s answered after the survey had ended", getattr(client, "name", "?"))

    def _run(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        if not server_is_simulated(fl_ctx):
            require_protection()
            allow_usual()
        spec = spec_of(fl_ctx)
        self._answers = Answers(spec)
        connected = {client.name for client in self._engine.get_clients()}
        asked = [site for site in spec.everyone if site in connected]
        log.info("survey of %s: asking %s", spec.dataset, ", ".join(asked) or "nobody")
        self._ledgers = None if server_is_simulated(fl_ctx) else heads_of(fl_ctx)
        known = {} if self._ledgers is None else self._ledgers.known(asked)
        broadcast = Broadcast(round=0, best_round=0, weights={}, sites=tuple(asked), ledgers=known)
        task = Task(
            codec.SURVEY,
            data=codec.encode_task(broadcast),
            timeout=round(spec.timeout),
            result_received_cb=self._receive,
        )
        if asked:
            self.broadcast_and_wait(task, fl_ctx, targets=asked, min_responses=len(asked), abort_signal=abort_signal)
        if abort_signal.triggered:
            return
        folder = Path(fl_ctx.get_workspace().get_run_dir(fl_ctx.get_job_id()))
        survey = self._answers.survey()
        path = survey.write(folder)
        log.info("survey of %d of %d sites: %s", len(survey.sites), len(spec.everyone), path.name)

    def _receive(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        """Take a site's answer. FLARE calls this in a separate thread; the client's name was authenticated by FLARE."""
        site, result = client_task.client.name, client_task.result
        code = result.get_return_code()
        if code != ReturnCode.OK:
            self._answers.refuse(site, f"FLARE reports {code}; the site's log has the details")
            return
        try:
            ledger = codec.survey_ledger(result)
            if ledger is not None and self._ledgers is not None:
                self._ledgers.keep(site, ledger)
            self._answers.add(site, codec.decode_survey(result))
        except codec.WireError as fault:
            self._answers.refuse(site, fault.reason)
        except Exception as error:  # a malformed answer must not end the survey
            log.exception("the answer of %s cannot be read", site)
            self._answers.refuse(site, f"its answer cannot be read ({type(error).__name__})")
