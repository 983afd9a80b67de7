"""Every option of every method changes something, or is refused where it would change nothing.

A tiny job of each method is run once for every setting that the table below gives. A setting is one of the row's
``contexts``, or one other word (or truth value) of one option; then every other option is changed, one at a time. Such
a job must be refused, or end otherwise than without the change: in weights, losses, scores or bytes. Where a job is
refused because an option has no effect, it is run without that check, and must end the same.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
import torch
from conftest import Sent, make_image_site, small_image_job

from fedshift.data.samples import EverySite, Samples, Union
from fedshift.federation.resolve import resolve
from fedshift.federation.server.global_model import GlobalModel
from fedshift.federation.site import local_training
from fedshift.federation.tensors import load_weights, read_weights
from fedshift.methods import method_set
from fedshift.methods.base import Run
from fedshift.methods.chain import ClientChain
from fedshift.methods.method_set import MethodSet
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.strict import Strict
from fedshift.schema.task_files import tasks
from fedshift.schema.yaml_file import read_yaml
from fedshift.tasks.kinds import build_task

Setting = tuple[tuple[str, Any], ...]
"""(option, value) pairs, in order of the options."""


@dataclass(frozen=True)
class Row:
    """A method's values.

    Attributes:
        values: for each option that is no word or truth value, another value than in ``base``.
        base: options that differ from their default in every job of the row.
        contexts: settings of more than one option, or of a number.
        plain: words and truth values that are no setting of their own: what they choose between uses the same options.
        rounds: the first that an option can change is as a rule the second.
        steps: in each round.
        batch: images in a batch; with two at least one of the three classes is missing from it.
        sent: whether a change of what a site sends counts, as it is trained on in the next round.
        kept: whether a change of what a site keeps for the method counts, as it is what the site is evaluated with.
        sites: that train, of `Sites`.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    base: Mapping[str, Any] = field(default_factory=dict)
    contexts: tuple[Mapping[str, Any], ...] = ()
    plain: tuple[str, ...] = ()
    rounds: int = 2
    steps: int = 2
    batch: int = 4
    sent: bool = False
    kept: bool = False
    sites: str = "AB"


