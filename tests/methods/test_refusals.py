"""Options, tasks, networks and combinations of methods that are refused when the job is made, and some that are not.

A line is a job as on the command line, after its kind of data: methods, then options. After ``->`` is what the error
names beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from annotated_types import Ge, Gt, Le, Lt
from conftest import small_image_job, small_job
from errors import raises
from torch import nn

from fedshift.methods import method_set
from fedshift.methods.method_set import MethodSet
from fedshift.schema.job import JobSpec
from fedshift.tasks.kinds import build_task


def made(kind: str, job: str, sites: str = "ABC") -> JobSpec:
    names, *options = job.split()
    if kind == "images":
        return small_image_job(names, *options, sites=tuple(sites))
    return small_job(names, *options)


REFUSED = {
    "invalid-value": """
images fedadagrad fedadagrad.tau=1e300 -> fedadagrad tau
slices fedbn fedbn.norms=bn -> fedbn norms
images fedrdn fedrdn.mode=fixed fedrdn.fixed_std=[0] -> fedrdn fixed_std
images gen_afl gen_afl.lambda_min=0.4 -> gen_afl lambda_min
images manifold_mixup manifold_mixup.layers=[] -> manifold_mixup layers
images mmrex mmrex.lambda_min=0.5 -> mmrex lambda_min=0.333
images mmrex mmrex.lambda_min=0.6 domains={X:[A,B]} -> mmrex lambda_min=0.5
slices partialfed partialfed.keep=[bn] -> partialfed keep
""",
    "no-effect": """
images elcfs elcfs.contrast=0.2 -> elcfs contrast
images fedalign fedalign.contrast=0 fedalign.temperature=0.5 -> fedalign temperature
slices elcfs elcfs.variant=released elcfs.alpha=0.1 -> elcfs variant alpha
slices elcfs elcfs.inner_lr=0 elcfs.order=first -> elcfs order
slices elcfs elcfs.contrast=0 elcfs.temperature=0.1 -> elcfs contrast temperature
slices elcfs elcfs.partners=2 -> elcfs partners
images fedprox+fedsgd fedprox.mu=0.5 -> fedprox mu
images fedprox fedprox.mu=0.5 schedule.local_steps=1 -> fedprox mu schedule.local_steps
images fedprox fedprox.variant=released schedule.local_steps=1 -> fedprox variant schedule.local_steps
images fedsam fedsam.eta=0.01 -> fedsam eta fedsam.adaptive=true
images fedsr fedsr.stochastic=false fedsr.cmi=0.1 -> fedsr cmi fedsr.stochastic=true
images fpl fpl.contrast=0 fpl.temperature=0.1 -> fpl contrast temperature
images irm irm.weight=50 schedule.local_steps=7 -> irm weight
images fedirm fedirm.weight=50 schedule.local_steps=7 -> fedirm weight
images vrex vrex.weight=50 schedule.local_steps=7 -> vrex weight
images fedavg fedavg.buffers=local network.name=mnist_cnn network.options.size=16 -> fedavg buffers
slices fedwon fedwon.gain=learned network.options.norm=batch_statistics network.options.bn_momentum=0.1 -> fedwon gain
images fedproto fedavg.weights=uniform -> fedproto fedavg weights
images fedlws fedlws.max_tau=0.01 fedlws.beta=0.1 -> fedlws beta
""",
    "unknown-key": """
images fedadagrad fedadagrad.beta2=0.9 -> fedadagrad beta2
images fedprox fedprox.muu=1 -> fedprox muu
slices mixup mixup.alfa=0.1 -> mixup alfa
slices single single.epochs=3 -> single epochs
""",
    "options-clash": """
images ditto ditto.lam=40 -> ditto ditto.lam
images fedlws fedlws.max_tau=0.001 -> fedlws.min_tau fedlws.max_tau
slices fedgma fedgma.variant=released fedgma.tau=0 -> fedgma variant fedgma.tau=0.4
images fedrobust fedrobust.step_delta=0.3 -> fedrobust step_delta
slices fedrobust fedrobust.penalty_gamma=2000 -> fedrobust penalty_gamma
images fraug fraug.interpolate=false -> fraug interpolate fraug.schedule=false fraug.variant=released
images vm vm.variant=released vm.weights=samples -> vm variant vm.weights=uniform
images all federation.sites_per_round=2 -> all federation.sites_per_round=null
images fednova schedule.minutes=5 federation.robust.rule=norm_clipping federation.min_sites=3 -> schedule.minutes
images fednova+fedprox fedprox.mu=20 -> fednova fedprox fedprox.mu
""",
    "method-needs": """
