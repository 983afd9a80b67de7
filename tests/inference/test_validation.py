"""A validation at a site: the scores of ``fedshift evaluate``, what is told of them, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_image_site, small_image_job
from errors import raises
from PIL import Image
from sklearn.metrics import roc_auc_score
from validations import blob_models, blob_sites, blob_spec, packed, with_strata
from volumesites import make_volume_site

from fedshift.cli import main
from fedshift.data.prepared import mask_file
from fedshift.federation.site.privacy.cells import Cells
from fedshift.federation.site.privacy.ledger import Ledger
from fedshift.federation.tensors import read_weights
from fedshift.inference import labelled
from fedshift.inference.model import Model, open_model
from fedshift.inference.ready import Choice
from fedshift.inference.validation import CLASSES, CaseValues, SiteCases, answer
from fedshift.inference.validation_areas import admitted, areas
from fedshift.inference.validation_run import begin, validate_in_process
from fedshift.reporting.report.validation import sections as validation_sections
from fedshift.schema.manifest import read_manifest
from fedshift.schema.policy import DpSgd, Policy, PrivacyBudget, StatisticsNoise
from fedshift.schema.validation import CASES_FILE, ModelRef, SiteValidation, read_validation
from fedshift.tasks.kinds import build_task
from inference.conftest import save_model


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.set_num_threads(1)
    return blob_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def carried(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[ModelRef, ...]]:
    folder = tmp_path_factory.mktemp("carried")
    return folder, packed(files, folder)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of A's 14 cases the last 12 but one are its test part, as of B's; A's have strata."""
    made = blob_sites(tmp_path_factory.mktemp("data"), shape=(6, 20, 24))
    vendor = ["GE"] * 7 + ["Siemens"] * 5 + ["Canon"] * 2
    with_strata(made["A"], vendor=vendor, sex=["F", "M"] * 7, one=["3T"] * 14)
    return made


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up scores in place of those of the models: what is told of them is what is tested."""

    def score(model: Model, cases: SiteCases, *_: object, **__: object) -> CaseValues:
        rng = np.random.default_rng(len(model.path.name))
        return CaseValues({"dice": rng.uniform(size=len(cases.entries)), "asd": rng.uniform(size=len(cases.entries))})

    monkeypatch.setattr("fedshift.inference.validation._score", score)


def own_scores(folder: Path) -> dict[tuple[str, str], dict[str, str]]:
    with (folder / CASES_FILE).open(newline="", encoding="utf-8") as file:
        return {(row["model"], row["case"]): row for row in csv.DictReader(file)}


@pytest.mark.slow
def test_the_scores_are_those_of_evaluate(
    files: dict[str, Path], carried: tuple[Path, tuple[ModelRef, ...]], sites: dict[str, Path], tmp_path: Path
) -> None:
    folder, refs = carried
    told = answer(sites["A"], "A", blob_spec(refs), folder, scores_folder=tmp_path / "own")
    site_scores = own_scores(tmp_path / "own")
    manifest = read_manifest(sites["A"])
    test = tmp_path / "test"
    test.mkdir()
    for case in manifest.by_split("test"):
        (test / f"{case.id}.nii.gz").symlink_to(sites["A"] / "volumes" / f"{case.id}.nii.gz")
        (test / f"{case.id}_mask.nii.gz").symlink_to(mask_file(sites["A"], case.id))
    for name, file in files.items():
        words = ["evaluate", str(file), "--source", str(test), "--label", "left=1", "--label", "right=2"]
        assert main([*words, "--out", str(tmp_path / name)]) == 0
        content = json.loads((tmp_path / name / "evaluation.json").read_text(encoding="utf-8"))
        scores = told.models[name].scores
        assert scores.keys() == content["scores"].keys()
        for score, spread in scores.items():
            expected = content["scores"][score]
            assert (spread.n, spread.mean) == (expected["n"], expected["mean"]), score
            assert spread.interval == tuple(expected["interval"]), score
        for number, case_id in enumerate(content["cases"]):
            assert float(site_scores[name, case_id]["dice"]) == pytest.approx(
                content["scores"]["dice"]["cases"][number], rel=1e-8
            )

    # Differences are taken case by case.
    cases = [case for model, case in site_scores if model == "old"]
    each = np.array(
        [float(site_scores["new", case]["dice"]) - float(site_scores["old", case]["dice"]) for case in cases]
    )
    paired = told.models["new"].against_first["dice"]
    assert paired.difference.mean == pytest.approx(each.mean())
    assert paired.difference.std == pytest.approx(each.std(ddof=1))
    assert paired.difference.interval is not None and paired.p is not None
    assert set(told.models["new"].against_first) == {"dice", "dice left", "dice right"}
    assert not told.models["old"].against_first


@pytest.mark.usefixtures("quick")
def test_no_score_of_a_single_case_and_no_id_is_told(
    carried: tuple[Path, tuple[ModelRef, ...]], sites: dict[str, Path]
) -> None:
    text = answer(sites["A"], "A", blob_spec(carried[1]), carried[0]).model_dump_json()
    assert "case0" not in text and str(sites["A"]) not in text
    content = json.loads(text)
    content["models"]["old"]["scores"]["dice"] |= {"cases": [0.5] * 12, "mean": 0.5}
    with pytest.raises(ValueError, match="single cases"):
        SiteValidation.model_validate(content)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_groups_are_told_by_the_sites_own_table(
    carried: tuple[Path, tuple[ModelRef, ...]], sites: dict[str, Path]
) -> None:
    folder, refs = carried
    told = answer(sites["A"], "A", blob_spec(refs), folder)
    strata = told.models["new"].strata
    n = {column: {value: scores["dice"].n for value, scores in values.items()} for column, values in strata.items()}
    # Two cases of a vendor are below the floor of three: that of five is put to them, or it would be 12 - 5 - 5.
    assert n == {"vendor": {"Siemens": 5, "other": 7}, "sex": {"F": 6, "M": 6}, "one": {"3T": 12}}
    assert set(strata["sex"]["F"]) == {"dice", "asd"}
    assert strata["sex"]["F"]["dice"].quantiles is None, "of fewer than ten cases, as everywhere"
    assert strata["one"]["3T"]["dice"] == told.models["new"].scores["dice"]
    asked = answer(sites["A"], "A", blob_spec(refs, strata=("sex", "age")), folder)
    assert set(asked.models["old"].strata) == {"sex"} and set(asked.withheld) == {"age"}


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_what_is_told_does_not_depend_on_what_is_asked(
    carried: tuple[Path, tuple[ModelRef, ...]], sites: dict[str, Path]
) -> None:
    folder, refs = carried
    whole = answer(sites["A"], "A", blob_spec(refs), folder).models["old"].strata
    for column in whole:
        alone = answer(sites["A"], "A", blob_spec(refs[:1], strata=(column,)), folder).models["old"].strata
        assert alone == {column: whole[column]}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (Policy(strata=("sex",)), "privacy.strata"),
        (Policy(allow=("control",)), "privacy.allow"),
        (Policy(encryption="required"), "privacy.encryption"),
        (Policy(dp_sgd=DpSgd(epsilon=1, clip=1)), "noise on the network"),
        (Policy(min_cases=7), "smaller than"),
    ],
)
def test_a_policy_keeps_groups_at_the_site(
    policy: Policy, reason: str, carried: tuple[Path, tuple[ModelRef, ...]], sites: dict[str, Path]
) -> None:
    told = answer(sites["A"], "A", blob_spec(carried[1]), carried[0], policy)
    assert reason in told.withheld["vendor"] and "vendor" not in told.models["old"].strata
    assert told.models["old"].scores["dice"].n == 12


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("policy", "part", "naming"),
    [
        (Policy(min_cases=13), "test", "too-few-cases"),
        (Policy(budget=PrivacyBudget(epsilon=1)), "test", "no-noise"),
        (Policy(dp_sgd=DpSgd(epsilon=1, clip=1)), "all", "no-noise"),
    ],
)
def test_a_policy_refuses(
    policy: Policy, part: str, naming: str, carried: tuple[Path, tuple[ModelRef, ...]], sites: dict[str, Path]
) -> None:
    with raises(naming):
        answer(sites["A"], "A", blob_spec(carried[1], part=part), carried[0], policy)


@pytest.mark.usefixtures("quick")
def test_all_cases_tell_nothing_that_the_test_part_hides(
    carried: tuple[Path, tuple[ModelRef, ...]], sites: dict[str, Path]
) -> None:
    """Fourteen cases less the twelve of the test part are two: the whole is not told, with this floor."""
    with raises("too-few-cases"):
        answer(sites["A"], "A", blob_spec(carried[1], part="all"), carried[0])


@pytest.mark.usefixtures("quick")
def test_all_cases_less_test_and_validation_part_are_not_few(
    carried: tuple[Path, tuple[ModelRef, ...]], tmp_path: Path
) -> None:
    """Three jobs ask for a part each: of ten cases less four and four, two would be left."""
    site = make_volume_site(tmp_path, "A", cases=10, val=4, test=4, shape=(6, 20, 24))
    told = [answer(site, "A", blob_spec(carried[1], part=part), carried[0]) for part in ("test", "val")]
    assert [each.models["old"].scores["dice"].n for each in told] == [4, 4]
    with raises("too-few-cases"):
        answer(site, "A", blob_spec(carried[1], part="all"), carried[0])


@pytest.mark.slow
def test_a_class_that_few_cases_lack_is_not_told_of(carried: tuple[Path, tuple[ModelRef, ...]], tmp_path: Path) -> None:
    """Of twelve cases one lacks both classes: its false positives are one case's, and are not told."""
    site = make_volume_site(tmp_path, "A", cases=14, val=1, test=12, shape=(6, 20, 24), empty=[13])
    told = answer(site, "A", blob_spec(carried[1], sites=("A",)), carried[0])
    assert not any(name.startswith("false_positives") for name in told.models["old"].scores)
    assert {spread.n for spread in told.models["old"].scores.values()} == {11}
    assert CLASSES in told.withheld


