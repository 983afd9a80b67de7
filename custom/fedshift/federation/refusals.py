"""Refuse a job that cannot run, or that asks for what changes nothing: when it is made, and when the server starts it.

What its methods refuse is `fedshift.methods.method_set.MethodSet.check`; here are the options of the federation around
them.
"""

from __future__ import annotations

from collections.abc import Collection

from fedshift.methods.base import ServerContext
from fedshift.methods.method_set import DEFAULT_COMBINE, MethodSet
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec, RobustSpec

FEWEST_TO_COMPARE = 3
"""Smallest number of updates in a round that can be compared with each other."""
ALONE = "single"
"""The method that trains at each site for itself."""
ROBUST, AVERAGE = "federation.robust", "federation.model_average"
ENCRYPTION, PACKING = "federation.encryption", "federation.weights_as"
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
    """Check the options of ``federation`` and ``evaluation`` against a job's methods.

    Raises:
        ConfigError: the first thing that does not fit.
    """
    for check_option in (_check_robust, _check_average, check_encryption, _check_packing, _check_local):
        check_option(methods)


def _check_robust(methods: MethodSet) -> None:
    """Refuse a rule of robust aggregation with too few sites, or with a method that it would defeat."""
    spec = methods.job.federation.robust
    if spec is None:
        return
    fewest = max(FEWEST_TO_COMPARE, 2 * spec.trim + 1) if spec.rule == "trimmed_mean" else FEWEST_TO_COMPARE
    min_sites = methods.job.federation.min_sites
    if min_sites < fewest:
        raise ConfigError(
            "too-few-sites",
            f"{ROBUST}: rule {rule_name(spec)} needs {fewest} updates in every round, and federation.min_sites is "
            f"{min_sites}: raise it{' or lower federation.robust.trim' if fewest > 3 else ''}",
        )
    for method in methods:
        if method.is_pooled:
            raise ConfigError(
                "nothing-sent",
                f"{ROBUST}: method {method.name} trains where all images are, so no site sends an update",
            )
        if method.server().tells_sites_apart and spec.rule != "norm_clipping":
            raise ConfigError(
                "options-clash",
                f"{ROBUST}: method {method.name} gives each site's update a weight of its own, which rule {spec.rule} "
                "would undo: use rule norm_clipping or another method",
            )
        if method.client().adds_up_changes and spec.rule != "norm_clipping":
            raise ConfigError(
                "options-clash",
                f"{ROBUST}: method {method.name} adds up each site's changes over rounds, and rule {spec.rule} uses "
                "none as it was sent: use rule norm_clipping or another method",
            )
    if not methods.sends_parameters:
        raise ConfigError(
            "nothing-sent",
            f"{ROBUST}: with method {' and '.join(methods.names)} no parameter leaves a site, so there is "
            "nothing to protect: leave it out",
        )


def rule_name(spec: RobustSpec) -> str:
    """A rule for messages, with the option that it depends on."""
    return f"trimmed_mean with trim {spec.trim}" if spec.rule == "trimmed_mean" else spec.rule


def _check_average(methods: MethodSet) -> None:
    """Refuse an average of models with one round, sites that send no model, or models that the server cannot read."""
    job = methods.job
    if job.federation.model_average is None:
        return
    if job.task.schedule.rounds == 1:
        raise ConfigError(
            "no-effect", f"{AVERAGE}: one round has one model only: raise schedule.rounds or leave this out"
        )
    if job.federation.encryption == "ckks":
        raise ConfigError(
            "options-clash",
            f"{AVERAGE}: with federation.encryption=ckks the server cannot read the models: leave one out",
        )
    if not methods.sends_parameters:
        raise ConfigError(
            "nothing-sent",
            f"{AVERAGE}: with {' and '.join(methods.withholding)} no site sends its model, so there is none to "
            "average: leave this out",
        )


