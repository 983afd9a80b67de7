"""The server's side of a survey: every site's answer is checked and kept, or the reason why there is none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from fedshift.federation.survey_answer import answer
from fedshift.schema.errors import FedshiftError
from fedshift.schema.fingerprint import Fingerprint, Survey, SurveySpec
from fedshift.schema.names import one_line
from fedshift.schema.policy import Policy
from fedshift.schema.strict import first_fault

log = logging.getLogger("fedshift")


class Answers:
    """Answers to a survey as they come in, in any order."""

    def __init__(self, spec: SurveySpec) -> None:
        """``spec`` says who is asked."""
        self._spec = spec
        self._fingerprints: dict[str, Fingerprint] = {}
        self._refused: dict[str, str] = {}

    def add(self, site: str, content: object) -> bool:
        """Keep the answer of a site, as plain data or checked; False if it was rejected."""
        try:
            fingerprint = content if isinstance(content, Fingerprint) else Fingerprint.model_validate(content)
        except (ValidationError, RecursionError) as error:
            fault = first_fault(error) if isinstance(error, ValidationError) else "nested too deeply"
            return self.refuse(site, f"its answer is no fingerprint: {fault}")
        if fingerprint.site != site:
            return self.refuse(site, f"it answered in the name of {fingerprint.site}")
        if fingerprint.dataset != self._spec.dataset:
            return self.refuse(site, f"it told of data set {fingerprint.dataset}, not of {self._spec.dataset}")
        if site not in self._spec.everyone or site in self._fingerprints:
            return self.refuse(site, "it was not asked, or answered twice")
        self._fingerprints[site] = fingerprint
        log.info("site %s: %s", site, fingerprint.withheld or f"{fingerprint.surveyed} cases surveyed")
        return True

    def refuse(self, site: str, reason: str) -> bool:
        """Note that a site gave no usable answer; always False."""
        site, reason = one_line(site) or "(no name)", one_line(reason)
        log.error("site %s is left out of the survey: %s", site, reason)
        if site in self._spec.everyone:
            self._refused.setdefault(site, reason)
        return False

    def survey(self) -> Survey:
        """The survey; sites that neither answered nor said why are noted as silent."""
        silent = [site for site in self._spec.everyone if site not in self._fingerprints and site not in self._refused]
        refused = {**self._refused, **dict.fromkeys(silent, "it did not answer in time")}
        return Survey(
            spec=self._spec,
            sites={site: self._fingerprints[site] for site in self._spec.everyone if site in self._fingerprints},
            refused={
                site: refused[site]
                for site in self._spec.everyone
                if site in refused and site not in self._fingerprints
            },
        )


def survey_in_process(
    spec: SurveySpec,
    data: Mapping[str, Path],
    *,
    policies: Mapping[str, Policy] | None = None,
    progress: Callable[[str, str], None] = lambda site, case: None,
) -> Survey:
    """Ask every site in this process, one after another.

    Args:
        spec: who is asked.
        data: each site's prepared folder.
        policies: the policies of sites that have one.
        progress: called with the site and the case before each case is read.
    """
    answers = Answers(spec)
    for site in spec.everyone:
        try:
            answers.add(site, answer(data[site], site, (policies or {}).get(site), progress=partial(progress, site)))
        except FedshiftError as error:
            answers.refuse(site, str(error))
    return answers.survey()