PENALTY = Row({"weight": 30, "warmup": 0}, base={"warmup": 2}, contexts=({"weight": 0.5},))
ROWS = {
    "afl": Row({"eta": 5}),
    "augmentation": Row({"rotation": 30, "flip": 0.9, "blur": 1}, contexts=({"level": "none", "rotation": 30},)),
    "fedadagrad": Row({"beta1": 0.5, "tau": 0.1, "server_lr": 0.5}),
    "fedadam": Row({"beta1": 0.5, "beta2": 0.5, "tau": 0.1, "server_lr": 0.5}),
    "elcfs": Row(
        {"alpha": 0.2, "lam": 0.2, "spectra": 1, "partners": 1, "inner_lr": 0.5, "contrast": 1, "temperature": 1},
        base={"inner_lr": 0.1},
    ),
    "fedawa": Row({"lr": 0.5, "steps": 3}),
    "fedalign": Row(
        {"alpha": 2, "severity": 9, "contrast": 5, "agreement": 5, "distance": 5, "temperature": 1},
        contexts=({"contrast": 0},),
    ),
    "fedavgm": Row({"beta": 0.5, "server_lr": 0.5}, contexts=({"beta": 0},)),
    "fedce": Row(rounds=3, steps=20, batch=12),
    "feddg_ga": Row({"step": 0.6}, sites="ABC"),
    "ditto": Row({"lam": 0.1}, kept=True),
    "feddyn": Row({"alpha": 0.5}),
    "fedfa": Row(
        {"p": 0.9, "momentum": 0.5, "layers": [1], "eps": 0.01}, base={"p": 0.8}, plain=("running",), rounds=3
    ),
    "fedgma": Row({"tau": 0, "server_lr": 0.5}),
    "fedharmo": Row({"alpha": 0.5}),
    "fedheal": Row({"tau": 0, "beta": 0.9}),
    "fediir": Row({"gamma": 1, "ema": 0.5}),
    "fedirm": PENALTY,
    "fedlws": Row(
        {"beta": 0.3, "min_tau": 10, "max_tau": 0},
        base={"min_tau": 0, "max_tau": 1e6},
        contexts=({"min_tau": 0.1, "max_tau": 0.1},),
    ),
    "fedmix": Row({"lam": 0.5, "images": 3, "per_round": 1}),
    "fedomg": Row({"kappa": 0.1, "server_lr": 0.5}),
    "fedproto": Row({"weight": 5, "min_samples": 1000}),
    "fedprox": Row({"mu": 1}),
    "fedrdn": Row({"fixed_mean": [0.3], "fixed_std": [0.2]}),
    "fedrep": Row({"head": 0.8}, steps=4),
    "fedrod": Row({"gamma": 0.5}, kept=True),
    "fedrobust": Row(
        {"step_delta": 0.1, "step_gamma": 0.005, "penalty_delta": 1, "penalty_gamma": 10},
        contexts=({"step_delta": 0}, {"step_gamma": 0}),
    ),
    "fedsam": Row({"rho": 0.5, "eta": 0.1}),
    "fedwon": Row({"gamma": 1, "clip": 0.001}),
    "fedyogi": Row({"beta1": 0.5, "beta2": 0.5, "tau": 0.1, "server_lr": 0.5}),
    "fedsr": Row({"l2r": 0.5, "cmi": 0.5, "lr": 0.2, "momentum": 0.1}),
    "fpl": Row(
        {"temperature": 0.5, "contrast": 0.1, "consistency": 0.1, "min_samples": 1000},
        contexts=({"contrast": 0}, {"contrast": 0, "consistency": 0}),
    ),
    "fraug": Row(
        {
            "latent": 7,
            "alpha": 0.1,
            "beta": 0.1,
            "gamma_syn": 0.01,
            "lambda_c": 0.9,
            "ramp_up": 1,
            "lr_generator": 0.01,
            "lr_rtnet": 0.01,
            "momentum": 0.9,
        },
        contexts=(
            {"rtnet": False, "moving_average": False},
            {"rtnet": False, "moving_average": False, "variant": "released"},
            {"moving_average": False, "variant": "released", "generator_distance": "l2"},
            {"interpolate": False, "variant": "released", "generator_distance": "l2"},
        ),
        plain=("generator_distance", "rtnet_distance", "absent", "noise", "bn", "weights", "share_generator_bn"),
        steps=1,
        batch=2,
        sent=True,
    ),
    "gen_afl": Row({"eta": 1, "lambda_min": -0.2}, base={"eta": 100}),
    "groupdro": Row({"eta": 5}),
    "irm": PENALTY,
    "manifold_mixup": Row({"alpha": 0.3, "layers": [2]}),
    "mixstyle": Row({"p": 1, "alpha": 2, "layers": [2], "eps": 0.1}),
    "mixup": Row({"alpha": 1}),
    "mmrex": Row({"lambda_min": 0}),
    "moex": Row({"p": 0.3, "lam": 0.5, "layer": 2, "eps": 0.1}),
    "moon": Row({"mu": 5, "temperature": 0.1}),
    "partialfed": Row(
        {"keep": ["first"], "search_steps": 1, "search_batch": 3, "search_lr": 0.01, "temperature": 20},
        contexts=({"mode": "adaptive", "search_lr": 2},),
    ),
    "pfedavg": Row({"epochs": 3}),
    "scaffold": Row({"server_lr": 0.5}),
    "vm": Row({"beta": 5}),
    "vrex": PENALTY,
}
"""Methods whose options are all words or truth values, or which have none, need no row."""

ELSEWHERE = {
    ("fedrod", "gamma"),
    ("fedbn", "norms"),
    ("elcfs", "partners"),
    *(("elcfs", option) for option in ("contrast", "bounded", "temperature")),
}
"""Options that need another network, a third site, masks or unequal classes: the methods' own files test it."""


# --- what the table gives -------------------------------------------------------------------------------


def words(annotation: Any) -> tuple[Any, ...]:
    """The values of an option that is a word or a truth value."""
    if annotation is bool:
        return False, True
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def others(method: str) -> dict[str, list[Any]]:
    """For every option the values that it is changed to."""
    row, found = ROWS.get(method, Row()), {}
    for option, about in method_set.find(method).Config.model_fields.items():
        before = row.base.get(option, about.default)
        found[option] = [word for word in words(about.annotation) if word != before] or [row.values[option]]
    return found


