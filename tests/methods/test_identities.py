"""Options with which a method is another method, usually FedAvg: both runs end with the same weights.

A job is written as on the command line: methods, then options, separated by spaces. The second job of an identity that
has one differs from the first only in the option that is off there, and must end elsewhere; otherwise the identity
would also hold for a method that does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from conftest import make_image_site, small_image_job
from shallow import shallow_networks
from torch import Tensor

from fedshift.federation.in_process import run_in_process, run_pooled
from fedshift.federation.model_files import read_model_file
from fedshift.methods import method_set
from fedshift.schema.results import BEST, LAST, Results

_shallow = pytest.fixture(autouse=True, scope="module")(shallow_networks)

ROUNDING = (1e-4, 1e-6)
"""Relative and absolute tolerance for sums in another order."""


@dataclass(frozen=True)
class Identity:
    """``job`` ends with the weights of ``reference``, and ``other`` does not end with those of ``other_reference``."""

    job: str
    reference: str = "fedavg"
    other: str | None = None
    other_reference: str | None = None
    sites: str = "ABC"
    tolerance: tuple[float, float] | None = None
    """Relative and absolute; None: equal bit for bit, in weights, scores and losses."""
    scored: bool = True
    """Whether sites score the models that are compared; if not, scores and the best round may differ."""


UNIFORM = "fedavg fedavg.weights=uniform"
ROUND_1, ROUNDS_3 = "schedule.rounds=1", "schedule.rounds=3"
STILL = "fedrobust.step_delta=0 fedrobust.step_gamma=0"
PROTO = "fedproto fedproto.average_weights=true fedproto.prototypes="
NO_NORM = "network.name=mnist_cnn network.options.size=16"
NO_SYNTHETIC = "fraug fraug.variant=released fraug.gamma_syn=1e5"  # (1 - 0) * real + 0 * synthetic
ONE_BATCH = "schedule.batch_size=64 schedule.local_epochs=2"
DECAY = "optimizer.weight_decay=0.01"
KEPT_OPTIMIZERS = (f"optimizer.name=adam optimizer.lr=0.003 optimizer.keep=true {DECAY}", "optimizer.momentum=0.5")

IDENTITIES = [
    # aggregation
    Identity("fedavgm fedavgm.beta=0", other="fedavgm"),
    Identity("fednova", tolerance=ROUNDING),  # every site takes the same number of steps
    Identity(
        f"scaffold {ROUND_1}",
        reference=f"{UNIFORM} {ROUND_1}",
        other="scaffold",
        other_reference=UNIFORM,
        tolerance=ROUNDING,
    ),
    Identity(
        f"afl afl.eta=0 {ROUNDS_3}",
        reference=f"fedavg {ROUNDS_3}",
        other=f"afl afl.eta=1 {ROUNDS_3}",
        tolerance=ROUNDING,
    ),
    Identity(f"gen_afl gen_afl.eta=0.5 gen_afl.lambda_min=0 {ROUNDS_3}", reference=f"afl afl.eta=0.5 {ROUNDS_3}"),
    Identity(  # λ_min = 1/n
        f"gen_afl gen_afl.eta=5 gen_afl.lambda_min=0.5 {ROUNDS_3}",
        reference=f"{UNIFORM} {ROUNDS_3}",
        sites="AB",
        tolerance=ROUNDING,
    ),
    *(
        Identity(  # √v + τ is 2 τ while v is τ²
            f"{name} {name}.beta1=0 {name}.tau=10000 {name}.server_lr=20000{more}", other=name, tolerance=ROUNDING
        )
        for name, more in (("fedadam", " fedadam.beta2=0.9999999"), ("fedyogi", ""), ("fedadagrad", ""))
    ),
    Identity("fedgma fedgma.tau=0", other="fedgma"),
    Identity(
        f"feddg_ga feddg_ga.step=0 {ROUNDS_3}",
        reference=f"{UNIFORM} {ROUNDS_3}",
        other=f"feddg_ga feddg_ga.step=0.9 {ROUNDS_3}",
    ),
    *(
        Identity(
            f"fedheal fedheal.tau=0 fedheal.beta=0 {ROUNDS_3}",
            reference=f"{UNIFORM} {ROUNDS_3}",
            other=f"fedheal {options} {ROUNDS_3}",
            tolerance=ROUNDING,
        )
        for options in ("fedheal.beta=0", "fedheal.tau=0 fedheal.beta=1")
    ),
    *(
        Identity(
            f"fedawa fedawa.lr=0 fedawa.start={weights} {ROUNDS_3}",
            reference=f"fedavg fedavg.weights={weights} {ROUNDS_3}",
            other=f"fedawa fedawa.lr=1 fedawa.start={weights} {ROUNDS_3}",
            tolerance=ROUNDING,
        )
        for weights in ("samples", "uniform")
    ),
    Identity("fedlws fedlws.min_tau=0 fedlws.max_tau=0", other="fedlws"),
    Identity("fedomg fedomg.kappa=0", reference=UNIFORM, other="fedomg", tolerance=ROUNDING),
    Identity(  # in round 1 every site's terms are 0 without α, and the server moves twice as far
        f"feddyn feddyn.alpha=1e-9 {ROUND_1}",
        reference=f"fedavgm fedavgm.beta=0 fedavgm.server_lr=2 fedavgm.weights=uniform {ROUND_1}",
        other=f"feddyn feddyn.alpha=1 {ROUND_1}",
        tolerance=ROUNDING,
    ),
    Identity("vm vm.beta=0", reference=UNIFORM, other="vm vm.beta=5", tolerance=ROUNDING),
    Identity(
        f"fedsgd schedule.local_steps=1 {DECAY}",
        reference=f"fedavg schedule.local_steps=1 {DECAY}",
        other=f"fedsgd schedule.local_steps=3 {DECAY}",
        other_reference=f"fedavg schedule.local_steps=3 {DECAY}",
    ),
    # local objective; with FedFA only if an extra pass repeats its draws and updates no running statistics
    *(
        Identity(f"fedprox fedprox.mu=0 fedprox.variant={v}", other=f"fedprox fedprox.mu=1 fedprox.variant={v}")
        for v in ("paper", "released")
    ),
    *(
        Identity(
            f"fedirm fedirm.weight=0 fedirm.penalty={penalty}",
            other=f"fedirm fedirm.weight=10 fedirm.warmup=0 fedirm.penalty={penalty}",
        )
        for penalty in ("scalar", "classifier")
    ),
    *(
        Identity(f"{PROTO}{prototypes} fedproto.weight=0", other=f"{PROTO}{prototypes}")
        for prototypes in ("last_epoch", "trained")
    ),
    Identity("moon moon.mu=0", other="moon"),  # the passes through the other models leave no trace
    Identity("fedfa+moon moon.mu=0 fedfa.p=0.8", reference="fedavg+fedfa fedfa.p=0.8", other="fedfa+moon fedfa.p=0.8"),
    Identity("fpl fpl.contrast=0 fpl.consistency=0", other="fpl"),
    Identity("fedsr fedsr.l2r=0 fedsr.stochastic=false", other="fedsr fedsr.l2r=0.5"),
    Identity("fediir fediir.gamma=0", other="fediir fediir.gamma=1"),
    Identity("fedsam fedsam.rho=0", other="fedsam fedsam.rho=0.5 fedsam.adaptive=true"),
    Identity(
        "fedfa+fedsam fedsam.rho=0 fedfa.p=0.8",
        reference="fedfa+fedavg fedfa.p=0.8",
        other="fedfa+fedsam fedsam.rho=0.5 fedsam.adaptive=true fedfa.p=0.8",
    ),
    Identity(f"fedrobust {STILL}", other="fedrobust"),
    Identity(f"fedfa+fedrobust {STILL}", reference="fedfa+fedavg", other="fedfa+fedrobust"),
    Identity("fedfa fedfa.p=0", other="fedfa"),
    # personal parts
    Identity(f"fedbn {NO_NORM}", reference=f"fedavg {NO_NORM}"),
    Identity(
        f"silobn {ROUNDS_3}",
        reference=f"fedavg fedavg.buffers=local {ROUNDS_3}",
        other=f"fedbn {ROUNDS_3}",
    ),
    Identity("pfedavg"),  # fine-tuning comes after the last round
    Identity("partialfed partialfed.keep=[]", other="partialfed"),
    Identity(
        "partialfed partialfed.keep=[norm]",
        reference="fedbn fedbn.unseen=averaged",
        other="partialfed",
        other_reference="fedbn fedbn.unseen=averaged",
    ),
    Identity(NO_SYNTHETIC, reference="fedavg fedavg.buffers=local"),
    Identity(f"{NO_SYNTHETIC} fraug.bn=local", reference="fedbn"),
    *(  # the personal model's passes draw nothing that the global model's would draw
        Identity(f"{names}ditto {options}", reference=f"{names}fedavg {options}", scored=False)
        for names in ("", "fedfa+", "mixup+")
        for options in KEPT_OPTIMIZERS
    ),
    *(
        Identity(f"fedrod fedrod.gamma=0 {options}", reference=f"fedavg {options}", scored=False)
        for options in KEPT_OPTIMIZERS
    ),
    # augmentation
    Identity("augmentation augmentation.level=none", other="augmentation"),
    Identity("mixup mixup.alpha=0", other="mixup"),
    Identity("manifold_mixup manifold_mixup.alpha=0", other="manifold_mixup"),
    Identity("mixstyle mixstyle.p=0", other="mixstyle"),
    Identity("moex moex.p=0", other="moex"),
    Identity("fedmix fedmix.lam=0", other="fedmix"),
    Identity("fedrdn fedrdn.mode=fixed fedrdn.fixed_mean=[0.0] fedrdn.fixed_std=[1.0]", other="fedrdn"),
    # centralised; which images are drawn when depends on who trains, so one batch holds them all
    Identity(f"all {ONE_BATCH}", reference=f"fedavg {ONE_BATCH}", sites="A", tolerance=(1e-3, 1e-4)),
]


@dataclass(frozen=True)
class End:
    """What a finished run left behind."""

    weights: dict[str, dict[str, Tensor]]
    """Of both model files."""
    results: Results


@pytest.fixture(scope="module")
def end(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], End]:
    """Runs a job with some of three sites whose images differ in gain and offset; each job once."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("identities")
    shifts = {"A": (1.0, 0.0), "B": (0.5, 20.0), "C": (1.4, -30.0)}
    data = {s: make_image_site(root / "data", s, gain=g, offset=o) for s, (g, o) in shifts.items()}

    @cache
    def finished(job: str, sites: str) -> End:
        names, *options = job.split()
        spec = small_image_job(names, *options, sites=tuple(sites))
        folder: Path = tmp_path_factory.mktemp("run")
        run = run_pooled if method_set.pooled_reference(spec.methods) else run_in_process
        results = run(spec, {site: data[site] for site in sites}, folder).results
        return End({file: read_model_file(folder / file)["weights"] for file in (BEST, LAST)}, results)

    return finished