@pytest.mark.usefixtures("quick")
def test_which_cases_are_scored_does_not_depend_on_a_model(
    carried: tuple[Path, tuple[ModelRef, ...]], tmp_path: Path
) -> None:
    site = blob_sites(tmp_path, shape=(6, 20, 24))["A"]
    (site / "volumes" / "case05.nii.gz").write_bytes(b"damaged")
    told = answer(site, "A", blob_spec(carried[1]), carried[0])
    assert {spread.n for each in told.models.values() for spread in each.scores.values()} == {11}


@pytest.mark.usefixtures("quick")
def test_models_that_do_not_fit_are_refused_and_the_others_scored(
    files: dict[str, Path], sites: dict[str, Path], tmp_path: Path
) -> None:
    job = small_image_job("fedavg")
    classifier = save_model(tmp_path / "classifier.pt", job)
    refs = packed({"old": files["old"], "classifier": classifier}, tmp_path / "carried")
    told = answer(sites["A"], "A", blob_spec(refs), tmp_path / "carried")
    assert set(told.models) == {"old"}
    assert told.refused["classifier"] == "it classifies, and the site's cases have masks"
    broken = (refs[0], refs[1].model_copy(update={"sha256": "0" * 64}))
    told = answer(sites["A"], "A", blob_spec(broken), tmp_path / "carried")
    assert "file cannot be used" in told.refused["classifier"] and str(tmp_path) not in told.model_dump_json()
    with raises("classes-differ", naming="write a job for each"):
        begin(blob_spec(refs), tmp_path / "carried")


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_site_with_noise_tells_noisy_means_and_its_ledger_has_them(
    carried: tuple[Path, tuple[ModelRef, ...]], sites: dict[str, Path], tmp_path: Path
) -> None:
    folder, refs = carried
    noise = StatisticsNoise(epsilon=2.0, delta=1e-5)
    policy = Policy(statistics=noise, budget=PrivacyBudget(epsilon=3.5))
    plain = answer(sites["A"], "A", blob_spec(refs), folder)
    told = [answer(sites["A"], "A", blob_spec(refs), folder, policy, ledger=tmp_path) for _ in range(2)]
    account = Ledger(tmp_path).trusted()
    assert [release.what for release in account.releases] == ["mean scores"] * 2
    assert account.releases[0].sensitivity == pytest.approx(2**0.5 / 12)
    assert account.releases[0].epsilon == pytest.approx(2.0, rel=1e-3)
    assert told[0].noise == account.releases[0].deviation
    means = [each.models["old"].scores["dice"].mean for each in told]
    assert means[0] != means[1] != plain.models["old"].scores["dice"].mean
    only = told[0].models["new"]
    assert set(only.scores) == set(only.against_first) == {"dice"} and not only.strata
    assert only.scores["dice"].quantiles is None and only.against_first["dice"].difference.std is None
    with raises("budget-spent"):  # asked again and again, it adds up
        answer(sites["A"], "A", blob_spec(refs), folder, policy, ledger=tmp_path)