slices fedbn network.name=monai.BasicUNet network.options={features:[4,4,4,4,4,4]} -> fedbn fedbn.norms=all
images feddg_ga federation.sites_per_round=2 -> feddg_ga feddg_ga.variant=released
images partialfed partialfed.keep=[norm] network.name=mnist_cnn network.options.size=16 -> partialfed keep=[head]
images augmentation augmentation.level=moderate data.mean=[0.5] -> augmentation level data.mean fedrdn.mode=fixed
images augmentation augmentation.rotation=10 data.mean=[0.5] -> augmentation rotation data.mean fedrdn.mode=fixed
slices fedirm fedirm.penalty=classifier -> fedirm fedirm.penalty=scalar
slices irm irm.penalty=classifier -> irm irm.penalty=scalar
slices fedproto -> fedproto
slices fedrod -> fedrod
slices fedsr -> fedsr
slices fpl -> fpl
slices moon -> moon
images fedrep schedule.local_steps=1 -> fedrep schedule.local_steps
slices silobn network.name=monai.BasicUNet network.options={features:[4,4,4,4,4,4]} -> silobn monai.BasicUNet
slices pn network.name=monai.BasicUNet network.options={features:[4,4,4,4,4,4]} -> pn monai.BasicUNet
images fedrep schedule.minutes=5 -> fedrep schedule.minutes=null
slices fraug -> fraug
images fraug schedule.batch_size=1 -> fraug schedule.batch_size=2
slices fednova optimizer.name=adam -> fednova optimizer.name=sgd
images fednova optimizer.momentum=0.9 -> fednova optimizer.keep=false
slices fedsgd optimizer.name=adam -> fedsgd optimizer.name=sgd
images fedsgd optimizer.momentum=0.9 -> fedsgd optimizer.momentum schedule.local_steps=1
slices scaffold optimizer.name=adam -> scaffold optimizer.name=sgd
images scaffold optimizer.name=adam -> scaffold optimizer.name=sgd
images scaffold optimizer.momentum=0.9 -> scaffold optimizer.keep=false
images scaffold optimizer.clip_norm=1 -> scaffold optimizer.clip_norm=null
images scaffold optimizer.nesterov=true optimizer.momentum=0.5 optimizer.keep=false -> scaffold nesterov=false
images fednova optimizer.nesterov=true optimizer.momentum=0.5 optimizer.keep=false -> fednova nesterov=false
""",
    "unknown-layer": """
slices fedfa fedfa.layers=[1,6] -> fedfa layers
slices manifold_mixup manifold_mixup.layers=[0,9] -> manifold_mixup layers
slices mixstyle mixstyle.layers=[1,6] -> mixstyle layers
slices moex moex.layer=6 -> moex
""",
    "batch-of-one": """
