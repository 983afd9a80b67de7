"""Which sites each round asks, and how many usable answers it needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from fedshift.schema.errors import QuorumError
from fedshift.schema.job import JobSpec
from fedshift.schema.seeding import generator


class Quorum:
    """A job's rule. Round 0 is the statistics round, round ``rounds`` + 1 the final evaluation."""

    def __init__(self, job: JobSpec) -> None:
        """``job`` is the resolved job."""
        self._job = job
        self.last_round = job.task.schedule.rounds
        """The last training round; earlier in a run that ends early."""
        drawn = job.federation.sites_per_round
        self._sampled = drawn if drawn is not None and drawn < len(job.task.sites) else None

    @property
    def samples_sites(self) -> bool:
        """Whether each training round asks only some of the sites, drawn at random."""
        return self._sampled is not None

    def invited(self, round_: int) -> tuple[str, ...]:
        """Sites asked in a round: all training sites, or those drawn for it; held-out sites in the final evaluation."""
        sites = self._job.task.sites
        if self._is_evaluation(round_):
            return self._job.task.everyone
        if self._sampled is None or not round_:
            return sites
        rng = generator(self._job.seed, "server", round_, "sites")
        drawn = sorted(torch.randperm(len(sites), generator=rng)[: self._sampled].tolist())
        return tuple(sites[number] for number in drawn)

    def needed(self, round_: int) -> int:
        """Minimum usable answers for a round. Sampling sites doesn't change how many may fail."""
        asked = self._sampled or len(self._job.task.sites)
        return self._job.federation.min_sites + len(self._counted(round_)) - asked

    def usable(self, answered: Collection[str]) -> int:
        """How many of these sites count towards the quorum; held-out sites don't."""
        return len({*answered} & {*self._job.task.sites})

    def is_out_of_reach(self, round_: int, *, answered: Collection[str], rejected: Collection[str]) -> bool:
        """Whether so many sites were rejected that the remaining ones are too few."""
        sites = set(self._counted(round_))
        out = sites & set(rejected) - set(answered)
        return len(sites) - len(out) < self.needed(round_)

    def require(
        self, round_: int, n_usable: int, *, answered: Collection[str], rejected: Mapping[str, str], what: str
    ) -> None:
        """Check the number of usable answers.

        Args:
            round_: the open round.
            n_usable: usable answers.
            answered: sites whose answer was accepted.
            rejected: sites whose answer was rejected, with the reason.
            what: name of the round for the message.

        Raises:
            QuorumError: fewer usable answers than the round needs.
        """
        needed = self.needed(round_)
        if n_usable >= needed:
            return
        without: dict[str, list[str]] = {}
        for site in [*rejected, *(s for s in self._counted(round_) if s not in rejected)]:
            if site not in answered and site not in self._job.task.held_out:
                without.setdefault(rejected.get(site, "no answer yet"), []).append(site)
        out = "; ".join(f"{', '.join(sites)} ({reason})" for reason, sites in without.items())
        raise QuorumError(
            f"{what}: {n_usable} usable answers, {needed} needed; without {out or 'nobody'}; "
            "mend these sites or lower federation.min_sites"
        )

    def _is_evaluation(self, round_: int) -> bool:
        return round_ > self.last_round

    def _counted(self, round_: int) -> tuple[str, ...]:
        """Invited sites that count towards the quorum."""
        return self._job.task.sites if self._is_evaluation(round_) else self.invited(round_)
