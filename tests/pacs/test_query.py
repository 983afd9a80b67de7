from __future__ import annotations

import pytest
from errors import raises
from pydicom.dataset import Dataset

from fedshift.pacs.query import contradicted, parse_query


def said(**values: object) -> Dataset:
    dataset = Dataset()
    for key, value in values.items():
        setattr(dataset, key, value)
    return dataset


def test_keys_are_of_studies_or_of_series_and_studies_are_searched_by_the_modality_too() -> None:
    query = parse_query(["StudyDate=20240101-20240630", "Modality=MR", "SeriesDescription=t2*"])
    assert query.study == {"StudyDate": "20240101-20240630"}
    assert query.series == {"Modality": "MR", "SeriesDescription": "t2*"}
    assert query.asked_of_studies == {"StudyDate": "20240101-20240630", "ModalitiesInStudy": "MR"}


@pytest.mark.parametrize(
    ("word", "code", "naming"),
    [
        ("SeriesDescripton=t2*", "query-key", "did you mean 'SeriesDescription'"),
        ("Modality=", "query-value", "Modality"),
        ("Modality", "query-value", "Modality"),
        ("StudyDate=2024", "query-value", "StudyDate"),
        ("StudyDate=20240231", "query-value", "StudyDate"),
        ("StudyDate=20240630-20240101", "query-value", "StudyDate"),
        ("StudyDate=-", "query-value", "StudyDate"),
        ("StudyInstanceUID=1.2.*", "query-value", "StudyInstanceUID"),
        ("SeriesNumber=four", "query-value", "SeriesNumber"),
        ("SeriesDescription=a\\b", "query-value", "SeriesDescription"),
    ],
)
def test_what_cannot_be_asked_is_refused(word: str, code: str, naming: str) -> None:
    with raises(code, naming=naming):
        parse_query([word])


@pytest.mark.parametrize("words", [["T2"], ["=t2*"], ["T2="], ["T2=a", "T2=b"], ["../x=a"]])
def test_a_sequence_has_a_name_and_a_description(words: list[str]) -> None:
    with raises("query-value", naming="--sequence"):
        parse_query(["Modality=MR"], words)


def test_nothing_and_twice_the_same_are_refused() -> None:
    with raises("query-value"):
        parse_query([])
    with raises("query-value", naming="Modality"):
        parse_query(["Modality=MR", "Modality=CT"])


@pytest.mark.parametrize(
    ("key", "wanted", "value", "fulfilled"),
    [
        ("SeriesDescription", "t2*", "t2_tse", True),
        ("SeriesDescription", "t2*", "T2_tse", True),
        ("SeriesDescription", "t2?tse", "t2_tse", True),
        ("SeriesDescription", "t2", "t2_tse", False),
        ("SeriesDescription", "t2.tse", "t2_tse", False),
        ("SeriesDescription", "t2*", None, False),
        ("ModalitiesInStudy", "MR", ["SEG", "MR"], True),
        ("ModalitiesInStudy", "MR", ["SEG", "CT"], False),
        ("StudyDate", "20240101-20240630", "20240301", True),
        ("StudyDate", "20240101-20240630", "20240701", False),
        ("StudyDate", "20240101-", "20250701", True),
        ("StudyDate", "-20240101", "20250701", False),
        ("StudyDate", "20240101", "20240101", True),
        ("StudyDate", "20240101-", "", False),
        ("SeriesNumber", "4", "04", True),
        ("PatientName", "doe*", "Doe^Jane", True),
    ],
)
def test_an_answer_is_compared_with_what_was_asked(key: str, wanted: str, value: object, fulfilled: bool) -> None:
    answer = said(**{key: value})
    assert (contradicted({key: wanted}, answer) is None) == fulfilled


def test_what_an_answer_does_not_say_contradicts_nothing() -> None:
    assert contradicted({"SeriesDescription": "t2*"}, said(Modality="MR")) is None
