"""The site's side of a validation: the models' scores on its own cases under its policy, or one sentence."""

from __future__ import annotations

from collections.abc import Callable

from nvflare.apis.fl_context import FLContext

from fedshift.data.locate import find_site, read_settings
from fedshift.flare import codec
from fedshift.flare.context import client_is_simulated, local_folder, run_folder
from fedshift.flare.question import QuestionExecutor
from fedshift.flare.stats import NONE, add_stats
from fedshift.flare.validation.job import deployed
from fedshift.flare.workspaces import SITES
from fedshift.inference.validation import answer
from fedshift.schema.errors import Stopped
from fedshift.schema.policy import listed_packages
from fedshift.schema.validation import SiteValidation


class ValidationExecutor(QuestionExecutor):
    """Answers the task ``score`` for the client's site."""

    task, part = codec.SCORE, codec.VALIDATION

    def __init__(self) -> None:
        """Nothing is opened before the task comes."""
        super().__init__()
        self._at_work = NONE

    def tell(self, name: str, fl_ctx: FLContext, *, stop: Callable[[], bool]) -> SiteValidation:
        """The site's scores. What it works on is for its own console: ids of cases stay out of it."""
        (spec, models), local, simulated = deployed(fl_ctx), local_folder(fl_ctx), client_is_simulated(fl_ctx)
        settings, scored = read_settings(local), dict[str, int]()

        def progress(model: str, case: str) -> None:
            if stop():
                raise Stopped("stopped", f"site {name}: the job was ended from outside")
            scored[model] = scored.get(model, 0) + 1
            self._at_work = f"model {len(scored)} of {len(spec.models)}"

        validation = answer(
            find_site(spec.dataset, name, local=local, simulator=simulated),
            name,
            spec,
            models,
            settings.privacy,
            packages=listed_packages(settings.privacy, simulated=simulated),
            ledger=None if simulated else local,
            scores_folder=run_folder(fl_ctx) / SITES / name,
            device=settings.device,
            progress=progress,
        )
        self._at_work = NONE
        return validation

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Answer the console's ``show_stats`` too."""
        super().handle_event(event_type, fl_ctx)
        add_stats(event_type, fl_ctx, lambda: {"at work on": self._at_work})
