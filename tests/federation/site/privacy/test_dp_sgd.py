"""DP-SGD at a site: gradients of single cases, the noise that is stated, what is refused, and the same bits."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import small_image_job, small_job
from errors import raises
from nvflare.apis.signal import Signal
from torch import nn

from fedshift.federation import footprint
from fedshift.federation.in_process import run_in_process
from fedshift.federation.resolve import resolve
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.site.privacy import dp_sgd, noise
from fedshift.federation.site.privacy.accounting import composed_epsilon, noise_multiplier
from fedshift.federation.site.privacy.dp_sgd import HOOKS, Plan, PrivateTraining, make_plan
from fedshift.federation.site.privacy.ledger import Ledger
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.flare import codec
from fedshift.flare.executor import FedshiftExecutor
from fedshift.flare.export import write_job
from fedshift.methods import base, method_set
from fedshift.methods.chain import ClientChain
from fedshift.methods.method_set import MethodSet
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Broadcast, Update
from fedshift.schema.policy import DpSgd, Policy
from fedshift.schema.task import ScheduleSpec
from fedshift.tasks.kinds import build_task
from fedshift.tasks.precision import prepare
from fedshift_testing.serialised import Kit

GROUPS = "network.name=monai.BasicUNet", "network.options.features=[4, 4, 4, 4, 4, 4]"
"""A network with instance norm."""


def policy(**options: Any) -> Policy:
    return Policy.parse(options, where="a site's policy")


def scans(methods: str = "fedavg", *options: str) -> JobSpec:
    return small_job(methods, *GROUPS, *options)


RULES = policy(dp_sgd={"epsilon": 8, "delta": 1e-3, "clip": 0.5})


def answered(job: JobSpec, data: Path, folder: Path, rules: Policy | None) -> tuple[Broadcast, Update, Site]:
    site = Site(job, "HK", data, SiteOptions(folder / "state", policy=rules, device="cpu"))
    site.statistics()
    broadcast = replace(Coordinator(job, folder / "server").open(1), arrays={})
    return broadcast, site.train(broadcast), site


# --- the noise -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_batch_is_a_draw_of_cases_and_a_round_has_the_steps_of_the_job() -> None:
    rule = DpSgd(epsilon=8, delta=1e-3, clip=1)
    plan = make_plan(rule, ScheduleSpec(rounds=5, local_epochs=2, batch_size=8), images=80, subjects=4)
    assert (plan.sampling_rate, plan.steps) == (1.0, 20)
    assert plan.multiplier == pytest.approx(noise_multiplier(8, 1e-3, 100)), "all cases in every step: exact"
    plan = make_plan(rule, ScheduleSpec(rounds=5, local_steps=3, batch_size=8), images=80, subjects=40)
    assert (plan.sampling_rate, plan.steps) == (0.2, 3)
    spent = composed_epsilon([plan.mechanism(5)], 1e-3)
    assert 7.8 < spent <= 8, "Opacus' accountant and dp-accounting agree, and neither is past the policy"


class _Line(nn.Module):
    """Outputs w·x, so that the gradient of a sample is known."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layer = nn.Linear(size, 1, bias=False)
        self.unused = nn.Linear(2, 2)
        nn.init.zeros_(self.layer.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out


class _Cases:
    """Two images a case; the gradient of each image of a case is the case's. ``scans``: cases of each subject."""

    def __init__(self, gradients: np.ndarray, *, scans: int = 1) -> None:
        self.gradients, self.scans = torch.from_numpy(np.repeat(gradients, 2, 0)).float(), scans

    def cases(self, subset: str) -> np.ndarray:
        return np.repeat(np.arange(len(self.gradients) // 2), 2)

    def subjects_of(self, cases: np.ndarray) -> np.ndarray:
        return cases // self.scans * self.scans

    def train_batch(self, index: np.ndarray, *, seeds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.gradients[index], torch.zeros(len(index))


class _Sum:
    def loss(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        assert len(logits) == 1, "the loss of a sample is computed alone"
        return logits.sum()


def hooks(net: nn.Module) -> list[int]:
    """How many forward hooks each module has."""
    return [len(module._forward_hooks) for module in net.modules()]


def step(
    gradients: np.ndarray, *, rate: float, clip: float, multiplier: float = 0.0, steps: int = 1, scans: int = 1
) -> np.ndarray:
    """How far SGD with learning rate 1 goes, and the network's state is as before."""
    net = _Line(gradients.shape[1])
    before = set(vars(net.layer.weight)), hooks(net)
    run = base.Run(0, "A", 1, 1, ("A",), net, lambda x, y: x.sum(), 2)
    run.optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    rng = np.random.default_rng(0)
    training = PrivateTraining(
        Plan(clip, multiplier, rate, steps), lambda purpose, shape: rng.normal(size=shape), lambda p, s: rng.random(s)
    )
    chain = ClientChain(method_set.load({"fedavg": {}}), run, {})
    taken, _ = training.train(_Sum(), _Cases(gradients, scans=scans), chain, run)  # type: ignore[arg-type]
    assert taken == steps
    assert (set(vars(net.layer.weight)), hooks(net)) == before
    moved: np.ndarray = -net.layer.weight.detach().numpy()[0]
    return moved


def test_each_case_is_clipped_alone_also_if_the_batch_takes_several_passes() -> None:
    gradients = np.random.default_rng(1).normal(size=(3 * dp_sgd.PART + 1, 5)) * np.linspace(0.1, 5, 25)[:, None]
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    clipped = gradients * np.minimum(1, 0.7 / norms)
    assert 0 < (norms > 0.7).sum() < len(norms), "or the test would not show anything"
    moved = step(gradients, rate=1.0, clip=0.7)
    np.testing.assert_allclose(moved, clipped.sum(0) / len(gradients), rtol=1e-4, atol=1e-6)


def test_one_case_moves_a_step_by_no_more_than_the_clip() -> None:
    gradients = np.random.default_rng(1).normal(size=(9, 5))
    other = gradients.copy()
    other[4] = 1e6
    nothing = gradients.copy()
    nothing[4] = 0
    for changed in (gradients, other):
        difference = step(changed, rate=1.0, clip=0.5) - step(nothing, rate=1.0, clip=0.5)
        assert np.linalg.norm(difference) * 9 <= 0.5 + 1e-5


def test_all_scans_of_a_subject_together_move_a_step_by_no_more_than_the_clip() -> None:
    gradients = np.random.default_rng(1).normal(size=(12, 5))
    other, nothing = gradients.copy(), gradients.copy()
    other[4:8] = 1e6
    nothing[4:8] = 0
    difference = step(other, rate=1.0, clip=0.5, scans=4) - step(nothing, rate=1.0, clip=0.5, scans=4)
    noise = step(np.zeros((12, 20_000)), rate=1.0, clip=0.5, multiplier=1.0, scans=4).std()
    assert np.linalg.norm(difference) == pytest.approx(noise, rel=0.02), "as far as the noise is for with multiplier 1"


def test_noise_has_the_stated_deviation_and_empty_draws_are_steps_of_noise() -> None:
    moved = step(np.zeros((10, 20_000)), rate=1e-9, clip=0.5, multiplier=3.0, steps=4)
    assert moved.std() == pytest.approx(math.sqrt(4) * 3.0 * 0.5 / (1e-9 * 10), rel=0.02)


def test_cases_take_part_with_the_probability_that_is_accounted_for() -> None:
    moved = step(np.eye(400), rate=0.25, clip=1.0, steps=50)
    assert moved.sum() * 0.25 * 400 / (50 * 400) == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("prostate", ("network.options.features=[4, 4, 4, 4, 4, 4]", "data.patch=[32, 32]")),  # instance norm
        ("hippocampus", (*GROUPS, "data.patch=[32, 32, 32]")),
        ("pacs", ("network.options={norm: group}", "data.size=32")),
    ],
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_samples_gradient_is_that_of_the_sample_alone(task: str, options: tuple[str, ...], precision: Any) -> None:
    """Also where the precision has features in channels last, in which Opacus reads a convolution's input wrongly."""
    made = build_task(resolve(task, "fedavg", options=options))
    torch.manual_seed(0)
    net = prepare(made.network(), precision, torch.device("cpu")).train()
    x, y = footprint.noise(net, made, 2)
    with dp_sgd._sample_gradients(net):
        dp_sgd._backward(made, net, base.Batch(x, y))
        together = [parameter.grad_sample for parameter in net.parameters()]  # type: ignore[attr-defined]
    for i in range(len(x)):
        net.zero_grad()
        made.loss(net(x[i : i + 1]), y[i : i + 1]).backward()  # type: ignore[no-untyped-call]
        for parameter, gradients in zip(net.parameters(), together, strict=True):
            torch.testing.assert_close(gradients[i], parameter.grad, rtol=1e-2, atol=1e-4)


# --- in a site -------------------------------------------------------------------------------------------


def test_a_site_trains_privately_and_the_same_task_gives_the_same_bits(
    three_sites: dict[str, Path], tmp_path: Path
) -> None:
    job = scans("fedavg", "schedule.batch_size=2", "schedule.local_steps=2")
    broadcast, update, site = answered(job, three_sites["HK"], tmp_path / "a", RULES)
    again = site.train(broadcast)
    assert all(np.array_equal(update.weights[key], again.weights[key]) for key in update.weights)
    assert "train_loss" not in update.metrics
    (release,) = Ledger(tmp_path / "a" / "state" / "HK").trusted().releases
    assert (release.what, release.sensitivity, release.steps) == ("network", 0.5, update.n_steps)
    assert release.deviation == pytest.approx(0.5 * release.multiplier)
    _, other, _ = answered(job, three_sites["HK"], tmp_path / "b", RULES)
    assert any(not np.array_equal(update.weights[key], other.weights[key]) for key in update.weights), "its own secret"
    _, plain, _ = answered(job, three_sites["HK"], tmp_path / "c", None)
    assert plain.n_steps == update.n_steps


def test_a_round_of_all_sites_is_accepted_and_statistics_with_noise_may_go_along(
    three_sites: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rules = policy(
        dp_sgd={"epsilon": 8, "delta": 1e-3, "clip": 0.5},
        statistics={"epsilon": 3, "delta": 1e-3},
        budget={"epsilon": 10, "delta": 1e-3},
    )
    job = scans("fedrdn", "schedule.local_steps=2")
    with caplog.at_level(logging.INFO, "fedshift"):
        outcome = run_in_process(job, three_sites, tmp_path / "run", privacy=dict.fromkeys(three_sites, rules))
    assert [record.rejected for record in outcome.results.rounds] == [[], []]
    assert "2 steps with clip 0.5" in caplog.text
    account = Ledger(tmp_path / "run" / "site_state" / "HK").trusted()
    assert [one.what for one in account.releases] == ["image statistics", "network", "network"]
    assert account.epsilon(1e-3) <= 10
    with raises("budget-spent", naming="10"):
        Ledger(tmp_path / "run" / "site_state" / "HK").check(
            rules.budget,
            [one.parameters for one in account.releases],
            site="HK",
            job="again",
            run=None,  # type: ignore[arg-type]
        )


def test_flares_executor_gives_the_bits_of_one_process(
    three_sites: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same secret in both, as the noise comes from it."""
    monkeypatch.setattr(noise.secrets, "token_bytes", lambda n: bytes(range(n)))
    job = scans("fedavg", "schedule.local_steps=2")
    broadcast, update, _ = answered(job, three_sites["HK"], tmp_path / "a", RULES)
    kit = Kit.make(job, "HK", three_sites["HK"], tmp_path / "kit", sent=write_job(job, tmp_path / "job"))
    settings_file = tmp_path / "kit" / "local" / "fedshift.yaml"
    text = f"{settings_file.read_text(encoding='utf-8')}privacy: {RULES.model_dump_json(include={'dp_sgd'})}\n"
    settings_file.write_text(text, encoding="utf-8")
    asked = codec.encode_task(replace(broadcast, sites=("HK",)))
    (answer,) = codec.decode_answers(FedshiftExecutor().execute(codec.TRAIN, asked, kit, Signal()))  # type: ignore[arg-type]
    assert isinstance(answer.content, Update)
    assert set(answer.content.weights) == set(update.weights)
    assert all(np.array_equal(answer.content.weights[key], value) for key, value in update.weights.items())


# --- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "code", "named"),
    [
        (lambda: small_job("fedavg"), "cannot-protect", "batch norm"),
        (lambda: small_job("fedbn"), "cannot-protect", "batch norm"),
        (
            lambda: small_job("fedavg", "network.name=monai.SegResNet", "network.options={}"),
            "cannot-protect",
            "monai.SegResNet",
        ),
        (lambda: scans("fedprox"), "cannot-protect", "fedprox changes training (begin)"),
        (lambda: scans("fedsam"), "cannot-protect", "fedsam changes training (step)"),
        (lambda: scans("mixstyle"), "cannot-protect", "mixstyle changes training (attach)"),
        (lambda: scans("mixup"), "cannot-protect", "mixup changes training (batch)"),
        (lambda: scans("fedrdn"), "no-noise", "privacy.statistics"),
        (lambda: scans("fedmix", "fedmix.images=2"), "not-allowed", "fedmix"),
    ],
)
def test_what_clipped_gradients_do_not_cover_is_refused_before_anything_is_computed(
    job: Any, code: str, named: str, three_sites: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(job(), "HK", three_sites["HK"], SiteOptions(tmp_path / "state", policy=RULES))
    monkeypatch.setattr(Site, "_measure", lambda self: pytest.fail("measured"))
    with raises(code, naming=named):
        site.statistics()
    assert not (tmp_path / "state").exists()


def test_only_these_methods_go_together_with_dp_sgd() -> None:
    """A new method is refused until its hooks say that they treat each sample by itself (`Client.per_sample`)."""
    taken = []
    for name in method_set.available():
        module = method_set.find(name)
        half = getattr(module, "Client", base.Client)
        changed = {hook for hook in HOOKS if getattr(half, hook) is not getattr(base.Client, hook)}
        if changed <= half.per_sample and half.trains_on == "site":
            taken.append(name)
    adaptive = {"fedadagrad", "fedadam", "fedawa", "fedyogi"}
    server_only = adaptive | {"fedavg", "fedavgm", "fedgma", "fedheal", "fedlws", "fednova", "fedomg"}
    assert set(taken) == server_only | {"fedbn", "fedper", "fedrdn", "landmarks", "pfedavg", "silobn", "single"}


@pytest.mark.parametrize(("epsilon", "multiplier"), [(8.0, 0.8221435546875), (1.0, 3.18359375)])
def test_the_noise_of_usual_epsilons_is_the_accountants(epsilon: float, multiplier: float) -> None:
    schedule = ScheduleSpec(rounds=20, local_steps=20, batch_size=8)
    plan = make_plan(DpSgd(epsilon=epsilon, delta=1e-5, clip=1), schedule, images=2000, subjects=200)
    assert plan.multiplier == pytest.approx(multiplier, rel=1e-9)


@pytest.mark.slow
def test_a_small_epsilon_is_nearly_used_up_and_none_is_too_small_for_a_sentence() -> None:
    schedule = ScheduleSpec(rounds=20, local_steps=20, batch_size=8)
    plan = make_plan(DpSgd(epsilon=0.1, delta=1e-5, clip=1), schedule, images=2000, subjects=200)
    assert 0.095 < composed_epsilon([plan.mechanism(20)], 1e-5) <= 0.1
    with raises("no-such-noise", naming=("privacy.dp_sgd.epsilon", "1e-05", "400")):
        make_plan(DpSgd(epsilon=1e-5, delta=1e-5, clip=1), schedule, images=2000, subjects=200)


def test_without_the_library_it_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    rule, schedule = DpSgd(epsilon=7, delta=1e-3, clip=1), ScheduleSpec(rounds=1, local_steps=1, batch_size=8)
    monkeypatch.setitem(__import__("sys").modules, "opacus.grad_sample", None)
    with raises("not-installed", naming=("privacy.dp_sgd", "Opacus")):
        make_plan(rule, schedule, images=70, subjects=70)


def test_group_norm_will_do_and_batch_norm_will_not() -> None:
    for norm, fits in (("group", True), ("batch", False)):
        job = small_image_job("fedavg", "network.name=resnet18", f"network.options={{norm: {norm}, stem: small}}")
        task = build_task(job)
        assert bool(dp_sgd.refusal(MethodSet(job, task.network()), task)) is not fits
