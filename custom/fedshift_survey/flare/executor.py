"""The site's side of a survey: its fingerprint under its policy, or one sentence."""

from __future__ import annotations

import logging
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fedshift.data.locate import find_site, read_settings
from fedshift.federation.survey_answer import answer
from fedshift.flare import codec
from fedshift.flare.context import client_is_simulated
from fedshift.flare.ledger_heads import SiteLedger
from fedshift.schema.errors import ConfigError, FedshiftError, PolicyError
from fedshift.schema.fingerprint import Fingerprint, SurveySpec
from fedshift.schema.job import FILE_NAME
from fedshift_survey.flare.job import read_survey_spec
from flare_armour.patches import require_protection
from flare_armour.protected import allow_usual

log = logging.getLogger("fedshift")


class SurveyExecutor(Executor):
    """Answers the task ``survey`` for the client's site."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Before the task comes, limit what comes."""
        if event_type == EventType.START_RUN and not client_is_simulated(fl_ctx):
            allow_usual()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Answer. What goes wrong is answered with a sentence; its details stay in the site's log."""
        simulated, name = client_is_simulated(fl_ctx), fl_ctx.get_identity_name()
        if not simulated:
            require_protection()
        try:
            if task_name != codec.SURVEY:
                raise ConfigError(
                    "other-version", f"there is no task {task_name!r}: install the server's version of fedshift here"
                )
            local = Path(fl_ctx.get_workspace().get_site_config_dir())
            ledger = SiteLedger(name, None if simulated else local)
            ledger.require(codec.decode_task(shareable))
            return codec.encode_survey(_told(name, fl_ctx, local, simulated=simulated), ledger=ledger.head())
        except PolicyError as error:
            log.error("site %s: %s", name, error)
            return codec.encode_survey(str(error))
        except FedshiftError as error:
            log.error("site %s: %s", name, error)
            # The sentence may name files and folders, which must not leave a hospital.
            return codec.encode_survey(
                str(error) if simulated else f"{type(error).__name__} (the site's log says more)"
            )
        except Exception as error:
            log.exception("site %s: the survey failed", name)
            return codec.encode_survey(f"{type(error).__name__} (the site's log has the details)")


def spec_of(fl_ctx: FLContext) -> SurveySpec:
    """The survey that FLARE has deployed at this party."""
    return read_survey_spec(Path(fl_ctx.get_workspace().get_app_config_dir(fl_ctx.get_job_id())) / FILE_NAME)


def _told(name: str, fl_ctx: FLContext, local: Path, *, simulated: bool) -> Fingerprint:
    spec = spec_of(fl_ctx)
    folder = find_site(spec.dataset, name, local=local, simulator=simulated)
    return answer(folder, name, read_settings(local).privacy, ledger=None if simulated else local)
