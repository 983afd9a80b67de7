"""Answers to a survey are checked, whoever sent them, and a site that has none is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from errors import raises
from surveysites import survey_site

from fedshift.data.fingerprint import fingerprint
from fedshift.schema.errors import ConfigError
from fedshift.schema.fingerprint import SurveySpec, read_survey
from fedshift.schema.policy import Policy
from fedshift_survey.collect import Answers, survey_in_process
from fedshift_survey.question import narrowed, question

SPEC = SurveySpec(survey="s", dataset="organ", sites=("A", "B"), held_out=("C",))


def test_all_sites_are_asked_and_faults_are_noted(tmp_path: Path) -> None:
    data = {site: survey_site(tmp_path, site, (1, 2, 3)) for site in SPEC.everyone}
    (data["B"] / "volumes" / "Patient001_mask.nii.gz").unlink()
    survey = survey_in_process(SPEC, data, policies={"C": Policy(encryption="required")})
    assert list(survey.sites) == ["A"] and [one.site for one in survey.planned] == ["A"]
    assert "Patient001_mask" in survey.refused["B"] and "encryption" in survey.refused["C"]
    assert read_survey(survey.write(tmp_path / "out")) == survey


def test_answers_of_others_and_no_answers_are_refused(tmp_path: Path) -> None:
    told = fingerprint(survey_site(tmp_path, "A", (1, 2, 3)))
    answers = Answers(SPEC)
    assert not answers.add("B", told), "in another's name"
    assert answers.add("A", told.model_dump(mode="json"))
    assert not answers.add("A", told), "twice"
    assert not answers.add("X", told.model_copy(update={"site": "X"}))
    assert not answers.add("C", {"site": "C", "surprise": 1})
    survey = answers.survey()
    assert list(survey.sites) == ["A"]
    assert "name of A" in survey.refused["B"] and "no fingerprint" in survey.refused["C"]
    late = Answers(SPEC)
    late.add("A", told)
    assert late.survey().refused.keys() == {"B", "C"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("intensities", {"image": {"liver": None}}),
        ("surveyed", -1),
        ("volumes", {"tumour": {"cases": 1, "surveyed": 1}}),
        ("scanners", {"a\nb": 1}),
        (
            "geometry",
            {"cases": 1, "spacing": [[[2, 1], [1, 1]], [], []], "extent": [[], [], []], "voxels": [[], [], []]},
        ),
        ("classes", ["background", "whole volume"]),
    ],
)
def test_what_no_site_tells_is_refused(key: str, value: object, tmp_path: Path) -> None:
    told = fingerprint(survey_site(tmp_path, "A", (1, 2, 3))).model_dump(mode="json")
    assert not Answers(SPEC).add("A", {**told, key: value})


def test_a_name_of_a_task_and_a_data_set_is_what_is_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path))
    assert question("hippocampus").dataset == "hippocampus_simulated"
    survey_site(tmp_path, "HOSPITAL", (1,), dataset="hippocampus")
    assert question("hippocampus").sites == ("HOSPITAL",)
    survey_site(tmp_path, "sim_a", (1,), dataset="hippocampus_simulated")
    with raises("which-data", naming=("hippocampus_simulated", "--sites sim_a or --sites HOSPITAL")):
        question("hippocampus")
    assert question("hippocampus", sites=["sim_a"]).dataset == "hippocampus_simulated"
    assert question("hippocampus", sites=["HOSPITAL"]).dataset == "hippocampus"


def test_whom_a_task_a_file_or_a_data_set_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path))
    for site in ("A", "B"):
        survey_site(tmp_path, site, (1,))
    assert question("organ").sites == ("A", "B")
    assert question("organ", held_out=["B"]).held_out == ("B",)
    assert question("prostate", sites=["HK", "UCL"]).sites == ("HK", "UCL")
    file = tmp_path / "mine.yaml"
    file.write_text("dataset: organ\nsites: [A]\nheld_out: [B]\n", encoding="utf-8")
    assert question(str(file)).everyone == ("A", "B")
    assert question("organ", sites=["B"]).everyone == ("B",)
    with raises("unknown-task", naming=("'orgam'", "'organ'")):
        question("orgam")


SITES, HELD_OUT = ("north", "south", "east"), ("west", "far")


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, (SITES, HELD_OUT)),
        ({"held_out": ["east"]}, (("north", "south", "west", "far"), ("east",))),
        ({"held_out": []}, ((*SITES, *HELD_OUT), ())),
        ({"sites": ["south", "north"]}, (("north", "south"), HELD_OUT)),
        ({"sites": ["north", "west"]}, (("north", "west"), ("far",))),
        ({"sites": ["north", "south"], "held_out": ["east"]}, (("north", "south"), ("east",))),
        ({"sites": ["nort"]}, "'nort'.*'north'"),
        ({"held_out": ["eats"]}, "'eats'.*'east'"),
        ({"sites": ["north"], "held_out": ["north"]}, "north is named"),
        ({"held_out": [*SITES, *HELD_OUT]}, "--sites"),
    ],
)
def test_options_mean_the_same_for_a_task_and_for_a_survey_made_before(
    tmp_path: Path, earlier: bool, asked: dict[str, list[str]], found: tuple[tuple[str, ...], ...] | str
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"dataset": "organ", "sites": [*SITES], "held_out": [*HELD_OUT]}), encoding="utf-8")

    def chosen() -> SurveySpec:
        return narrowed(question(str(file)), **asked, where="survey.json") if earlier else question(str(file), **asked)

    if isinstance(found, str):
        with pytest.raises(ConfigError, match=found):
            chosen()
    else:
        assert (chosen().sites, chosen().held_out) == found
