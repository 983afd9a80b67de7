"""Methods are found by name and ordered, and their unions are those of the halves that the job names."""

from __future__ import annotations

import pytest
from conftest import small_image_job, small_job
from errors import raises

from fedshift.methods.base import ArraySpec
from fedshift.methods.method_set import (
    Method,
    MethodSet,
    available,
    find,
    load,
    pooled_reference,
    pooled_references,
    require_federation,
)
from fedshift.methods.traits import NEEDS, TRAITS
from fedshift.schema.job import JobSpec
from fedshift.tasks.kinds import build_task


def load_all() -> list[Method]:
    return [next(m for m in load({name: {}}) if m.name == name) for name in available()]


def set_of(job: JobSpec) -> MethodSet:
    return MethodSet(job, build_task(job).network())


def test_methods_are_found_by_file_name_and_a_wrong_name_gets_the_nearest() -> None:
    assert {"fedavg", "fedfa", "fraug"} <= set(available())
    assert not {"base", "chain", "method_set", "shared", "traits"} & set(available())
    with raises("unknown-method", naming=("'fedfaa'", "'fedfa'")):
        find("fedfaa")


@pytest.mark.parametrize(
    ("named", "order"),
    [
        (["fedrdn", "fedfa"], ["fedavg", "fedfa", "fedrdn"]),
        (["mixup", "fedsam"], ["fedavg", "fedsam", "mixup"]),
        (["fedrdn", "scaffold"], ["scaffold", "fedrdn"]),
    ],
)
def test_the_order_does_not_depend_on_how_methods_are_named(named: list[str], order: list[str]) -> None:
    for names in (named, named[::-1]):
        assert [method.name for method in load({name: {} for name in names})] == order


def test_centralised_references_are_told_apart() -> None:
    assert pooled_reference({"fedfa": {}}) is None
    reference = pooled_reference({"mixup": {}, "groupdro": {}})
    assert reference is not None and reference.name == "groupdro"
    assert {"all", "groupdro", "irm"} <= set(pooled_references()) and "fedavg" not in pooled_references()
    require_federation(small_image_job("fedavg"))  # of the others, in test_all.py


def test_unions_are_over_all_methods_of_the_job() -> None:
    methods = set_of(small_job("fedbn+fedfa+fedrdn"))
    assert methods.names == ("fedavg", "fedbn", "fedfa", "fedrdn") and len(methods) == 4
    assert methods[0].name == methods.combining.name == "fedavg" and methods.pooled is None
    norms = {key for key in methods.net.state_dict() if "bn" in key}
    assert methods.personal == methods.withheld == norms and methods.withholding == ("fedbn",)
    assert methods.scores_own_model and methods.sends_parameters and methods.fine_tune_epochs == 0
    assert methods.trainable == {name for name, _ in methods.net.named_parameters()}
    assert not methods.up["fedavg"] and {"mean", "std"} == set(methods.up["fedrdn"])
    assert {name.partition(".")[0] for name in methods.up["fedfa"]} == {"mean", "std"}


def test_sizes_are_those_of_the_task_and_the_number_of_sites() -> None:
    rdn, harmo = set_of(small_job("fedfa+fedrdn")), set_of(small_job("harmofl"))
    for methods in (rdn, harmo):
        specs = [spec for named in (*methods.up.values(), *methods.down.values()) for spec in named.values()]
        assert specs and all(isinstance(size, int) for spec in specs for size in spec.shape)
    assert rdn.down["fedrdn"]["means"].shape[0] == 3
    free = set_of(small_image_job("fedmix")).up["fedmix"]
    assert any(isinstance(size, str) for spec in free.values() for size in spec.shape), "what a site may choose stays"


def test_arrays_that_model_files_leave_out_are_named_with_their_method() -> None:
    methods = set_of(small_image_job("scaffold+fedrdn", "optimizer.name=sgd", "optimizer.keep=false"))
    assert ("fedrdn", "means") not in methods.training_only
    assert {name for name, _ in methods.training_only} == {"scaffold"}


def test_fine_tuning_is_the_longest_that_a_method_asks_for() -> None:
    assert set_of(small_image_job("pfedavg", "pfedavg.epochs=3")).fine_tune_epochs == 3


def test_a_site_that_keeps_its_whole_network_sends_none() -> None:
    methods = set_of(small_image_job("single"))
    assert not methods.sends_parameters and methods.withheld == set(methods.net.state_dict())


def test_what_halves_declare_is_in_the_tables() -> None:
    """A word that is not would be asked for in vain; and it says something of another method, or an option."""
    for method in load_all():
        half = method.client()
        assert {rule.what for rule in half.needs} <= NEEDS.keys()
        assert {rule.what for rule in half.traits} <= {trait for trait, shown in TRAITS.items() if shown is None}
        assert {rule.what for rule in half.clashes} <= TRAITS.keys() and all(rule.why for rule in half.clashes)
        assert {name for rule in half.idle for name in rule.what.split()} <= type(method.config).model_fields.keys()


def test_a_spec_keeps_words_that_are_no_size_of_the_task() -> None:
    assert ArraySpec(("classes", "groups", 3)).sized({"classes": (10,)}).shape == (10, "groups", 3)
