"""The steps of one attempt: what they have done, in this attempt and before, and what has to be written of them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from treadle.model.errors import DoubledStep
from treadle.model.steps import DONE, StepState, check_count, shown_step
from treadle.policy.flow import WAIT_ERRORS, Pause, Reply, left_ms, set_aside
from treadle.policy.lifecycle import Failed, Outcome, Parked, Snoozed
from treadle.store.values import Checkpoint, ClaimedStep, Effects, StepKey, StepWrite
from treadle.worker.errors import MAX_MESSAGE_CHARACTERS, storable

if TYPE_CHECKING:
    from treadle.worker.attempt import Attempt
    from treadle.worker.call import Call


class Report(NamedTuple):
    percent: int
    message: str | None


NOT_REPORTED = Report(0, None)
NONE_DECLARED: Mapping[str, int] = {}


class Blocked(NamedTuple):
    """A branch of the handler that can't go on."""

    pause: Pause
    outer: frozenset[StepKey]
    """The steps around it: they can't go on either."""
    wait: StepWrite | None
    """Written if the attempt ends because of it."""
    since: float
    """By the monotonic clock."""

    def passed_ms(self) -> int:
        return int((time.monotonic() - self.since) * 1000)

    def rest(self) -> Pause:
        """What is left of the pause. The next try of a step counts from the end of the attempt."""
        pause = self.pause
        return pause if pause.kind == "retry" else pause._replace(delay_ms=left_ms(pause.delay_ms, self.passed_ms()))

    def written(self) -> StepWrite | None:
        passed = self.passed_ms()
        wait = self.wait
        return wait and wait._replace(started_ago_ms=passed, until_ms=left_ms(wait.until_ms, passed))


