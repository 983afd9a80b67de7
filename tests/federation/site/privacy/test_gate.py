"""A site's policy: what it refuses, what its noise is, and that neither job nor server gets round it."""

from __future__ import annotations

import itertools
import json
import logging
import math
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_image_site, make_site, small_image_job, small_job
from errors import raises
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.signal import Signal
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.app_common.decomposers import common_decomposers
from nvflare.fuel.utils import fobs
from volumesites import blob_job, make_volume_site

from fedshift.data.blocks import write_hashes
from fedshift.data.locate import read_settings
from fedshift.federation.in_process import run_in_process
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.site.outbound import Encryption
from fedshift.federation.site.privacy import noise as noise_module
from fedshift.federation.site.privacy.accounting import noise_multiplier
from fedshift.federation.site.privacy.added_noise import LEAST_DEVIATION, AddedNoise, budgets
from fedshift.federation.site.privacy.admission import Population
from fedshift.federation.site.privacy.noise import ANSWERED, SECRET, NoiseSource, gaussian
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.federation.site.state import StateStore
from fedshift.federation.tensors import read_weights
from fedshift.flare import codec
from fedshift.flare.executor import FedshiftExecutor
from fedshift.flare.export import write_job
from fedshift.methods import method_set
from fedshift.methods.base import ArraySpec
from fedshift.methods.chain import ClientChain
from fedshift.methods.method_set import MethodSet
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import read_manifest
from fedshift.schema.messages import Broadcast, Failure, Scores, Update
from fedshift.schema.policy import ArrayKind, Policy
from fedshift.tasks.kinds import build_task
from fedshift_testing.serialised import Kit

SITES = ("BIDMC", "HK", "UCL")


def policy(**options: Any) -> Policy:
    return Policy.parse(options, where="a site's policy")


def server(job: JobSpec, folder: Path, *sites: Site) -> Coordinator:
    """A coordinator after the statistics round of these sites."""
    enough = job.federation.model_copy(update={"min_sites": len(sites)})
    coordinator = Coordinator(job.model_copy(update={"federation": enough}), folder)
    coordinator.open(0)
    for site in sites:
        coordinator.register(site.info())
        assert coordinator.accept(site.statistics()), coordinator.results
    coordinator.close()
    return coordinator


