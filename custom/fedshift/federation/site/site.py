"""One site's side of a job: answers to the three tasks. Used by the FLARE executor and in one process alike."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

import fedshift
from fedshift import methods
from fedshift.data.samples import EverySite, Samples, Union
from fedshift.federation.site import local_training
from fedshift.federation.site.answers import AnswerStore, fingerprint
from fedshift.federation.site.state import SiteState, StateStore
from fedshift.methods import ClientChain
from fedshift.methods.base import Run
from fedshift.schema.compression import feed_back, packed_keys
from fedshift.schema.errors import DataError
from fedshift.schema.evaluation import MAX_NUMBER, Evaluation
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import manifest_sha256
from fedshift.schema.messages import Broadcast, MethodArrays, Scores, SiteInfo, Update, Weights
from fedshift.schema.policy import Policy
from fedshift.schema.seeding import derive_seed
from fedshift.tasks.base import Everything, Part, SiteData, build_task
from fedshift.tasks.device import choose_device, device_name
from fedshift.tasks.out_of_memory import told_of_memory
from fedshift.tasks.precision import prepare, settled, use_threads

if TYPE_CHECKING:
    from fedshift.federation.site.privacy.gate import Gate

log = logging.getLogger("fedshift")

SCORED: tuple[Part, ...] = ("val", "test")
SCORED_IF_HELD_OUT: tuple[Part, ...] = ("all", "test")


Release = Callable[[Update], Update]
"""A site's policy: what of an answer may leave."""


class _Machine(TypedDict):
    """On what a site computes, as `SiteInfo` has it."""

    device: str
    precision: str
    threads: int


@dataclass
class _Session:
    """A task in progress: methods attached to the network, with the state they start from."""

    run: Run
    chain: ClientChain
    state: SiteState


