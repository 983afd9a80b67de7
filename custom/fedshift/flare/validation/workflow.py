"""The server's side of a validation: ask every connected site once, and write ``validation.json``."""

from __future__ import annotations

import logging
from pathlib import Path

from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from fedshift.federation.validation_record import ValidationAnswers
from fedshift.flare import codec
from fedshift.flare.context import run_folder
from fedshift.flare.question import QuestionWorkflow
from fedshift.flare.stats import add_progress, add_stats, server_stats
from fedshift.flare.validation.job import deployed
from fedshift.inference.validation_run import begin
from fedshift.reporting.progress import Progress, ProgressFile, of_validation
from fedshift.reporting.recent_log import RecentLog
from fedshift.schema.validation import SiteValidation

log = logging.getLogger("fedshift")


class ValidationWorkflow(QuestionWorkflow):
    """The controller of a validation. It ends when all have answered or their time is over."""

    task = codec.SCORE
    _progress: ProgressFile | None = None

    def begin(self, fl_ctx: FLContext) -> ValidationQuestion:
        """What the job asks, once its models are read."""
        self._progress = progress = ProgressFile(run_folder(fl_ctx), recent=RecentLog())
        spec, models = deployed(fl_ctx)
        answers = begin(spec, models, on_change=lambda answers: progress.show(of_validation(answers)))
        progress.show(of_validation(answers))
        return ValidationQuestion(answers, progress)

    def failed(self, reason: str) -> None:
        """Say so in ``progress.json``."""
        if self._progress is not None:
            self._progress.fail(reason)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Answer ``show_stats`` of the console, and ``fedshift watch``."""
        add_stats(event_type, fl_ctx, lambda: server_stats(self._latest()))
        add_progress(event_type, fl_ctx, self._latest)

    def _latest(self) -> Progress | None:
        return None if self._progress is None else self._progress.latest()


class ValidationQuestion:
    """A validation, as `fedshift.flare.question.Question`."""

    def __init__(self, answers: ValidationAnswers, progress: ProgressFile) -> None:
        spec = answers.spec
        self._answers, self._progress = answers, progress
        self.about = f"validation of {len(spec.models)} model(s) on {spec.dataset}"
        self.sites, self.timeout = spec.sites, spec.timeout

    def take(self, site: str, answer: Shareable) -> None:
        self._answers.add(site, codec.decode_told(codec.VALIDATION, SiteValidation, answer))

    def refuse(self, site: str, reason: str) -> None:
        self._answers.refuse(site, reason)

    def finish(self, folder: Path) -> None:
        record = self._answers.record()
        self._progress.show(of_validation(self._answers, record))
        path = record.write(folder)  # last: a simulated run is ended when it is there
        log.info("validation at %d of %d sites: %s", len(record.sites), len(self.sites), path.name)