@pytest.mark.parametrize("identity", IDENTITIES, ids=lambda identity: identity.job.replace(" ", ","))
def test_two_jobs_end_with_the_same_weights(identity: Identity, end: Callable[[str, str], End]) -> None:
    found, expected = end(identity.job, identity.sites), end(identity.reference, identity.sites)
    if identity.tolerance is None:
        for file, weights in found.weights.items() if identity.scored else [(LAST, found.weights[LAST])]:
            assert weights.keys() == expected.weights[file].keys()
            for key, value in weights.items():
                torch.testing.assert_close(value, expected.weights[file][key], rtol=0, atol=0, msg=f"{file}: {key}")
        if identity.scored:
            assert found.results.final is not None and expected.results.final is not None
            assert found.results.final.best == expected.results.final.best
            assert found.results.final.last == expected.results.final.last
        assert losses(found) == losses(expected)
    else:
        rtol, atol = identity.tolerance
        for key, value in expected.weights[LAST].items():
            torch.testing.assert_close(found.weights[LAST][key], value, rtol=rtol, atol=atol, msg=key)


@pytest.mark.parametrize(
    "identity", [i for i in IDENTITIES if i.other is not None], ids=lambda identity: str(identity.other)
)
def test_with_the_option_on_the_weights_differ(identity: Identity, end: Callable[[str, str], End]) -> None:
    assert identity.other is not None
    found = end(identity.other, identity.sites).weights[LAST]
    expected = end(identity.other_reference or identity.reference, identity.sites).weights[LAST]
    assert not torch.allclose(found["head.weight"], expected["head.weight"], rtol=1e-3, atol=1e-5)


def losses(run: End) -> list[dict[str, float | None]]:
    """Training losses of every round by site."""
    return [{name: site.train_loss for name, site in record.sites.items()} for record in run.results.rounds]