def check_encryption(methods: MethodSet) -> None:
    """Refuse encryption where the server needs more than sums.

    Raises:
        ConfigError: a method, an option or a number of sites with which encryption is impossible or protects nothing.
    """
    job, net = methods.job, methods.net
    if job.federation.encryption is None:
        return
    if job.federation.robust is not None:
        raise ConfigError(
            "options-clash",
            f"{ENCRYPTION}: federation.robust compares single updates, which the server cannot read: leave one out",
        )
    if job.federation.encryption == "masks" and job.federation.sites_per_round is not None:
        raise ConfigError(
            "options-clash",
            f"{ENCRYPTION}: with masks every round asks all sites: sums over different draws "
            "(federation.sites_per_round) can be subtracted from each other, which leaves the few sites that they do "
            "not share: leave one out",
        )
    if job.federation.min_sites < 2:
        raise ConfigError(
            "too-few-sites",
            f"{ENCRYPTION}: a sum over one site is that site's update: --set federation.min_sites=2 or more",
        )
    for method in methods:
        client, half = method.client(), method.server()
        if method.is_pooled:
            raise ConfigError(
                "nothing-sent", f"{ENCRYPTION}: method {method.name} trains where all images are, so nothing is sent"
            )
        if "combine" in half.owns and half.factor(1) is None:
            raise ConfigError(
                "needs-single-updates",
                f"{ENCRYPTION}: method {method.name} makes more of the sites' updates than a weighted sum, and the "
                f"server cannot read them: use {DEFAULT_COMBINE}",
            )
        for name, spec in client.up(net).items():
            if spec.reduce != "sum" or spec.when != "round":
                hint = f" (--set {client.option_for_sums})" if client.option_for_sums else ""
                raise ConfigError(
                    "needs-single-updates",
                    f"{ENCRYPTION}: method {method.name} sends {name!r} for the server to read, not only to add up: "
                    f"use another method{hint}",
                )
        context = server_context(job, methods.trainable, 0)
        half.start(net, context)
        if half.broadcast(context).keys() != half.state.keys():
            raise ConfigError(
                "needs-single-updates",
                f"{ENCRYPTION}: method {method.name} remembers at the server what sites do not receive: use another "
                "method",
            )
    if not methods.sends_parameters:
        raise ConfigError(
            "nothing-sent",
            f"{ENCRYPTION}: with method {' and '.join(methods.names)} no parameter leaves a site: leave it out",
        )


def server_context(job: JobSpec, trainable: frozenset[str], round_: int) -> ServerContext:
    """The context of the server halves in a round; ``trainable`` are the keys of the network's parameters."""
    rounds, sites, optimizer = job.task.schedule.rounds, job.task.sites, job.task.optimizer
    return ServerContext(round_, rounds, sites, trainable, optimizer.at(round_, rounds), job.seed, job.methods)


def _check_packing(methods: MethodSet) -> None:
    """Refuse weights in fewer bytes (`fedshift.schema.compression`) where nothing can be packed."""
    federation = methods.job.federation
    if federation.weights_as == "fp32":
        return
    if federation.encryption is not None:
        raise ConfigError(
            "options-clash",
            f"{PACKING}: with federation.encryption sites send masked numbers or ciphertexts, which cannot be made "
            "smaller: leave one out",
        )
    if methods.pooled is not None:
        raise ConfigError(
            "nothing-sent", f"{PACKING}: method {methods.pooled.name} trains where all images are, so nothing is sent"
        )


def _check_local(methods: MethodSet) -> None:
    """Refuse a comparison with models of single sites where there is nothing to compare."""
    if not methods.job.evaluation.local:
        return
    if methods.pooled is not None:
        raise ConfigError(
            "nothing-to-compare",
            f"evaluation.local (--with-local) is for federations, and {methods.pooled.name} trains where all images "
            f"are: leave it out, and train the method {ALONE} beside it",
        )
    if ALONE in methods.names:
        raise ConfigError(
            "nothing-to-compare",
            f"evaluation.local (--with-local) compares a federation with what {ALONE} trains, and this job is that: "
            "leave it out, or name a method that combines",
        )


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
                    "no-effect", f"federation.{setting} has no effect with federation.{rule}: leave one of the two out"
                )
    if schedule.patience is not None and schedule.patience > schedule.rounds - BEFORE_THE_END:
        raise ConfigError(
            "no-effect",
            f"schedule.patience={schedule.patience} cannot end a run of {schedule.rounds} rounds early: leave it out, "
            f"lower it, or raise schedule.rounds to at least {schedule.patience + BEFORE_THE_END}",
        )
    default = type(schedule).model_fields["local_epochs"].default
    if schedule.local_steps is not None and ("schedule", "local_epochs") in named and schedule.local_epochs != default:
        raise ConfigError(
            "no-effect",
            f"schedule.local_epochs has no effect: schedule.local_steps is {schedule.local_steps}, which replaces it: "
            "set schedule.local_steps=null, or leave schedule.local_epochs out",
        )