def settings(method: str) -> list[Setting]:
    """The job as it is, every other word of one option, and the row's contexts."""
    fields, row = method_set.find(method).Config.model_fields, ROWS.get(method, Row())
    single = [
        {option: word}
        for option, values in others(method).items()
        for word in values
        if words(fields[option].annotation) and option not in row.plain
    ]
    return [tuple(sorted(context.items())) for context in ({}, *single, *row.contexts)]


def changes(method: str) -> Iterator[tuple[Setting, Setting]]:
    """Every setting with every option changed that is not part of it."""
    for setting, (option, values) in product(settings(method), others(method).items()):
        for value in values if option not in dict(setting) else ():
            yield setting, tuple(sorted((*setting, (option, value))))


def made(method: str, setting: Setting) -> JobSpec:
    """The job with a setting."""
    row = ROWS.get(method, Row())
    options = {**row.base, **dict(setting)}
    texts = [f"{method}.{option}={json.dumps(value)}" for option, value in options.items()]
    sgd = () if method in ("fedsgd", "fednova", "scaffold") else ("optimizer.momentum=0.5",)
    return small_image_job(
        method,
        "network.options.width=2",
        f"schedule.batch_size={row.batch}",
        f"schedule.rounds={row.rounds}",
        f"schedule.local_steps={row.steps}",
        *sgd,
        *texts,
        sites=tuple(row.sites),
    )


def config(method: str, setting: Setting) -> Strict:
    """The options that a setting means, with the defaults of its variant."""
    parsed: Strict = method_set.find(method).Config.parse({**ROWS.get(method, Row()).base, **dict(setting)}, where="")
    return parsed


def unchecked(method: str, setting: Setting) -> JobSpec:
    """The same job although an option has no effect."""
    job, options = made(method, ()), {**ROWS.get(method, Row()).base, **dict(setting)}
    return job.model_copy(update={"methods": {**job.methods, method: options}})


# --- runs -----------------------------------------------------------------------------------------------


@dataclass
class Kept:
    """What stays at a site, and what the comparison sees of its last round."""

    personal: dict[str, torch.Tensor] = field(default_factory=dict)
    methods: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    told: dict[str, float] = field(default_factory=dict)


class Sites:
    """Sites and the server in memory: rounds as `Site` and `Coordinator` do them, without files and scores."""

    def __init__(self, root: Path) -> None:
        folders = {
            site: make_image_site(root, site, images=images, gain=gain)
            for site, images, gain in (("A", 18, 1.0), ("B", 36, 0.5), ("C", 18, 1.5))
        }
        job = made("fedavg", ())
        self._task = build_task(job)
        self._data = {site: self._task.open(folder, site) for site, folder in folders.items()}
        self._net = self._task.network()
        self._first = {key: value.clone() for key, value in self._net.state_dict().items()}

    def end(self, job: JobSpec) -> Any:
        """What a run ends with: weights, losses, what was sent, what stays at a site, and fine-tuning after the run."""
        self._net.load_state_dict(self._first)
        methods = MethodSet(job, self._net)
        model = GlobalModel(methods)
        states: dict[str, Kept] = defaultdict(Kept)
        told = []
        for round_ in range(job.task.schedule.rounds + 1):
            model.combine(
                [self._update(job, methods, site, round_, model, states[site]) for site in job.task.sites], round_
            )
            told.append({site: state.told for site, state in states.items()})
        weights = {key: value.tobytes() for key, value in model.weights.items()}
        return weights, told, methods.withheld, methods.fine_tune_epochs

    def _update(self, job: JobSpec, methods: MethodSet, site: str, round_: int, model: GlobalModel, state: Kept) -> Any:
        """A site's round."""
        net, data = self._net, self._samples(methods, site)
        broadcast = model.broadcast(round_, best_round=0, sites=job.task.sites)
        run = Run(
            seed=job.seed,
            site=site,
            round=round_,
            rounds=job.task.schedule.rounds,
            sites=job.task.sites,
            net=net,
            objective=self._task.loss,
            n_classes=len(job.task.classes),
            received=broadcast.weights,
        )
        chain = ClientChain(methods, run, state.methods)
        if not round_:
            arrays = chain.statistics(data)
            state.told = sizes(arrays)
            return Sent(site, {}, data.n_train, arrays=arrays)
        load_weights(net, broadcast.weights)
        net.load_state_dict(state.personal, strict=False)
        handles = chain.attach(net)
        chain.receive(broadcast.arrays)
        run.optimizer = local_training.make_optimizer(net, job.task.optimizer)
        chain.begin(data)
        steps, loss = local_training.train(self._task, data, chain, run, job.task.schedule)
        arrays = chain.end(data)
        for handle in handles:
            handle.remove()
        weights = read_weights(net)
        state.personal = {key: torch.from_numpy(weights[key]) for key in methods.personal}
        state.told = {"loss": loss, **sizes(arrays)}
        if any(ROWS.get(method, Row()).sent for method in job.methods):
            state.told |= {f"sum of {name}": float(array.sum()) for of in arrays.values() for name, array in of.items()}
        if any(ROWS.get(method, Row()).kept for method in job.methods):
            state.told |= {
                f"own {key}": float(t.double().sum()) for of in state.methods.values() for key, t in of.items()
            }
        shared = {key: weights[key] for key in weights.keys() - methods.withheld}
        return Sent(site, shared, data.n_train, steps, arrays=arrays)

    def _samples(self, methods: MethodSet, site: str) -> Samples:
        """A site's own, or for a centralised reference all sites'."""
        if methods.pooled is None:
            return self._data[site]
        together = Union if methods.pooled.client().trains_on == "union" else EverySite
        return together([self._data[site] for site in methods.job.task.sites])