@pytest.mark.usefixtures("quick")
def test_a_site_that_fails_is_named_and_the_others_are_pooled(
    carried: tuple[Path, tuple[ModelRef, ...]], sites: dict[str, Path], tmp_path: Path
) -> None:
    folder, refs = carried
    data = {**sites, "C": tmp_path / "nowhere"}
    policies = {"B": Policy(min_cases=100)}
    spec = blob_spec(refs, sites=("A", "B", "C"))
    record = validate_in_process(spec, folder, data, tmp_path / "run", policies=policies)
    assert set(record.sites) == {"A"} and set(record.refused) == {"B", "C"}
    assert "privacy.min_cases" in record.refused["B"]
    assert record.pooled["new"].scores["dice"].n == 12
    assert record.pooled["new"].against_first["dice"].interval is None, "of one site"
    assert read_validation(tmp_path / "run") == record


def test_pictures_are_compared_as_right_or_wrong(tmp_path: Path) -> None:
    """Accuracy over the test part; each picture is right or wrong, so the test is McNemar's."""
    gains = (("A", 1.0), ("B", 0.7))
    data = {site: make_image_site(tmp_path / "data", site, images=96, gain=gain) for site, gain in gains}
    job, models = small_image_job("fedavg"), {}
    for number, name in enumerate(("old", "new")):
        torch.manual_seed(number)
        models[name] = save_model(tmp_path / f"{name}.pt", job, read_weights(build_task(job).network()))
    refs = packed(models, tmp_path / "carried")
    spec = blob_spec(refs, task="shapes", dataset="shapes", sites=("A", "B"))
    record = validate_in_process(spec, tmp_path / "carried", data, tmp_path / "run")
    assert record.metric == "accuracy" and not record.refused
    n = len(read_manifest(data["A"]).by_split("test"))
    for site in data:
        scores = own_scores(tmp_path / "run" / "sites" / site)
        right = [float(row["accuracy"]) for (model, _), row in scores.items() if model == "new"]
        told = record.sites[site].models["new"].scores["accuracy"]
        assert (told.n, told.mean) == (n, pytest.approx(np.mean(right))) and set(right) <= {0.0, 1.0}
    areas = {site: answer.models["new"].areas for site, answer in record.sites.items()}
    assert areas["A"] and all(area.positives + area.negatives == n for area in areas["A"].values())
    for name, pooled in record.pooled["new"].areas.items():
        told_of = [each[name] for each in areas.values() if name in each]
        assert pooled.mean == pytest.approx(np.average([a.area for a in told_of], weights=[a.pairs for a in told_of]))
        assert pooled.against_first is not None and pooled.against_first.sites == len(told_of)
    assert "ranking" in {section.id for section in validation_sections(record)}