class Site:
    """A site in a job: data, network, and a folder for what it must remember."""

    _data: SiteData | None
    _net: nn.Module
    _machine: _Machine
    _gate: Gate | None = None
    _answers: AnswerStore | None = None

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
        keep_answers: bool = False,
        share_cases: bool = True,
        workers: int | None = None,
    ) -> None:
        """Open the site's data.

        Args:
            job: the resolved job.
            name: the site.
            data: the site's prepared folder.
            state: folder for state files of this job; one site writes to ``state/<name>``.
            device: where to train, as torch names it; ``auto`` is a GPU if there is one.
            beside: another site of the job in this process, whose network this one uses too. A network holds nothing
                from one task to the next.
            privacy: the site's own rules of what may leave; None is none.
            keep_answers: whether a training task that comes again is answered as before and not done again.
            share_cases: whether a final model's scores of single cases may leave.
            workers: processes that work on this machine side by side, for ``schedule.threads=auto``; None as for
                `fedshift.tasks.machine.own_cores`.

        Raises:
            DataError: the data cannot be used.
        """
        self._data = build_task(job).open(data, name)
        self._manifest_sha256 = manifest_sha256(data)
        self._share_cases = share_cases
        training = self._data if self._data.n_train else Everything(self._data)
        self._set_up(job, name, training, state, device, beside, workers)
        rules = "" if privacy is None else privacy.model_dump_json()
        self._context = f"{fedshift.__version__} {self._manifest_sha256} {rules}"
        self._answers = AnswerStore(state / name) if keep_answers else None
        if privacy is not None:
            from fedshift.federation.site.privacy.gate import Gate  # brings scipy, which others can do without

            self._gate = Gate(
                privacy,
                site=name,
                job=job,
                task=self._task,
                loaded=self._methods,
                net=self._net,
                data=self._data,
                folder=state / name,
            )

    def _set_up(
        self,
        job: JobSpec,
        name: str,
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
        self._task = build_task(job)
        self._methods = methods.load(job.methods)
        if beside is None:
            place, threads = choose_device(device), use_threads(schedule.threads, workers=workers)
            with told_of_memory(name):
                self._net = prepare(self._task.network(), schedule.precision, place)
            self._machine = {
                "device": device_name(place),
                "precision": settled(schedule.precision, place),
                "threads": threads,
            }
        else:
            self._net, self._machine = beside._net, beside._machine
        self._store = StateStore(state / name)

    @property
    def network(self) -> nn.Module:
        """The job's network; between tasks it holds nothing that lasts."""
        return self._net

    def info(self) -> SiteInfo:
        """Counts and fingerprint of the site's data, and on what it computes."""
        assert self._data is not None
        return SiteInfo(
            site=self.name,
            kind=self._data.manifest.kind,
            n_train=self._data.count("train"),
            n_val=self._data.count("val"),
            n_test=self._data.count("test"),
            manifest_sha256=self._manifest_sha256,
            split_rule=self._data.split_rule,
            unknown_spacing=self._data.manifest.has_unknown_spacing,
            **self._machine,
        )

    def statistics(self) -> Update:
        """Round 0: what the methods want to know about the site's images.

        Raises:
            PolicyError: the site's policy forbids that it leaves.
        """
        return self._policed(Broadcast(round=0, best_round=0, weights={}), lambda release: release(self._measured()))

    def _measured(self) -> Update:
        state, arrays = self._measure()
        self._store.write(0, state, best_round=0)
        return Update(site=self.name, round=0, n_samples=self._training.n_train, n_steps=0, arrays=arrays)

    def train(self, broadcast: Broadcast, *, stop: Callable[[], bool] = lambda: False) -> Update:
        """Score the received model, train it, and answer with the result.

        Args:
            broadcast: the round's weights and arrays.
            stop: asked before every batch whether the run was ended from outside.

        Raises:
            DataError: training diverged.
            PolicyError: the site's policy forbids that it leaves.
            Stopped: ``stop`` said so; nothing was written.
        """
        broadcast = broadcast.unpacked()
        if self._answers is None:
            return self._policed(broadcast, lambda release: self._trained(broadcast, stop, release))
        task = fingerprint(broadcast, self._context)
        known = self._answers.find(task)
        if known is not None:
            log.warning("site %s: round %d has come again: its answer is sent again", self.name, broadcast.round)
            return known
        update = self._policed(broadcast, lambda release: self._trained(broadcast, stop, release))
        self._answers.keep(task, update)
        return update

    def _policed(self, broadcast: Broadcast, work: Callable[[Release], Update]) -> Update:
        """The answer that ``work`` makes; the policy is asked before any work is done, and makes what it gets leave."""
        gate = self._gate
        if gate is None:
            return work(lambda update: update)
        asked = gate.admit(broadcast)
        return work(lambda update: gate.release(update, broadcast, asked))

    def _trained(self, broadcast: Broadcast, stop: Callable[[], bool], release: Release) -> Update:
        started = time.monotonic()
        schedule = self._job.task.schedule
        with self._session(broadcast, self._state_before(broadcast.round)) as session:
            run, chain = session.run, session.chain
            run.stop = stop
            if broadcast.round > 1 and not self._store.has_trained(broadcast.round):
                chain.newcomer(self._training)
            metrics = self._scores(chain, "val") if broadcast.round > 1 else {}
            run.optimizer = local_training.make_optimizer(self._net, self._job.task.optimizer)
            if session.state.optimizer is not None:
                run.optimizer.load_state_dict(session.state.optimizer)
            chain.begin(self._training)
            n_steps, loss = local_training.train(self._task, self._training, chain, run, schedule)
            if not np.isfinite(loss):
                raise DataError(
                    f"site {self.name}, round {broadcast.round}: the training loss is {loss}; lower optimizer.lr or "
                    "check the site's images with 'fedshift data check'"
                )
            arrays = chain.end(self._training)
            personal, withheld = chain.personal(self._net), chain.withheld(self._net)
            weights = read_weights(self._net)
            if not all(np.isfinite(value).all() for value in weights.values()):
                # Before anything is written: the optimiser's state is as broken as the weights.
                raise DataError(
                    f"site {self.name}, round {broadcast.round}: the weights are not finite after training; lower "
                    "optimizer.lr or check the site's images with 'fedshift data check'"
                )
            update = Update(
                site=self.name,
                round=broadcast.round,
                n_samples=self._training.n_train,
                n_steps=n_steps,
                weights={key: value for key, value in weights.items() if key not in withheld},
                metrics={**metrics, "train_loss": loss, "seconds": time.monotonic() - started},
                arrays=arrays,
            )
            update, residual = self._packed(release(update), broadcast.weights, session.state.residual)
            self._store.write(
                broadcast.round,
                SiteState(
                    optimizer=run.optimizer.state_dict() if self._job.task.optimizer.keep else None,
                    personal={key: torch.from_numpy(weights[key]) for key in sorted(personal)},
                    methods=session.state.methods,
                    residual=residual,
                ),
                best_round=broadcast.best_round,
            )
        return update

    def _packed(
        self, update: Update, received: Weights, residual: Mapping[str, Tensor]
    ) -> tuple[Update, dict[str, Tensor]]:
        """An answer as the job wants it on the wire, and what that leaves out.

        A site's policy has acted before: what is sent and what is left out are made of what may leave.
        """
        weights_as = self._job.federation.weights_as
        keys = packed_keys(update.weights, dict(self._net.named_parameters()), weights_as)
        if not keys:
            return update, {}
        change = {key: update.weights[key] - received[key] for key in update.weights if key in keys}
        packed, left = feed_back(change, {key: value.numpy() for key, value in residual.items()}, weights_as)
        plain = {key: value for key, value in update.weights.items() if key not in keys}
        return replace(update, weights=plain, packed=packed), {k: torch.from_numpy(v) for k, v in left.items()}

    def score(self, broadcast: Broadcast, part: Part) -> dict[str, float]:
        """Scores of the received model on one part of the site, as `validate` has them."""
        with self._session(broadcast, self._state_before(broadcast.round)) as session:
            return self._scores(session.chain, part)

    def validate(self, broadcast: Broadcast, *, stop: Callable[[], bool] = lambda: False) -> Scores:
        """Score an aggregate on what it was not trained on; ``broadcast.round`` is one after the round that made it.

        A site that is held out scores it on all samples, and on its test part. ``stop`` is asked as in `train`, where
        a method fine-tunes; a held-out site trains nothing. Nor does one whose policy says so, which measures nothing
        of its training images for a method's newcomers either, or whose policy puts noise on the network: there is
        none on a model that it would train for itself.
        """
        trains = self._gate is None or self._gate.trains
        spares = not trains and not isinstance(self._training, Everything)
        with self._session(broadcast, self._state_before(broadcast.round)) as session:
            if not spares and not self._store.has_trained(broadcast.round):
                session.chain.newcomer(self._training)
            values, evaluations = self._told(session.chain)
            personal: dict[str, dict[str, float]] = {}
            own: Evaluation | None = None
            tunes = trains and not self._held_out and (self._gate is None or self._gate.tells_own_model)
            epochs = session.chain.fine_tune() if tunes else 0
            if epochs:
                session.run.stop = stop
                self._fine_tune(session, epochs)
                personal, owns = self._told(session.chain)
                own = owns.get("test")
        return Scores(
            site=self.name,
            round=broadcast.round - 1,
            values=values,
            personal=personal,
            evaluations=evaluations,
            personal_evaluation=own,
        )

    def evaluate(self, broadcast: Broadcast, part: Part) -> Evaluation:
        """All that can be told of a received model on one part of the site, which must have samples."""
        with self._session(broadcast, self._state_before(broadcast.round)) as session:
            return self._evaluation(session.chain, part)

    def predictions(self, broadcast: Broadcast, part: Part) -> Iterator[Tensor]:
        """A received model's probabilities for one part of the site, batch by batch, (B, K, …) on the CPU."""
        assert self._data is not None
        with self._session(broadcast, self._state_before(broadcast.round)) as session:
            yield from local_training.probabilities(self._data, session.chain, self._net, part, self._job.task.schedule)

    def _fine_tune(self, session: _Session, epochs: int) -> None:
        """Train the received model for this site alone; nothing of it is kept or sent."""
        schedule = self._job.task.schedule.model_copy(update={"local_epochs": epochs, "local_steps": None})
        session.run.optimizer = local_training.make_optimizer(self._net, self._job.task.optimizer)
        session.chain.begin(self._training)
        local_training.train(self._task, self._training, session.chain, session.run, schedule)

    def _told(self, chain: ClientChain) -> tuple[dict[str, dict[str, float]], dict[str, Evaluation]]:
        """Scores of a final model on each part, and more of all parts but validation, which only selects."""
        assert self._data is not None
        values: dict[str, dict[str, float]] = {}
        told: dict[str, Evaluation] = {}
        norm = self._job.evaluation.gradient_norm
        for part in SCORED_IF_HELD_OUT if self._held_out else SCORED:
            if not self._data.count(part):
                continue
            if part != "val":
                told[part] = self._evaluation(chain, part)
                values[part] = dict(told[part].scores)
            else:
                values[part] = self._scores(chain, part)
                if norm:
                    told[part] = Evaluation(scores=values[part])
            if norm and part != "test":
                length = local_training.gradient_norm(self._task, self._data, chain, self._net, part)
                told[part] = told[part].model_copy(update={"gradient_norm": length if length <= MAX_NUMBER else None})
        return values, told

    def _evaluation(self, chain: ClientChain, part: Part) -> Evaluation:
        assert self._data is not None
        return self._task.evaluate(
            local_training.probabilities(self._data, chain, self._net, part, self._job.task.schedule),
            self._data,
            part,
            seed=derive_seed(self._job.seed, self.name, 0, "bootstrap"),
            share_cases=self._share_cases,
        )

    def _state_before(self, round_: int) -> SiteState:
        """The state that a task of ``round_`` starts from.

        A site that missed the statistics round measures itself now; nothing of that is sent.
        """
        state = self._store.before(round_)
        return self._measure()[0] if state is None else state

    def _measure(self) -> tuple[SiteState, MethodArrays]:
        state = SiteState()
        with told_of_memory(self.name, 0):
            arrays = ClientChain(self._methods, self._run(0, {}), state.methods).statistics(self._training)
        return state, arrays

    def _scores(self, chain: ClientChain, part: Part) -> dict[str, float]:
        if self._data is None or not self._data.count(part):
            return {}
        predictions = local_training.predict(self._data, chain, self._net, part, self._job.task.schedule)
        return self._task.scores(predictions, self._data, part)

    def _run(self, round_: int, received: Weights) -> Run:
        job = self._job
        return Run(
            seed=job.seed,
            site=self.name,
            round=round_,
            rounds=job.task.schedule.rounds,
            sites=job.task.sites,
            net=self._net,
            objective=self._task.loss,
            n_classes=len(job.task.classes),
            images_are_slices=self._task.images_are_slices,
            received=received,
        )

    @contextmanager
    def _session(self, broadcast: Broadcast, state: SiteState) -> Iterator[_Session]:
        """The network with the received weights, personal parts and attached methods; undone afterwards."""
        broadcast = broadcast.unpacked()
        run = self._run(broadcast.round, broadcast.weights)
        chain = ClientChain(self._methods, run, state.methods)
        load_weights(self._net, broadcast.weights)
        if state.personal:
            self._net.load_state_dict(state.personal, strict=False)
        handles = chain.attach(self._net)
        try:
            with told_of_memory(self.name, broadcast.round):
                chain.receive(broadcast.arrays)
                yield _Session(run, chain, state)
        finally:
            for handle in handles:
                handle.remove()


class PooledSite(Site):
    """All sites' training images in one place, for the centralised references; it has nothing to score on."""

    def __init__(self, job: JobSpec, *, data: Mapping[str, Path], state: Path, device: str = "auto") -> None:
        """``data``: each site's prepared folder; the rest as for `Site`."""
        task = build_task(job)
        parts = [task.open(data[site], site) for site in job.task.sites]
        reference = methods.reference_in(methods.load(job.methods))
        mixed = reference is not None and reference.client().trains_on == "union"
        self._data = None
        self._set_up(job, "all sites", Union(parts) if mixed else EverySite(parts), state, device)


def read_weights(net: nn.Module) -> Weights:
    """A copy of the network's state as numpy arrays with plain keys."""
    return {key: value.detach().cpu().numpy().copy() for key, value in net.state_dict().items()}


def load_weights(net: nn.Module, weights: Weights) -> None:
    """Put weights into a network; missing, extra or misshapen keys are an error of torch's."""
    net.load_state_dict({key: torch.from_numpy(np.asarray(value)) for key, value in weights.items()})
