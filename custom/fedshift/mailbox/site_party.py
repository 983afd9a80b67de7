"""A step of a site: read the coordinator's letters, do what the newest one asks, write the answer, end.

The answer is encrypted in the outbox and named in ``state.json`` before it is in the shared folder. A step that is
killed before that is repeated, from the state that the site had before the round; one that is killed after it answers
with the same bytes. So no request is ever answered in two ways.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedshift.mailbox.letter import END, JOB, STATISTICS, TRAIN, UNMASK, Letter, Task
from fedshift.mailbox.party import load_state, save_state, step_lock
from fedshift.mailbox.pieces import NotWholeError, is_whole, open_body, seal
from fedshift.mailbox.step import OPENED, Outcome, Stepper
from fedshift.mailbox.thread import OUTBOX, Chains, Thread, place_all
from fedshift.schema.errors import ConfigError, FedshiftError, PolicyError
from fedshift.schema.files import write_private
from fedshift.schema.job import JobSpec
from fedshift.schema.strict import Strict

if TYPE_CHECKING:
    from fedshift.federation.message_limits import MessageLimits
    from fedshift.federation.site.outbound import Encryption
    from fedshift.federation.site.site import Site
    from fedshift.schema.messages import Answer, Broadcast
    from fedshift.schema.packages import PackageSpec
    from fedshift.schema.policy import Policy

log = logging.getLogger("fedshift")

JOB_FILE, STATES = "job.json", "state"
LARGEST_JOB = 16 * 1024 * 1024
"""Bytes of a job."""


class SiteState(Strict):
    """What a site keeps between two steps.

    Attributes:
        run: the coordinator's; empty before its first letter.
        job: SHA-256 of the job.
        task: that was answered last, its request and its round.
        ended: whether the coordinator has ended the run.
        chains: the correspondence with the coordinator.
    """

    run: str = ""
    job: str = ""
    task: str = ""
    request: int = 0
    round: int = 0
    ended: bool = False
    chains: Chains = Chains()


class SiteParty(Stepper):
    """A site that takes part by mailbox. The site's network stays in memory as long as the object does."""

    _site: Site | None = None
    _job: JobSpec | None = None
    _limits: MessageLimits | None = None

    def step(self) -> Outcome:
        """Do what can be done now.

        Raises:
            StepInProgress: another step is at work.
            ConfigError: the shared folder, or this one, is not as it should be.
        """
        with step_lock(self.folder):
            state = load_state(self.folder, SiteState)
            self.show_card()
            thread = self.thread(self.party.coordinator, state.chains)
            state = self._advance(state, thread)
            place_all([thread], self.mail, self.folder)
            return Outcome(self._line(state, thread), state.ended, self.notes([thread]))

    def status(self) -> Outcome:
        """The state as it was left, without a step."""
        state = load_state(self.folder, SiteState)
        thread = Thread(self.folder, self.party, self.keys, self.mail, self.party.coordinator, state.chains)
        return Outcome(self._line(state, thread), state.ended)

    # --- letters ----------------------------------------------------------------------------------

    def _advance(self, state: SiteState, thread: Thread) -> SiteState:
        """Read all letters that have come, and answer the newest."""
        newest: Letter | None = None
        while not state.ended and (letter := thread.next(run=state.run)) is not None:
            if letter.header.task == JOB:
                if not self._is_here(letter, thread):
                    return state
                state = self._begin(state, letter, thread)
                continue
            if letter.header.job != state.job:
                raise ConfigError(
                    "mailbox-other-run",
                    f"letter {letter.header.sequence} of {thread.other} is of another job than the run began with: "
                    "nothing is done; ask who runs the coordinator",
                )
            thread.accept(letter)
            if newest is not None:
                log.warning(
                    "site %s: %s was closed without this site",
                    self.party.name,
                    _place(newest.header.task, newest.header.round),
                )
            newest = letter
            if letter.header.task == END:
                return self._save(state.model_copy(update={"ended": True}), thread)
        if newest is None or not self._is_here(newest, thread):
            return state
        try:
            return self._answer(state, newest, thread)
        except NotWholeError as error:
            thread.notes.append(f"{error}: it is waited for")
            return state

    def _is_here(self, letter: Letter, thread: Thread) -> bool:
        """Whether all pieces of a letter have come."""
        body = letter.content.body
        if body is None or is_whole(body, self.mail.root / thread.other):
            return True
        thread.notes.append(
            f"letter {letter.header.sequence} of {thread.other} is here, and not all of its {len(body.pieces)} pieces: "
            "they are waited for"
        )
        return False

    def _open(self, letter: Letter, *, most: int) -> memoryview:
        """The bytes of a letter's message, of which nothing is read if they are too many."""
        body, header = letter.content.body, letter.header
        fault = "has no message" if body is None else ""
        if body is not None and body.bytes > most:
            fault = f"has a message of {body.bytes} bytes, and {most} are the most that the job's can have"
        if body is None or fault:
            raise ConfigError(
                "mailbox-message", f"letter {header.sequence} of {header.sender} {fault}: nothing of it is read"
            )
        try:
            key = letter.content_key(self.keys)
            mail = self.mail.root / header.sender
            return open_body(body, key, header.about_body, mail=mail, scratch=self.folder / OPENED)
        except ValueError as error:
            raise ConfigError(
                "mailbox-message", f"letter {header.sequence} of {header.sender} {error}: nothing of it is read"
            ) from None

    def _save(self, state: SiteState, thread: Thread) -> SiteState:
        state = state.model_copy(update={"chains": thread.chains})
        save_state(self.folder, state)
        return state

    # --- tasks ------------------------------------------------------------------------------------

    def _begin(self, state: SiteState, letter: Letter, thread: Thread) -> SiteState:
        """Take the job, which is the first letter of a run."""
        text = bytes(self._open(letter, most=LARGEST_JOB))
        digest = hashlib.sha256(text).hexdigest()
        if digest != letter.header.job or state.job not in ("", digest):
            raise ConfigError(
                "mailbox-message", f"the job that {thread.other} has sent is not the one that its letter names"
            )
        write_private(self.folder / JOB_FILE, text)
        self._read_job()  # what is no job is refused before it is said to have come
        thread.accept(letter)
        return self._save(state.model_copy(update={"run": letter.header.run, "job": digest}), thread)

    def _answer(self, state: SiteState, letter: Letter, thread: Thread) -> SiteState:
        """Do a request, and have its answer on disk before it leaves."""
        from fedshift.mailbox.content import encode_answer

        header = letter.header
        answer = self._refusal(header.round) or self._do(header.task, self._request(letter), run=state.run)
        buffers = encode_answer(answer)
        about = header.model_copy(update={"sender": self.party.name, "answers": letter.hash}).about_body
        sealed = seal(buffers, self.folder / OUTBOX, about)
        # What the coordinator has sent up to here is not needed again.
        thread.chains = thread.chains.model_copy(update={"consumed": thread.chains.read})
        thread.write(
            header.task,
            run=state.run,
            job=state.job,
            request=header.request,
            round_=header.round,
            sealed=sealed,
            answers=letter.hash,
        )
        position = {"task": header.task, "request": header.request, "round": header.round}
        return self._save(state.model_copy(update=position), thread)

    def _refusal(self, round_: int) -> Answer | None:
        """The answer to a job whose packages the site's policy does not list."""
        from fedshift.schema.messages import Answer, Failure

        try:
            self._admit()
        except PolicyError as error:
            log.error("%s", error)
            return Answer(Failure(self.party.name, round_, str(error)))
        return None

    def _request(self, letter: Letter) -> Broadcast:
        from fedshift.mailbox.content import ContentError, decode_request

        header = letter.header
        content = self._open(letter, most=self._largest_request())
        try:
            broadcast = decode_request(content)
        except ContentError as error:
            raise ConfigError("mailbox-message", f"the message of letter {header.sequence} {error}") from None
        if broadcast.round != header.round:
            raise ConfigError(
                "mailbox-message",
                f"letter {header.sequence} is of round {header.round}, and its message of {broadcast.round}",
            )
        return broadcast

    def _do(self, task: Task, broadcast: Broadcast, *, run: str) -> Answer:
        """The site's answer to a task. A failure is answered with a sentence; its details stay in the site's log."""
        from fedshift.schema.messages import Answer, Failure

        name = self.party.name
        try:
            return self._work(task, broadcast, run=run)
        except FedshiftError as error:
            log.error("site %s, task %s: %s", name, task, error)
            # The sentence may name files and folders, which must not leave a hospital; that of a policy does not.
            reason = (
                str(error) if isinstance(error, PolicyError) else f"{type(error).__name__} (the site's log says more)"
            )
        except Exception as error:
            log.exception("site %s, task %s failed", name, task)
            reason = f"{type(error).__name__} (the site's log says more)"
        return Answer(Failure(name, broadcast.round, reason))

    def _work(self, task: Task, broadcast: Broadcast, *, run: str) -> Answer:
        from fedshift.federation.ledger_heads import SiteLedger
        from fedshift.schema.messages import Answer

        site = self._site = self._site or self._open_site(run)
        ledger = SiteLedger(self.party.name, self.party.local)
        if task in (STATISTICS, TRAIN):
            if task == STATISTICS:
                site.require_training()
            ledger.require(broadcast)
            return Answer(site.answer(task, broadcast), site.info(), ledger.head())
        answer = site.answer(task, broadcast)
        return Answer(answer, None if task == UNMASK else site.info())

    # --- the job ----------------------------------------------------------------------------------

    def _read_job(self) -> JobSpec:
        if self._job is None:
            path = self.folder / JOB_FILE
            try:
                raw = json.loads(path.read_bytes())
            except (OSError, ValueError, RecursionError) as error:
                raise ConfigError(
                    "file-damaged", f"{path} cannot be read ({error}): restore this folder as a whole"
                ) from None
            self._job = JobSpec.parse(raw, where=str(path))
        return self._job

    def _admit(self) -> Mapping[str, PackageSpec] | None:
        """What the site lists of packages, after those that the job needs were compared with it (`PolicyError`)."""
        from fedshift.data.locate import read_settings
        from fedshift.schema.components import admit
        from fedshift.schema.policy import listed_packages

        listed = listed_packages(read_settings(self.party.local).privacy, simulated=False)
        admit(self._read_job().packages, where=f"site {self.party.name}", listed=listed)
        return listed

    def _largest_request(self) -> int:
        from fedshift.federation.message_limits import MessageLimits

        if self._limits is None:
            self._limits = MessageLimits.from_job(self._read_job())
        return self._limits.task

    def _open_site(self, run: str) -> Site:
        from fedshift.data.locate import find_site, read_settings
        from fedshift.federation.site.site import Site, SiteOptions
        from fedshift.federation.survey_answer import site_reference

        job, name, local = self._read_job(), self.party.name, self.party.local
        data, settings = find_site(job.task.dataset, name, local=local, simulator=False), read_settings(local)
        policy, masked = settings.privacy, job.federation.encryption == "masks"
        options = SiteOptions(
            self.folder / STATES,
            device=settings.device,
            devices=settings.devices,
            weights=settings.weights,
            policy=policy,
            packages=self._admit(),
            ledger=local,
            share_cases=policy is not None and policy.case_scores,
            describe_scans=site_reference,
            encryption=self._encryption(job, policy, run),
            keep_answers=masked,
        )
        site = Site(job, name, data, options)
        if site.info().kind == "phantom":
            log.warning("site %s trains on the phantom: simulated scans, not patients", name)
        return site

    def _encryption(self, job: JobSpec, policy: Policy | None, run: str) -> Encryption | None:
        """The job's encryption with the keys of the site's kit; None if the job does not encrypt."""
        from fedshift.federation.encryption.kit_keys import SITE_KEYS, KitIdentity, read_keys

        if job.federation.encryption == "masks" and self.party.name in job.task.sites:
            from fedshift.federation.encryption.masks.site import SiteMasks
            from fedshift.schema.policy import Policy

            identity = KitIdentity(self.party.startup)
            least = (policy or Policy()).min_sites_in_sum
            folder = self.folder / STATES / self.party.name
            return SiteMasks(job, self.party.name, folder=folder, run=run, identity=identity, least=least)
        if job.federation.encryption == "ckks":
            from fedshift.federation.encryption.site import SiteEncryption

            return SiteEncryption(job, read_keys(self.party.startup, SITE_KEYS))
        return None

    # --- what is shown ----------------------------------------------------------------------------

    def _line(self, state: SiteState, thread: Thread) -> str:
        name, other = self.party.name, self.party.coordinator
        if state.ended:
            return f"{name}: the run has ended"
        if not state.job:
            what = "has not come" if thread.card is None and not state.chains.read else "is known"
            return f"{name}: waits for the job; the card of {other} {what}"
        if not state.task:
            return f"{name}: has the job, waits for the first request of {other}"
        return f"{name}: has answered {_place(state.task, state.round)}, waits for {other}"


def _place(task: str, round_: int) -> str:
    """A request in words; a model is scored in the message of the round after its own."""
    if task == STATISTICS:
        return "the statistics round"
    if task == TRAIN:
        return f"round {round_}"
    return f"the question to unmask round {round_}" if task == UNMASK else f"the evaluation of round {round_ - 1}"
