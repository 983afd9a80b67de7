"""What a site tells of the scans that a model was trained on: sums, under its policy, and the same on the wire."""

from __future__ import annotations

from dataclasses import replace
from math import log
from pathlib import Path

import pytest
from conftest import small_image_job
from surveysites import survey_site
from volumesites import blob_job, make_volume_site

from fedshift.data.fingerprint import case_fingerprints, fingerprint
from fedshift.data.shift import OF_A_SCAN, from_site
from fedshift.data.tallies import merge
from fedshift.federation.model_files import read_model_file
from fedshift.federation.resolve import resolve
from fedshift.federation.server.score_check import check_scores
from fedshift.federation.server.update_check import Rejected
from fedshift.federation.survey_answer import reference_of, site_reference
from fedshift.flare import codec
from fedshift.schema.errors import ConfigError
from fedshift.schema.fingerprint import DOUBT, Fingerprint, LogSums, Reference
from fedshift.schema.messages import Scores
from fedshift.schema.policy import Policy
from fedshift.schema.results import LAST
from fedshift.tasks.kinds import build_task
from fedshift_testing.serialised import Federation

SURE = [0.9, 0.8, None, 0.95]


def test_sums_are_of_each_case_against_the_others(tmp_path: Path) -> None:
    folder = survey_site(tmp_path, "A", (1, 2, 3, 4))
    cases = list(case_fingerprints(folder))
    told = reference_of(fingerprint(folder), cases, SURE, least=3)
    assert set(told.apart) == {aspect.key for aspect in OF_A_SCAN} | {DOUBT}
    assert told.apart[DOUBT].mean == pytest.approx((log(0.1) + log(0.2) + log(0.05)) / 3)
    assert told.empty == 1
    others = [from_site(case, merge([*cases[:n], *cases[n + 1 :]])) for n, case in enumerate(cases)]
    of_shape = LogSums.from_values([one["normalised"] for one in others], floor=0.01)
    assert told.apart["normalised"].mean == pytest.approx(of_shape.mean)
    assert told.apart["normalised"].deviation == pytest.approx(of_shape.deviation)
    assert merge(cases).intensities["image"].keys() == told.fingerprint.intensities["image"].keys()
    few = reference_of(fingerprint(folder), cases, SURE[:2], least=3)
    assert DOUBT not in few.apart and few.empty == 0


@pytest.mark.parametrize(
    "policy",
    [
        Policy(survey_cases=5),
        Policy(allow=("loss",)),
        Policy(encryption="required"),
        Policy.parse({"statistics": {"epsilon": 8.0, "clip": 1.0}}, where="test"),
        Policy.parse({"weights": {"epsilon": 8.0, "clip": 1.0}}, where="test"),
    ],
)
def test_a_policy_keeps_all_of_it_at_the_site(policy: Policy, tmp_path: Path) -> None:
    folder = survey_site(tmp_path, "A", (1, 2, 3, 4))
    assert site_reference(folder, "A", Policy(), SURE) is not None
    assert site_reference(folder, "A", policy, SURE) is None


def test_only_what_the_page_lists_is_on_the_wire_and_only_if_the_job_asks(tmp_path: Path) -> None:
    blobs = {site: make_volume_site(tmp_path, site, cases=7, val=3) for site in ("A", "B")}
    job = blob_job(tmp_path, "evaluation.reference=true", "schedule.rounds=1")
    federation = Federation(job, blobs, tmp_path / "run")
    coordinator = federation.run()
    assert not any(record.rejected for record in coordinator.results.evaluations)
    assert read_model_file(tmp_path / "run" / "server" / LAST)["references"].keys() == blobs.keys()
    answers = [message for message in federation.messages if message.task == codec.VALIDATE and message.up]
    assert answers
    for message in answers:
        told = {path[2:] for path in message.content if path[:2] == (message.site, "meta:reference")}
        assert {path[0] for path in told} == set(Reference.model_fields)
        assert {path[1] for path in told if path[0] == "fingerprint"} == set(Fingerprint.model_fields)
        assert {path[2] for path in told if path[0] == "apart"} == set(LogSums.model_fields)
        assert not [v for v in message.content.values() if isinstance(v, str) and ("/" in v or "case0" in v)]
    for message in federation.messages:
        if message.task != codec.VALIDATE:
            assert not [path for path in message.content if "meta:reference" in path]


def test_the_server_refuses_what_it_did_not_ask_for_and_what_is_another_sites(tmp_path: Path) -> None:
    folder = survey_site(tmp_path, "A", (1, 2, 3))
    scores = Scores("A", 1, {}, reference=site_reference(folder, "A", None, SURE))

    def check(answer: Scores, *, asked: str = "true", dataset: str = "organ") -> None:
        job = small_image_job("fedavg")
        task = job.task.model_copy(update={"dataset": dataset})
        evaluation = job.evaluation.model_copy(update={"reference": asked == "true"})
        job = job.model_copy(update={"task": task, "evaluation": evaluation})
        check_scores(answer, job=job, task=build_task(small_image_job("fedavg")), round_=1, counts={})

    check(scores)
    for refused in (
        lambda: check(scores, asked="false"),
        lambda: check(scores, dataset="prostate"),
        lambda: check(replace(scores, site="B")),
    ):
        with pytest.raises(Rejected) as caught:
            refused()
        assert caught.value.key == "reference"


def test_a_job_on_pictures_cannot_ask_for_it() -> None:
    with pytest.raises(ConfigError, match=r"classifies pictures.*leave it out"):
        build_task(resolve("digits", "fedavg", options=["evaluation.reference=true"]))