def test_areas_are_told_of_classes_with_enough_of_both_kinds() -> None:
    rng = np.random.default_rng(0)
    truth = (rng.random((60, 4)) < 0.4).astype(float)
    truth[rng.random(60) < 0.2, 0] = np.nan
    truth[:, 1] = [1, 1] + [0] * 58  # two have it, and the floor is three
    truth[:, 2] = 0
    probabilities = {name: 0.3 * truth + rng.random((60, 4)) for name in ("old", "new")}
    for values in probabilities.values():
        values[np.isnan(values)] = 0.5
    cells = Cells([str(n) for n in range(60)], 3)
    assert cells.admit([np.ones(60, bool)])
    told_of = admitted(cells, truth, np.ones(60, bool))
    assert told_of == [0, 3]
    classes = {k: f"class {k}" for k in told_of}
    told = areas(truth, probabilities, classes, first="old", several=False)
    known = ~np.isnan(truth[:, 0])
    for model, values in probabilities.items():
        area = told[model]["class 0"]
        assert area.area == pytest.approx(roc_auc_score(truth[known, 0], values[known, 0]))
        assert (area.positives, area.pairs) == (
            truth[known, 0].sum(),
            truth[known, 0].sum() * (1 - truth[known, 0]).sum(),
        )
        assert area.error is not None and 0.03 < area.error < 0.12
    less = told["new"]["class 3"].against_first
    assert told["old"]["class 3"].against_first is None and less is not None and less.p is not None
    assert less.difference == pytest.approx(told["new"]["class 3"].area - told["old"]["class 3"].area)
    of_several = areas(truth, probabilities, classes, first="old", several=True)["new"]["class 3"]
    assert of_several.error is None and of_several.against_first and of_several.against_first.p is None


