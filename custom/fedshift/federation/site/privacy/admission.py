"""What a site's policy refuses before any work is done: jobs that would send what it does not allow, or uncovered."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import nn

from fedshift.federation.site.privacy.dp_sgd import refusal
from fedshift.methods.base import ArraySpec, Client
from fedshift.methods.method_set import MethodSet
from fedshift.methods.shared.norms import norm_keys
from fedshift.schema.errors import PolicyError
from fedshift.schema.messages import Broadcast
from fedshift.schema.policy import Policy
from fedshift.tasks.adapters import private_keys
from fedshift.tasks.base import SiteData, Task


@dataclass(frozen=True)
class Population:
    """Counts of a site's training split. ``share``: the largest part of the images or cases that statistics are of, of
    one subject. Scans of one subject are protected together, so what a policy calls a case is a subject here.
    """

    images: int
    subjects: int
    share: float
    fewest_of_a_class: int
    """The smallest number of images that have a class which occurs; the number of subjects if labels are per pixel."""

    @classmethod
    def counted(cls, data: SiteData, *, dense: bool) -> Population:
        """Count the training split of ``data``; ``dense`` is the task's."""
        counts = np.unique(data.subjects_of(data.window_cases("train")), return_counts=True)[1]
        of_cases = np.unique(data.subjects_of(np.unique(data.cases("train"))), return_counts=True)[1]
        share = max((float(n.max() / n.sum()) for n in (counts, of_cases) if len(n)), default=0.0)
        fewest = len(counts)
        if not dense and data.n_train:
            labels = data.labels(data.members("train"))
            if labels.is_floating_point():  # findings
                having = (labels == 1).sum(0)
                fewest = int(having[having > 0].min()) if having.any() else 0
            else:
                fewest = int(np.unique(labels.numpy(), return_counts=True)[1].min())
        return cls(data.n_train, len(counts), share, fewest)


