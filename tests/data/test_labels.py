from __future__ import annotations

from typing import Any

import pytest
from errors import raises

from fedshift.data.labels import Labels, parse_labels, settle_labels
from fedshift.schema.errors import ConfigError


def test_labels_in_words() -> None:
    labels = Labels.named({"left kidney": [1], "right kidney": [3, 2]})
    assert str(labels).split(", ") == ["0 outside", "1 left kidney", "2 or 3 right kidney"]
    assert labels.structure == " or ".join(labels.classes[1:])
    assert labels.values == {"left kidney": [1], "right kidney": [2, 3]}


def test_a_structure_can_be_merged_into_the_background() -> None:
    labels = Labels.named({"background": [0, 3], "gland": [1]})
    assert labels.classes == ("background", "gland") and dict(labels.class_of) == {3: 0, 1: 1}


def test_a_single_structure_is_1() -> None:
    labels = settle_labels(classes=("background", "spleen"))
    assert labels is not None and labels.values == {"spleen": [1]}
    assert settle_labels() is None
    assert settle_labels(classes=("background", "a", "b")) is None, "which of the values is which is not known"


def test_the_task_gives_the_order_and_the_file_the_values() -> None:
    described = Labels.named({"posterior": [1], "anterior": [2]})
    labels = settle_labels(described=described, classes=("background", "Anterior", "Posterior"))
    assert labels is not None and labels.classes == ("background", "Anterior", "Posterior")
    assert dict(labels.class_of) == {1: 2, 2: 1}


def test_what_a_person_says_comes_before_the_file() -> None:
    described = Labels.named({"PZ": [1], "TZ": [2]})
    labels = settle_labels(
        label_values={"prostate": (1, 2)},
        described=described,
        classes=("background", "prostate"),
        annotated=("prostate",),
    )
    assert labels is not None and dict(labels.class_of) == {1: 1, 2: 1}


def test_the_mend_is_the_whole_part_of_the_command() -> None:
    classes = ("background", "PZ", "transition zone")
    with pytest.raises(ConfigError, match=r"as in --label PZ=1 --label 'transition zone'=2$"):
        settle_labels(label_values={"ZP": (1,)}, classes=classes)


def test_values_of_classes_that_are_not_annotated_are_unknown() -> None:
    labels = settle_labels(label_values={"a": (1,), "b": (2,)}, annotated=("b",))
    assert labels is not None and labels.classes == ("background", "a", "b")
    assert dict(labels.class_of) == {2: 2} and labels.annotated == ("b",)


def test_labels_as_they_are_given() -> None:
    assert parse_labels(["a=1, 2", "b c=3"]) == {"a": (1, 2), "b c": (3,)}


@pytest.mark.parametrize("given", [{}, {"prostate": (1,)}])
def test_a_class_that_is_not_annotated_as_it_is_spelled(given: dict[str, tuple[int]]) -> None:
    classes = ("background", "prostate")
    with raises("class-unknown", naming=("'prostat'", "'prostate'")):
        settle_labels(label_values=given, classes=classes, annotated=("prostat",))


FORM = "such as prostate=1,2, not"


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["prostate"], FORM),
        (["prostate="], FORM),
        (["=1"], FORM),
        (["prostate=1,"], FORM),
        (["prostate=1;2"], FORM),
        (["a=1", "a=2"], "--label names a twice"),
    ],
    ids=str,
)
def test_a_label_of_another_form_is_refused(texts: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_labels(texts)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"described": Labels.named({"PZ": [1], "TZ": [2]})}, r"the masks has 'PZ'.*--label prostate=1,2"),
        ({"label_values": {"prostate": ("Whole gland",)}}, "these masks have values: give whole numbers"),
    ],
    ids=["zones of one class", "names for values"],
)
def test_labels_that_do_not_fit_the_masks(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        settle_labels(classes=("background", "prostate"), **options)


def test_names_of_structures_are_for_masks_that_have_names() -> None:
    label_values = parse_labels(["prostate=Whole gland, PROSTATE_2", "background=Bladder"])
    labels = settle_labels(label_values=label_values, classes=("background", "prostate"), named=True)
    assert labels is not None and dict(labels.class_of) == {1: 1}
    assert labels.structures == {"whole gland": "prostate", "prostate 2": "prostate", "bladder": "background"}
    both = settle_labels(classes=("background", "Anterior", "Posterior"), named=True)
    assert both is not None and both.structure == "Anterior or Posterior"
