"""The server's side of a survey: ask every connected site once, and write ``survey.json``."""

from __future__ import annotations

import logging
from pathlib import Path

from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from fedshift.flare import codec
from fedshift.flare.question import QuestionWorkflow
from fedshift.schema.fingerprint import SurveySpec
from fedshift_survey.collect import Answers
from fedshift_survey.flare.executor import spec_of

log = logging.getLogger("fedshift")


class SurveyWorkflow(QuestionWorkflow):
    """The controller of a survey. It ends when all have answered or their time is over."""

    task = codec.SURVEY

    def begin(self, fl_ctx: FLContext) -> SurveyQuestion:
        """What the job asks."""
        return SurveyQuestion(spec_of(fl_ctx))


class SurveyQuestion:
    """A survey, as `fedshift.flare.question.Question`."""

    def __init__(self, spec: SurveySpec) -> None:
        self._answers = Answers(spec)
        self.about, self.sites, self.timeout = f"survey of {spec.dataset}", spec.everyone, spec.timeout

    def take(self, site: str, answer: Shareable) -> None:
        self._answers.add(site, codec.decode_survey(answer))

    def refuse(self, site: str, reason: str) -> None:
        self._answers.refuse(site, reason)

    def finish(self, folder: Path) -> None:
        survey = self._answers.survey()
        path = survey.write(folder)
        log.info("survey of %d of %d sites: %s", len(survey.sites), len(self.sites), path.name)