images fedavg schedule.batch_size=1 -> schedule.batch_size=2
images ditto schedule.batch_size=1 -> schedule.batch_size=2
images fedwon evaluation.local=true schedule.batch_size=1 -> schedule.batch_size=2
""",
}

CLASHES = """
images fedsgd+fedavgm
images fedadam+fedgma
images fedawa+fedlws
images fraug+fedsam
images fedharmo+fedrdn
images harmofl+fedrdn
images ditto+fedbn
images ditto+pfedavg
images ditto+afl
images fedrep+partialfed
images fedper+fedrep
images fedper+fedrod
images fedrod+partialfed
images fedrod+pfedavg
images afl+fedrod
images ditto+fedrod
images fedper+partialfed
images fedper+fedproto
images ditto+fedper
images fedper+feddyn
images fedbn+silobn
images fedwon+silobn
images pn+fedbn
images pn+fedwon
images pn fedavg.buffers=local
images scaffold+silobn
images silobn fedavg.buffers=local
images fedrep+fedproto
images fedproto+fedavgm
images fedce+fedproto
images fedmix+fedirm
images fedmix+fraug fraug.variant=released -> fraug.variant=paper
images fednova+fedprox optimizer.momentum=0.5 optimizer.keep=false -> fedprox.variant=paper
images fednova+fedprox fedprox.variant=released -> optimizer.momentum=0 fedprox.variant=paper
images feddyn+fedbn
images feddyn+pfedavg
images fraug+pfedavg
images fednova+fedrep
images fediir+fedrep
images fediir+partialfed
images fediir+partialfed partialfed.mode=adaptive
images fedsgd+fedrep
images fedsgd+pfedavg
images elcfs+fedmix
images elcfs+fedproto
images elcfs+fedsr
images elcfs+fpl
images elcfs+fraug
images elcfs+moon
images elcfs+fedalign
images fedalign+fedmix
images fedalign+fedproto
images fedalign+moon
images fedalign+fedrdn
images fedalign+mixup mixup.draw=sample
images fedwon+fedbn
images fedwon fedavg.buffers=local
images fedwon+partialfed
images fedwon+partialfed partialfed.mode=adaptive
images scaffold+fedwon scaffold.option=I -> fedwon.clip=null
images scaffold+fedwon scaffold.option=II -> fedwon.clip=null
images moon+single moon.mu=5
images moon+fedproto moon.mu=5
images moon+all moon.mu=5
images fedproto+mixup mixup.draw=sample -> mixup.draw=batch
images fpl+mixup mixup.draw=sample -> mixup.draw=batch
images fpl+moex moex.lam=0.5 -> moex.lam=0.9
images scaffold+fedbn
images scaffold+partialfed
images scaffold+pfedavg
images groupdro+irm
images groupdro+all
images all+fedrdn
images all+fedbn
images all+single
images all fedavg.buffers=local
images groupdro+fedirm
images irm+fedirm
images mmrex+fedirm
images vrex+fedirm
images groupdro+pfedavg
images groupdro+mixup
images groupdro+manifold_mixup
images groupdro+moex
slices single+fedavg
slices fedharmo+fedsam
slices fedharmo+harmofl
slices partialfed+fedbn
slices partialfed fedavg.buffers=local
slices fedbn fedbn.unseen=averaged fedavg.buffers=local -> fedavg.buffers=average fedbn.unseen=re-estimated
slices elcfs+fedrdn
slices elcfs+mixup
"""
"""What only one may do, formulas that do not cover another method, methods without effect, centralised references."""


def lines(text: str) -> list[list[str]]:
    """Kind of data, job, and what the error names, of every line."""
    parts = [line.strip().partition(" -> ") for line in text.strip().splitlines()]
    return [[*job.split(maxsplit=1), names] for job, _, names in parts]


@pytest.mark.parametrize(
    ("code", "kind", "job", "names"), [(code, *line) for code, text in REFUSED.items() for line in lines(text)]
)
def test_a_job_is_refused(code: str, kind: str, job: str, names: str) -> None:
    with raises(code, naming=tuple(names.split())):
        made(kind, job)


@pytest.mark.parametrize(("kind", "job", "mends"), lines(CLASHES))
def test_methods_that_clash_are_refused_by_name(kind: str, job: str, mends: str) -> None:
    names, *options = job.split()
    combining = [option.partition(".")[0] for option in options if option.startswith("fedavg.")]
    with raises("methods-clash", naming=(*names.split("+"), *combining, *mends.split())):
        made(kind, job)


def beyond_bounds() -> Iterator[tuple[str, str, Any]]:
    """Every bounded number, and every option that is one of some words, with a value that it may not have."""
    for method in method_set.available():
        for option, field in method_set.find(method).Config.model_fields.items():
            if isinstance(field.default, str):
                yield method, option, "another"
            for limit in field.metadata:
                match limit:
                    case Ge():
                        yield method, option, limit.ge - 1
                    case Le():
                        yield method, option, limit.le + 1
                    case Gt():
                        yield method, option, limit.gt
                    case Lt():
                        yield method, option, limit.lt


@pytest.mark.parametrize(("method", "option", "value"), list(beyond_bounds()))
def test_a_value_beyond_an_options_bounds_is_refused(method: str, option: str, value: Any) -> None:
    with raises("invalid-value", naming=(method, option)):
        method_set.load({method: {option: value}})


ACCEPTED = [
    ("images", "augmentation data.mean=[0.5]", "ABC"),  # crops and flips keep intensities
    ("slices", "fedirm", "ABC"),
    ("slices", "fediir fediir.gamma=0.1", "ABC"),
    ("images", "fedbn+fedrep fedrep.head=0.3", "ABC"),
    ("images", "fedper+silobn", "ABC"),
    ("images", "fedbn+fedrod", "ABC"),
    ("images", "fedadam+silobn", "ABC"),
    ("images", "ditto+fedprox ditto.lam=0.5", "ABC"),
    ("slices", "ditto ditto.lam=1000", "ABC"),  # Adam's steps have a bound
    ("images", "feddg_ga feddg_ga.variant=released", "AB"),
    ("images", "fedwon schedule.batch_size=1", "ABC"),  # without norms
    ("images", "pn schedule.batch_size=1", "ABC"),  # norms of which each image is by itself
    ("images", "all schedule.batch_size=1", "ABC"),  # of each site
    ("images", "fedavg schedule.batch_size=1 network.name=mnist_cnn network.options.size=16", "ABC"),
    ("slices", "fedavg schedule.batch_size=1", "ABC"),  # pixels are enough
    *(
        ("images", f"fedprox+{beside} fedprox.mu=0.5 schedule.local_steps=1", "ABC")
        for beside in ("fedsam", "pfedavg")  # gradients elsewhere, and further steps
    ),
    ("images", "fednova optimizer.momentum=0.9 optimizer.keep=false", "ABC"),
    ("images", "fednova+fedprox fedprox.mu=0.1", "ABC"),
    ("images", "single+fedwon", "ABC"),  # which keeps everything
    ("images", "scaffold optimizer.momentum=0.9 optimizer.keep=false", "ABC"),
    ("images", "gen_afl gen_afl.lambda_min=0.4", "AB"),
    ("images", "mmrex mmrex.lambda_min=0.33", "ABC"),
    ("images", "mmrex mmrex.lambda_min=0.5 domains={X:[A,B]}", "ABC"),
    ("images", "scaffold+fedwon fedwon.clip=null", "ABC"),
    ("images", "fediir+partialfed partialfed.keep=[norm]", "ABC"),
    ("images", "fedwon+partialfed partialfed.keep=[head]", "ABC"),
    ("images", "fedproto+moon fedproto.average_weights=true", "ABC"),
    ("images", "fedbn+moon moon.mu=5", "ABC"),
    ("images", "fedproto+mixup", "ABC"),
    ("images", "fedproto+mixup mixup.draw=sample fedproto.prototypes=trained", "ABC"),
    ("images", "fedproto+mixup mixup.draw=sample fedproto.min_samples=1", "ABC"),
    ("images", "fpl+mixup mixup.draw=sample mixup.alpha=0", "ABC"),
    ("slices", "all+fedfa fedfa.fusion=local", "ABC"),  # sends nothing
    *(("images", f"all+{mixing}", "ABC") for mixing in ("mixup", "manifold_mixup", "moex")),
]


@pytest.mark.parametrize(("kind", "job", "sites"), ACCEPTED)
def test_a_job_is_accepted_with_its_options(kind: str, job: str, sites: str) -> None:
    names, *options = job.split()
    methods = made(kind, job, sites).methods
    assert set(names.split("+")) <= set(methods)
    for option in options:
        key, _, value = option.partition("=")
        method, _, name = key.partition(".")
        if method in methods:
            assert methods[method][name] == yaml.safe_load(value)


@pytest.mark.parametrize(
    ("method", "net", "names"),
    [
        *(
            (method, nn.Linear(1, 1), "head")
            for method in ("fedproto", "moon", "fpl", "fedsr", "fedper", "fedrep", "fedrod", "fediir")
        ),
        ("fraug", nn.Linear(1, 1), "head"),
        ("fedwon", nn.LayerNorm(2), "layer norms"),
        *((method, nn.Linear(1, 1), "stages") for method in ("manifold_mixup", "mixstyle", "moex", "fedfa")),
    ],
)
def test_a_network_without_what_the_method_needs_is_refused(method: str, net: nn.Module, names: str) -> None:
    job = small_image_job("fedavg")
    with raises("method-needs", naming=(method, names)):
        MethodSet(job.model_copy(update={"methods": {method: {}}}), net).check()


@pytest.mark.parametrize("method", ["fedper", "fedrep"])
def test_a_held_out_site_has_no_head_of_its_own(method: str) -> None:
    job = small_image_job(method, sites=("A", "B"))
    job = job.model_copy(update={"task": job.task.model_copy(update={"held_out": ("C",)})})
    with raises("method-needs", naming=(method, "C")):
        MethodSet(job, build_task(job).network()).check()
