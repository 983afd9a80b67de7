"""Adapt a model, or keep it: what is tried, what the evidence is, and what is decided.

**With masks** the gain in Dice is cross-validated (`fedshift.inference.adaptation.evidence`), and the model is adapted
if the mean gain is at least `LEAST_DICE` and above 0 with a confidence of `LEAST_CONFIDENCE`. That is less than a test
asks for: fine-tuning that goes half of the way harms little where it does not help, and with three cases a confidence
of 90 % would adapt two of the 16 models of ``benchmarks/results/adaptation_whole.json``.

**Without masks** nothing says how good an outline is. The model is adapted if its outlines agree better with those of
the same scans altered, by at least `LEAST_AGREEMENT` even at the lower end of the interval, over at least
`FEWEST_SCANS`, and nothing else speaks against them (`fedshift.inference.adaptation.unlabelled.implausible`).

In all other cases it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

import fedshift
from fedshift.federation.tensors import read_weights
from fedshift.inference.adaptation import fine_tuning, unlabelled
from fedshift.inference.adaptation.evidence import best_setting, confidence, gains_of_choice, interval
from fedshift.inference.adaptation.fine_tuning import LabelledCases, Setting
from fedshift.inference.adaptation.parts import copied_weights
from fedshift.inference.ready import ReadyModel
from fedshift.schema.adaptation import Adaptation, Evidence, Means, Part
from fedshift.schema.errors import ConfigError
from fedshift.schema.messages import Weights

LEAST_DICE = 0.01
"""Mean gain in Dice that is worth another model."""
LEAST_CONFIDENCE = 0.6
LEAST_AGREEMENT = 0.05
FEWEST_SCANS = 5
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """``weights``: the adapted ones, or those that the model had; ``adaptation``: what is said of it."""

    adaptation: Adaptation
    weights: Weights


def with_masks(
    ready: ReadyModel,
    labelled: LabelledCases,
    *,
    part: Part = "all",
    anyway: bool = False,
    seed: int = 0,
    progress: fine_tuning.Progress = lambda what, done, total: None,
) -> Outcome:
    """Fine-tune on labelled cases if cross-validation says that it helps.

    Args:
        ready: the model, which is changed in place.
        labelled: of `fedshift.inference.adaptation.fine_tuning.open_cases`.
        part: what is trained.
        anyway: adapt it whatever the evidence says.
        seed: of all random numbers.
        progress: see `fedshift.inference.adaptation.fine_tuning.Progress`.

    Raises:
        ConfigError: the network has no such part.
    """
    job = ready.model.header.job
    trials = fine_tuning.settings(job, part)
    if not trials:
        reason = f"the network {job.task.network.name} has no part {part} that could be trained by itself"
        raise ConfigError("no-effect", f"{ready.model.path}: {reason}: leave out --part")
    if len(set(labelled.subjects)) == 1:
        reason = (
            "a single labelled patient cannot be cross-validated, so nothing says whether fine-tuning helps or harms"
        )
        return _fine_tuned(ready, labelled, trials[0], None, reason, progress, helps=False, anyway=anyway, seed=seed)
    before, after = fine_tuning.cross_validate(ready, labelled, trials, seed=seed, progress=progress)
    if len(before) < 2:
        reason = "fewer than two of the labelled patients have the structure, so nothing says whether fine-tuning helps"
        return _fine_tuned(ready, labelled, trials[0], None, reason, progress, helps=False, anyway=anyway, seed=seed)
    gains = np.nan_to_num(after) - before
    chosen = trials[best_setting(gains)]
    evidence = _evidence("dice", before, gains_of_choice(gains))
    helps = evidence.gain >= LEAST_DICE and (evidence.confidence or 0.0) >= LEAST_CONFIDENCE
    reason = f"Dice of patients that training had not seen {_change(evidence)}"
    return _fine_tuned(ready, labelled, chosen, evidence, reason, progress, helps=helps, anyway=anyway, seed=seed)


def _fine_tuned(
    ready: ReadyModel,
    labelled: LabelledCases,
    setting: Setting,
    evidence: Evidence | None,
    reason: str,
    progress: fine_tuning.Progress,
    *,
    helps: bool,
    anyway: bool,
    seed: int,
) -> Outcome:
    if helps or anyway:
        fine_tuning.fine_tune_on_all(ready, labelled, setting, seed=seed, progress=progress)
    how = {"part": setting.part, "rate": setting.rate, "steps": setting.steps}
    how |= {"anchor": fine_tuning.ANCHOR, "share": fine_tuning.SHARE}
    counts = {"labelled": len(labelled.cases), "unlabelled": 0}
    return _outcome(ready, "fine-tuning", evidence, reason, counts, how, helps=helps, anyway=anyway, seed=seed)


def without_masks(
    ready: ReadyModel,
    scans: Sequence[Tensor],
    *,
    means: Sequence[Means] = unlabelled.MEANS,
    anyway: bool = False,
    seed: int = 0,
    progress: Progress = print,
) -> Outcome:
    """Adapt to scans without masks if outlines agree better afterwards; arguments as of `with_masks`.

    Args:
        ready: the model, which is changed in place.
        scans: of `fedshift.inference.adaptation.unlabelled.windows_of`.
        means: what may be tried; what the network is not made for is left out, and ``progress`` says so.
        anyway: adapt it whatever the evidence says.
        seed: of all random numbers.
        progress: called with a line now and then.

    Raises:
        ConfigError: none of the means is for this network.
    """
    net, possible = ready.predictor.net, []
    for each in means:
        reason = unlabelled.unavailable(ready, each)
        if reason is None:
            possible.append(each)
        elif len(means) > 1:
            progress(f"{each}: not tried, {reason}")
        else:
            raise ConfigError("no-effect", f"{ready.model.path} cannot be adapted by {each}: {reason}")
    if not possible:
        sentence = "its norm layers have neither running statistics nor scale and shift: give masks of some cases"
        raise ConfigError("no-effect", f"{ready.model.path} cannot be adapted without masks: {sentence}")
    start = copied_weights(net)
    before, best = unlabelled.judge(ready, scans), None
    for each in possible:
        unlabelled.adapt(ready, scans, each, seed=seed)
        after = unlabelled.judge(ready, scans)
        against = unlabelled.implausible(before, after, ready.classes)
        evidence = _evidence("agreement", before.agreement, after.agreement - before.agreement)
        progress(f"{each}: agreement of outlines {_change(evidence)}{f'; but {against}' if against else ''}")
        if best is None or (against is None, evidence.gain) > (best[2] is None, best[1].gain):
            best = each, evidence, against, copied_weights(net)
        net.load_state_dict(start)
    assert best is not None
    chosen, evidence, against, adapted = best
    low = -1.0 if evidence.interval is None else evidence.interval[0]
    helps = len(scans) >= FEWEST_SCANS and against is None and low >= LEAST_AGREEMENT
    sentence = f"agreement of outlines with those of altered scans {_change(evidence)}"
    if len(scans) < FEWEST_SCANS:
        sentence += f", and fewer than {FEWEST_SCANS} scans tell too little"
    elif against is not None:
        sentence += f", but {against}"
    elif evidence.interval is None:
        sentence += ", and changes that are all the same have no interval, whose lower end decides"
    elif not helps:
        sentence += f", and less than {100 * LEAST_AGREEMENT:.0f} points at the lower end tell nothing of the masks"
    if helps or anyway:
        net.load_state_dict(adapted)
    how = {} if chosen == "statistics" else {"part": "norm", "steps": unlabelled.STEPS}
    if how:
        how["rate"] = ready.model.header.job.task.optimizer.lr
    counts = {"labelled": 0, "unlabelled": len(scans)}
    return _outcome(ready, chosen, evidence, sentence, counts, how, helps=helps, anyway=anyway, seed=seed)


def _outcome(
    ready: ReadyModel,
    means: Means,
    evidence: Evidence | None,
    reason: str,
    counts: Mapping[str, int],
    how: Mapping[str, object],
    *,
    helps: bool,
    anyway: bool,
    seed: int,
) -> Outcome:
    decision = "adapted" if helps else "asked" if anyway else "kept"
    begins = {"adapted": f"adapted by {means}", "asked": f"adapted by {means} because it was asked for", "kept": "kept"}
    record = Adaptation.parse(
        {
            "decision": decision,
            "reason": f"{begins[decision]}: {reason}",
            "means": means,
            "evidence": evidence,
            "seed": seed,
            "statistics": ready.statistics,
            "fedshift": fedshift.__version__,
            **counts,
            **how,
        },
        where="the record of the adaptation",
    )
    return Outcome(record, read_weights(ready.predictor.net))


def _evidence(score: str, before: np.ndarray, gains: np.ndarray) -> Evidence:
    ends = interval(gains)
    return Evidence.parse(
        {
            "score": score,
            "n": len(gains),
            "before": float(before.mean()),
            "gain": float(gains.mean()),
            "interval": ends,
            "confidence": confidence(gains),
        },
        where="the evidence of the adaptation",
    )


def _change(evidence: Evidence) -> str:
    """``changes by +3.2 points from 57.8 (80 % interval +1.0 to +5.4, n = 3; above 0 with 97 % confidence)``."""
    ends, sure = evidence.interval, evidence.confidence
    span = "no interval, " if ends is None else f"80 % interval {100 * ends[0]:+.1f} to {100 * ends[1]:+.1f}, "
    span += f"n = {evidence.n}" + ("" if sure is None else f"; above 0 with {100 * sure:.0f} % confidence")
    return f"changes by {100 * evidence.gain:+.1f} points from {100 * evidence.before:.1f} ({span})"
