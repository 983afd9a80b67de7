"""Refuse a job that cannot run, when it is made and again when the server starts it."""

from __future__ import annotations

from collections.abc import Collection

from fedshift.federation import compression
from fedshift.federation.encryption import shared as encryption
from fedshift.federation.server import model_average, robust
from fedshift.federation.site.local_model import METHOD
from fedshift.methods.method_set import MethodSet
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec

CLIPPED = ("clip_norm_ratio", "clip_opposed_ratio", "clip_sample_ratio")
"""Limits of an accepted update: there are none with ``federation.robust`` or ``federation.encryption``."""
COMPARED = ("max_norm_ratio",)
"""Limits that need the norms of single updates, which a server that cannot read them does not know."""
SUMMED_ONLY = ("max_update_norm",)
"""A limit of the parameters' change, which a server that has only ciphertexts does not know of a sum either."""
BEFORE_THE_END = 3
"""Rounds of a run that ``schedule.patience`` cannot count: the first, which may be the best, and the last two, as the
scores of a round come with the updates of the next."""


def check(methods: MethodSet) -> None:
    """Check a job's methods against its task, its network, each other, and the options of ``federation``.

    Raises:
        ConfigError: the first thing that does not fit.
    """
    methods.check()
    robust.check(methods)
    model_average.check(methods)
    encryption.check(methods)
    compression.check(methods)
    _check_local(methods)


def check_idle(job: JobSpec, named: Collection[tuple[str, str]]) -> None:
    """Refuse settings that change nothing. Called only when a job is made: a job that was made before still runs.

    Args:
        job: the resolved job.
        named: what its options name, as `fedshift.federation.options.apply_options` returns it. A task's schedule may
            have both epochs and steps, since its protocols choose between them.

    Raises:
        ConfigError: the first such setting, and why.
    """
    federation, schedule = job.federation, job.task.schedule
    unseen = (*CLIPPED, *COMPARED, *(SUMMED_ONLY if federation.encryption == "ckks" else ()))
    for rule, idle in (("robust", CLIPPED), ("encryption", unseen)):
        if getattr(federation, rule) is None:
            continue
        for setting in idle:
            if getattr(federation, setting) not in (None, type(federation).model_fields[setting].default):
                raise ConfigError(
                    f"federation.{setting} has no effect with federation.{rule}: leave one of the two out"
                )
    if schedule.patience is not None and schedule.patience > schedule.rounds - BEFORE_THE_END:
        raise ConfigError(
            f"schedule.patience={schedule.patience} cannot end a run of {schedule.rounds} rounds early: leave it out, "
            f"lower it, or raise schedule.rounds to at least {schedule.patience + BEFORE_THE_END}"
        )
    default = type(schedule).model_fields["local_epochs"].default
    if schedule.local_steps is not None and ("schedule", "local_epochs") in named and schedule.local_epochs != default:
        raise ConfigError(
            f"schedule.local_epochs has no effect: schedule.local_steps is {schedule.local_steps}, which replaces it: "
            "set schedule.local_steps=null, or leave schedule.local_epochs out"
        )


def _check_local(methods: MethodSet) -> None:
    """Refuse a comparison with models of single sites where there is nothing to compare."""
    if not methods.job.evaluation.local:
        return
    if methods.pooled is not None:
        raise ConfigError(
            f"evaluation.local (--with-local) is for federations, and {methods.pooled.name} trains where all images "
            "are: leave it out, and train the method single beside it"
        )
    if METHOD in methods.names:
        raise ConfigError(
            f"evaluation.local (--with-local) compares a federation with what {METHOD} trains, and this job is that: "
            "leave it out, or name a method that combines"
        )
