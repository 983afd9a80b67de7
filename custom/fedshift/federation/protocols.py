"""Evaluation protocols of more than one model: every site held out in turn, and local models at other sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import yaml

from fedshift.federation.in_process import SITE_STATE, run_in_process
from fedshift.federation.model_files import header_of, read_model_file, write_model_file
from fedshift.federation.run_lock import lock_run
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.federation.site.state import StateStore
from fedshift.federation.tensors import to_arrays
from fedshift.schema import results
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.evaluation import Evaluation
from fedshift.schema.files import write_text
from fedshift.schema.job import FILE_NAME, JobSpec
from fedshift.schema.manifest import read_manifest
from fedshift.schema.messages import Broadcast, Update
from fedshift.schema.protocol_results import CrossSite, HeldOutSite, LeaveOneOut, ModelScores, mean_metrics, own_model
from fedshift.schema.results import FinalScores, Results, joined, read_results
from fedshift.schema.yaml_file import read_yaml
from fedshift.tasks.adapters import with_adapters

ModelChoice = Literal["best", "last"]


def leave_one_out(
    jobs: Mapping[str, JobSpec],
    folder: Path,
    *,
    name: str,
    run: Callable[[JobSpec, Path], None],
    on_site: Callable[[str, bool], None] = lambda site, finished: None,
    by_round: bool = False,
) -> LeaveOneOut:
    """Hold every site out in turn, each in ``folder/<site>``. What has ended there already is not run again.

    Args:
        jobs: for each site the job that holds it out.
        folder: where runs and ``leave_one_out.json`` go.
        name: of the whole.
        run: runs a job in a folder, and leaves its ``results.json`` there.
        on_site: called before each site's turn, and told whether its run has ended before.
        by_round: whether ``run`` has the held-out site score each round's aggregate (`note_held_out`).

    Raises:
        ConfigError: a site's folder holds another job, or a run without the scores of rounds, or another run is using
            ``folder``.
        DataError: a site could not be scored.
    """
    runs: dict[str, Results] = {}
    with lock_run(folder):
        for site, job in jobs.items():
            claim(folder / site, job)
        for site, job in jobs.items():
            ended = _ended(folder / site, site)
            on_site(site, ended is not None)
            if ended is None:
                run(job, folder / site)
                ended = _ended(folder / site, site)
            if ended is None:
                reason = _reason(folder / site, site)
                raise DataError("not-scored", f"{reason}; mend it and repeat the command: only this is done again")
            if by_round and len(_scores_of_rounds(ended, site)) < len(ended.rounds):
                raise ConfigError(
                    "run-exists", f"{folder / site} lacks scores of its rounds at {site}: give another --workspace"
                )
            runs[site] = ended
    first = next(iter(runs.values()))
    sites = {
        site: HeldOutSite(
            data=run_results.data[site],
            best=_scores(run_results, "best", site),
            last=_scores(run_results, "last", site),
            others=_best_at_trainers(run_results),
            rounds=_scores_of_rounds(run_results, site) if by_round else {},
        )
        for site, run_results in runs.items()
    }
    both: tuple[ModelChoice, ...] = ("best", "last")
    record = LeaveOneOut(
        job=first.job.model_copy(update={"name": name, "held_out": []}),
        versions=first.versions,
        sites=sites,
        mean={
            which: {
                part: mean_metrics(getattr(site, which).scores.get(part, {}) for site in sites.values())
                for part in ("all", "test")
            }
            for which in both
        },
    )
    record.write(folder)
    return record


def note_held_out(coordinator: Coordinator, sites: Mapping[str, Site], broadcast: Broadcast) -> None:
    """Have each held-out site score the aggregate of a round on its validation part, for the record alone.

    The scores neither train nor select anything in this run. They tell which round is best at a site that took no part,
    if the run is one of `leave_one_out`.
    """
    round_ = broadcast.round - 1
    for name in coordinator.job.task.held_out:
        if name not in coordinator.results.rounds[round_ - 1].held_out:  # the best model comes a second time
            coordinator.record.note_held_out(name, round_, sites[name].score_aggregate(broadcast))


def cross_site(
    job: JobSpec,
    data: Mapping[str, Path],
    folder: Path,
    *,
    device: str = "auto",
    keep_models: bool = False,
    on_progress: Callable[[Coordinator], None] | None = None,
) -> CrossSite:
    """Score every site's own model at every site's test part, in one process: no federation shows these models.

    A site's own model is what its local training made of the model of the last round, before it is combined; with the
    method ``single`` it was never combined. A site normalises its images with its own statistics, as it would a model
    that it has received. The run and ``cross_site.json`` go to ``folder``, with ``keep_models`` also each site's model
    (``own_models/<site>.pt``); the other arguments are those of `run_in_process`.
    """
    newest: dict[str, tuple[Broadcast, Update]] = {}

    def keep(broadcast: Broadcast, update: Update) -> None:
        newest[update.site] = broadcast, update

    run = run_in_process(job, data, folder, device=device, on_progress=on_progress, on_update=keep).results
    last = len(run.rounds)  # fewer than the job's if it has patience
    models: dict[str, Broadcast] = {}
    for owner, (broadcast, update) in newest.items():
        if broadcast.round == last:
            state = StateStore(folder / SITE_STATE / owner).before(last + 1)
            personal = state.personal if state else {}
            sent = update.restored(broadcast.unpacked().weights).weights
            weights = {**sent, **to_arrays(personal)}
            models[owner] = Broadcast(round=last, best_round=0, weights=weights, arrays=broadcast.arrays)
    newest.clear()
    scores: dict[str, dict[str, dict[str, float]]] = {site: {} for site in models}
    # A folder without state: as a site that has taken no part, it has nothing of its own to put into a model.
    options = SiteOptions(folder / "visited", device=device)
    for tested in run.data:
        host = Site(job, tested, data[tested], options)
        options = replace(options, job_network=host.job_network)
        for trained, model in models.items():
            if run.data[tested].n["test"]:
                with host.loaded(model) as scoring:
                    scores[trained][tested] = dict(scoring.evaluate("test").scores)
    pairs = [(trained == tested, metrics) for trained, row in scores.items() for tested, metrics in row.items()]
    record = CrossSite(
        job=run.job,
        versions=run.versions,
        data=run.data,
        scores=scores,
        mean_at_home=mean_metrics(metrics for at_home, metrics in pairs if at_home),
        mean_elsewhere=mean_metrics(metrics for at_home, metrics in pairs if not at_home),
    )
    if keep_models:
        for site, model in models.items():
            write_own(site, model, folder, scores=scores[site].get(site, {}))
    record.write(folder)
    return record


def write_own(site: str, model: Broadcast, folder: Path, *, scores: Mapping[str, float]) -> None:
    """Write the model of a single site, with the rest as in the last aggregate's file in ``folder``."""
    content = read_model_file(folder / results.LAST)
    header = header_of(content, where=str(folder / results.LAST))
    target = own_model(folder, site)
    target.parent.mkdir(exist_ok=True)
    # Before its last local training the model was an aggregate of all sites, unless every array stays at its site.
    others = [] if set(model.weights) <= set(header.personal) else header.sites
    write_model_file(
        target,
        job=with_adapters(header.job, header.adapters),
        round_=header.round,
        weights=model.weights,
        methods={name: to_arrays(tensors) for name, tensors in content["methods"].items()},
        personal=(),
        scores=dict(scores),
        kind=header.kind,
        sites=[site],
        lineage=joined(header.lineage, header.job.task.dataset, others),
        statistics=header.statistics,
        initial_weights=header.initial_weights,
    )


