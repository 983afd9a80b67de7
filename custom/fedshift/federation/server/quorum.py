"""Which sites a round asks, and how many must answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from fedshift.schema.errors import QuorumError
from fedshift.schema.job import JobSpec
from fedshift.schema.seeding import generator


class Quorum:
    """Whom a round asks, and how many must answer. Round 0 is the statistics round, ``rounds`` + 1 the evaluation."""

    def __init__(self, job: JobSpec) -> None:
        self._job = job
        self.last_round = job.task.schedule.rounds
        """The last training round; earlier in a run that ends early."""

    @property
    def samples_sites(self) -> bool:
        """Whether each training round asks only some of the sites, drawn at random."""
        return self._asked < len(self._job.task.sites)

    @property
    def _asked(self) -> int:
        return min(self._job.federation.sites_per_round or len(self._job.task.sites), len(self._job.task.sites))

    def invited(self, round_: int) -> tuple[str, ...]:
        """Sites asked in a round: all training sites, or those drawn for it; held-out sites in the final evaluation."""
        if round_ > self.last_round:
            return self._job.task.everyone
        return self._drawn(round_) if round_ and self.samples_sites else self._job.task.sites

    def _drawn(self, round_: int) -> tuple[str, ...]:
        sites = self._job.task.sites
        rng = generator(self._job.seed, "server", round_, "sites")
        drawn = sorted(torch.randperm(len(sites), generator=rng)[: self._asked].tolist())
        return tuple(sites[number] for number in drawn)

    def needed(self, round_: int) -> int:
        """Minimum usable answers for a round. Sampling sites doesn't change how many may fail."""
        return self._job.federation.min_sites + len(self._counted(round_)) - self._asked

    def usable(self, answered: Collection[str]) -> int:
        """How many of these sites count towards the quorum; held-out sites don't."""
        return len({*answered} & {*self._job.task.sites})

    def is_out_of_reach(self, round_: int, *, answered: Collection[str], rejected: Collection[str]) -> bool:
        """Whether so many sites were rejected that a round cannot get enough answers."""
        possible = [s for s in self._counted(round_) if s in answered or s not in rejected]
        return len(possible) < self.needed(round_)

    def shortage(
        self, round_: int, n_usable: int, *, answered: Collection[str], rejected: Mapping[str, str], what: str
    ) -> QuorumError:
        """The error of a round, by its name ``what``, with too few usable answers: who is missing, and why."""
        without: dict[str, list[str]] = {}
        for site in [*rejected, *(s for s in self._counted(round_) if s not in rejected)]:
            if site not in answered and site not in self._job.task.held_out:
                without.setdefault(rejected.get(site, "no answer yet"), []).append(site)
        missing = "; ".join(f"{', '.join(sites)} ({reason})" for reason, sites in without.items())
        return QuorumError(
            "too-few-answers",
            f"{what}: {n_usable} usable answers, {self.needed(round_)} needed; without {missing or 'nobody'}; "
            "mend these sites or lower federation.min_sites",
        )

    def _counted(self, round_: int) -> tuple[str, ...]:
        """Invited sites that count towards the quorum."""
        return self._job.task.sites if round_ > self.last_round else self.invited(round_)