def sizes(arrays: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, float]:
    """Bytes of what a site sends, by name."""
    return {f"{method}.{name}": array.nbytes for method, named in arrays.items() for name, array in named.items()}


@pytest.fixture(scope="module")
def end(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Setting, bool], Any]:
    """Run a job, each once. What it ends with, or the reason for which it is refused."""
    torch.set_num_threads(1)
    sites = Sites(tmp_path_factory.mktemp("options"))

    @cache
    def finished(method: str, setting: Setting, check: bool = True) -> Any:
        try:
            job = made(method, setting) if check else unchecked(method, setting)
        except ConfigError as error:
            return str(error)
        return sites.end(job)

    return finished


def hashable(setting: Setting) -> Setting:
    return tuple((option, tuple(value) if isinstance(value, list) else value) for option, value in setting)


@pytest.mark.parametrize("method", method_set.available())
def test_an_option_changes_something_or_is_refused(method: str, end: Callable[..., Any]) -> None:
    silent, wrongly, acting = [], [], set()
    for before, after in changes(method):
        one, other = end(method, hashable(before)), end(method, hashable(after))
        if isinstance(one, str) or (not isinstance(other, str) and config(method, before) == config(method, after)):
            continue  # refused, or a variant's default
        changed = dict(after).keys() - dict(before).keys()
        if isinstance(other, str):
            for idle in re.findall(r"^method \w+: (\w+) has no effect", other):
                without = tuple(pair for pair in after if pair[0] != idle)
                if end(method, hashable(after), False) != end(method, hashable(without), False):
                    wrongly.append((before, after, other))
        elif other == one:
            silent.append((before, after))
        else:
            acting |= changed
    assert not silent, "these change nothing, and are not refused"
    assert not wrongly, "these are refused although they change something"
    assert others(method).keys() - acting <= {option for name, option in ELSEWHERE if name == method}


@cache
def read_task(task: str) -> dict[str, Any]:
    """The file of a task of ours."""
    return read_yaml(Path(__file__).parents[2] / "apps" / f"{task}.yaml")


def protocols() -> Iterator[tuple[str, str, str]]:
    """(task, protocol, method) for every method for which a protocol of ours has options."""
    for task in tasks():
        for protocol, told in (read_task(task).get("protocols") or {}).items():
            yield from ((task, protocol, method) for method in told.get("methods", {}))


@pytest.mark.parametrize(("task", "protocol", "method"), list(protocols()))
def test_a_protocols_options_have_an_effect(task: str, protocol: str, method: str) -> None:
    """With the method alone, and what the protocol requires."""
    changes_ = read_task(task)["protocols"][protocol]
    names = "+".join(dict.fromkeys((method, *changes_.get("requires", ()))))
    options = [f"{method}.{key}={json.dumps(value)}" for key, value in changes_["methods"][method].items()]
    resolve(task, names, protocol=protocol, options=options)  # refuses options that are named and change nothing