@pytest.fixture
def fixed_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same secret every time, so that a test of noise gives the same answer every time."""
    monkeypatch.setattr(noise_module.secrets, "token_bytes", lambda n: bytes(range(n)))


# --- noise -------------------------------------------------------------------------------------------


def test_the_noise_is_normal_and_depends_on_every_bit_of_the_key() -> None:
    sample = gaussian(b"key", (200_001,))
    assert abs(sample.mean()) < 0.01 and abs(sample.std() - 1) < 0.01
    assert abs((sample**3).mean()) < 0.05 and abs((sample**4).mean() - 3) < 0.1
    assert abs(np.corrcoef(sample[:100_000], sample[100_001:])[0, 1]) < 0.015, "the two halves of a Box-Muller pair"
    assert abs(np.corrcoef(sample, gaussian(b"kez", (200_001,)))[0, 1]) < 0.015
    assert gaussian(b"key", ()).shape == () and gaussian(b"key", (0, 3)).shape == (0, 3)


# --- what may leave -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("privacy:", "holds nothing: .* {}"),
        ("privacy: {weights: {clip: 1.0, epsilonn: 3}}", r"unknown key 'privacy\.weights\.epsilonn'.* 'epsilon'"),
        ("privacy: {statistics: {delta: 1e-5}}", "either epsilon .with delta. or multiplier"),
        ("privacy: {statistics: {epsilon: 1, multiplier: 2}}", "either epsilon"),
        ("privacy: {weights: {epsilon: 1}}", "'privacy.weights.clip' field required"),
        ("privacy: {weights: {epsilon: -1, clip: 1}}", "greater than 0"),
        ("privacy: {allow: [imagery]}", "statistics"),
        ("privacy: {min_cases: 0}", "greater than or equal to 1"),
        ("privacy: {survey_cases: 2}", r"'privacy\.survey_cases' .* 3"),
        ("privacy: {encryption: ckks}", r"'privacy\.encryption' .*'required'"),
        ("privacy: {weights: {epsilon: 1, clip: 1}, dp_sgd: {epsilon: 1, clip: 1}}", "weights .*dp_sgd.*not both"),
    ],
)
def test_a_policy_that_would_not_do_what_it_says_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "fedshift.yaml").write_text(text + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=reason):
        read_settings(tmp_path, {})


def test_a_policy_is_read_from_the_sites_own_file(tmp_path: Path) -> None:
    assert read_settings(tmp_path, {}).privacy is None
    text = "privacy: {allow: [statistics], min_cases: 20, statistics: {epsilon: 3, delta: 1e-5, clip: 2}}\n"
    (tmp_path / "fedshift.yaml").write_text(text, encoding="utf-8")
    read = read_settings(tmp_path, {}).privacy
    assert read == policy(allow=["statistics"], min_cases=20, statistics={"epsilon": 3, "delta": 1e-5, "clip": 2})


KINDS: dict[str, ArrayKind] = {
    "fedmix": "images",
    "fedproto": "prototypes",
    "fraug": "generator",
    "fedrdn": "statistics",
    "fedfa": "statistics",
    "harmofl": "statistics",
    "scaffold": "control",
    "afl": "loss",
}


def image_job(method: str) -> JobSpec:
    options = ["optimizer.name=sgd", "optimizer.lr=0.02", "optimizer.weight_decay=0"] if method == "scaffold" else []
    return small_image_job(method, *options)


@pytest.mark.parametrize(("method", "kind"), KINDS.items())
def test_a_method_that_sends_more_than_the_policy_allows_is_refused_before_anything_is_measured(
    method: str, kind: ArrayKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, data = image_job(method), make_image_site(tmp_path, "A")
    others = [
        other for other in ("statistics", "prototypes", "images", "generator", "control", "loss") if other != kind
    ]
    site = Site(job, "A", data, SiteOptions(tmp_path / "state", policy=policy(allow=others)))
    monkeypatch.setattr(Site, "_measure", lambda self: pytest.fail("measured"))
    for ask in (site.statistics, lambda: site.train(Broadcast(1, 0, {}))):
        with raises("not-allowed", naming=("A", method, kind, "privacy.allow")):
            ask()
    assert not (tmp_path / "state").exists(), "nothing was written either"


def test_without_a_list_images_prototypes_generators_and_what_says_nothing_of_itself_stay_at_the_site() -> None:
    assert policy().allow == ("statistics", "control", "loss")
    assert ArraySpec((1,)).kind == "other"


def test_every_array_of_every_method_says_of_which_kind_it_is() -> None:
    for name in method_set.available():
        for kind in (small_image_job, small_job):
            try:
                job = kind(name)
            except ConfigError:
                continue
            for method, named in MethodSet(job, build_task(job).network()).up.items():
                assert all(spec.kind != "other" for spec in named.values()), method


def test_cases_are_counted_and_not_slices(tmp_path: Path) -> None:
    data = make_site(tmp_path, "HK", cases=4, depth=8)
    task = build_task(small_job("fedrdn"))
    population = Population.counted(task.open(data, "HK"), dense=True)  # type: ignore[arg-type]
    assert (population.subjects, population.share) == (2, 0.5)
    site = Site(small_job("fedrdn"), "HK", data, SiteOptions(tmp_path / "s", policy=policy(min_cases=3)))
    with raises("too-few-cases", naming=("privacy.min_cases", "3")):
        site.statistics()
    Site(small_job("fedrdn"), "HK", data, SiteOptions(tmp_path / "s", policy=policy(min_cases=2))).statistics()


def test_the_scans_of_a_subject_are_one_case(tmp_path: Path) -> None:
    ids = [f"sub-{max(number, 2)}_ses-{number}" for number in range(8)]  # three scans of one, one of each other
    data = make_volume_site(tmp_path, "A", cases=8, val=1, test=1, ids=ids)
    job = blob_job(tmp_path, methods="fedrdn")
    population = Population.counted(build_task(job).open(data, "A"), dense=True)  # type: ignore[arg-type]
    assert (population.subjects, population.share) == (4, 0.5)
    site = Site(job, "A", data, SiteOptions(tmp_path / "s", policy=policy(min_cases=5)))
    with raises("too-few-cases", naming=("privacy.min_cases", "5")):
        site.statistics()
    Site(job, "A", data, SiteOptions(tmp_path / "s", policy=policy(min_cases=4))).statistics()


def test_a_subject_of_several_small_scans_is_as_large_a_part_of_the_cases_as_it_is(tmp_path: Path) -> None:
    """Of the windows it has fewer. Landmarks are means over cases, and FedRDN's pair over windows."""
    ids = ["sub-1_ses-1", "sub-1_ses-2", "sub-2_ses-1", "sub-3_ses-1"]
    data = make_volume_site(tmp_path, "A", cases=4, val=0, test=0, ids=ids)
    opened: Any = build_task(blob_job(tmp_path)).open(data, "A")
    opened._places = {"train": [(case, (0, 0, 0)) for case, windows in enumerate((1, 1, 2, 2)) for _ in range(windows)]}
    assert Population.counted(opened, dense=True).share == 0.5


def test_prototypes_need_the_cases_in_every_class(tmp_path: Path) -> None:
    data = make_image_site(tmp_path, "A")
    job = small_image_job("fedproto")
    population = Population.counted(build_task(job).open(data, "A"), dense=False)  # type: ignore[arg-type]
    assert population.fewest_of_a_class < population.subjects

    def ask(least: int) -> Update:
        rules = policy(allow=["prototypes"], min_cases=least)
        return Site(job, "A", data, SiteOptions(tmp_path / str(least), policy=rules)).statistics()

    ask(population.fewest_of_a_class)
    with raises("too-few-cases", naming="privacy.min_cases"):
        ask(population.fewest_of_a_class + 1)


