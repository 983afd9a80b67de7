"""Options, tasks, networks and combinations of methods that are refused when the job is made, and some that are not.

A job is written as on the command line: methods, then options, separated by spaces.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from conftest import small_image_job, small_job
from torch import nn

from fedshift.methods import (
    base,
    fedfa,
    fediir,
    fedproto,
    fedrep,
    fedsr,
    fedwon,
    fpl,
    fraug,
    manifold_mixup,
    mixstyle,
    moex,
    moon,
)
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.tasks.kinds import build_task


def made(kind: str, job: str, sites: str = "ABC") -> JobSpec:
    names, *options = job.split()
    if kind == "images":
        return small_image_job(names, *options, sites=tuple(sites))
    return small_job(names, *options)


# Each: kind of data, job, pattern of the message.

OPTIONS = [
    ("images", "afl afl.eta=-1", "method afl: 'eta'"),
    ("slices", "augmentation augmentation.rotation=270", "method augmentation: 'rotation' .* 180"),
    (
        "slices",
        "augmentation augmentation.level=strong",
        "method augmentation: 'level' .* 'none', 'weak' or 'moderate'",
    ),
    ("slices", "elcfs elcfs.alpha=0.5", "method elcfs: 'alpha' .* less than 0.5"),
    ("slices", "elcfs elcfs.spectra=0", "method elcfs: 'spectra' .* 1"),
    ("images", "elcfs elcfs.contrast=0.2", "method elcfs: contrast has no effect: .*no boundaries"),
    ("slices", "elcfs elcfs.variant=released elcfs.alpha=0.1", "method elcfs: alpha has no effect: variant released"),
    ("slices", "elcfs elcfs.inner_lr=0 elcfs.order=first", "method elcfs: order has no effect: inner_lr is 0"),
    ("slices", "elcfs elcfs.contrast=0 elcfs.temperature=0.1", "method elcfs: temperature .*no effect: contrast is 0"),
    ("slices", "elcfs elcfs.partners=2", "method elcfs: partners has no effect: .* 2 other sites"),
    ("images", "fedprox+fedsgd fedprox.mu=0.5", "method fedprox: mu has no effect: fedsgd moves no weight"),
    *(
        ("images", f"fedprox fedprox.{option} schedule.local_steps=1", r"no effect: schedule\.local_steps is 1")
        for option in ("mu=0.5", "variant=released")
    ),
    ("images", "fedavgm fedavgm.beta=1.0", "method fedavgm: 'beta'"),
    ("images", "fedavgm fedavgm.beta=-0.1", "method fedavgm: 'beta'"),
    ("images", "fedavgm fedavgm.server_lr=0", "method fedavgm: 'server_lr'"),
    ("images", "fedadagrad fedadagrad.beta2=0.9", "method fedadagrad: unknown key 'beta2'.* 'beta1'"),
    *(("images", f"{name} {name}.tau=1e300", f"method {name}: 'tau' .* 1000000") for name in ("fedadagrad", "fedyogi")),
    ("images", "fedadam fedadam.beta2=1", "method fedadam: 'beta2' .* less than 1"),
    ("slices", "fedyogi fedyogi.tau=0", "method fedyogi: 'tau' .* greater than 0"),
    ("images", "ditto ditto.lam=-1", "method ditto: 'lam' .* 0"),
    ("images", "ditto ditto.lam=40", r"method ditto: optimizer\.lr 0\.05 times ditto\.lam 40 must be below 2"),
    ("slices", "fedbn fedbn.norms=bn", "method fedbn: 'norms' .* 'batch' or 'all'"),
    (
        "slices",
        "fedbn network.name=monai.BasicUNet network.options={features:[4,4,4,4,4,4]}",
        r"method fedbn: keeps batch norms at a site, and network monai\.BasicUNet .* --set fedbn\.norms=all",
    ),
    ("images", "fedce fedce.join=mean", "method fedce: 'join' .* 'sum' or 'product'"),
    ("images", "feddg_ga feddg_ga.step=1", "method feddg_ga: 'step' .* less than 1"),
    (
        "images",
        "feddg_ga federation.sites_per_round=2",
        r"method feddg_ga: .* a round has 2: .*feddg_ga\.variant=released",
    ),
    ("images", "feddyn feddyn.alpha=0", "method feddyn: 'alpha' .* greater than 0"),
    ("slices", "fedfa fedfa.layers=[1,6]", r"method fedfa: layers \[6\] .* 1 to 5"),
    ("images", "fedgma fedgma.tau=1.5", "method fedgma: 'tau' .* 1"),
    ("slices", "fedgma fedgma.variant=released fedgma.tau=0", r"method fedgma: .*--set fedgma\.tau=0\.4"),
    ("images", "fedharmo fedharmo.alpha=-1", "method fedharmo: 'alpha' .* 0"),
    ("images", "fedheal fedheal.tau=1", "method fedheal: 'tau' .* less than 1"),
    ("images", "fediir fediir.gamma=-1", "method fediir: 'gamma' .* 0"),
    ("images", "fediir fediir.ema=1", "method fediir: 'ema' .* less than 1"),
    ("images", "fedirm fedirm.weight=-1", "method fedirm: 'weight' .* 0"),
    ("images", "fedirm fedirm.warmup=-1", "method fedirm: 'warmup' .* 0"),
    ("images", "fedmix fedmix.images=1", "method fedmix: 'images' .* 2"),
    ("slices", "fedmix fedmix.lam=1", "method fedmix: 'lam' .* less than 1"),
    ("images", "fedomg fedomg.kappa=1", "method fedomg: 'kappa' .* less than 1"),
    ("images", "fedproto fedproto.weight=-1", "method fedproto: 'weight' .* 0"),
    ("slices", "fedprox fedprox.mu=-1", "method fedprox: 'mu' .* 0"),
    ("images", "fedprox fedprox.muu=1", "method fedprox: unknown key 'muu'.* 'mu'"),
    ("images", "fedrdn fedrdn.mode=fixed fedrdn.fixed_std=[0]", "method fedrdn: fixed_std"),
    ("slices", "fedrep fedrep.head=1", "method fedrep: 'head' .* less than 1"),
    ("images", "fedrobust fedrobust.step_delta=0.3", r"method fedrobust: step_delta 0\.3 .* penalty_delta 4 .* lower"),
    ("slices", "fedrobust fedrobust.penalty_gamma=2000", r"method fedrobust: step_gamma 0\.001 .* penalty_gamma 2000"),
    ("slices", "fedrobust fedrobust.step_gamma=-1", "method fedrobust: 'step_gamma' .* 0"),
    ("images", "fedsam fedsam.rho=-0.1", "method fedsam: 'rho' .* 0"),
    ("images", "fedsam fedsam.eta=0.01", r"method fedsam: eta .*--set fedsam\.adaptive=true"),
    ("images", "fedsgd fedsgd.weights=median", "method fedsgd: 'weights'"),
    ("images", "fedwon fedwon.clip=0", "method fedwon: 'clip' .* 0"),
    ("images", "fedwon fedwon.gamma=0", "method fedwon: 'gamma' .* 0"),
    ("images", "fedwon fedwon.gain=none", "method fedwon: 'gain' .* 'constant' or 'learned'"),
    ("images", "fedsr fedsr.stochastic=false fedsr.cmi=0.1", "method fedsr: cmi has no effect: stochastic is false"),
    ("images", "fpl fpl.temperature=0", "method fpl: 'temperature' .* greater than 0"),
    ("images", "fpl fpl.contrast=0 fpl.temperature=0.1", "method fpl: temperature has no effect: contrast is 0"),
    *(
        ("images", f"fraug fraug.{option}={value}", f"method fraug: '{option}'")
        for option, value in [
            ("lambda_c", 0),
            ("lambda_c", 1.1),
            ("ramp_up", -1),
            ("momentum", 1),
            ("latent", 0),
            ("lr_rtnet", 0),
            ("gamma_syn", -1),
        ]
    ),
    ("images", "fraug fraug.interpolate=false", r"method fraug: interpolate=false .*fraug\.schedule=false"),
    ("images", "gen_afl gen_afl.lambda_min=0.4", r"method gen_afl: .*lambda_min 0\.4 .* 3 sites"),
    ("images", "gen_afl gen_afl.lambda_min=-1000", "method gen_afl: 'lambda_min'"),
    ("images", "gen_afl gen_afl.eta=-0.1", "method gen_afl: 'eta'"),
    ("images", "groupdro groupdro.eta=-1", "method groupdro: 'eta' .* 0"),
    ("slices", "harmofl harmofl.variant=code", "method harmofl: 'variant' .* 'paper' or 'released'"),
    ("images", "irm irm.weight=-1", "method irm: 'weight' .* 0"),
    *(
        ("images", f"{name} {name}.weight=50 schedule.local_steps=7", f"method {name}: weight .* warm-up of 500")
        for name in ("irm", "fedirm", "vrex")
    ),
    ("slices", "manifold_mixup manifold_mixup.layers=[0,9]", r"method manifold_mixup: layers \[9\] .* 1 to 5"),
    ("images", "manifold_mixup manifold_mixup.layers=[]", "method manifold_mixup: layers is empty"),
    ("slices", "mixstyle mixstyle.layers=[1,6]", r"method mixstyle: layers \[6\] .* 1 to 5"),
    ("images", "mixstyle mixstyle.alpha=0", "method mixstyle: 'alpha' .* greater than 0"),
    ("images", "mixstyle mixstyle.p=2", "method mixstyle: 'p' .* 1"),
    ("images", "mixup mixup.alpha=-0.1", "method mixup: 'alpha' .* 0"),
    ("slices", "mixup mixup.alfa=0.1", "method mixup: unknown key 'alfa'.* 'alpha'"),
    (
        "images",
        "mmrex mmrex.lambda_min=0.5",
        r"method mmrex: .*lambda_min 0\.5 .* 3 domains .*mmrex\.lambda_min=0\.333",
    ),
    (
        "images",
        "mmrex mmrex.lambda_min=0.6 domains={X:[A,B]}",
        r"method mmrex: .*lambda_min 0\.6 .* 2 domains .*mmrex\.lambda_min=0\.5 or less",
    ),
    ("slices", "moex moex.layer=6", r"method moex: layers \[6\] .* 1 to 5"),
    ("images", "moon moon.temperature=0", "method moon: 'temperature' .* greater than 0"),
    ("images", "moex moex.lam=1.5", "method moex: 'lam' .* 1"),
    ("images", "moex moex.norm=bn", "method moex: 'norm' .* 'pono', 'in' or 'ln'"),
    ("slices", "partialfed partialfed.keep=[bn]", r"method partialfed: 'keep\.0' .* 'norm', 'first', 'last'"),
    ("slices", "partialfed partialfed.search_batch=1", "method partialfed: 'search_batch' .* 2"),
    ("slices", "pfedavg pfedavg.epochs=0", "method pfedavg: 'epochs' .* 1"),
    ("images", "scaffold scaffold.server_lr=0", "method scaffold: 'server_lr'"),
    ("slices", "single single.epochs=3", "method single: unknown key 'epochs'"),
    ("images", "vm vm.beta=-1", "method vm: 'beta'"),
    ("images", "vm vm.variant=released vm.weights=samples", r"method vm: variant released .*--set vm\.weights=uniform"),
    ("images", "vrex vrex.weight=-1", "method vrex: 'weight' .* 0"),
    ("images", "vrex vrex.warmup=-1", "method vrex: 'warmup' .* 0"),
]

TASKS = [  # and optimisers, batch sizes, sampling of sites
    (
        "images",
        "partialfed partialfed.keep=[norm] network.name=mnist_cnn network.options.size=16",
        "method partialfed: network mnist_cnn has no normalisation layers",
    ),
    (
        "images",
        "fedavg fedavg.buffers=local network.name=mnist_cnn network.options.size=16",
        "method fedavg: buffers has no effect: network mnist_cnn has no running statistics",
    ),
    ("images", "all federation.sites_per_round=2", r"method all: .*--set federation\.sites_per_round=null"),
    (
        "images",
        "augmentation augmentation.level=moderate data.mean=[0.5]",
        "method augmentation: level moderate .* black is 0",
    ),
    (
        "images",
        "augmentation augmentation.rotation=10 data.mean=[0.5]",
        r"method augmentation: rotation .* fedrdn\.mode=fixed",
    ),
    ("slices", "fedirm fedirm.penalty=classifier", "method fedirm: penalty classifier .* linear head.* unet .*--set"),
    ("slices", "irm irm.penalty=classifier", "method irm: penalty classifier .* linear head.* unet .*--set"),
    *(
        ("slices", name, f"method {name}: .* task prostate is segmentation")
        for name in ("fedproto", "fedsr", "fpl", "moon")
    ),
    ("images", "fedrep schedule.local_steps=1", r"method fedrep: .*schedule\.local_steps to at least 2"),
    ("images", "fedrep schedule.minutes=5", r"method fedrep: .*body's turn.*schedule\.minutes=null"),
    (
        "slices",
        "fedwon fedwon.gain=learned network.options.norm=batch_statistics network.options.bn_momentum=0.1",
        "method fedwon: gain has no effect: no normalisation layer of network unet",
    ),
    ("slices", "fraug", "method fraug: .*segmentation has no embedding"),
    ("images", "fraug schedule.batch_size=1", "method fraug: .*batches of two images"),
    *(
        ("images", f"{job} schedule.batch_size=1", r"network digits_cnn: layer fc1\.1 .* two images .*batch_size=2")
        for job in ("fedavg", "ditto", "fedwon evaluation.local=true")
    ),
    ("slices", "fednova optimizer.name=adam", r"method fednova: .* SGD, not adam: .*--set optimizer\.name=sgd"),
    ("images", "fednova optimizer.momentum=0.9", r"method fednova: .*momentum.*optimizer\.keep=false"),
    (
        "images",
        "fednova optimizer.keep=false schedule.minutes=5 federation.robust.rule=norm_clipping federation.min_sites=3",
        r"method fednova: .*only the sites' word with schedule\.minutes",
    ),
    ("slices", "fedsgd optimizer.name=adam", r"method fedsgd: .* SGD, not adam: .*--set optimizer\.name=sgd"),
    ("images", "fedsgd optimizer.momentum=0.9", r"method fedsgd: .*optimizer\.momentum=0"),
    ("slices", "scaffold optimizer.name=adam", r"method scaffold: .* SGD, not adam: .*--set optimizer\.name=sgd"),
    ("images", "scaffold optimizer.name=adam", r"method scaffold: .* SGD, not adam: .*--set optimizer\.name=sgd"),
    ("images", "scaffold optimizer.momentum=0.9", r"method scaffold: .*momentum.*optimizer\.keep=false"),
    ("images", "scaffold optimizer.clip_norm=1", r"method scaffold: .*optimizer\.clip_norm distorts"),
    *(
        ("images", f"{method} optimizer.nesterov=true optimizer.momentum=0.5 optimizer.keep=false", f"method {message}")
        for method, message in (
            ("scaffold", r"scaffold: .*optimizer\.nesterov distorts"),
            ("fednova", r"fednova: .*optimizer\.nesterov=false"),
        )
    ),
]

COMBINATIONS = [
    # two methods that combine, take the step, normalise images or decide what a site keeps
    ("images", "fedsgd+fedavgm", "cannot be combined"),
    ("images", "fedadam+fedgma", "fedadam and fedgma cannot be combined: both decide how updates are combined"),
    ("slices", "single+fedavg", "cannot be combined: both decide how updates are combined"),
    ("slices", "fedharmo+fedsam", "fedharmo and fedsam cannot be combined: both take the local optimiser step"),
    ("images", "fraug+fedsam", "cannot be combined: both take the local optimiser step"),
    ("slices", "fedharmo+harmofl", "method fedharmo: cannot be combined with harmofl"),
    ("images", "fedharmo+fedrdn", "method fedharmo: cannot be combined with fedrdn"),
    ("images", "harmofl+fedrdn", "method harmofl: cannot be combined with fedrdn, .* undo"),
    ("slices", "partialfed+fedbn", "method partialfed: cannot be combined with fedbn"),
    ("slices", "partialfed fedavg.buffers=local", "method partialfed: cannot be combined with fedavg"),
    ("slices", "fedbn fedbn.unseen=averaged fedavg.buffers=local", r"method fedbn: unseen=averaged .* fedavg\.buffers"),
    ("images", "ditto+fedbn", "method ditto: cannot be combined with fedbn"),
    ("images", "ditto+pfedavg", "method ditto: cannot be combined with pfedavg"),
    ("images", "ditto+afl", "method ditto: cannot be combined with afl, which needs the loss of the received model"),
    ("images", "fedrep+partialfed", "cannot be combined"),
    ("images", "fedrep+fedproto", "method fedrep: cannot be combined with fedproto"),
    # nothing to combine
    ("images", "fedproto+fedavgm", "fedavgm and fedproto cannot be combined: no site sends its model"),
    ("images", "fedce+fedproto", "fedce and fedproto cannot be combined: no site sends its model"),
    ("images", "fedproto fedavg.weights=uniform", "method fedavg: weights has no effect: with fedproto no site sends"),
    # formulas that do not cover another method
    ("images", "fedmix+fedirm", "method fedmix: cannot be combined with fedirm, which divides"),
    ("images", "fedmix+fraug fraug.variant=released", "method fedmix: cannot be combined with fraug, which divides"),
    (
        "images",
        "fednova+fedprox optimizer.momentum=0.5 optimizer.keep=false",
        r"method fednova: .*optimizer\.momentum=0",
    ),
    ("images", "fednova+fedprox fedprox.variant=released", r"method fednova: .*fedprox\.variant=paper"),
    (
        "images",
        "fednova+fedprox fedprox.mu=20",
        "method fednova: optimizer.lr 0.05 times fedprox.mu 20 must be below 1",
    ),
    ("images", "feddyn+fedbn", "method feddyn: .* fedbn keeps a model or a part of it"),
    ("images", "feddyn+pfedavg", "method feddyn: cannot be combined with pfedavg, .* fine-tuned"),
    ("images", "fraug+pfedavg", "method fraug: cannot be combined with pfedavg, .* generator"),
    ("images", "fednova+fedrep", "method fednova: .* with fedrep the shared part takes only some"),
    ("images", "fediir+fedrep", "method fediir: .* one classifier .* with fedrep"),
    ("images", "fediir+partialfed", "method fediir: .* one classifier .* with partialfed"),
    ("images", "fediir+partialfed partialfed.mode=adaptive", "method fediir: .* one classifier .* with partialfed"),
    ("images", "fedsgd+fedrep", "method fedsgd: .* with fedrep each part of the network has one in only some"),
    ("images", "fedsgd+pfedavg", "method fedsgd: cannot be combined with pfedavg, .* fine-tuning"),
    ("slices", "elcfs+fedrdn", "method elcfs: cannot be combined with fedrdn, which normalises images"),
    ("slices", "elcfs+mixup", "method elcfs: cannot be combined with mixup, which mixes images"),
    *(
        ("images", f"elcfs+{other}", f"method elcfs: cannot be combined with {other}, .*last pass")
        for other in ("fedmix", "fedproto", "fedsr", "fpl", "fraug", "moon")
    ),
    ("images", "fedwon+fedbn", "method fedwon: cannot be combined with fedbn .* fedwon removes them"),
    ("images", "fedwon fedavg.buffers=local", "method fedwon: cannot be combined with fedavg and its present options"),
    ("images", "fedwon+partialfed", "method fedwon: cannot be combined with partialfed .* fedwon removes them"),
    (
        "images",
        "fedwon+partialfed partialfed.mode=adaptive",
        "method fedwon: cannot be combined with partialfed .* fedwon removes them",
    ),
    *(
        ("images", f"scaffold+fedwon scaffold.option={option}", r"method scaffold: .*--set fedwon\.clip=null")
        for option in ("I", "II")
    ),
    # a method without effect, and counts that are not of images
    *(
        ("images", f"moon+{other} moon.mu=5", f"method moon: .* mu does nothing: leave moon or {other} out")
        for other in ("single", "fedproto", "all")
    ),
    *(
        ("images", f"{method}+mixup mixup.draw=sample", rf"method {method}: .* fewer than 2 .*--set mixup\.draw=batch")
        for method in ("fedproto", "fpl")
    ),
    ("images", "fpl+moex moex.lam=0.5", r"method fpl: .* twice: use --set moex\.lam=0\.9"),
    ("images", "scaffold+fedbn", "method scaffold: .* fedbn keeps"),
    ("images", "scaffold+partialfed", "method scaffold: .* partialfed keeps"),
    ("images", "scaffold+pfedavg", "method scaffold: cannot be combined with pfedavg, .* fine-tuned"),
    # centralised references
    ("images", "groupdro+irm", "groupdro and irm cannot be combined: each is a whole training"),
    ("images", "groupdro+all", "groupdro and all cannot be combined"),
    *(("images", f"all+{other}", f"all and {other} cannot be combined") for other in ("fedrdn", "fedbn", "single")),
    ("images", "all fedavg.buffers=local", "all and fedavg cannot be combined"),
    *(
        ("images", f"{method}+fedirm", f"{method} and fedirm cannot be combined: both decide the loss")
        for method in ("groupdro", "irm", "mmrex", "vrex")
    ),
    ("images", "groupdro+pfedavg", "groupdro and pfedavg cannot be combined"),
    *(
        ("images", f"groupdro+{mixing}", f"{mixing} mixes images of different sites")
        for mixing in ("mixup", "manifold_mixup", "moex")
    ),
]

ACCEPTED = [
    ("images", "augmentation data.mean=[0.5]", "ABC"),  # crops and flips keep intensities
    ("slices", "fedirm", "ABC"),
    ("slices", "fediir fediir.gamma=0.1", "ABC"),
    ("images", "fedbn+fedrep fedrep.head=0.3", "ABC"),
    ("images", "ditto+fedprox ditto.lam=0.5", "ABC"),
    ("slices", "ditto ditto.lam=1000", "ABC"),  # Adam's steps have a bound
    ("images", "feddg_ga feddg_ga.variant=released", "AB"),
    ("images", "fedwon schedule.batch_size=1", "ABC"),  # without norms
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


@pytest.mark.parametrize(
    ("kind", "job", "message"),
    [*OPTIONS, *TASKS, *COMBINATIONS],
    ids=lambda value: value.replace(" ", ",")[:60],
)
def test_a_job_is_refused(kind: str, job: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(kind, job)


@pytest.mark.parametrize(("kind", "job", "sites"), ACCEPTED)
def test_a_job_is_accepted_with_its_options(kind: str, job: str, sites: str) -> None:
    names, *options = job.split()
    found = made(kind, job, sites).methods
    assert set(names.split("+")) <= set(found)
    for option in options:
        key, _, value = option.partition("=")
        method, _, name = key.partition(".")
        if method in found:
            assert found[method][name] == yaml.safe_load(value)


LINEAR = nn.Linear(1, 1)  # neither stages nor a head of a classifier


@pytest.mark.parametrize(
    ("client", "net", "message"),
    [
        (fedproto.Client(fedproto.Config()), LINEAR, "method fedproto: .* linear head, and digits_cnn has none"),
        (moon.Client(moon.Config()), LINEAR, "method moon: .* linear head, and digits_cnn has none"),
        (fpl.Client(fpl.Config()), LINEAR, "method fpl: .* linear head, and digits_cnn has none"),
        (fedsr.Client(fedsr.Config()), LINEAR, "method fedsr: .* linear head, and digits_cnn has none"),
        (fedrep.Client(fedrep.Config()), LINEAR, "method fedrep: .* network digits_cnn does not name one"),
        (fediir.Client(fediir.Config()), LINEAR, "method fediir: .* network digits_cnn does not name one"),
        (fraug.Client(fraug.Config()), LINEAR, "method fraug: network Linear has no embedding"),
        (
            manifold_mixup.Client(manifold_mixup.Config()),
            LINEAR,
            "method manifold_mixup: network Linear names no stages",
        ),
        (mixstyle.Client(mixstyle.Config()), LINEAR, "method mixstyle: network Linear names no stages"),
        (moex.Client(moex.Config()), LINEAR, "method moex: network Linear names no stages"),
        (fedwon.Client(fedwon.Config()), nn.LayerNorm(2), "method fedwon: network digits_cnn has layer norms"),
    ],
)
def test_a_network_without_what_the_method_needs_is_refused(
    client: base.Client[Any], net: nn.Module, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        client.check(small_image_job("fedavg"), net)


def test_a_held_out_site_has_no_head_of_its_own() -> None:
    job = small_image_job("fedavg", sites=("A", "B"))
    job = job.model_copy(update={"task": job.task.model_copy(update={"held_out": ("C",)})})
    with pytest.raises(ConfigError, match=r"method fedrep: .* C, held out as it is"):
        fedrep.Client(fedrep.Config()).check(job, build_task(job).network())


def test_fedfa_names_a_network_without_stages() -> None:
    with pytest.raises(ConfigError, match="method fedfa: network Linear names no stages"):
        fedfa.Client(fedfa.Config()).up(nn.Linear(1, 1))