def test_a_sites_classes_are_scored_as_by_evaluate(tmp_path: Path) -> None:
    """The same pictures, prepared at a site, and as files with a table of labels."""
    folder = make_image_site(tmp_path / "data", "A")
    torch.manual_seed(1)
    job = small_image_job("fedavg")
    file = save_model(tmp_path / "new.pt", job, read_weights(build_task(job).network()))
    refs = packed({"new": file}, tmp_path / "carried")
    spec = blob_spec(refs, task="shapes", dataset="shapes", sites=("A",))
    validate_in_process(spec, tmp_path / "carried", {"A": folder}, tmp_path / "run")
    (arrays,) = (folder / "arrays").glob("*/images.npy")
    lines, tested = ["file,label"], read_manifest(folder).by_split("test")
    for number, picture in enumerate(read_manifest(folder).pictures):
        if picture in tested:
            Image.fromarray(np.load(arrays)[number].transpose(1, 2, 0)).save(tmp_path / f"{picture.id}.png")
            lines.append(f"{picture.id}.png,{picture.label}")
    table = tmp_path / "labels.csv"
    table.write_text("\n".join(lines), encoding="utf-8")
    scored = labelled.score(open_model(file), table, images=None, choice=Choice(), device="cpu")
    right = (scored.probabilities.argmax(1) == scored.truth.argmax(1)).tolist()
    scores = own_scores(tmp_path / "run" / "sites" / "A")
    assert {case: float(row["accuracy"]) for (_, case), row in scores.items()} == {
        Path(name).stem: float(each) for name, each in zip(scored.ids, right, strict=True)
    }
    assert 0 < sum(right) < len(right), "some are right and some are wrong"
