"""A site in a job: it answers the tasks statistics, train and validate, under FLARE and in one process alike.

With masks it also answers what unmasks the sum of a round.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from torch import Tensor, nn

import fedshift
from fedshift.data.samples import Samples
from fedshift.federation.site import local_training
from fedshift.federation.site.checkpoint import FILE, Checkpoint
from fedshift.federation.site.job_network import JobNetwork
from fedshift.federation.site.local_model import LocalModel
from fedshift.federation.site.outbound import Encryption, Outbound
from fedshift.federation.site.parts import Parts
from fedshift.federation.site.scoring import Scoring
from fedshift.federation.site.state import AnswerStore, SiteState, StateStore, fingerprint
from fedshift.federation.tensors import read_weights
from fedshift.methods.base import Run
from fedshift.methods.chain import ClientChain
from fedshift.schema import components
from fedshift.schema.errors import ConfigError, DataError, PolicyError, Stopped
from fedshift.schema.evaluation import Evaluation
from fedshift.schema.fingerprint import Reference
from fedshift.schema.guarantee import RiskCurves
from fedshift.schema.identity import own_identity
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import Split, manifest_sha256
from fedshift.schema.messages import Broadcast, MethodArrays, Scores, SiteInfo, Update, Weights
from fedshift.schema.packages import PackageSpec
from fedshift.schema.paired import COMPARISON_FILE, LocalComparison
from fedshift.schema.policy import Policy
from fedshift.schema.task import ScheduleSpec
from fedshift.tasks.base import Everything, SiteData, Subset, Task
from fedshift.tasks.evaluation.case_scores import CaseScores
from fedshift.tasks.kinds import build_task
from fedshift.tasks.out_of_memory import training_out_of_memory
from fedshift.tasks.precision import release_freed_memory

if TYPE_CHECKING:
    from fedshift.federation.site.privacy.gate import Gate
    from fedshift.federation.site.ranks.group import Group

log = logging.getLogger("fedshift")

DescribeScans = Callable[[Path, str, Policy | None, Sequence[float | None]], Reference | None]
"""`fedshift.federation.survey_answer.site_reference`."""


@dataclass(frozen=True)
class SiteOptions:
    """What a site's machine and owner decide, and no job.

    Attributes:
        state: folder for state files of the job; the site writes to ``state/<name>``.
        job_network: that of another site of the job in this process; None to load one.
        device: where to train, as a PyTorch device name; ``auto`` is a GPU if there is one.
        devices: how many devices share each batch: that one and the GPUs after it, or cores of the processor.
        workers: processes that work in parallel on this machine, as for `JobNetwork.load`.
        weights: folder of files that jobs train adapters beside; None to look where the server does.
        policy: the site's privacy policy; None if it has none.
        packages: those whose code the site lets jobs use; None for all that are installed, on a machine of one's own.
        ledger: folder of the account of what left with noise; None for that of the job's state.
        share_cases: whether scores of single cases of a final model may leave.
        describe_scans: makes what leaves if the job has ``evaluation.reference``; None if nothing may.
        encryption: decrypts broadcasts and encrypts answers; None if the job does not encrypt.
        keep_answers: whether a training task that comes again is answered from disk and not repeated.
    """

    state: Path
    _: KW_ONLY
    job_network: JobNetwork | None = None
    device: str = "auto"
    devices: int = 1
    workers: int | None = None
    weights: Path | None = None
    policy: Policy | None = None
    packages: Mapping[str, PackageSpec] | None = None
    ledger: Path | None = None
    share_cases: bool = True
    describe_scans: DescribeScans | None = None
    encryption: Encryption | None = None
    keep_answers: bool = False


class Site:
    """A site in a job: its data, the network, and a folder for its state."""

    _data: SiteData | None = None
    _gate: Gate | None = None
    _local: LocalModel | None = None

    def __init__(self, job: JobSpec, name: str, data: Path, options: SiteOptions) -> None:
        """Open the site's data in the prepared folder ``data``.

        Raises:
            PolicyError: the job needs a package that the site does not list, or has not in this version.
            DataError: the data cannot be used.
            ConfigError: this machine does not have what the options name.
        """
        components.admit(job.packages, where=f"site {name}", listed=options.packages)
        task, state = build_task(job), options.state / name
        opened = task.open(data, name)
        self._data, self._folder, self._manifest_sha256 = opened, data, manifest_sha256(data)
        self._set_up(job, name, task.at(opened), opened if opened.n_train else Everything(opened), options)
        if opened.n_train:
            opened.hold(next(self._net.parameters()).device)
        self._info = self._describe(opened)
        if options.policy is not None:
            from fedshift.federation.site.privacy.gate import Gate  # imports scipy, needed with a policy only

            self._gate = Gate(
                options.policy,
                site=name,
                task=self._task,
                methods=self._methods,
                data=opened,
                folder=state,
                ledger=options.ledger or state,
                encrypts=options.encryption is not None,
            )
            if self._gate.trains_privately:
                from fedshift.federation.site.privacy.dp_sgd import PART

                self._parts.largest = PART
        self._outbound = Outbound(self._methods, self._gate, options.encryption)
        if self.job_network.ranks is not None and not self._held_out:
            self._say_what_is_shared(options.policy)
        if not job.evaluation.local or self._held_out:
            return
        if self._tells_own_model:
            log.info("site %s: it trains a model of its own beside the federation's: twice the training time", name)
            self._local = LocalModel(
                job, name, net=self._net, task=self._task, data=opened, training=self._training, run=self._run
            )
        else:
            log.warning(
                "site %s: it trains no model of its own to compare with (evaluation.local), because its policy puts "
                "noise on the network and scores of such a model would have none",
                name,
            )

    def _set_up(self, job: JobSpec, name: str, task: Task, training: Samples, options: SiteOptions) -> None:
        self.name, self._job, self._task, self._training, self._options = name, job, task, training, options
        self._held_out = name in job.task.held_out
        self.job_network = options.job_network or JobNetwork.load(
            job,
            name,
            device=options.device,
            devices=options.devices,
            workers=options.workers,
            weights=options.weights,
        )
        self._net, self._methods = self.job_network.net, self.job_network.methods
        self._state_folder = options.state / name
        self._store = StateStore(self._state_folder)
        self._parts = Parts(
            self._state_folder, self._methods, min(job.task.schedule.batch_size, max(1, training.n_train))
        )
        self._answers = AnswerStore(self._state_folder) if options.keep_answers else None

    # --- what it answers --------------------------------------------------------------------------

    def answer(self, task: str, broadcast: Broadcast, *, stop: Callable[[], bool] = lambda: False) -> Update | Scores:
        """The answer to a request of the server, by the name of the task (`Request.task`)."""
        if task == "statistics":
            return self.statistics()
        if task == "unmask":
            return self.unmask(broadcast)
        return self.train(broadcast, stop=stop) if task == "train" else self.validate(broadcast, stop=stop)

    def info(self) -> SiteInfo:
        """Counts and fingerprint of the site's data, and its hardware."""
        return self._info

    def statistics(self) -> Update:
        """Round 0: the arrays that the methods compute once from the site's images.

        Raises:
            PolicyError: the site's policy forbids that they leave.
        """
        broadcast = Broadcast(round=0, best_round=0, weights={})
        permit = self._outbound.admit(broadcast)
        state, arrays = self._measure()
        self._store.write(0, state, best_round=0)
        update = Update(site=self.name, round=0, n_samples=self._training.n_train, n_steps=0, arrays=arrays)
        return self._outbound.send(update, broadcast, permit=permit, residual={})[0]

    def train(self, broadcast: Broadcast, *, stop: Callable[[], bool] = lambda: False) -> Update:
        """Score the received model, train it, and return the result as it leaves the site.

        If the job asks for it (``evaluation.local``), the site first trains its own model for a round, of which nothing
        is in the result. ``stop`` is asked before every batch whether the run was ended from outside.

        Raises:
            ConfigError: the broadcast cannot be decrypted.
            DataError: training diverged, or the received weights are not the network's.
            PolicyError: the site's policy forbids the task, it is none of the job's rounds, or the site trains in none.
            Stopped: ``stop`` returned True; nothing was written.
            TooLittleMemory: memory ran out, also with batches in parts.
        """
        self.require_training()
        self._require_round(broadcast, self._job.task.schedule.rounds)
        opened = self._outbound.open(broadcast)
        train = partial(self._parts.fitted, opened.round, partial(self._train_round, opened, stop))
        if self._answers is None:
            return train()
        task = fingerprint(broadcast, self._context())  # an encrypted answer depends on all of the message
        update = self._answers.find(task)
        if update is not None:
            log.warning("site %s: round %d has come again: its answer is sent again", self.name, broadcast.round)
            return update
        update = train()
        self._answers.keep(task, update)
        return update

    def unmask(self, broadcast: Broadcast) -> Update:
        """Answer the server's question for what unmasks the sum of a round; PolicyError if the site may not."""
        self.require_training()
        self._require_round(broadcast, self._job.task.schedule.rounds)
        return self._outbound.unmask(broadcast)

    def validate(self, broadcast: Broadcast, *, stop: Callable[[], bool] = lambda: False) -> Scores:
        """Score the last or the best aggregate on the splits that it was not trained on.

        A held-out site scores it on all samples, and on its test split. If a method fine-tunes, the site then trains
        the model for itself and scores it again. Held-out sites do not fine-tune, nor do sites whose policy forbids
        training (which do not measure their training images for ``newcomer`` either) or adds noise to the network,
        because a model trained for the site alone would have none. If the job has each site train a model of its own
        (``evaluation.local``), the two are compared on the test split. ``broadcast.round`` is one after the round that
        made the model; ``stop`` is as in `train`, for fine-tuning.

        Raises:
            ConfigError: the broadcast cannot be decrypted.
            DataError: the received weights are not the network's.
            PolicyError: it is none of the job's models, or the job does not name the site.
            Stopped: ``stop`` returned True.
        """
        if self.name not in self._job.task.everyone:
            raise self._no_part("scores nothing")
        self._require_round(broadcast, self._job.task.schedule.rounds + 1)
        (self._state_folder / FILE).unlink(missing_ok=True)  # the rounds are over
        return self._parts.fitted(broadcast.round, partial(self._score, broadcast, stop))

    def score_aggregate(self, broadcast: Broadcast) -> dict[str, float]:
        """Validation scores of a received aggregate at a site that has not trained, prepared as in `validate`.

        Scored is what selects rounds at sites that train (`Scoring.of_round`).
        """
        with self._session(self._outbound.open(broadcast)) as (_, chain):
            chain.newcomer(self._training)
            return self._scoring(chain).scores("val")

    @property
    def network(self) -> nn.Module:
        """The job's network. It keeps nothing from one task to the next."""
        return self._net

    @contextmanager
    def loaded(self, broadcast: Broadcast) -> Iterator[Scoring]:
        """A received model at this site, to be scored as `validate` does."""
        with self._session(self._outbound.open(broadcast)) as (_, chain):
            yield self._scoring(chain)

    def predictions(self, broadcast: Broadcast, subset: Subset) -> Iterator[Tensor]:
        """Yield a received model's class probabilities for one subset of the site, by batches, (B, K, …) on the CPU.

        Each batch passes the network by itself.
        """
        with self.loaded(broadcast) as scoring:
            yield from scoring.probabilities(subset, apart=True)

    # --- what it refuses --------------------------------------------------------------------------

    def require_training(self) -> None:
        """Refuse what only sites that train may be asked for. What others sent would be neither masked nor summed."""
        if self.name not in self._job.task.sites:
            raise self._no_part("trains nothing")

    def _require_round(self, broadcast: Broadcast, last: int) -> None:
        """Refuse a task of a round that the job does not have: noise is worked out for the job's rounds and no more."""
        if not 1 <= broadcast.round <= last:
            raise PolicyError(
                "round-beyond",
                f"site {self.name}: round {broadcast.round} is beyond the job's {last}, or before its first: ask who "
                "runs the server, or start another job",
            )

    def _no_part(self, request: str) -> PolicyError:
        how = "is held out of" if self._held_out else "is not named by"
        return PolicyError(
            "no-part",
            f"site {self.name}: it {how} job {self._job.name} and {request} for it, and no honest server asks it to: "
            "ask who runs the server",
        )

    def _diverged(self, round_: int, what: str) -> DataError:
        return DataError(
            "diverged",
            f"site {self.name}, round {round_}: {what}; lower optimizer.lr or check the site's images with 'fedshift "
            "data check'",
        )

    # --- a round of training ----------------------------------------------------------------------

    def _train_round(self, broadcast: Broadcast, stop: Callable[[], bool]) -> Update:
        """Train a received model; the site's state is on disk before its answer leaves."""
        permit = self._outbound.admit(broadcast)
        ranks, minutes = self.job_network.ranks, self._job.task.schedule.checkpoint_minutes
        resumable = self._methods.resumable and ranks is None
        checkpoint = Checkpoint(
            self._state_folder, partial(self._exactly, broadcast), minutes=minutes if resumable else None
        )
        once = partial(self._train_once, broadcast, permit, checkpoint, stop)
        if ranks is None:
            return once()
        from fedshift.federation.site.ranks.team import RankDied

        try:
            return once()
        except RankDied as error:
            log.warning("%s; the round is begun anew", error)
            return once()

    def _train_once(
        self, broadcast: Broadcast, permit: str, checkpoint: Checkpoint, stop: Callable[[], bool]
    ) -> Update:
        """Train from the site's state of the round before; with several ranks it may be done again."""
        before, ranks, schedule = self._state_before(broadcast.round), self.job_network.ranks, self._job.task.schedule
        is_new = broadcast.round > 1 and not self._store.has_trained(broadcast.round)
        local = checkpoint.once("local", partial(self._train_local, broadcast, before, checkpoint, stop))
        started = time.monotonic()
        shared: AbstractContextManager[Group | None] = nullcontext()
        if ranks is not None:
            part = self._parts.size(broadcast.round)
            shared = ranks.round(self._job, self.name, self._folder, broadcast, before, part=part, is_new=is_new)
        with shared as group, self._session(broadcast, before) as (run, chain):
            run.stop = stop
            if is_new:
                chain.newcomer(self._training)
            metrics = checkpoint.once("metrics", lambda: self._round_scores(chain, broadcast.round))
            run.optimizer = local_training.optimizer_of_round(self._net, self._job, run.round, before.optimizer)
            chain.begin(self._training)
            loop, private = checkpoint.loop("training"), None if self._gate is None else self._gate.training(permit)
            if private is not None and self._data is not None:
                n_steps, loss = private.train(self._task, self._data, chain, run, loop)
            else:
                n_steps, loss = local_training.train(self._task, self._training, chain, run, schedule, loop, group)
            if not np.isfinite(loss):
                raise self._diverged(broadcast.round, f"the training loss is {loss}")
            if group is not None:
                group.close(run, chain)
            arrays = chain.end(self._training)
            self._net.zero_grad(set_to_none=True)  # memory for what comes now
            release_freed_memory(next(self._net.parameters()).device)
            weights = read_weights(self._net)
            if not all(np.isfinite(value).all() for value in weights.values()):
                # Nothing may be written: the optimiser's state is not finite either.
                raise self._diverged(broadcast.round, "the weights are not finite after training")
            seconds = loop.seconds_before + time.monotonic() - started
            parts = {} if run.part is None else {"parts": float(self._parts.number(run.round))}
            update = Update(
                site=self.name,
                round=broadcast.round,
                n_samples=self._training.n_train,
                n_steps=n_steps,
                weights={key: value for key, value in weights.items() if key not in self._methods.withheld},
                metrics={**metrics, "train_loss": loss, "seconds": seconds, **parts},
                arrays=arrays,
            )
            update, residual = self._outbound.send(update, broadcast, permit=permit, residual=before.residual)
            after = SiteState(
                optimizer=run.optimizer.state_dict() if self._job.task.optimizer.keep else None,
                personal={key: torch.from_numpy(weights[key]) for key in sorted(self._methods.personal)},
                methods=before.methods,
                residual=residual,
                local=local,
            )
            self._store.write(broadcast.round, after, best_round=broadcast.best_round)
            checkpoint.remove()
        return update

    def train_share(
        self,
        broadcast: Broadcast,
        before: SiteState,
        group: Group,
        *,
        part: int | None,
        is_new: bool,
        stop: Callable[[], bool],
    ) -> None:
        """What another rank of the site does in a round: its share of every batch. Nothing is scored, kept or sent.

        ``before`` is the state that the round starts from, ``part`` the first rank's `Run.part`, ``is_new`` whether the
        site has never trained; ``stop`` waits for the first rank's word whether the round is over.
        """
        schedule: ScheduleSpec = self._job.task.schedule.model_copy(update={"minutes": None})  # the first rank's clock
        with self._session(broadcast, before) as (run, chain):
            run.stop, run.part = stop, part
            if is_new:
                chain.newcomer(self._training)
            run.optimizer = local_training.optimizer_of_round(self._net, self._job, run.round, before.optimizer)
            chain.begin(self._training)
            with suppress(Stopped):
                local_training.train(self._task, self._training, chain, run, schedule, group=group)
            group.close(run, chain)

    def _say_what_is_shared(self, policy: Policy | None) -> None:
        """Refuse what the site's devices cannot share, and tell what only the first one does."""
        ranks = self.job_network.ranks
        assert ranks is not None
        if policy is not None and policy.dp_sgd is not None:
            raise ConfigError(
                "devices-unfit",
                f"site {self.name} has devices: {len(ranks.devices)}, and its policy's dp_sgd draws cases and noise on "
                "one: leave out one of them",
            )
        log.warning(
            "site %s: %d devices (%s) share each batch of a round; scores, a model of its own (evaluation.local) and "
            "fine-tuning are computed on the first alone, and there are no checkpoints within a round",
            *(self.name, len(ranks.devices), ", ".join(ranks.devices)),
        )

    def _train_local(
        self, broadcast: Broadcast, before: SiteState, checkpoint: Checkpoint, stop: Callable[[], bool]
    ) -> dict[str, Any]:
        """The state of the site's own model, if it has one, after a round."""
        if self._local is None:
            return {}
        loop, received = checkpoint.loop("local"), broadcast.weights
        return self._local.train(broadcast.round, before.local, received=received, stop=stop, loop=loop)

    def _context(self) -> str:
        """What an answer depends on besides the task."""
        policy = self._options.policy
        rules = "" if policy is None else policy.model_dump_json()
        return f"{fedshift.__version__} {self._manifest_sha256} {rules}"

    def _exactly(self, broadcast: Broadcast) -> str:
        """The fingerprint of a task and of all that the bits of its steps depend on."""
        job, hardware = self._job.model_dump_json(by_alias=True), self.job_network.hardware
        parts = self._parts.number(broadcast.round)
        context = f"{self._context()} {own_identity()} {torch.__version__} {hardware} {parts} {job}"
        return fingerprint(broadcast, context)

    def _round_scores(self, chain: ClientChain, round_: int) -> dict[str, float]:
        """Scores of the model that a round starts from: the aggregate of the round before, or the initial weights."""
        wanted = round_ > 1 or self._job.evaluation.start
        return self._scoring(chain).of_round(round_ - 1) if wanted else {}

    # --- the evaluation of a final model ----------------------------------------------------------

    def _score(self, broadcast: Broadcast, stop: Callable[[], bool]) -> Scores:
        """The scores of `validate`, which may fine-tune before."""
        trains = self._gate is None or self._gate.trains
        spares = not trains and not isinstance(self._training, Everything)
        tunes = trains and not self._held_out and self._tells_own_model
        with self._session(self._outbound.open(broadcast)) as (run, chain):
            scoring = self._scoring(chain)
            if not spares and not self._store.has_trained(broadcast.round):
                chain.newcomer(self._training)
            cases = CaseScores()
            values, evaluations = scoring.final(cases)
            reference = self._reference(scoring) if self._job.evaluation.reference else None
            risks = None if self._job.evaluation.guarantee is None else self._risks(scoring)
            personal: dict[str, dict[str, float]] = {}
            personal_evaluations: dict[str, Evaluation] = {}
            if tunes and self._methods.fine_tune_epochs:
                run.stop = stop
                self._fine_tune(run, chain)
                cases = CaseScores()
                personal, personal_evaluations = scoring.final(cases)
        # Its own model takes the federation's place in the network, so this comes after the session.
        against_local = None if self._local is None else self._against_local(cases, scoring)
        return Scores(
            site=self.name,
            round=broadcast.round - 1,
            values=values,
            personal=personal,
            evaluations=evaluations,
            personal_evaluation=personal_evaluations.get("test"),
            against_local=against_local,
            reference=reference,
            risks=risks,
        )

    def _scoring(self, chain: ClientChain) -> Scoring:
        assert self._data is not None, "a pooled site has no samples to score on"
        share, file = self._options.share_cases, self._state_folder / COMPARISON_FILE
        return Scoring(self._job, self.name, self._task, self._data, self._net, chain, share, file)

    @property
    def _tells_own_model(self) -> bool:
        """Whether scores of a model that the site trained for itself may leave."""
        return self._gate is None or self._gate.tells_own_model

    def _fine_tune(self, run: Run, chain: ClientChain) -> None:
        """Train the received model for this site alone. The result is neither kept nor sent."""
        changes = {"local_epochs": self._methods.fine_tune_epochs, "local_steps": None, "minutes": None}
        schedule: ScheduleSpec = self._job.task.schedule.model_copy(update=changes)
        run.optimizer = local_training.optimizer_of_round(self._net, self._job, run.round)
        chain.begin(self._training)
        local_training.train(self._task, self._training, chain, run, schedule)

    def _reference(self, scoring: Scoring) -> Reference | None:
        """What the site reports of its scans; nothing if it is held out."""
        describe = self._options.describe_scans
        if self._held_out or describe is None:
            return None
        return describe(self._folder, self.name, self._options.policy, scoring.confidences())

    def _risks(self, scoring: Scoring) -> RiskCurves | None:
        """Risk curves of the received model; nothing, with a line in the log, if the policy does not let them leave."""
        policy = self._options.policy or Policy()
        why = policy.withholds_means
        if why:
            log.info("site %s: no risk curve leaves for evaluation.guarantee: %s", self.name, why)
            return None
        least = policy.least_told
        risks = scoring.risks(least=least)
        if not risks.calibration and not self._held_out:
            log.info(
                "site %s: its validation part has fewer than %d subjects of each structure (privacy.survey_cases, "
                "privacy.min_cases), so no risk curve of it leaves for evaluation.guarantee",
                *(self.name, least),
            )
        return risks

    def _against_local(self, federated: CaseScores, scoring: Scoring) -> LocalComparison | None:
        """The federated model's scores of the test cases against those of the site's own model."""
        if self._local is None or self._task.per_case[0] not in federated.values:
            return None
        newest = self._store.before(self._job.task.schedule.rounds + 1)
        tested = None if newest is None else self._local.test(newest.local)
        return None if tested is None else scoring.compare(federated, tested[1], round_=tested[0])

    # --- what all tasks need ----------------------------------------------------------------------

    def _describe(self, data: SiteData) -> SiteInfo:
        manifest = data.manifest
        return SiteInfo(
            site=self.name,
            kind=manifest.kind,
            n_train=data.count("train"),
            n_val=data.count("val"),
            n_test=data.count("test"),
            manifest_sha256=self._manifest_sha256,
            split_rule=data.split_rule,
            unknown_spacing=manifest.has_unknown_spacing,
            simulated=manifest.simulated or "",
            phantom=None if manifest.phantom is None else manifest.phantom.model_dump(mode="json"),
            cases={split: len(np.unique(data.cases(split))) for split in get_args(Split)},
            **self.job_network.hardware,
        )

    @contextmanager
    def _session(self, broadcast: Broadcast, state: SiteState | None = None) -> Iterator[tuple[Run, ClientChain]]:
        """A received model in the network, with the site's own parts."""
        state, run = state or self._state_before(broadcast.round), self._run(broadcast.round, broadcast.weights)
        with self.job_network.session(broadcast, run, state) as chain:
            yield run, chain

    def _state_before(self, round_: int) -> SiteState:
        """The state that a task of ``round_`` starts from.

        A site that missed the statistics round computes its statistics now, without sending them.
        """
        state = self._store.before(round_)
        return self._measure()[0] if state is None else state

    def _measure(self) -> tuple[SiteState, MethodArrays]:
        state = SiteState()
        with training_out_of_memory(self.name, 0):
            arrays = ClientChain(self._methods, self._run(0, {}), state.methods).statistics(self._training)
        return state, arrays

    def _run(self, round_: int, received: Weights) -> Run:
        job = self._job
        return Run(
            seed=job.seed,
            site=self.name,
            round=round_,
            rounds=job.task.schedule.rounds,
            sites=job.task.sites,
            n_domains=len(job.task.groups),
            net=self._net,
            captured=self.job_network.captured,
            objective=self._task.loss,
            n_classes=len(job.task.classes),
            regions=job.task.made_regions,
            dense=self._task.dense,
            findings=self._task.findings,
            marginal=self._data is not None and self._data.manifest.annotated is not None,
            received=received,
            clip_norm=job.task.optimizer.clip_norm,
            part=self._parts.size(round_),
        )