class StepJournal:
    """Used on the worker's loop only, except for `report`."""

    def __init__(self, attempt: Attempt, declared: Mapping[str, int] = NONE_DECLARED) -> None:
        """`declared`: the places of a flow's steps by their names."""
        loaded = attempt.job.steps
        self._attempt = attempt
        steps = loaded.steps if loaded else ()
        self._known = {StepKey(one.name, one.key): one for one in steps}
        self.by_name = {one.name: one for one in steps if not one.key}
        """The steps without a key, which includes the declared ones."""
        self._unread = {StepKey(one.name) for one in self.by_name.values() if _is_unread(one)}
        self._answers: dict[StepKey, Reply] = {}
        self.answers: dict[str, Reply] = {}
        """Answers that came early, to steps without a key."""
        for answer in loaded.answers if loaded else ():
            reply = Reply(answer.result, answer.error)
            self._answers[StepKey(answer.name, answer.key)] = reply
            if not answer.key:
                self.answers[answer.name] = reply
        self._declared = declared
        self._places = {step: one.place for step, one in self._known.items()}
        self._next_place = max([len(self._declared) - 1, *self._places.values()], default=-1) + 1
        self._begun: dict[StepKey, float] = {}
        self._seen = set(self._known)
        self._names = {one.name for one in steps}
        self._under_way: dict[StepKey, int] = {}
        """Which try of them is running."""
        self._untold: set[StepKey] = set()
        """Steps with unwritten news."""
        self._unknown: set[StepKey] = set()
        """Those of them that are not stored as under way."""
        self._reports: dict[StepKey, Report] = {}
        self._flagged = loaded is not None
        self._last: list[StepWrite] = []
        self._last_consumed: list[StepKey] = []
        self.active: set[StepKey] = set()
        """Steps that a handler made and that have not ended."""
        self.calls: dict[StepKey, Call] = {}
        """Their calls."""
        self._moving = 0
        """Branches that have heard how a step or a wait ended, or are about to."""
        self.moves = 0
        """How often a branch could go on."""
        self._paused: dict[StepKey, Blocked] = {}
        self._failed_wait: ClaimedStep | None = None
        self.suspended: Parked | Snoozed | None = None
        """Set when no branch of the handler could go on: how the attempt ends, no matter what it does now."""

    # -- looking ---------------------------------------------------------------------------------

    def get(self, step: StepKey) -> ClaimedStep | None:
        return self._known.get(step)

    def early_answer(self, step: StepKey) -> Reply | None:
        return self._answers.get(step)

    def results(self) -> dict[str, str | None]:
        return {name: one.result for name, one in self.by_name.items() if one.state in DONE}

    def unread(self) -> list[StepKey]:
        """Completed steps with results too large to come with the claim."""
        return list(self._unread)

    def read(self, results: Mapping[StepKey, str]) -> None:
        for step, text in results.items():
            self._keep(step, self._known[step]._replace(result=text))
        self._unread.difference_update(results)

    def active_ms(self) -> int:
        """How long the steps of the job have been active in all."""
        return sum(one.ran_ms for one in self._known.values())

    def place(self, name: str, key: str = "") -> int:
        """Where it was declared, or as the how-manieth it began; steps in a declared one are at its place."""
        if self._declared:
            declared = self._declared.get(name.partition("/")[0])
            if declared is not None:
                return declared
        step = StepKey(name, key)
        if step not in self._places:
            self._places[step] = self._next_place
            self._next_place += 1
        return self._places[step]

    # -- running ---------------------------------------------------------------------------------

    def begin(self, step: StepKey) -> ClaimedStep | None:
        """What the step has done before; an error if it has already run in this attempt."""
        if step in self._begun:
            raise DoubledStep(
                f"step {shown_step(*step)} runs twice in one attempt; give each run its own key=", step=step.name
            )
        if step not in self._seen:
            self._names.add(step.name)
            check_count(len(self._names), len(self._seen) + 1)
            self._seen.add(step)
        self._begun[step] = time.monotonic()
        return self._known.get(step)

    def started(self, step: StepKey, attempt: int) -> None:
        """It is under way; written soon if it takes longer than a moment."""
        self._begun[step] = time.monotonic()
        self._reports.pop(step, None)
        self.place(*step)  # places follow the order of beginnings
        self._under_way[step] = attempt
        self._untold.add(step)
        self._unknown.add(step)

    def failed_try(self, write: StepWrite) -> Checkpoint:
        """Write it before the next try begins, which may make the steps in it again."""
        inner = f"{write.name}/"
        self._begun = {step: at for step, at in self._begun.items() if not step.name.startswith(inner)}
        self.note(write)
        return self.checkpoint([write])

    def started_ago_ms(self, step: StepKey) -> int:
        return int((time.monotonic() - self._begun.get(step, time.monotonic())) * 1000)

    def note(self, write: StepWrite) -> None:
        """Remember what is about to be written."""
        step = StepKey(write.name, write.key)
        self.abandon(step)
        before = self._known.get(step)
        known = ClaimedStep(
            write.name,
            write.key,
            write.place,
            write.state,
            write.attempt,
            (before.ran_ms if before else 0) + write.ran_ms,
            write.until_ms,
            write.result,
            None if write.result is None else len(write.result),
            write.input_hash,
            write.error,
            write.error_type,
        )
        self._keep(step, known)

    def _keep(self, step: StepKey, known: ClaimedStep) -> None:
        self._known[step] = known
        if not step.key:
            self.by_name[step.name] = known

    def abandon(self, step: StepKey) -> None:
        """It is no longer under way."""
        self._under_way.pop(step, None)
        self._untold.discard(step)
        self._unknown.discard(step)

    def report(self, step: StepKey, percent: int, message: str) -> None:
        """How far a step is, from any thread; written with the next news."""
        before = self._reports.get(step)
        self._reports[step] = Report(percent, message or (before.message if before else None))
        self._untold.add(step)

    def reported(self, step: StepKey) -> Report:
        said = self._reports.get(step, NOT_REPORTED)
        return said if said.message is None else said._replace(message=_storable(said.message))

    # -- waiting ---------------------------------------------------------------------------------

    def block(self, step: StepKey, blocked: Blocked) -> None:
        self._paused[step] = blocked

    def unblock(self, step: StepKey) -> None:
        """Its handler no longer waits for it."""
        self._paused.pop(step, None)

    @contextmanager
    def moving(self) -> Iterator[None]:
        """A branch that goes on as soon as this is done."""
        self._moving += 1
        try:
            yield
        finally:
            self._moving -= 1
            self.moves += 1

    @property
    def can_go_on(self) -> bool:
        return self._moving > 0 or bool(self.active.difference(*(one.outer for one in self._paused.values())))

    def has_slept(self, step: StepKey) -> bool:
        """Whether the time of a sleep has come before the job was set aside."""
        blocked = self._paused[step]
        delay_ms = blocked.pause.delay_ms
        return blocked.pause.kind == "sleep" and delay_ms is not None and blocked.passed_ms() >= delay_ms

    def suspend(self) -> None:
        """No branch can go on: the attempt is over. Steps in which a wait was reached begin anew."""
        self.suspended = set_aside([one.rest() for one in self._paused.values()])
        for step in frozenset().union(*(one.outer for one in self._paused.values())):
            attempt = self._under_way.get(step)
            if attempt is not None:
                self.with_outcome(StepWrite(*step, StepState.PENDING, self.place(*step), attempt - 1))

    def wait_failed(self, step: ClaimedStep) -> None:
        """The handler hears of it; if it does not catch that, the next attempt waits again."""
        self._failed_wait = step

    # -- writing ---------------------------------------------------------------------------------

    def checkpoint(self, writes: Iterable[StepWrite], consumed: Iterable[StepKey] = ()) -> Checkpoint:
        n, token, ran_ms, progress, message, grace_ms = self._attempt.touch(time.monotonic())
        flagged, self._flagged = self._flagged, True
        steps, used = tuple(writes), tuple(consumed)
        return Checkpoint(n, token, ran_ms, steps, used, progress, _storable(message), flagged, grace_ms)

    def has_begun(self, before: float) -> bool:
        """Whether a step has been under way since before this time and is not stored so."""
        return any(self._begun.get(step, math.inf) <= before for step in self._unknown)

    def news(self) -> Checkpoint | None:
        """Steps that have run for a while and are not stored yet, and how far they are."""
        # A function that was given up may still report its progress.
        return self.under_way() if any(step in self._under_way for step in list(self._untold)) else None

    def under_way(self) -> Checkpoint:
        told = [step for step in list(self._untold) if step in self._under_way]
        self._untold.difference_update(told)  # before the reports are read: later ones count as news
        self._unknown.difference_update(told)
        return self.checkpoint(map(self._progress, told))

    def _progress(self, step: StepKey) -> StepWrite:
        said = self.reported(step)
        return StepWrite(
            *step,
            StepState.PROCESSING,
            self.place(*step),
            self._under_way[step],
            progress=said.percent,
            message=said.message,
            started_ago_ms=self.started_ago_ms(step),
        )

    def with_outcome(self, write: StepWrite | None = None, consumed: StepKey | None = None) -> None:
        """Write it in the transaction that ends the attempt."""
        if write is not None:
            self._last.append(write)
        if consumed is not None:
            self._last_consumed.append(consumed)

    def effects(self, outcome: Outcome) -> Effects | None:
        """Waits of a handler begin only if the attempt ends because of them."""
        last = tuple(self._last)
        if outcome is self.suspended:
            last += tuple(wait for one in self._paused.values() if (wait := one.written()) is not None)
        if isinstance(outcome, Failed) and outcome.error_type in WAIT_ERRORS and self._failed_wait is not None:
            last += (told(self._failed_wait),)
        # Even if there is nothing to add: a job that has steps in the database is not settled as one without.
        if not last and not self._last_consumed and not self._flagged:
            return None
        return Effects(steps=last, consumed=tuple(self._last_consumed))


def _is_unread(step: ClaimedStep) -> bool:
    return step.state is StepState.COMPLETED and step.result is None and bool(step.result_size)


def told(wait: ClaimedStep) -> StepWrite:
    """A wait that failed, once its job has failed because of it."""
    return StepWrite(wait.name, wait.key, StepState.FAILED, wait.place, wait.attempt, error=wait.error)


def _storable(message: str | None) -> str | None:
    return None if message is None else storable(message, MAX_MESSAGE_CHARACTERS)
