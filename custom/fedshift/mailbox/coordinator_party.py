"""A step of the coordinator: read what sites have answered, close the round if it is over, ask for the next, end.

::

    for request in coordinator.requests():    # those since the last closed round are repeated with their answers
        write its letter to each invited site
        take the answers that have come
        end here, unless all have answered, or the round's time is over

A step in which nothing has come reads a few small files, and no model.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from fedshift.mailbox.deadline import Until
from fedshift.mailbox.disabled import KEY as DISABLED
from fedshift.mailbox.disabled import disabled_sites
from fedshift.mailbox.letter import END, FIRST, JOB, STATISTICS, TRAIN, UNMASK, VALIDATE, Content, Header, Letter
from fedshift.mailbox.party import load_state, now, save_state, step_lock
from fedshift.mailbox.pieces import NotWholeError, is_whole, open_body, seal
from fedshift.mailbox.requests_log import Answered, Asked, CoordinatorState
from fedshift.mailbox.step import OPENED, Outcome, Stepper
from fedshift.mailbox.thread import CARDS, OUTBOX, Chains, Thread, place_all
from fedshift.schema.errors import ConfigError, QuorumError
from fedshift.schema.job import JobSpec

if TYPE_CHECKING:
    from fedshift.federation.server.coordinator import Request
    from fedshift.mailbox.live_run import LiveRun

log = logging.getLogger("fedshift")

JOB_FILE, RUN = "job.json", "run"
REFUSED = "mailbox"
"""What ``results.json`` names in place of a part of an answer, of a site whose letters do not fit."""


class CoordinatorParty(Stepper):
    """The coordinator of a federation by mailbox. Models stay in memory as long as the object does."""

    def __init__(self, folder: Path) -> None:
        """Open the coordinator's folder.

        Raises:
            ConfigError: it is none, or damaged.
        """
        super().__init__(folder)
        self._job_bytes = (folder / JOB_FILE).read_bytes()
        self._job_hash = hashlib.sha256(self._job_bytes).hexdigest()
        self.job = JobSpec.parse(json.loads(self._job_bytes), where=str(folder / JOB_FILE))
        self._live: LiveRun | None = None
        self._saved: CoordinatorState | None = None
        self._threads: dict[str, Thread] = {}
        self._refused: dict[str, str] = {}
        self._disabled: dict[str, str] = {}
        self._vanished = ""

    # --- a step -----------------------------------------------------------------------------------

    def step(self, *, until: Until | None = None, again: bool = False) -> Outcome:
        """Do what can be done now.

        Args:
            until: when rounds end although not every site has answered; None for never.
            again: ask the open request once more, of sites that could not do it.

        Raises:
            StepInProgress: another step is at work.
            QuorumError: a round has too few usable answers; the next step tries again.
            ConfigError: the shared folder, or this one, is not as it should be.
        """
        with step_lock(self.folder):
            state = load_state(self.folder, CoordinatorState)
            if state != self._saved:
                self._live = None
            self.show_card()
            self._disabled, self._refused, self._vanished = disabled_sites(self.party.kit), {}, ""
            self._threads = {
                site: self.thread(site, state.chains.get(site, Chains())) for site in self.job.task.everyone
            }
            if not state.ended:
                state = self._go_on(state, until, again=again)
            threads = list(self._threads.values())
            place_all(threads, self.mail, self.folder, bodies=state.bodies)
            return Outcome(state.line, state.ended, self.notes(threads))

    def status(self) -> Outcome:
        """The state as it was left, without a step."""
        state = load_state(self.folder, CoordinatorState)
        return Outcome(state.line or f"{self.party.name}: no step has been made", state.ended)

    def readmit(self, site: str) -> None:
        """Forget a site's card and correspondence: its next card counts, and it is asked anew.

        Raises:
            StepInProgress: a step is at work.
            ConfigError: the job does not name the site.
        """
        if site not in self.job.task.everyone:
            raise ConfigError(
                "unknown-site", f"job {self.job.name} is for {', '.join(self.job.task.everyone)}, not for {site}"
            )
        with step_lock(self.folder):
            state = load_state(self.folder, CoordinatorState)
            (self.folder / CARDS / f"{site}.json").unlink(missing_ok=True)
            chains = {name: chain for name, chain in state.chains.items() if name != site}
            asked = tuple(request.without(site) for request in state.asked)
            save_state(self.folder, state.model_copy(update={"chains": chains, "asked": asked}))

    def _go_on(self, state: CoordinatorState, until: Until | None, *, again: bool) -> CoordinatorState:
        """Take what has come, and go from request to request as long as they are over."""
        arrived = self._look(state)
        if again and state.open is not None and not state.open.closed:
            self._live, state = None, state.model_copy(update={"asked": state.asked[:-1]})
        elif not self._has_work(state, arrived, until):
            return self._with_line(state, until)
        try:
            return self._with_line(self._work(state, arrived, until), until)
        except NotWholeError as error:
            self._live = None
            self._vanished = str(error)
            return self._with_line(load_state(self.folder, CoordinatorState), until)

    def _work(self, state: CoordinatorState, arrived: dict[str, Letter], until: Until | None) -> CoordinatorState:
        if state.job_sealed is None:
            about = self._job_header().about_body
            state = state.model_copy(
                update={"job_sealed": seal([memoryview(self._job_bytes)], self.folder / OUTBOX, about)}
            )
        if self._live is None:
            self._live, request, state = self._repeat(state)
        else:
            request = None
        live = self._live
        while True:
            if request is not None:
                state = self._ask(state, live, request)
                request = None
            state = self._take_all(state, live, arrived)
            state = self._send(self._leave_out(state, live))
            if not self._is_over(state, live, until):
                break
            request, state = self._close(state, live)
            if request is None:
                return self._end(state, live)
            arrived = self._look(state)
        return self._save(state)

    def _has_work(self, state: CoordinatorState, arrived: dict[str, Letter], until: Until | None) -> bool:
        """Whether a step has anything to do for which the run's files must be read."""
        open_ = state.open
        if open_ is None or open_.closed or arrived or self._refused:
            return True
        unsent = {site for site in open_.sites if site not in open_.letters and site not in self._disabled}
        known = any(self._threads[site].card is not None for site in unsent)
        late = (
            until is not None and (end := until.end(datetime.fromisoformat(open_.opened))) is not None and now() >= end
        )
        return known or late or not self._awaited(open_) or bool({*open_.sites} & self._disabled.keys())

    # --- requests ---------------------------------------------------------------------------------

    def _repeat(self, state: CoordinatorState) -> tuple[LiveRun, Request | None, CoordinatorState]:
        """Come to where the last step has ended, with its answers. Returns a request that is to be asked anew, if any.

        Raises:
            NotWholeError: an answer that was taken is no longer in the shared folder.
            ConfigError: the folder's files do not fit each other.
        """
        from fedshift.mailbox.live_run import LiveRun

        live = LiveRun(self.job, self.folder / RUN, self.party)
        request = live.next()
        for number, asked in enumerate(state.asked):
            if request is None or (request.task, request.broadcast.round) != (asked.task, asked.round):
                if number == 0:  # the round was closed, and the step ended before it said so
                    return live, request, state
                raise ConfigError(
                    "file-damaged",
                    f"{self.folder / RUN} does not fit {self.folder}: restore the party's folder as a whole",
                )
            del request
            live.opened_at(datetime.fromisoformat(asked.opened))
            for answered in asked.answers:
                self._take(live, asked, answered.site, _letter(answered.text))
            for site, (key, reason) in asked.left_out.items():
                live.leave_out(asked.number, site, key, reason)
            request = live.next() if asked.closed else None
        return live, request, state

    def _ask(self, state: CoordinatorState, live: LiveRun, request: Request) -> CoordinatorState:
        """Encrypt a new request; those before it whose answers are in the coordinator's state are done."""
        from fedshift.mailbox.content import encode_request

        sites, number = live.coordinator.invited, state.number + 1
        broadcast = replace(request.broadcast, ledgers=live.known_ledgers(sites))
        header = self._job_header().model_copy(
            update={"task": request.task, "request": number, "round": broadcast.round}
        )
        sealed = seal(encode_request(broadcast), self.folder / OUTBOX, header.about_body)
        asked = Asked(
            number=number,
            task=request.task,
            round=broadcast.round,
            sites=sites,
            opened=now().isoformat(),
            sealed=sealed,
        )
        return state.with_new(asked)

    def _close(self, state: CoordinatorState, live: LiveRun) -> tuple[Request | None, CoordinatorState]:
        """Close the open request. Which answers count is on disk before, where a later step has to repeat it.

        Raises:
            QuorumError: it has too few usable answers; it stays open.
        """
        closed = state.with_open(closed=True)
        if self.job.federation.encryption == "masks" or state.asked[-1].task == VALIDATE:
            closed = self._save(closed)
        try:
            return live.next(), closed
        except QuorumError as error:
            live.fail(str(error))
            self._live = None
            self._save(state)
            place_all(list(self._threads.values()), self.mail, self.folder, bodies=state.bodies)
            raise

    def _end(self, state: CoordinatorState, live: LiveRun) -> CoordinatorState:
        """Tell the sites that the run has ended."""
        live.finish()
        state = state.model_copy(update={"ended": True, "asked": ()})
        for thread in self._threads.values():
            if thread.card is not None and thread.chains.sent and thread.other not in self._refused:
                thread.chains = thread.chains.model_copy(update={"consumed": thread.chains.read})
                thread.write(END, run=self.party.run, job=self._job_hash, request=state.number, round_=0, sealed=None)
        return self._save(state)

    def _is_over(self, state: CoordinatorState, live: LiveRun, until: Until | None) -> bool:
        """Whether nothing more is waited for."""
        asked = state.asked[-1]
        end = None if until is None else until.end(datetime.fromisoformat(asked.opened))
        return not self._awaited(asked) or live.coordinator.hopeless or (end is not None and now() >= end)

    def _awaited(self, asked: Asked) -> list[str]:
        """Sites that may still answer a request."""
        answered = {answer.site for answer in asked.answers}
        return [s for s in asked.sites if s not in answered and s not in self._disabled and s not in self._refused]

    def _leave_out(self, state: CoordinatorState, live: LiveRun) -> CoordinatorState:
        """Leave sites out that are disabled, or whose letters do not fit."""
        asked = state.asked[-1]
        left_out: dict[str, tuple[str, str]] = {}
        for site in asked.sites:
            if site in self._disabled:
                why = self._disabled[site]
                left_out[site] = DISABLED, f"{why} (round {live.since_round(DISABLED, why)})"
            elif site in self._refused:
                left_out[site] = REFUSED, self._refused[site]
        for site, (key, reason) in left_out.items():
            live.leave_out(asked.number, site, key, reason)
        return state if left_out == asked.left_out else state.with_open(left_out=left_out)

    # --- letters ----------------------------------------------------------------------------------

    def _look(self, state: CoordinatorState) -> dict[str, Letter]:
        """The next letters of all sites, as far as they are here with all their pieces."""
        arrived = {}
        for site, thread in self._threads.items():
            if site in self._disabled or site in self._refused:
                continue
            try:
                letter = thread.next(run=self.party.run)
            except ConfigError as error:  # one site's letters stop that site alone
                self._refused[site] = str(error)
                thread.notes.append(str(error))
                continue
            if letter is None:
                continue
            body = letter.content.body
            if body is None or not _answers(letter, state) or is_whole(body, self.mail.root / site):
                arrived[site] = letter
            else:
                thread.notes.append(f"the answer of {site} is here, and not all of its {len(body.pieces)} pieces")
        return arrived

    def _take_all(self, state: CoordinatorState, live: LiveRun, arrived: dict[str, Letter]) -> CoordinatorState:
        """Take the answers to the open request, and leave out those to earlier ones."""
        for site, letter in arrived.items():
            thread, asked = self._threads[site], state.asked[-1]
            if letter.header.answers != asked.letters.get(site):
                log.warning(
                    "site %s answered a %s task after its round had ended: left out as stale", site, letter.header.task
                )
                thread.accept(letter)
                continue
            try:
                self._take(live, asked, site, letter)
            except NotWholeError as error:
                thread.notes.append(f"{error}: it is waited for")
                continue
            thread.accept(letter)
            state = state.with_open(answers=(*asked.answers, Answered(site=site, text=letter.text)))
        return state

    def _take(self, live: LiveRun, asked: Asked, site: str, letter: Letter) -> None:
        """Open an answer, of which nothing is read if it is too large, and pass it on."""
        body, most, header = letter.content.body, live.limits.answer, letter.header
        named = header.job, header.request, header.task, header.round
        if named != (self._job_hash, asked.number, asked.task, asked.round):
            live.coordinator.reject(
                site, "answer", f"names request {header.request}, and answers request {asked.number}"
            )
            return
        if body is None or body.bytes > most:
            live.coordinator.reject(
                site, "answer", "has no message" if body is None else f"has {body.bytes} bytes of {most}"
            )
            return
        mail, scratch = self.mail.root / site, self.folder / OPENED
        try:
            key = letter.content_key(self.keys)
            content = open_body(body, key, header.about_body, mail=mail, scratch=scratch)
        except ValueError as error:
            live.coordinator.reject(site, "answer", f"the letter {error}")
            return
        live.take(site, asked.task, content)

    def _send(self, state: CoordinatorState) -> CoordinatorState:
        """Write to the invited sites that have no letter of the open request yet, and whose cards are here."""
        asked, run, job = state.asked[-1], self.party.run, self._job_hash
        letters = dict(asked.letters)
        for site in asked.sites:
            thread = self._threads[site]
            if site in letters or thread.card is None or site in self._disabled or site in self._refused:
                continue
            if not thread.chains.sent:
                thread.write(JOB, run=run, job=job, request=0, round_=0, sealed=state.job_sealed)
            thread.chains = thread.chains.model_copy(update={"consumed": _consumed(state, thread)})
            letter = thread.write(
                asked.task, run=run, job=job, request=asked.number, round_=asked.round, sealed=asked.sealed
            )
            letters[site] = letter.hash
        return state if letters == asked.letters else state.with_open(letters=letters)

    def _job_header(self) -> Header:
        """What a request's bytes belong to; the rest of a header is each letter's own."""
        return Header(
            version=1,
            project=self.party.project,
            run=self.party.run,
            job=self._job_hash,
            task=JOB,
            request=0,
            round=0,
            sender=self.party.name,
            receiver=self.party.name,
            reader_key=self.keys.card.opens,
            sequence=1,
            previous=FIRST,
            read=0,
            read_hash=FIRST,
            acknowledged=0,
        )

    def _save(self, state: CoordinatorState) -> CoordinatorState:
        chains = {site: thread.chains for site, thread in self._threads.items()}
        self._saved = state.model_copy(update={"chains": chains})
        save_state(self.folder, self._saved)
        return self._saved

    # --- what is shown ----------------------------------------------------------------------------

    def _with_line(self, state: CoordinatorState, until: Until | None) -> CoordinatorState:
        line = self._line(state, until)
        return state if line == state.line else self._save(state.model_copy(update={"line": line}))

    def _line(self, state: CoordinatorState, until: Until | None) -> str:
        name, asked = self.party.name, state.open
        if state.ended:
            return f"{name}: the run has ended; results are in {self.folder / RUN}"
        if asked is None:
            return f"{name}: the run has not begun"
        awaited = self._awaited(asked)
        place, answers = _place(asked, self.job.task.schedule.rounds), len(asked.answers)
        line = f"{name}: {place}, {answers} of {len(asked.sites)} answers"
        if awaited:
            line += f", awaits {', '.join(_awaited_name(site, asked) for site in awaited)}"
        end = None if until is None else until.end(datetime.fromisoformat(asked.opened))
        if end is not None:
            line += f", until {end.astimezone():%Y-%m-%d %H:%M}"
        if self._vanished:
            line += f"; an answer that was here is gone: {self._vanished}; the site's next step puts it back"
        return line


def _answers(letter: Letter, state: CoordinatorState) -> bool:
    """Whether a letter answers the open request."""
    return state.open is not None and letter.header.answers == state.open.letters.get(letter.header.sender)


def _consumed(state: CoordinatorState, thread: Thread) -> int:
    """Up to which number a site's letters are not needed again: all that were read, but those to requests kept."""
    kept = [
        _letter(answer.text).header.sequence
        for asked in state.asked
        for answer in asked.answers
        if answer.site == thread.other
    ]
    return min(kept) - 1 if kept else thread.chains.read


def _letter(text: str) -> Letter:
    """A letter of this folder's own state, whose signature was checked when it came."""
    return Letter(Content.model_validate_json(text.partition("\n")[0]), text)


def _place(asked: Asked, rounds: int) -> str:
    if asked.task == STATISTICS:
        return "the statistics round"
    if asked.task == TRAIN:
        return f"round {asked.round} of {rounds}"
    return f"unmasking round {asked.round}" if asked.task == UNMASK else f"the evaluation of round {asked.round - 1}"


def _awaited_name(site: str, asked: Asked) -> str:
    return site if site in asked.letters else f"{site} (whose card has not come)"