def test_a_refusal_leaves_the_site_out_and_the_coordinator_reads_why(
    three_sites: dict[str, Path], tmp_path: Path
) -> None:
    job = small_job("fedmix", "federation.min_sites=2", "fedmix.images=2")
    run_in_process(job, three_sites, tmp_path / "run", privacy={"HK": policy()})
    rejected = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))["statistics"]["rejected"]
    assert [entry["site"] for entry in rejected] == ["HK"]
    assert all(word in rejected[0]["reason"] for word in ("fedmix", "'images'", "privacy.allow"))
    strict = small_job("fedmix", "fedmix.images=2", "federation.min_sites=3")
    with raises("too-few-answers", naming="privacy.allow"):
        run_in_process(strict, three_sites, tmp_path / "strict", privacy={"HK": policy()})


@dataclass
class Provisioned(Kit):
    """A kit at a hospital, as against one in FLARE's simulator."""

    def get_prop(self, key: str, default: Any = None) -> Any:
        return False if key == FLContextKey.SIMULATE_MODE else default


@pytest.mark.parametrize("task", [codec.STATISTICS, codec.TRAIN])
def test_nothing_of_the_data_is_in_the_message_of_a_site_that_refuses(
    task: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Under FLARE: the policy is in the kit's ``local/fedshift.yaml``, the message is what the executor hands over."""
    job = small_job("fedmix", "fedmix.images=2")
    sent = write_job(job, tmp_path / "job")
    kit = Provisioned.make(job, "HK", make_site(tmp_path, "HK"), tmp_path / "kit", sent=sent)
    settings_file = tmp_path / "kit" / "local" / "fedshift.yaml"
    settings_file.write_text(settings_file.read_text(encoding="utf-8") + "privacy: {min_cases: 1}\n", encoding="utf-8")
    broadcast = Coordinator(job, tmp_path / "server").open(1)
    asked = codec.encode_task(replace(broadcast, sites=("HK",)))
    shareable = FedshiftExecutor().execute(task, asked, kit, Signal())  # type: ignore[arg-type]
    (answer,) = codec.decode_answers(shareable)
    assert answer.info is None, "not even counts"
    assert isinstance(answer.content, Failure)
    for named in ("site HK", "fedmix", "'images'", "privacy.allow: statistics, control, loss"):
        assert named in answer.content.reason
    assert answer.content.reason in caplog.text
    flare_decomposers.register()
    common_decomposers.register()
    assert len(fobs.dumps(shareable)) < 4000, "a sentence, where one averaged image would be 12 kB"


@pytest.mark.parametrize("names", ["fedfa+fedrdn", "fedavg"])
def test_a_policy_that_only_forbids_changes_no_bit_of_what_may_leave(
    names: str, three_sites: dict[str, Path], tmp_path: Path
) -> None:
    job = small_job(names)
    plain, ruled = (
        run_in_process(job, three_sites, tmp_path / name, privacy=rules)
        for name, rules in (("a", {}), ("b", dict.fromkeys(SITES, policy(min_cases=2))))
    )
    assert all(np.array_equal(ruled.model.weights[key], value) for key, value in plain.model.weights.items())


# --- noise on statistics ------------------------------------------------------------------------------


def test_noise_on_image_statistics_has_the_stated_deviation(
    tmp_path: Path, fixed_secret: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over many secrets; the images are so many that nothing is cut off at the ends of the range."""
    data = make_image_site(tmp_path, "A", images=240)
    job = small_image_job("fedrdn")
    plain = Site(job, "A", data, SiteOptions(tmp_path / "plain")).statistics().arrays["fedrdn"]
    rules = policy(statistics={"epsilon": 3, "delta": 1e-5})
    population = Population.counted(build_task(job).open(data, "A"), dense=False)  # type: ignore[arg-type]
    share = population.share
    sensitivity = share * math.sqrt(sum(array.size for array in plain.values()))
    expected = noise_multiplier(3, 1e-5, 1) * sensitivity
    gone: dict[str, list[np.ndarray]] = {"mean": [], "std": []}
    for number in range(150):
        monkeypatch.setattr(noise_module.secrets, "token_bytes", lambda n, k=number: bytes([k]) * n)
        noisy = Site(job, "A", data, SiteOptions(tmp_path / str(number), policy=rules)).statistics().arrays["fedrdn"]
        for name, differences in gone.items():
            differences.append(noisy[name] - plain[name])
    for name, scale in (("mean", 1.0), ("std", 0.5)):  # intensities are in [0, 1], deviations at most 0.5
        values = np.stack(gone[name])
        assert values.std() == pytest.approx(scale * expected, rel=0.12), name
        assert abs(values.mean()) < 4 * scale * expected / math.sqrt(values.size), name
        assert np.abs(np.corrcoef(values.T) - np.eye(values.shape[1])).max() < 0.35, "each element has its own"


def test_one_case_cannot_move_image_statistics_by_more_than_the_noise_is_made_for(tmp_path: Path) -> None:
    """The two extremes that a case can be: black, and as far from it as there is."""
    job = small_job("fedrdn")
    sent = []
    for name, fill in (("black", 0), ("chequered", 255)):
        data = make_site(tmp_path / name, "HK", cases=5)
        path = data / "arrays" / "32" / "images.npy"
        images = np.load(path)
        images[:8] = 0
        images[:8, ::2] = fill
        np.save(path, images)
        hashes = write_hashes(path.parent)
        read_manifest(data).model_copy(update={"arrays": {"32": hashes}}).write(data)
        sent.append(Site(job, "HK", data, SiteOptions(tmp_path / f"{name} state")).statistics().arrays["fedrdn"])
    population = Population.counted(build_task(job).open(data, "HK"), dense=True)  # type: ignore[arg-type]
    share = population.share
    moved_mean, moved_std = (np.abs(sent[0][name] - sent[1][name]) for name in ("mean", "std"))
    assert moved_std.max() == pytest.approx(share * 0.5), "half black, half white is the most there is"
    in_ranges = math.sqrt(float((moved_mean**2).sum() + ((moved_std / 0.5) ** 2).sum()))
    assert in_ranges <= share * math.sqrt(6)


def test_noisy_statistics_stay_in_the_range_that_the_guard_and_other_sites_need(
    three_sites: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With several secrets, so that deviations at both ends of the range meet the guard's comparison."""
    job = small_job("fedrdn", "schedule.rounds=1")
    rules = policy(statistics={"epsilon": 0.01})
    numbers = itertools.count()  # each site has a secret of its own
    monkeypatch.setattr(noise_module.secrets, "token_bytes", lambda n: bytes([next(numbers)]) * n)
    seen = []
    for number in range(8):
        folder = tmp_path / str(number)
        sites = [Site(job, s, three_sites[s], SiteOptions(folder / "state", policy=rules)) for s in SITES]
        coordinator = Coordinator(job, folder / "server")
        coordinator.open(0)
        for site in sites:
            coordinator.register(site.info())
            assert coordinator.accept(site.statistics()), coordinator.results
        coordinator.close()
        assert coordinator.results.statistics is not None and coordinator.results.statistics.rejected == []
        arrays = coordinator.open(1).arrays["fedrdn"]
        assert len(arrays["stds"]) == len(SITES)
        assert arrays["means"].min() >= 0 and arrays["means"].max() <= 1
        assert arrays["stds"].min() >= LEAST_DEVIATION and arrays["stds"].max() <= 0.5
        seen.append(arrays["stds"])
    assert any((stds.max(0) / stds.min(0)).max() > 9 for stds in seen), "or the test would not show anything"
    assert np.isfinite(sites[0].train(coordinator.open(1)).metrics["train_loss"])


def test_the_sites_own_copy_of_its_statistics_has_no_noise(three_sites: dict[str, Path], tmp_path: Path) -> None:
    job, rules = small_job("fedrdn"), policy(statistics={"epsilon": 0.1})
    plain = Site(job, "HK", three_sites["HK"], SiteOptions(tmp_path / "a"))
    noisy = Site(job, "HK", three_sites["HK"], SiteOptions(tmp_path / "b", policy=rules))
    exact = plain.statistics().arrays["fedrdn"]["mean"]
    assert not np.array_equal(noisy.statistics().arrays["fedrdn"]["mean"], exact)
    kept = StateStore(tmp_path / "b" / "HK").before(1)
    assert kept is not None
    np.testing.assert_array_equal(kept.methods["fedrdn"]["mean"].numpy(), exact)


def test_a_repeated_task_gives_the_same_bytes_and_two_sites_have_different_noise(tmp_path: Path) -> None:
    job = small_job("fedfa+fedrdn")
    rules = policy(statistics={"epsilon": 1, "clip": 0.5})
    data = {name: make_site(tmp_path / "data", name) for name in ("HK", "UCL")}

    def site(name: str) -> Site:
        return Site(job, name, data[name], SiteOptions(tmp_path / "state", policy=rules))

    first, second = site("HK"), site("UCL")
    told = first.statistics()
    assert arrays_of(site("HK").statistics()) == arrays_of(told), "by a new process"
    coordinator = server(job, tmp_path / "server", first, second)
    broadcast = coordinator.open(1)
    trained = first.train(broadcast)
    assert arrays_of(first.train(broadcast)) == arrays_of(trained)
    assert arrays_of(site("HK").train(broadcast)) == arrays_of(trained), "by a new process"
    sources = [NoiseSource(tmp_path / "state" / name, name) for name in ("HK", "UCL")]
    draws = [source.draw("question", "array", (50,)) for source in sources]
    assert abs(np.corrcoef(draws)[0, 1]) < 0.6
    secret = tmp_path / "state" / "HK" / SECRET
    assert secret.read_bytes() != (tmp_path / "state" / "UCL" / SECRET).read_bytes()
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def arrays_of(update: Update) -> dict[str, bytes]:
    named = {f"{method}/{name}": array for method, part in update.arrays.items() for name, array in part.items()}
    return {name: array.tobytes() for name, array in {**named, **update.weights}.items()}


def test_the_jobs_seed_does_not_give_the_noise_away(three_sites: dict[str, Path], tmp_path: Path) -> None:
    job, rules = small_job("fedrdn"), policy(statistics={"epsilon": 1})
    told = [
        Site(job, "HK", three_sites["HK"], SiteOptions(tmp_path / name, policy=rules)).statistics() for name in "ab"
    ]
    assert arrays_of(told[0]) != arrays_of(told[1])


def test_another_question_in_an_answered_round_gets_no_answer(three_sites: dict[str, Path], tmp_path: Path) -> None:
    job, rules = small_job("fedfa"), policy(statistics={"epsilon": 1, "clip": 0.5})
    sites = [Site(job, s, three_sites[s], SiteOptions(tmp_path / "state", policy=rules)) for s in SITES]
    broadcast = server(job, tmp_path / "server", *sites).open(1)
    sites[0].train(broadcast)
    other = replace(broadcast, weights={key: value * 1 for key, value in broadcast.weights.items()})
    sites[0].train(other)  # the same numbers
    key = next(key for key, value in other.weights.items() if value.size > 1)
    other.weights[key].flat[0] += 1e-3
    for asked, code, named in ((other, "answered-before", "1"), (replace(broadcast, round=3), "round-beyond", "3")):
        with raises(code, naming=f"round {named}"):
            sites[0].train(asked)


def test_another_answer_to_the_same_question_does_not_leave(three_sites: dict[str, Path], tmp_path: Path) -> None:
    """The site lost the state that its first answer came from; with the same noise, the difference would be bare."""
    job, rules = small_job("fedfa", "fedfa.running=local"), policy(statistics={"epsilon": 1, "clip": 0.5})
    sites = [Site(job, s, three_sites[s], SiteOptions(tmp_path / "state", policy=rules)) for s in SITES]
    coordinator = server(job, tmp_path / "server", *sites)
    broadcast = coordinator.open(1)
    sites[0].train(broadcast)
    second = replace(broadcast, round=2)
    told = sites[0].train(second)
    assert arrays_of(sites[0].train(second)) == arrays_of(told)
    (tmp_path / "state" / "BIDMC" / "round_000001.pt").unlink()
    with raises("answered-before", naming="round 2"):
        sites[0].train(second)


@pytest.mark.parametrize(
    ("part", "before", "after"),
    [
        ("statistics", {"multiplier": 0.2}, {"multiplier": 0.1}),
        ("statistics", {"multiplier": 0.2}, {"epsilon": 1.0}),
        ("weights", {"multiplier": 1.0, "clip": 10.0}, {"multiplier": 0.9, "clip": 10.0}),
        ("weights", {"multiplier": 1.0, "clip": 10.0}, {"multiplier": 1.0, "clip": 9.0}),
    ],
)
def test_a_round_that_was_answered_gets_no_answer_with_the_same_noise_at_another_scale(
    part: str, before: dict[str, Any], after: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two scales of one draw are two equations for what noise hides. The next round is under the changed policy."""
    job, data = small_job("fedbn+fedrdn" if part == "statistics" else "fedbn"), make_site(tmp_path / "data", "HK")

    def site(**rules: Any) -> Site:
        return Site(job, "HK", data, SiteOptions(tmp_path / "state", policy=policy(**rules), keep_answers=True))

    weights = read_weights(build_task(job).network())
    first = Broadcast(1, 0, weights)
    ask = Site.statistics if part == "statistics" else lambda site: site.train(first)
    told = arrays_of(ask(site(**{part: before})))
    with monkeypatch.context() as patch, raises("answered-before", naming="HK"):
        patch.setattr(Site, "_measure", None)  # refused before any work
        ask(site(**{part: after}))
    assert arrays_of(ask(site(**{part: before}))) == told
    if part == "weights":
        assert site(**{part: after}).train(Broadcast(2, 0, weights)).weights


def test_an_answer_is_not_given_if_its_noise_changed_while_it_was_made(tmp_path: Path) -> None:
    source = NoiseSource(tmp_path, "HK")
    source.claim(Broadcast(1, 0, {}))
    source.require_same(1, "a")
    source.require_same(1, "b")
    source.settle(Update("HK", 1, 1, 1), "a")
    for second in (lambda: source.require_same(1, "b"), lambda: source.settle(Update("HK", 1, 1, 1), "b")):
        with raises("answered-before", naming="round 1"):
            second()
    source.settle(Update("HK", 1, 1, 1), "a")
    source.settle(Update("HK", 2, 1, 1), "b")


def test_a_site_that_lost_its_record_does_not_answer_again_and_one_that_lost_nothing_does(tmp_path: Path) -> None:
    source, asked = NoiseSource(tmp_path, "HK"), Broadcast(1, 0, {"w": np.zeros(2)})
    first = source.claim(asked)
    (tmp_path / ANSWERED).unlink()
    with raises("file-damaged", naming="answered.json"):
        source.claim(replace(asked, weights={"w": np.ones(2)}))
    (tmp_path / SECRET).unlink()  # a site whose folder is new, or that was killed before it had a secret
    (tmp_path / ANSWERED).write_text("{}", encoding="utf-8")
    assert source.claim(asked) != first


@pytest.mark.parametrize("broken", ["", "[1]", '{"1": 2}', "noise", "gone", "no record"])
def test_a_damaged_secret_or_record_stops_the_site(broken: str, three_sites: dict[str, Path], tmp_path: Path) -> None:
    job, rules = small_job("fedfa+fedrdn"), policy(statistics={"epsilon": 1, "clip": 0.5})
    sites = [Site(job, s, three_sites[s], SiteOptions(tmp_path / "state", policy=rules)) for s in SITES]
    broadcast = server(job, tmp_path / "server", *sites).open(1)
    folder = tmp_path / "state" / "BIDMC"
    if broken in ("gone", "no record"):
        (folder / (SECRET if broken == "gone" else ANSWERED)).unlink()
    else:
        (folder / (SECRET if broken == "noise" else ANSWERED)).write_text(broken, encoding="utf-8")
    with raises("file-damaged"):
        sites[0].train(broadcast)


def test_statistics_of_features_are_clipped_together_and_take_noise_for_all_rounds(
    three_sites: dict[str, Path], tmp_path: Path
) -> None:
    job = small_job("fedfa", "fedfa.p=1.0", "fedfa.momentum=0.0", "schedule.rounds=7")
    clip = 0.25
    changed = []
    for name, rules in (("a", None), ("b", policy(statistics={"epsilon": 2, "clip": clip}))):
        sites = [Site(job, s, three_sites[s], SiteOptions(tmp_path / name, policy=rules)) for s in SITES]
        broadcast = server(job, tmp_path / f"{name} server", *sites).open(1)
        arrays = sites[0].train(broadcast).arrays["fedfa"]
        changed.append({key: array - broadcast.arrays["fedfa"][key] for key, array in arrays.items()})
    net = build_task(job).network()
    for name, spec in MethodSet(job, net).up["fedfa"].items():
        assert arrays[name].min() >= spec.low, "as the guard wants it"
    plain = np.concatenate(list(changed[0].values()))
    assert np.linalg.norm(plain) > clip, "or the test would not show anything"
    deviation = 2 * clip * noise_multiplier(2, 1e-5, 7)
    means = np.concatenate([array for key, array in sorted(changed[1].items()) if key.startswith("mean")])
    assert means.std() == pytest.approx(deviation, rel=0.25), "deviations are cut off at zero, means are not"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["arrays", "weights"])
def test_a_server_cannot_switch_the_clip_off_with_numbers_that_are_not_finite(
    where: str, bad: float, three_sites: dict[str, Path], tmp_path: Path
) -> None:
    """Once as the site meets it, and once without the first check, since both must hold alone."""
    job, rules = small_job("fedfa"), policy(statistics={"epsilon": 1, "clip": 0.5})
    sites = [Site(job, s, three_sites[s], SiteOptions(tmp_path / "state", policy=rules)) for s in SITES]
    broadcast = server(job, tmp_path / "server", *sites).open(1)
    part = broadcast.arrays["fedfa"] if where == "arrays" else broadcast.weights
    name = next(name for name, array in sorted(part.items()) if array.size > 1 and array.dtype.kind == "f")
    part[name] = part[name].copy()
    part[name].flat[0] = bad
    with raises("not-finite", naming=("round 1", name)):
        sites[0].train(broadcast)
    methods = MethodSet(job, sites[0].network)
    rules = policy(statistics={"epsilon": 1, "clip": 0.5}, weights={"epsilon": 1, "clip": 0.5})
    draw = lambda purpose, shape: np.zeros(shape)  # noqa: E731
    noise = AddedNoise(rules, "BIDMC", build_task(job), methods, 1.0, broadcast, draw, [])
    statistics, weights = budgets(rules, methods)
    assert statistics is not None and weights is not None
    with raises("not-finite", naming="BIDMC"):
        if where == "weights":
            noise.on_weights({name: np.zeros_like(part[name])}, weights)
        else:
            noise.on_arrays({"fedfa": {next(iter(methods.up["fedfa"])): np.full(2, bad)}}, statistics)


@pytest.mark.parametrize(
    ("job", "options", "code", "named"),
    [
        ("fedfa", {"statistics": {"epsilon": 1}}, "no-clip", "privacy.statistics.clip"),
        ("fedfa fedfa.share=sums", {"statistics": {"epsilon": 1, "clip": 1}}, "cannot-protect", "privacy.statistics"),
        ("harmofl", {"statistics": {"epsilon": 1}}, "cannot-protect", "privacy.statistics"),
        (
            "scaffold optimizer.name=sgd optimizer.lr=0.02 optimizer.weight_decay=0",
            {"weights": {"epsilon": 1, "clip": 1}},
            "no-noise",
            "privacy.weights",
        ),
        ("fedbn+fedrdn", {"weights": {"epsilon": 1, "clip": 1}}, "no-noise", "privacy.statistics"),
        ("fedavg", {"weights": {"epsilon": 1, "clip": 1}}, "cannot-protect", "running statistics"),
        ("feddyn", {"weights": {"epsilon": 1, "clip": 1}}, "cannot-protect", "feddyn"),
        ("fedrdn", {"allow": []}, "not-allowed", "privacy.allow: none"),
    ],
)
def test_what_the_policy_or_its_noise_does_not_cover_does_not_leave(
    job: str, options: dict[str, Any], code: str, named: str, three_sites: dict[str, Path], tmp_path: Path
) -> None:
    asked = small_job(*job.split())
    site = Site(asked, "HK", three_sites["HK"], SiteOptions(tmp_path / "state", policy=policy(**options)))
    with raises(code, naming=named):
        site.statistics()


# --- noise on the network -----------------------------------------------------------------------------


def trained(
    rules: Policy | None, data: dict[str, Path], folder: Path, *options: str, sites: Sequence[str] = SITES
) -> tuple[Broadcast, Update]:
    job = small_job("fedbn", *options)
    each = [Site(job, name, data[name], SiteOptions(folder / "state", policy=rules)) for name in sites]
    coordinator = server(job, folder / "server", *each)
    broadcast = coordinator.open(1)
    return broadcast, each[0].train(broadcast)


def change(broadcast: Broadcast, update: Update) -> np.ndarray:
    return np.concatenate([(array - broadcast.weights[key]).ravel() for key, array in sorted(update.weights.items())])


def test_the_change_of_the_network_is_clipped(three_sites: dict[str, Path], tmp_path: Path) -> None:
    broadcast, plain = trained(None, three_sites, tmp_path / "a")
    norm = float(np.linalg.norm(change(broadcast, plain)))
    tiny = {"multiplier": 1e-9, "clip": norm / 3}
    _, clipped = trained(policy(weights=tiny), three_sites, tmp_path / "b")
    assert np.linalg.norm(change(broadcast, clipped)) == pytest.approx(norm / 3, rel=1e-3)
    np.testing.assert_allclose(change(broadcast, clipped), change(broadcast, plain) / 3, atol=1e-6)
    _, left = trained(policy(weights={**tiny, "clip": norm * 3}), three_sites, tmp_path / "c")
    np.testing.assert_allclose(change(broadcast, left), change(broadcast, plain), atol=1e-6)


def test_noise_on_the_network_has_the_stated_deviation(
    three_sites: dict[str, Path], tmp_path: Path, fixed_secret: None
) -> None:
    rules = policy(weights={"epsilon": 50, "delta": 1e-5, "clip": 0.01})
    broadcast, update = trained(rules, three_sites, tmp_path)
    sent = change(broadcast, update)
    deviation = 2 * 0.01 * noise_multiplier(50, 1e-5, 2)
    assert sent.std() == pytest.approx(deviation, rel=0.03)
    assert abs(sent.mean()) < 5 * deviation / math.sqrt(len(sent))


def test_with_noise_on_the_network_the_training_loss_stays_and_the_round_goes_on(
    three_sites: dict[str, Path], tmp_path: Path
) -> None:
    rules = policy(weights={"multiplier": 0.001, "clip": 0.1})
    run_in_process(small_job("fedbn"), three_sites, tmp_path / "run", privacy=dict.fromkeys(SITES, rules))
    results = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))
    assert [record["rejected"] for record in results["rounds"]] == [[], []]
    assert all(site["train_loss"] is None for record in results["rounds"] for site in record["sites"].values())


W, D = {"weights": {"epsilon": 8, "clip": 1.0}}, {"dp_sgd": {"epsilon": 8, "delta": 1e-3, "clip": 1.0}}


@pytest.mark.parametrize(
    ("method", "options", "rules"),
    [
        ("single", (), W),
        ("single", (), D),
        ("ditto", (), W),
        ("fedper", (), W),
        ("fedrep", ("schedule.local_steps=2",), W),
        ("fedbn+fedrep", ("schedule.local_steps=2",), W),
        ("partialfed", ("partialfed.keep=[head]",), W),
        ("partialfed", ("partialfed.mode=adaptive",), W),
    ],
)
def test_with_noise_on_the_network_no_site_scores_layers_that_it_trains_for_itself(
    method: str, options: tuple[str, ...], rules: dict[str, Any], three_sites: dict[str, Path], tmp_path: Path
) -> None:
    asked = small_job(method, *options)
    site = Site(asked, "HK", three_sites["HK"], SiteOptions(tmp_path / "state", policy=policy(**rules)))
    name = method.rpartition("+")[2]
    with raises("cannot-protect", naming=name):
        site.statistics()
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("method", ["fedbn", "partialfed"])
def test_norms_of_a_sites_own_are_the_exception(method: str, three_sites: dict[str, Path], tmp_path: Path) -> None:
    network = ("network.name=monai.BasicUNet", "network.options.features=[4, 4, 4, 4, 4, 4]")
    job = small_job(method, *(("fedbn.norms=all",) if method == "fedbn" else ("partialfed.keep=[norm]",)), *network)
    site = Site(job, "HK", three_sites["HK"], SiteOptions(tmp_path / "state", policy=policy(**W)))
    assert site.statistics().n_samples


# --- and the rest -------------------------------------------------------------------------------------


def test_the_log_says_what_the_policy_did_in_one_line_a_round_and_nothing_of_the_data(
    three_sites: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rules = policy(statistics={"epsilon": 2, "clip": 0.5})
    with caplog.at_level(logging.INFO, "fedshift"):
        run_in_process(small_job("fedfa+fedrdn"), three_sites, tmp_path / "run", privacy={"HK": rules})
    lines = [record.getMessage() for record in caplog.records if "privacy policy" in record.getMessage()]
    assert [line.split(":")[0] for line in lines] == [f"site HK, round {number}" for number in range(3)]
    assert "fedrdn/mean with noise" in lines[0] and "epsilon" in lines[0]
    assert "clipped to 0.5" in lines[1]
    assert "2 of 2 at delta 1e-05" in lines[2]
    assert not [record for record in caplog.records if "of norm" in record.getMessage()], "only when asked to debug"


def test_a_job_has_no_key_that_could_switch_a_policy_off() -> None:
    job = small_job("fedrdn")
    for place in ("", "task", "federation"):
        content = job.dump()
        (content[place] if place else content)["privacy"] = {"allow": ["images"]}
        with pytest.raises(ConfigError, match=r"unknown key .*privacy"):
            JobSpec.parse(content, where="a job")
    with pytest.raises(ConfigError, match="unknown key 'privacy'"):
        small_job("fedrdn", "fedrdn.privacy=null")


def test_an_array_that_a_method_does_not_declare_stays_here(
    three_sites: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(small_job("fedavg"), "HK", three_sites["HK"], SiteOptions(tmp_path, policy=policy()))
    monkeypatch.setattr(ClientChain, "statistics", lambda self, data: {"fedavg": {"images": np.zeros(3)}})
    with raises("undeclared-array"):
        site.statistics()


def test_a_site_that_only_scores_needs_to_allow_nothing(three_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_job("fedmix", "fedmix.images=2", "held_out=[HK]", sites=("BIDMC", "UCL"))
    rules = policy(allow=[], min_cases=1000)
    outcome = run_in_process(job, three_sites, tmp_path / "run", privacy={"HK": rules})
    assert outcome.results.final is not None and "HK" in outcome.results.final.last.held_out


def test_a_site_that_only_evaluates_fine_tunes_nothing(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_image_job("pfedavg", "schedule.rounds=1")
    outcome = run_in_process(job, three_image_sites, tmp_path / "run")
    last = outcome.open(2)

    def scores(name: str, rules: Policy | None) -> Scores:
        return Site(job, "B", three_image_sites["B"], SiteOptions(tmp_path / name, policy=rules)).validate(last)

    free, only = scores("free", policy()), scores("only", policy(train=False))
    assert free.personal["test"] != {} and only.personal == {}
    assert only.values == free.values


def test_a_site_that_only_evaluates_measures_no_training_images_for_newcomers(
    three_sites: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = small_job("fedbn", "schedule.rounds=1")
    last = run_in_process(job, three_sites, tmp_path / "run").open(2)
    asked: list[str] = []
    monkeypatch.setattr(ClientChain, "newcomer", lambda self, data: asked.append("newcomer"))
    for name, rules in (("free", policy()), ("only", policy(train=False))):
        site = Site(job, "HK", three_sites["HK"], SiteOptions(tmp_path / name, policy=rules))
        assert site.validate(last).values["test"]
        assert asked == ["newcomer"], name


class Encrypted:
    """Stands in for what encrypts or masks."""

    def open(self, broadcast: Broadcast) -> Broadcast:
        return broadcast

    def seal(self, update: Update, broadcast: Broadcast) -> Update:
        return replace(update, arrays={})

    def unmask(self, broadcast: Broadcast) -> Update:
        raise NotImplementedError


def test_a_site_can_demand_that_updates_are_encrypted(three_sites: dict[str, Path], tmp_path: Path) -> None:
    rules = policy(encryption="required")

    def site(name: str, *options: str, encryption: Encryption | None = None) -> Site:
        job, state = small_job("fedavg", *options), tmp_path / name
        return Site(job, "HK", three_sites["HK"], SiteOptions(state, policy=rules, encryption=encryption))

    with raises("not-encrypted", naming=("privacy.encryption", "federation.encryption")):
        site("clear").statistics()
    for name in ("ckks", "masks"):
        options = ("federation.min_sites=2", f"federation.encryption={name}")
        assert site(name, *options, encryption=Encrypted()).statistics().arrays == {}
        with raises("not-encrypted", naming="privacy.encryption"):
            site(f"{name} in clear", *options).statistics()


@pytest.mark.parametrize("options", [{"statistics": {"epsilon": 1}}, {"weights": {"epsilon": 1, "clip": 1}}])
def test_noise_at_a_site_without_training_cases_is_refused_with_the_way_out(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """A held-out site, of which the server asks what it may ask only of others."""
    data = make_image_site(tmp_path, "A")
    manifest = data / "manifest.json"
    manifest.write_text(manifest.read_text(encoding="utf-8").replace('"train"', '"test"'), encoding="utf-8")
    job = small_image_job("fedrdn" if "statistics" in options else "fedbn", "held_out=[A]", sites=("B", "C"))
    site = Site(job, "A", data, SiteOptions(tmp_path / "state", policy=policy(min_cases=1, **options)))
    with raises("no-training", naming="site A"):
        site.statistics()