def claim(folder: Path, job: JobSpec) -> None:
    """Make ``folder`` the job's, or see that it is; ConfigError if it holds another one, or something else."""
    path = folder / FILE_NAME
    if path.is_file():
        if read_yaml(path) != job.dump():
            raise ConfigError("other-job", f"{folder} holds another job: give another --workspace, or remove it")
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError("folder-used", f"{folder} holds something other than a run: give another --workspace")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, yaml.safe_dump(job.dump(), sort_keys=False, allow_unicode=True))


def require_training_samples(data: Mapping[str, Path]) -> None:
    """Refuse sites that have nothing to train on, and so can only be held out. ``data``: their prepared folders."""
    without = [site for site, folder in data.items() if not read_manifest(folder).by_split("train")]
    if without:
        raise ConfigError(
            "no-training-data", f"{', '.join(without)} has nothing to train on: name the other sites with --sites"
        )


def require_validation_samples(data: Mapping[str, Path]) -> None:
    """Refuse sites that cannot score a round, since they have no validation cases. ``data``: their folders."""
    without = [site for site, folder in data.items() if not read_manifest(folder).by_split("val")]
    if without:
        raise ConfigError(
            "no-validation-data",
            f"{', '.join(without)} has no validation cases to choose a round by: name the other sites with --sites",
        )


def _scores_of_rounds(run: Results, site: str) -> dict[int, float]:
    """Round -> validation score of its aggregate at the held-out site; empty if the run has not asked for it."""
    held_out = {record.round: record.held_out[site] for record in run.rounds if site in record.held_out}
    return {round_: values[run.job.metric] for round_, values in held_out.items() if run.job.metric in values}


def _ended(folder: Path, site: str) -> Results | None:
    """The results of a run that has scored both models at the site that it holds out."""
    if not (folder / results.FILE_NAME).is_file():
        return None
    run = read_results(folder)
    ended = run.final is not None and all(site in scores.held_out for scores in (run.final.best, run.final.last))
    return run if ended else None


def _reason(folder: Path, site: str) -> str:
    rejected = [fault for record in read_results(folder).evaluations for fault in record.rejected]
    reason = next((f"{fault.key}: {fault.reason}" for fault in rejected if fault.site == site), "it did not answer")
    return f"site {site} could not be scored ({reason})"


def _best_at_trainers(run: Results) -> dict[str, Evaluation]:
    assert run.final is not None
    best = {site: parts["test"] for site, parts in run.final.best.evaluations.items() if "test" in parts}
    personal = run.final.personal_evaluations
    return {site: personal.get(site, shared) for site, shared in best.items() if site not in run.job.held_out}


def _scores(run: Results, model: ModelChoice, site: str) -> ModelScores:
    assert run.final is not None
    scores: FinalScores = getattr(run.final, model)
    return ModelScores(round=scores.round, scores=scores.held_out[site], evaluations=scores.evaluations.get(site, {}))