@dataclass(frozen=True)
class Admission:
    """A site's policy, and the job that is held against it.

    ``encrypts``: whether what the site sends in this job is encrypted or masked.
    """

    policy: Policy
    site: str
    task: Task
    methods: MethodSet
    population: Population
    encrypts: bool

    def require(self, broadcast: Broadcast) -> None:
        """Check a task whose answer depends on the training images.

        Raises:
            PolicyError: the policy forbids the job, or what came is not finite.
        """
        if not self.policy.train:
            raise PolicyError(
                "no-training",
                f"site {self.site} only evaluates (privacy.train: false): hold it out ('fedshift job --held-out')",
            )
        self._require_encryption()
        if not self.population.images and self.adds_noise:
            raise PolicyError(
                "no-training",
                f"site {self.site}: its policy puts noise on what leaves, and the site has no training cases: hold it "
                "out ('fedshift job --held-out'), and ask it for scores only",
            )
        for method, named in self.methods.up.items():
            for name, spec in named.items():
                self._require_allowed(method, name, spec)
        self._require_covered_network()
        self._require_finite(broadcast)
        rounds = self.methods.job.task.schedule.rounds
        if self.adds_noise and not 0 <= broadcast.round <= rounds:
            raise PolicyError(
                "round-beyond",
                f"site {self.site}: round {broadcast.round} is beyond the job's {rounds}, for which its noise "
                "was worked out: start another job",
            )

    @property
    def adds_noise(self) -> bool:
        """Whether anything that the site sends gets noise."""
        return self.policy.statistics is not None or self.policy.covers_network

    @property
    def noisy_key(self) -> str:
        """The key of the policy that puts noise on the network."""
        return "privacy.dp_sgd" if self.policy.dp_sgd is not None else "privacy.weights"

    def _require_encryption(self) -> None:
        """Refuse to send in clear what the policy wants encrypted, whatever the job says of itself."""
        if self.policy.encryption is None or self.encrypts:
            return
        job = self.methods.job
        fault = f"here nothing encrypts what it sends in job {job.name}: it sends nothing"
        if job.federation.encryption is None:
            fault = f"job {job.name} does not encrypt them: add '--set federation.encryption=ckks' or masks"
        raise PolicyError(
            "not-encrypted",
            f"site {self.site}: its policy wants updates encrypted (privacy.encryption: required), and {fault}",
        )

    def _require_covered_network(self) -> None:
        """Refuse a network that the noise does not cover."""
        policy, sends, methods = self.policy, self.methods.sends_parameters, self.methods
        timed = methods.job.task.schedule.minutes is not None
        if policy.budget is not None and sends and not policy.covers_network:
            raise PolicyError(
                "no-noise",
                f"site {self.site}: its policy has a budget (privacy.budget), and the network would leave without "
                "noise, which no budget allows: set privacy.dp_sgd or privacy.weights at the site",
            )
        if policy.dp_sgd is not None and sends and (timed or self._no_dp_sgd):
            fault = (
                self._no_dp_sgd
                if not timed
                else (
                    "a round that ends by the clock (schedule.minutes) makes a number of steps that tells of the cases "
                    "drawn: make the job without, and with schedule.local_steps for shorter rounds"
                )
            )
            raise PolicyError(
                "cannot-protect", f"site {self.site}: its policy wants DP-SGD (privacy.dp_sgd), and {fault}"
            )
        fault = self._without_noise()
        if fault:
            raise PolicyError(
                "cannot-protect",
                f"site {self.site}: its policy puts noise on the network ({self.noisy_key}), and {fault}",
            )

    @cached_property
    def _no_dp_sgd(self) -> str:
        """Why DP-SGD cannot protect the job."""
        return refusal(self.methods, self.task)

    def _without_noise(self) -> str:
        """What noise on the network would not cover, as the end of a sentence; empty if it covers all."""
        policy, methods = self.policy, self.methods
        adding = [method.name for method in methods if method.client().adds_up_changes]
        if policy.weights is not None and adding:
            return (
                f"with method {adding[0]} the site would add up its changes as they are without noise: choose another "
                "method"
            )
        if not policy.covers_network:
            return ""
        keeping = [method.name for method in methods if _scores_own_layers(method.client(), methods.net)]
        if keeping:
            return (
                f"with method {keeping[0]} the site would score a model with layers that it trains for itself without "
                "noise: choose another method"
            )
        if private_keys(methods.net):
            return (
                "the site would score a model with private adapters, which it trains for itself without noise: choose "
                "network.adapters.private=0"
            )
        sent = methods.net.state_dict().keys() - methods.withheld
        buffers = ((name, buffer) for name, buffer in methods.net.named_buffers() if name in sent)
        measured = sorted(name for name, buffer in buffers if buffer.is_floating_point())
        if not measured:
            return ""
        return (
            f"the running statistics of {methods.job.task.network.name} ({measured[0]} and others) would leave "
            "without: add method fedbn, or choose a network without batch norm"
        )

    def _require_allowed(self, method: str, name: str, spec: ArraySpec) -> None:
        """Refuse a method's array that the policy does not let leave, or that it lets leave with noise only."""
        policy, population = self.policy, self.population
        who = f"site {self.site}: method {method} sends {name!r}, of kind {spec.kind},"
        if spec.kind not in policy.allow:
            raise PolicyError(
                "not-allowed",
                f"{who} which the site's policy does not allow (privacy.allow: {', '.join(policy.allow) or 'none'}): "
                "choose another method, or ask the site",
            )
        by_class = spec.kind == "prototypes"
        if (population.fewest_of_a_class if by_class else population.subjects) < policy.min_cases:
            of_a_class = "of a class " if by_class else ""
            raise PolicyError(
                "too-few-cases",
                f"{who} and has fewer training cases {of_a_class}than its policy wants for that "
                f"(privacy.min_cases: {policy.min_cases}, a subject's scans as one): choose another method, or leave "
                "the site out",
            )
        needs_noise = policy.covers_network or policy.budget is not None
        if needs_noise and (spec.kind != "statistics" or policy.statistics is None):
            rule = (
                f"while it does on the network ({self.noisy_key})"
                if policy.covers_network
                else "and a budget (privacy.budget) allows nothing without"
            )
            raise PolicyError(
                "no-noise",
                f"{who} on which its policy puts no noise, {rule}: choose another method"
                + ("" if spec.kind != "statistics" else ", or set privacy.statistics at the site"),
            )
        if policy.statistics is None or spec.kind != "statistics":
            return
        if spec.mean_of is None:
            raise PolicyError(
                "cannot-protect",
                f"{who} and privacy.statistics cannot put noise on it, since the method does not say what one case "
                "can do to it: choose another method or option",
            )
        if spec.mean_of == "features" and policy.statistics.clip is None:
            raise PolicyError("no-clip", f"{who} which nothing bounds: set privacy.statistics.clip at the site")

    def _require_finite(self, broadcast: Broadcast) -> None:
        """Refuse NaN and infinity in what was received: changes are measured against it, and could not be clipped."""
        for part, arrays in {"weights": broadcast.weights, **broadcast.arrays}.items():
            for name, array in arrays.items():
                if not np.isfinite(array).all():
                    raise PolicyError(
                        "not-finite",
                        f"site {self.site}, round {broadcast.round}: the server sent {part}/{name} with numbers that "
                        "are not finite, which no honest server does: ask who runs it",
                    )


def _scores_own_layers(half: Client[Any], net: nn.Module) -> bool:
    """Whether a site scores a model with layers of its own that are not norms, which FedBN keeps."""
    kept = half.keeps(net)
    return half.scores_own_model(net) and (not kept or not kept <= norm_keys(net, "all"))
