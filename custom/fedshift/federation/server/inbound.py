"""What happens to an answer between its arrival and its acceptance: unpack, check, measure, compare with the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fedshift.data.samples import epoch_starts
from fedshift.federation.server.global_model import GlobalModel
from fedshift.federation.server.outliers import medians, outliers
from fedshift.federation.server.score_check import check_scores
from fedshift.federation.server.spool import SpooledUpdate
from fedshift.federation.server.update_check import Change, Ranges, Received, Rejected, check_packed, check_update
from fedshift.federation.site.scoring import SCORED, SCORED_IF_HELD_OUT
from fedshift.methods.base import ArraySpec
from fedshift.methods.method_set import MethodSet
from fedshift.schema.messages import TEST_PREFIX, Scores, Update
from fedshift.tasks.base import Task


class Inbound:
    """Checks answers against the job and the global model; everything that doesn't fit is a `Rejected`."""

    def __init__(self, methods: MethodSet, task: Task, model: GlobalModel) -> None:
        """Prepare for a whole run.

        Args:
            methods: the job's methods.
            task: the job's task.
            model: the server's model, which updates change.
        """
        self._job, self._task, self._model = methods.job, task, model
        self.specs, self._withheld = methods.up, methods.withheld
        self._fine_tunes, self._is_pooled = methods.fine_tune_epochs > 0, methods.pooled is not None
        self.medians: dict[str, float] = {}
        """`fedshift.federation.server.outliers.medians` of the rounds so far; they are part of the server's state."""
        self._kept: Received | None = None

    def forget_model(self) -> None:
        """Updates are from now on compared with the model as it is then; the former one need not stay in memory."""
        self._kept = None

    @property
    def _received(self) -> Received:
        if self._kept is None:
            self._kept = self._compared_with()
        return self._kept

    def check_update(self, update: Update, *, round_: int, n_samples: int) -> tuple[Update, Change]:
        """Unpack and check an update of a site with ``n_samples`` training samples.

        Returns:
            The update with all its weights as arrays, and how far it is from what the site received.

        Raises:
            Rejected: something in it is not as it must be.
        """
        keys = self._model.packed_keys - self._withheld if round_ else frozenset()
        check_packed(update, self._model.weights, keys, self._job.federation.weights_as)
        restored = update.restored(self._model.weights)
        return restored, self._check(restored, round_, n_samples)

    def check_scores(self, scores: Scores, *, round_: int, counts: Mapping[str, int]) -> None:
        """Check a site's scores of the model of ``round_``; ``counts`` are its samples by split.

        Raises:
            Rejected: something in them is not as it must be.
        """
        held_out = scores.site in self._job.task.held_out
        check_scores(
            scores,
            round_=round_,
            metrics=self._task.metrics,
            parts=SCORED_IF_HELD_OUT if held_out else SCORED,
            personal=not held_out and self._fine_tunes,
            counts=counts,
            gradient_norm=self._job.evaluation.gradient_norm,
            n_classes=len(self._job.task.classes),
            per_case=self._task.per_case,
            local=not held_out and self._job.evaluation.local,
            reference_of=self._job.task.dataset if self._job.evaluation.reference and not held_out else None,
        )

    def outliers(self, stored: Sequence[SpooledUpdate], round_: int) -> Iterator[tuple[str, Rejected]]:
        """Sites of a round whose update is far from the others, and why."""
        federation = self._job.federation
        usual = medians(stored, self.medians)
        if round_:  # the statistics round has other arrays
            self.medians = usual
        return outliers(
            stored,
            usual=usual,
            specs=self.specs,
            max_norm_ratio=federation.max_norm_ratio,
            max_sample_ratio=federation.max_sample_ratio,
        )

    def steps(self, n_samples: int) -> int | None:
        """Planned optimiser steps of a round of a site with ``n_samples``; None if the job's method decides."""
        schedule = self._job.task.schedule
        if self._is_pooled:
            return None
        if schedule.local_steps is not None:
            return schedule.local_steps
        starts = epoch_starts(n_samples, batch_size=schedule.batch_size, drop_last=schedule.drop_last)
        return schedule.local_epochs * len(starts)

    def _round_metrics(self) -> Ranges:
        """The scores that updates may have; test scores only if the job has them of rounds."""
        of_test = {f"{TEST_PREFIX}{name}": bounds for name, bounds in self._task.metrics.items()}
        return {**self._task.metrics, **(of_test if self._job.evaluation.every is not None else {})}

    def _compared_with(self) -> Received:
        return Received(self._model.weights, trainable=self._model.trainable, withheld=self._withheld)

    def _check(self, update: Update, round_: int, n_samples: int) -> Change:
        return self._check_clear(update, round_, n_samples, specs=self.specs)

    def _check_clear(
        self, update: Update, round_: int, n_samples: int, *, specs: Mapping[str, Mapping[str, ArraySpec]]
    ) -> Change:
        """Check what is in clear; ``specs`` are of the arrays that are, by method."""
        return check_update(
            update,
            round_=round_,
            received=self._received,
            specs=specs,
            metrics=self._round_metrics(),
            n_samples=n_samples,
            max_norm=self._job.federation.max_update_norm,
            n_steps=self.steps(n_samples),
            fewer_steps=self._job.task.schedule.minutes is not None,
            faults={name: half.fault for name, half in self._model.halves},
        )
