"""A site in a job: it answers the tasks statistics, train and validate, under FLARE and in one process alike."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, get_args

import numpy as np
import torch
from torch import Tensor, nn

import fedshift
from fedshift.data.samples import EverySite, Samples, Union
from fedshift.federation.site import local_training
from fedshift.federation.site.answers import AnswerStore, fingerprint
from fedshift.federation.site.checkpoint import Checkpoint, forget
from fedshift.federation.site.local_model import LocalModel
from fedshift.federation.site.outbound import Encryption, Outbound
from fedshift.federation.site.scoring import Scoring
from fedshift.federation.site.state import SiteState, StateStore
from fedshift.federation.weights import load_weights, read_weights, require_weights
from fedshift.methods.base import Run
from fedshift.methods.chain import ClientChain
from fedshift.methods.method_set import MethodSet, pooled_reference
from fedshift.schema.errors import DataError, PolicyError
from fedshift.schema.evaluation import Evaluation
from fedshift.schema.identity import own_identity
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import Split, manifest_sha256
from fedshift.schema.messages import Broadcast, MethodArrays, Scores, SiteInfo, Update, Weights
from fedshift.schema.optimizer import OptimizerSpec
from fedshift.schema.paired import OWN_FILE, LocalComparison
from fedshift.schema.policy import Policy
from fedshift.schema.reference import Reference
from fedshift.tasks.base import CaseScores, Everything, SiteData, Subset, Task
from fedshift.tasks.device import choose_device, device_name
from fedshift.tasks.kinds import build_task
from fedshift.tasks.out_of_memory import training_out_of_memory
from fedshift.tasks.precision import prepare, settled, use_threads

if TYPE_CHECKING:
    from fedshift.federation.site.privacy.gate import Gate

log = logging.getLogger("fedshift")

Tell = Callable[[Path, str, Policy | None, Sequence[float | None]], Reference | None]
"""`fedshift.federation.reference.site_reference`."""


class _Machine(TypedDict):
    """The hardware that a site computes on, as in `SiteInfo`."""

    device: str
    precision: str
    threads: int


@dataclass
class _Session:
    """A task in progress: the methods are attached to the network, ``state`` is what they started from."""

    run: Run
    chain: ClientChain
    state: SiteState


class Site:
    """A site in a job: its data, the network, and a folder for its state."""

    _data: SiteData | None
    _scoring: Scoring | None = None
    _net: nn.Module
    _machine: _Machine
    _methods: MethodSet
    _gate: Gate | None = None
    _answers: AnswerStore | None = None
    _local: LocalModel | None = None
    _policy: Policy | None = None

    def __init__(
        self,
        job: JobSpec,
        name: str,
        *,
        data: Path,
        state: Path,
        device: str = "auto",
        beside: Site | None = None,
        privacy: Policy | None = None,
        ledger: Path | None = None,
        keep_answers: bool = False,
        share_cases: bool = True,
        workers: int | None = None,
        encryption: Encryption | None = None,
        tell: Tell | None = None,
    ) -> None:
        """Open the site's data.

        Args:
            job: the resolved job.
            name: the site.
            data: the site's prepared folder.
            state: folder for state files of this job; the site writes to ``state/<name>``.
            device: where to train, as a PyTorch device name; ``auto`` is a GPU if there is one.
            beside: another site of the job in this process whose network this site uses too. The network keeps nothing
                from one task to the next.
            privacy: the site's policy; None if it has none.
            ledger: folder of the account of what left with noise; None for that of the job's state.
            keep_answers: whether a training task that comes again is answered from disk and not repeated.
            share_cases: whether scores of single cases of a final model may leave.
            workers: processes that work in parallel on this machine, for ``schedule.threads=auto``; None as for
                `fedshift.tasks.machine.own_cores`.
            encryption: decrypts broadcasts and encrypts answers; None if the job does not encrypt.
            tell: makes what leaves if the job has ``evaluation.reference``; None if nothing may.

        Raises:
            DataError: the data cannot be used.
        """
        task = build_task(job)
        self._data = task.open(data, name)
        self._manifest_sha256 = manifest_sha256(data)
        self._folder, self._policy, self._tell = data, privacy, tell
        training = self._data if self._data.n_train else Everything(self._data)
        self._set_up(job, name, task.at(self._data), training, state, device, beside, workers)
        self._scoring = Scoring(
            job,
            name,
            task=self._task,
            data=self._data,
            net=self._net,
            share_cases=share_cases,
            own_file=self._state_folder / OWN_FILE,
        )
        self._answers = AnswerStore(state / name) if keep_answers else None
        if privacy is not None:
            from fedshift.federation.site.privacy.gate import Gate  # imports scipy, needed with a policy only

            self._gate = Gate(
                privacy,
                site=name,
                task=self._task,
                methods=self._methods,
                data=self._data,
                folder=state / name,
                ledger=ledger or state / name,
                encrypts=encryption is not None,
            )
        self._outbound = Outbound(self._methods, gate=self._gate, encryption=encryption)
        if job.evaluation.local and not self._held_out:
            self._local = self._local_model(self._data)

    def _local_model(self, data: SiteData) -> LocalModel | None:
        if self._gate is not None and not self._gate.tells_own_model:
            log.warning(
                "site %s: it trains no model of its own to compare with (evaluation.local), because its policy puts "
                "noise on the network and scores of such a model would have none",
                self.name,
            )
            return None
        log.info("site %s: it trains a model of its own beside the federation's: twice the training time", self.name)
        return LocalModel(
            self._job,
            self.name,
            net=self._net,
            task=self._task,
            data=data,
            training=self._training,
            run=self._run,
        )

    def _set_up(
        self,
        job: JobSpec,
        name: str,
        task: Task,
        training: Samples,
        state: Path,
        device: str,
        beside: Site | None = None,
        workers: int | None = None,
    ) -> None:
        schedule = job.task.schedule
        self.name = name
        self._job = job
        self._held_out = name in job.task.held_out
        self._training = training
        self._task = task
        if beside is None:
            place, threads = choose_device(device), use_threads(schedule.threads, workers=workers)
            with training_out_of_memory(name):
                self._net = prepare(self._task.network(), schedule.precision, place)
            self._machine = {
                "device": device_name(place),
                "precision": settled(schedule.precision, place),
                "threads": threads,
            }
            self._methods = MethodSet(job, self._net)
        else:
            self._net, self._machine, self._methods = beside._net, beside._machine, beside._methods
        self._state_folder = state / name
        self._store = StateStore(self._state_folder)

    @property
    def network(self) -> nn.Module:
        """The job's network. It keeps nothing from one task to the next."""
        return self._net

    def info(self) -> SiteInfo:
        """Counts and fingerprint of the site's data, and its hardware."""
        assert self._data is not None
        made_with = self._data.manifest.phantom
        return SiteInfo(
            site=self.name,
            kind=self._data.manifest.kind,
            n_train=self._data.count("train"),
            n_val=self._data.count("val"),
            n_test=self._data.count("test"),
            manifest_sha256=self._manifest_sha256,
            split_rule=self._data.split_rule,
            unknown_spacing=self._data.manifest.has_unknown_spacing,
            simulated=self._data.manifest.simulated or "",
            phantom=None if made_with is None else made_with.model_dump(mode="json"),
            cases={split: len(np.unique(self._data.cases(split))) for split in get_args(Split)},
            **self._machine,
        )

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
        is in the result.

        Args:
            broadcast: the round's weights and arrays.
            stop: called before every batch; returns whether the run was ended from outside.

        Raises:
            ConfigError: the broadcast cannot be decrypted.
            DataError: training diverged, or the received weights are not the network's.
            PolicyError: the site's policy forbids the task, it is none of the job's rounds, or the site trains in none.
            Stopped: ``stop`` returned True; nothing was written.
        """
        self.require_training()
        self._require_round(broadcast, self._job.task.schedule.rounds)
        received, broadcast = broadcast, self._outbound.open(broadcast)
        if self._answers is None:
            return self._trained(broadcast, stop)
        task = fingerprint(received, self._context())  # an encrypted answer depends on all of the message
        known = self._answers.find(task)
        if known is not None:
            log.warning("site %s: round %d has come again: its answer is sent again", self.name, broadcast.round)
            return known
        update = self._trained(broadcast, stop)
        self._answers.keep(task, update)
        return update

    def unmask(self, broadcast: Broadcast) -> Update:
        """Answer the server's question for what unmasks the sum of a round (``federation.encryption: masks``).

        Raises:
            PolicyError: it is not one that the site may answer.
        """
        self.require_training()
        self._require_round(broadcast, self._job.task.schedule.rounds)
        return self._outbound.unmask(broadcast)

    def require_training(self) -> None:
        """Refuse what only sites that train may be asked for. What others sent would be neither masked nor summed.

        Raises:
            PolicyError: the job holds the site out, or does not name it.
        """
        if self.name not in self._job.task.sites:
            raise self._no_part("trains nothing")

    def _trained(self, broadcast: Broadcast, stop: Callable[[], bool]) -> Update:
        permit = self._outbound.admit(broadcast)
        before = self._state_before(broadcast.round)
        schedule = self._job.task.schedule
        checkpoint = Checkpoint(
            self._state_folder,
            partial(self._exactly, broadcast),
            minutes=schedule.checkpoint_minutes if self._methods.resumable else None,
        )
        local: dict[str, Any] = {}
        if self._local is not None:
            own = partial(self._local.train, broadcast.round, before.local, received=broadcast.weights, stop=stop)
            local = checkpoint.done("local", lambda: own(loop=checkpoint.loop("local")))
        started = time.monotonic()
        with self._session(broadcast, before) as session:
            run, chain = session.run, session.chain
            run.stop = stop
            if broadcast.round > 1 and not self._store.has_trained(broadcast.round):
                chain.newcomer(self._training)
            metrics = checkpoint.done("metrics", lambda: self._round_scores(chain, broadcast.round))
            spec = self._optimizer_at(broadcast.round)
            run.optimizer = local_training.make_optimizer(self._net, spec)
            if session.state.optimizer is not None:
                local_training.restore_optimizer(run.optimizer, session.state.optimizer, spec)
            chain.begin(self._training)
            private = None if self._gate is None else self._gate.training(permit)
            loop = checkpoint.loop("training")
            if private is None or self._data is None:
                n_steps, loss = local_training.train(self._task, self._training, chain, run, schedule, loop)
            else:
                n_steps, loss = private.train(self._task, self._data, chain, run, loop)
            if not np.isfinite(loss):
                raise DataError(
                    f"site {self.name}, round {broadcast.round}: the training loss is {loss}; lower optimizer.lr or "
                    "check the site's images with 'fedshift data check'"
                )
            arrays = chain.end(self._training)
            weights = read_weights(self._net)
            if not all(np.isfinite(value).all() for value in weights.values()):
                # Nothing may be written: the optimiser's state is not finite either.
                raise DataError(
                    f"site {self.name}, round {broadcast.round}: the weights are not finite after training; lower "
                    "optimizer.lr or check the site's images with 'fedshift data check'"
                )
            update = Update(
                site=self.name,
                round=broadcast.round,
                n_samples=self._training.n_train,
                n_steps=n_steps,
                weights={key: value for key, value in weights.items() if key not in self._methods.withheld},
                metrics={**metrics, "train_loss": loss, "seconds": loop.seconds_before + time.monotonic() - started},
                arrays=arrays,
            )
            update, residual = self._outbound.send(update, broadcast, permit=permit, residual=session.state.residual)
            self._store.write(
                broadcast.round,
                SiteState(
                    optimizer=run.optimizer.state_dict() if self._job.task.optimizer.keep else None,
                    personal={key: torch.from_numpy(weights[key]) for key in sorted(self._methods.personal)},
                    methods=session.state.methods,
                    residual=residual,
                    local=local,
                ),
                best_round=broadcast.best_round,
            )
            checkpoint.remove()
        return update

    def _context(self) -> str:
        """What an answer depends on besides the task."""
        rules = "" if self._policy is None else self._policy.model_dump_json()
        return f"{fedshift.__version__} {self._manifest_sha256} {rules}"

    def _exactly(self, broadcast: Broadcast) -> str:
        """The fingerprint of a task and of all that the bits of its steps depend on."""
        job = self._job.model_dump_json(by_alias=True)
        return fingerprint(broadcast, f"{self._context()} {own_identity()} {torch.__version__} {self._machine} {job}")

    def round_scores(self, broadcast: Broadcast) -> dict[str, float]:
        """Scores of a received model as an update has them in its ``metrics``; none of the initial model."""
        broadcast = self._outbound.open(broadcast)
        with self._session(broadcast, self._state_before(broadcast.round)) as session:
            return self._round_scores(session.chain, broadcast.round)

    def score(self, broadcast: Broadcast, subset: Subset) -> dict[str, float]:
        """Score a received model on one subset of the site, as `validate` does."""
        broadcast = self._outbound.open(broadcast)
        with self._session(broadcast, self._state_before(broadcast.round)) as session:
            return {} if self._scoring is None else self._scoring.scores(session.chain, subset)

    def validate(self, broadcast: Broadcast, *, stop: Callable[[], bool] = lambda: False) -> Scores:
        """Score the last or the best aggregate on the splits that it was not trained on.

        A held-out site scores it on all samples, and on its test split. If a method fine-tunes, the site then trains
        the model for itself and scores it again. Held-out sites do not fine-tune, nor do sites whose policy forbids
        training (which do not measure their training images for ``newcomer`` either) or adds noise to the network,
        because a model trained for the site alone would have none. If the job has each site train a model of its own
        (``evaluation.local``), the two are compared on the test split.

        Args:
            broadcast: the model; ``broadcast.round`` is one after the round that made it.
            stop: as in `train`, for fine-tuning.

        Raises:
            ConfigError: the broadcast cannot be decrypted.
            DataError: the received weights are not the network's.
            PolicyError: it is none of the job's models, or the job does not name the site.
            Stopped: ``stop`` returned True.
        """
        if self.name not in self._job.task.everyone:
            raise self._no_part("scores nothing")
        self._require_round(broadcast, self._job.task.schedule.rounds + 1)
        forget(self._state_folder)
        broadcast = self._outbound.open(broadcast)
        trains = self._gate is None or self._gate.trains
        spares = not trains and not isinstance(self._training, Everything)
        with self._session(broadcast, self._state_before(broadcast.round)) as session:
            if not spares and not self._store.has_trained(broadcast.round):
                session.chain.newcomer(self._training)
            cases = CaseScores()
            values, evaluations = self._own_scoring.final(session.chain, cases)
            reference = self._reference(session.chain) if self._job.evaluation.reference else None
            personal: dict[str, dict[str, float]] = {}
            own: Evaluation | None = None
            tunes = trains and not self._held_out and (self._gate is None or self._gate.tells_own_model)
            epochs = self._methods.fine_tune_epochs if tunes else 0
            if epochs:
                session.run.stop = stop
                self._fine_tune(session, epochs)
                cases = CaseScores()
                personal, owns = self._own_scoring.final(session.chain, cases)
                own = owns.get("test")
        return Scores(
            site=self.name,
            round=broadcast.round - 1,
            values=values,
            personal=personal,
            evaluations=evaluations,
            personal_evaluation=own,
            against_local=self._against_local(cases),
            reference=reference,
        )

    def _against_local(self, federated: CaseScores) -> LocalComparison | None:
        """The federated model's scores of the test cases against those of the site's own model, if it has one."""
        if self._local is None or self._task.per_case[0] not in federated.values:
            return None
        newest = self._store.before(self._job.task.schedule.rounds + 1)
        tested = None if newest is None else self._local.test(newest.local)
        if tested is None:
            return None
        round_, local = tested
        return self._own_scoring.compare(federated, local, round_=round_)

    def evaluate(self, broadcast: Broadcast, subset: Subset) -> Evaluation:
        """Evaluate a received model on one subset of the site, which must have samples."""
        broadcast = self._outbound.open(broadcast)
        with self._session(broadcast, self._state_before(broadcast.round)) as session:
            return self._own_scoring.evaluate(session.chain, subset)

    def gradient(self, broadcast: Broadcast, subset: Subset) -> list[Tensor]:
        """Gradient of a received model's mean loss over one subset of the site, which must have samples.

        For runs in one process; a site never sends it.
        """
        broadcast = self._outbound.open(broadcast)
        with self._session(broadcast, self._state_before(broadcast.round)) as session:
            return self._own_scoring.gradient(session.chain, subset)

    def predictions(self, broadcast: Broadcast, subset: Subset) -> Iterator[Tensor]:
        """Yield a received model's class probabilities for one subset of the site, by batches, (B, K, …) on the CPU."""
        broadcast = self._outbound.open(broadcast)
        with self._session(broadcast, self._state_before(broadcast.round)) as session:
            yield from self._own_scoring.probabilities(session.chain, subset)

    @property
    def _own_scoring(self) -> Scoring:
        assert self._scoring is not None, "a pooled site has no samples to score on"
        return self._scoring

    def _round_scores(self, chain: ClientChain, round_: int) -> dict[str, float]:
        """Scores of the model that round ``round_`` starts from: the aggregate of the round before."""
        return {} if self._scoring is None else self._scoring.of_round(chain, round_ - 1)

    def _fine_tune(self, session: _Session, epochs: int) -> None:
        """Train the received model for this site alone. The result is neither kept nor sent."""
        schedule = self._job.task.schedule.model_copy(
            update={"local_epochs": epochs, "local_steps": None, "minutes": None}
        )
        spec = self._optimizer_at(session.run.round)
        session.run.optimizer = local_training.make_optimizer(self._net, spec)
        session.chain.begin(self._training)
        local_training.train(self._task, self._training, session.chain, session.run, schedule)

    def _reference(self, chain: ClientChain) -> Reference | None:
        """What the site tells of its scans; nothing if it is held out."""
        if self._held_out or self._tell is None:
            return None
        return self._tell(self._folder, self.name, self._policy, self._own_scoring.confidences(chain))

    def _require_round(self, broadcast: Broadcast, last: int) -> None:
        """Refuse a task of a round that the job does not have: noise is worked out for the job's rounds and no more."""
        if not 1 <= broadcast.round <= last:
            raise PolicyError(
                f"site {self.name}: round {broadcast.round} is beyond the job's {last}, or before its first: ask who "
                "runs the server, or start another job"
            )

    def _no_part(self, does: str) -> PolicyError:
        how = "is held out of" if self._held_out else "is not named by"
        return PolicyError(
            f"site {self.name}: it {how} job {self._job.name} and {does} for it, and no honest server asks it to: ask "
            "who runs the server"
        )

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

    def _optimizer_at(self, round_: int) -> OptimizerSpec:
        task = self._job.task
        return task.optimizer.at(round_, task.schedule.rounds)

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
            objective=self._task.loss,
            n_classes=len(job.task.classes),
            dense=self._task.dense,
            marginal=self._data is not None and self._data.manifest.annotated is not None,
            received=received,
            clip_norm=job.task.optimizer.clip_norm,
        )

    @contextmanager
    def _session(self, broadcast: Broadcast, state: SiteState) -> Iterator[_Session]:
        """Load the received and the personal weights and attach the methods; detach them afterwards."""
        run = self._run(broadcast.round, broadcast.weights)
        chain = ClientChain(self._methods, run, state.methods)
        require_weights(self._net, broadcast.weights, f"site {self.name}, round {broadcast.round}")
        load_weights(self._net, broadcast.weights)
        if state.personal:
            self._net.load_state_dict(state.personal, strict=False)
        handles = chain.attach(self._net)
        try:
            with training_out_of_memory(self.name, broadcast.round):
                chain.receive(broadcast.arrays)
                yield _Session(run, chain, state)
        finally:
            for handle in handles:
                handle.remove()


class PooledSite(Site):
    """All sites' training images in one place, for centralised references. It has no data to score on."""

    def __init__(self, job: JobSpec, *, data: Mapping[str, Path], state: Path, device: str = "auto") -> None:
        """``data``: each site's prepared folder; the rest as for `Site`."""
        task = build_task(job)
        opened = {site: task.open(data[site], site) for site in job.task.sites}
        task = task.at(next(iter(opened.values())))
        annotated = {one.manifest.annotated for one in opened.values()}
        if len(annotated) > 1:
            raise DataError("sites that outline different classes cannot be pooled: choose sites that outline the same")
        domains = [Union([opened[site] for site in sites]) for sites in job.task.groups]
        reference = pooled_reference(job.methods)
        mixed = reference is not None and reference.client().trains_on == "union"
        self._data = None
        self._manifest_sha256 = " ".join(manifest_sha256(data[site]) for site in job.task.sites)
        self._set_up(job, "all sites", task, Union(domains) if mixed else EverySite(domains), state, device)
        self._outbound = Outbound(self._methods)

    def require_training(self) -> None:
        """It stands for all sites that train."""
