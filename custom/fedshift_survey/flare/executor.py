"""The site's side of a survey: its fingerprint under its policy, or one sentence."""

from __future__ import annotations

from collections.abc import Callable

from nvflare.apis.fl_context import FLContext

from fedshift.data.locate import find_site, read_settings
from fedshift.federation.survey_answer import answer
from fedshift.flare import codec
from fedshift.flare.context import client_is_simulated, config_folder, local_folder
from fedshift.flare.question import QuestionExecutor
from fedshift.schema.fingerprint import Fingerprint, SurveySpec
from fedshift.schema.job import FILE_NAME
from fedshift_survey.flare.job import read_survey_spec


class SurveyExecutor(QuestionExecutor):
    """Answers the task ``survey`` for the client's site."""

    task, part = codec.SURVEY, codec.FINGERPRINT

    def tell(self, name: str, fl_ctx: FLContext, *, stop: Callable[[], bool]) -> Fingerprint:
        """The site's fingerprint."""
        spec, local, simulated = spec_of(fl_ctx), local_folder(fl_ctx), client_is_simulated(fl_ctx)
        folder = find_site(spec.dataset, name, local=local, simulator=simulated)
        return answer(folder, name, read_settings(local).privacy, ledger=None if simulated else local)


def spec_of(fl_ctx: FLContext) -> SurveySpec:
    """The survey that FLARE has deployed at this party."""
    return read_survey_spec(config_folder(fl_ctx) / FILE_NAME)
