"""A site's side of a survey under FLARE: its answer, its policy, and no path of its own in what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from nvflare.apis.dxo import from_shareable
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace
from surveysites import survey_site

from fedshift.data.fingerprint import fingerprint
from fedshift.federation.site.privacy.ledger import HEAD_FILE, Ledger
from fedshift.flare import codec
from fedshift.flare.export import SPEC
from fedshift.schema.fingerprint import SurveySpec
from fedshift.schema.messages import Broadcast
from fedshift.schema.policy import LEDGER_FILE, LedgerHead
from fedshift_survey.flare.executor import SurveyExecutor
from fedshift_survey.flare.job import write_survey_job
from fedshift_testing.serialised import Kit

ASKED = SurveySpec(survey="survey_organ", dataset="organ", sites=("HK", "UCL"))


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kit:
    """A kit of site HK with a survey deployed in it, and its data."""
    survey_site(tmp_path / "data", "HK", (1, 2, 3))
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path / "data"))
    kit = tmp_path / "kit"
    for name in ("local", "startup"):
        (kit / name).mkdir(parents=True)
    workspace = Workspace(root_dir=str(kit), site_name="HK")
    write_survey_job(ASKED, tmp_path / "job")
    config = Path(workspace.get_app_config_dir("job"))
    config.parent.mkdir(parents=True)
    (tmp_path / "job" / SPEC).parent.rename(config)
    return Kit("HK", workspace)


def ask(context: Kit, task: str = codec.SURVEY) -> str | object:
    asked = codec.encode_task(Broadcast(round=0, best_round=0, weights={}, sites=("HK",)))
    answer = SurveyExecutor().execute(task, asked, context, Signal())  # type: ignore[arg-type]
    try:
        return codec.decode_survey(answer)
    except codec.WireError as error:
        return error.reason


def test_a_site_answers_with_its_fingerprint(context: Kit, tmp_path: Path) -> None:
    assert ask(context) == fingerprint(tmp_path / "data" / "organ" / "HK", least=3)


def test_its_own_policy_counts(context: Kit, tmp_path: Path) -> None:
    settings = tmp_path / "kit" / "local" / "fedshift.yaml"
    settings.write_text("privacy: {survey_cases: 4}\n", encoding="utf-8")
    told = ask(context)
    assert "fewer cases" in getattr(told, "withheld", "") and getattr(told, "surveyed", None) == 0
    settings.write_text("privacy: {encryption: required}\n", encoding="utf-8")
    assert "privacy.encryption: required" in str(ask(context))


def test_a_ledger_without_what_the_server_has_seen_is_not_surveyed(context: Kit, tmp_path: Path) -> None:
    """Each survey with noise is a release of its own, so a ledger from a backup would hide what was spent."""
    context.simulator, local = False, tmp_path / "kit" / "local"
    (local / "fedshift.yaml").write_text(
        f"data: {{organ: {tmp_path / 'data' / 'organ' / 'HK'}}}\nprivacy: {{statistics: {{epsilon: 3}}}}\n",
        encoding="utf-8",
    )

    def answer(seen: dict[str, LedgerHead]) -> Shareable:
        asked = codec.encode_task(Broadcast(round=0, best_round=0, weights={}, sites=("HK",), ledgers=seen))
        return SurveyExecutor().execute(codec.SURVEY, asked, context, Signal())  # type: ignore[arg-type]

    told = answer({})
    head = codec.told_ledger(told)
    assert codec.decode_survey(told) and head is not None and head == Ledger(local).read().head
    for file in (LEDGER_FILE, HEAD_FILE):
        (local / file).unlink()
    with pytest.raises(codec.WireError, match="site HK: its privacy ledger"):
        codec.decode_survey(answer({"HK": head}))
    assert not (local / LEDGER_FILE).exists()


@pytest.mark.parametrize("simulator", [True, False])
def test_missing_data_are_a_sentence_that_a_hospital_keeps_to_itself(
    context: Kit, simulator: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context.simulator = simulator
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path / "my scans"))
    said = str(ask(context))
    assert ("my scans" in said) is simulator
    assert simulator or said.startswith("DataError (")
    assert "'train'" in str(ask(context, "train")) or not simulator


def test_nothing_but_the_fingerprint_is_in_the_message(context: Kit, tmp_path: Path) -> None:
    asked = codec.encode_task(Broadcast(round=0, best_round=0, weights={}, sites=("HK",)))
    dxo = from_shareable(SurveyExecutor().execute(codec.SURVEY, asked, context, Signal()))  # type: ignore[arg-type]
    assert dxo.data == {}
    assert {key for key in dxo.meta if key in ("fedshift", "fingerprint", "reason")} == {"fedshift", "fingerprint"}
    text = str(dxo.meta)
    assert "Patient" not in text and str(tmp_path) not in text


def test_an_answer_of_another_version_is_refused(context: Kit) -> None:
    told = codec.encode_told(codec.FINGERPRINT, "no")
    told["DXO"]["meta"]["fedshift"]["source"] = "other"  # as it lies in NVFlare's message
    with pytest.raises(codec.WireError, match="the same on both"):
        codec.decode_survey(told)
