"""The steps of one attempt: what they have done, in this attempt and before, and what has to be written of them.

`policy.flow` says what has happened to a step (a `StepChange`). Only the journal makes a `StepWrite` of it: with the
step's place, its times and its progress.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from treadle.model.errors import DoubledStep
from treadle.model.steps import DONE, StepState, check_count, shown_step
from treadle.policy import flow
from treadle.policy.flow import WAIT_ERRORS, Pause, Reply, StepChange, set_aside
from treadle.policy.lifecycle import Failed, Outcome, Parked, Snoozed
from treadle.store.values import Checkpoint, ClaimedStep, Effects, NewJob, StepKey, StepWrite
from treadle.worker.errors import MAX_MESSAGE_CHARACTERS, storable
from treadle.worker.steps.branches import Branches

if TYPE_CHECKING:
    from treadle.worker.attempt import Attempt
    from treadle.worker.call import Call


class Report(NamedTuple):
    percent: int
    message: str | None


NOT_REPORTED = Report(0, None)
NONE_DECLARED: Mapping[str, int] = {}
# Steps under way that one write tells: thousands may have begun together.
TOLD_TOGETHER = 200


class Active(NamedTuple):
    """A step that a handler made and that has not ended."""

    call: Call
    task: asyncio.Task[object] | None
    """Where its function runs, if that is on this loop."""
    must_finish: Call | None
    """For a cancel that has to wait for it."""


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
        self._nested: dict[str, list[StepKey]] = {}
        """The begun steps in another one, by its name."""
        self._seen = set(self._known)
        self._names = {one.name for one in steps}
        self._under_way: dict[StepKey, int] = {}
        """Which try of them is running."""
        self._untold: dict[StepKey, None] = {}
        """Steps with unwritten news, the oldest first."""
        self._unknown: dict[StepKey, None] = {}
        """Those of them that are not stored as under way."""
        self._reports: dict[StepKey, Report] = {}
        self._follow_ups: dict[StepKey, tuple[NewJob, ...]] = {}
        """Jobs to store with the end of a step."""
        self._flagged = self._has_steps = loaded is not None
        self._last: list[StepWrite] = []
        self._items: dict[StepKey, int] = {}
        """Of an item that runs: its place in its list. Of a mapped step: how many items it has."""
        self._items_done: dict[str, int] = {}
        self.read_items: Callable[[str, int, int], Sequence[tuple[int, str | None]]] | None = None
        """The results of a mapped step's items, from one place in its list to before another."""
        self.active: dict[StepKey, Active] = {}
        self.branches = Branches(self._suspend)
        self.waits: dict[tuple[Call, asyncio.Task[object]], int] = {}
        """How many waits of a call are open in a task."""
        self._failed_waits: dict[StepKey, tuple[ClaimedStep, object]] = {}
        """Waits whose failure the handler has heard, each with the branch that heard it and has not gone on since."""
        self.suspended: Parked | Snoozed | None = None
        """Set when no branch of the handler could go on: how the attempt ends, no matter what it does now."""
        self.pauses_beside: Callable[[], list[Pause]] = list
        """What other branches of a graph wait for, when no call can go on."""

    # -- looking ---------------------------------------------------------------------------------

    def get(self, step: StepKey) -> ClaimedStep | None:
        return self._known.get(step)

    def early_answer(self, step: StepKey) -> Reply | None:
        return self._answers.get(step)

    def answered(self, waits: ClaimedStep, reply: Reply) -> None:
        """It waits as before, and has an answer."""
        step = StepKey(waits.name, waits.key)
        self._keep(step, waits)
        self._answers[step] = reply
        if not step.key:
            self.answers[step.name] = reply

    def results(self) -> dict[str, str | None]:
        # A copy: the loop may add steps while a handler asks in a thread.
        return {name: one.result for name, one in list(self.by_name.items()) if one.state in DONE}

    def lists(self) -> dict[str, int]:
        """The mapped steps that are done, with the number of their items."""
        known = list(self.by_name.values())
        return {one.name: one.items for one in known if one.items is not None and one.state in DONE}

    def unread(self) -> list[StepKey]:
        """Completed steps with results too large to come with the claim."""
        return list(self._unread)

    def read(self, results: Mapping[StepKey, str]) -> None:
        for step, text in results.items():
            self._keep(step, self._known[step]._replace(result=text))
        self._unread.difference_update(results)

    def active_ms(self) -> int:
        """How long the steps of the job have been active in all; nested ones are a part of theirs."""
        return sum(one.ran_ms for one in self.by_name.values() if "/" not in one.name)

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

    def begin(self, step: StepKey, branch: object = None) -> ClaimedStep | None:
        """What the step has done before; an error if it has already run in this attempt.

        `branch`: which one begins it. It has got over the failed waits that it heard of.
        """
        if step in self._begun:
            raise DoubledStep(
                f"step {shown_step(*step)} runs twice in one attempt; give each run its own key=", step=step.name
            )
        if step not in self._seen:
            self._names.add(step.name)
            check_count(len(self._names), len(self._seen) + 1)
            self._seen.add(step)
        self._begun[step] = time.monotonic()
        if "/" in step.name:
            outer = step.name.rpartition("/")[0]
            while outer:
                self._nested.setdefault(outer, []).append(step)
                outer = outer.rpartition("/")[0]
        if self._failed_waits:
            over = [failed for failed, (_, heard) in self._failed_waits.items() if heard is branch]
            for failed in over:
                del self._failed_waits[failed]
        return self._known.get(step)

    def started(self, step: StepKey, attempt: int) -> None:
        """It is under way; written soon if it takes longer than a moment."""
        self._begun[step] = time.monotonic()
        self._reports.pop(step, None)
        self._follow_ups.pop(step, None)
        if step not in self._items:
            self.place(*step)  # places follow the order of beginnings
        self._under_way[step] = attempt
        self._untold[step] = None
        self._unknown[step] = None

    def failed_try(self, step: StepKey, change: StepChange, ran_ms: int, **known: str | None) -> Checkpoint:
        """Write it before the next try begins, which may make the steps in it again."""
        for inner in self._nested.pop(step.name, ()):
            self._begun.pop(inner, None)
        return self.checkpoint([self.noted(step, change, ran_ms, **known)])

    def abandon(self, step: StepKey) -> None:
        """It is no longer under way."""
        self._under_way.pop(step, None)
        self._untold.pop(step, None)
        self._unknown.pop(step, None)

    def report(self, step: StepKey, percent: int, message: str) -> None:
        """How far a step is, from any thread; written with the next news."""
        before = self._reports.get(step)
        self._reports[step] = Report(percent, message or (before.message if before else None))
        self._untold[step] = None

    def current_percent(self) -> int:
        """How far the current step of a flow is: of several that run, the first declared one."""
        if not self._under_way:
            return 0
        running = [step for step in list(self._under_way) if step.name in self._declared and not step.key]
        first = min(running, key=lambda step: self._declared[step.name], default=None)
        return 0 if first is None else self._reports.get(first, NOT_REPORTED).percent

    def _reported(self, step: StepKey) -> Report:
        said = self._reports.get(step, NOT_REPORTED)
        return said if said.message is None else said._replace(message=_storable(said.message))

    def _keep(self, step: StepKey, known: ClaimedStep) -> None:
        self._known[step] = known
        if not step.key:
            self.by_name[step.name] = known

    # -- the items of mapped steps ---------------------------------------------------------------

    def begin_items(self, step: StepKey, total: int, found: Iterable[tuple[str, StepState, int]]) -> list[str]:
        """The keys of the items that are done. The others are known from now on, until each of them has ended."""
        check_count(len(self._names), len(self._seen) + sum(self._items.values()) + total)
        self._items[step] = total
        done: list[str] = []
        for key, state, attempt in found:
            if state in DONE:
                done.append(key)
            else:
                item = StepKey(step.name, key)
                self._known[item] = ClaimedStep(step.name, key, self.place(*step), state, attempt)
        self._items_done[step.name] = len(done)
        return done

    def begin_item(self, item: StepKey, place: int) -> None:
        self._items[item] = place

    def is_item(self, step: StepKey) -> bool:
        return step in self._items

    def item_ended(self, item: StepKey) -> int:
        """Forgets it, so that thousands don't stay in memory; how many percent of the items have ended."""
        for known in (self._known, self._begun, self._places, self._items, self._reports, self._follow_ups):
            known.pop(item, None)
        self._seen.discard(item)
        self._nested.pop(item.name, None)
        done = self._items_done[item.name] = self._items_done.get(item.name, 0) + 1
        return done * 100 // max(self._items.get(StepKey(item.name), 1), 1)

    def under_way_now(self, step: StepKey) -> Checkpoint:
        self._untold.pop(step, None)
        self._unknown.pop(step, None)
        return self.checkpoint([self._write(step, flow.began(self._under_way.get(step, 1)))])

    def has_child(self, step: StepKey, known: ClaimedStep) -> None:
        """Its children were made, and its row was stored with them."""
        self._keep(step, known)
        self._has_steps = self._flagged = True

    # -- follow-up jobs --------------------------------------------------------------------------

    def follow_up(self, step: StepKey, job: NewJob) -> bool:
        """Keep the job for the end of this step; False if the step is not under way."""
        if step not in self._under_way:
            return False
        self._follow_ups[step] = (*self._follow_ups.get(step, ()), job)
        return True

    def has_follow_ups(self, step: StepKey) -> bool:
        return step in self._follow_ups

    # -- waiting ---------------------------------------------------------------------------------

    def _suspend(self) -> None:
        """No branch can go on: the attempt is over. Steps in which a wait was reached begin anew."""
        self.suspended = set_aside([one.rest() for one in self.branches.blocked()] + self.pauses_beside())
        for step in self.branches.outer():
            attempt = self._under_way.get(step)
            if attempt is not None and step.name not in self._declared:
                anew = self._write(step, flow.begins_anew(attempt))
                self.with_outcome(anew._replace(progress=None, message=None, started_ago_ms=None))

    def wait_failed(self, step: ClaimedStep, branch: object) -> None:
        """The handler hears of it; if it does not catch that, the next attempt waits again."""
        self._failed_waits[StepKey(step.name, step.key)] = step, branch

    # -- the end of a handler --------------------------------------------------------------------

    async def finish(self, call: Call) -> None:
        """The handler has ended. What it left behind is stopped, or waited for, before its outcome is stored: the next
        attempt must not run a step that still runs here."""
        self.branches.close(call)
        if call.function.handler.kind == "process":  # its loop has ended, and its steps with it
            for step, one in [(step, one) for step, one in self.active.items() if one.call is call]:
                if one.must_finish:
                    self._attempt.close(one.must_finish)
                del self.active[step]
            self.branches.forget(call)
        stopped: set[asyncio.Task[object]] = set()
        while tasks := self._open_tasks(call):
            spared = {one.task for one in self.active.values() if one.must_finish and one.call is call}
            for task in tasks - spared - stopped:
                task.cancel()
            stopped |= tasks - spared
            await asyncio.wait(tasks)
        await self.branches.all_left(call)

    def _open_tasks(self, call: Call) -> set[asyncio.Task[object]]:
        mine = asyncio.current_task()
        tasks = {one.task for one in self.active.values() if one.task and one.call is call}
        tasks |= {task for made_by, task in self.waits if made_by is call}
        return {task for task in tasks if task is not mine and not task.done()}

    # -- writing ---------------------------------------------------------------------------------

    def _write(
        self,
        step: StepKey,
        change: StepChange,
        ran_ms: int = 0,
        *,
        input_hash: str | None = None,
        title: str | None = None,
        waited_ms: int | None = None,
    ) -> StepWrite:
        """`waited_ms`: for how long it has waited already."""
        state, attempt, result, error, error_type, begins, wait_ms, schema, _ = change
        ago: int | None = None
        percent = message = None
        if step in self._under_way:
            ago = int((time.monotonic() - self._begun[step]) * 1000)
            percent, message = self._reported(step) if self._reports else NOT_REPORTED
        elif begins:
            ago = waited_ms or 0
        item = self._items.get(step) if self._items else None
        return StepWrite(
            step.name,
            step.key,
            state,
            self.place(*step) if item is None else self.place(step.name),
            attempt,
            title,
            percent,
            message,
            ago,
            ran_ms,
            wait_ms,
            error,
            error_type,
            result,
            input_hash,
            schema,
            item,
        )

    def noted(
        self,
        step: StepKey,
        change: StepChange,
        ran_ms: int = 0,
        *,
        input_hash: str | None = None,
        title: str | None = None,
    ) -> StepWrite:
        """What is to be written of a change, which is known from now on."""
        write = self._write(step, change, ran_ms, input_hash=input_hash, title=title)
        self.abandon(step)
        before = self._known.get(step)
        size = None if write.result is None else len(write.result)
        self._keep(
            step,
            ClaimedStep(
                write.name,
                write.key,
                write.place,
                write.state,
                write.attempt,
                (before.ran_ms if before else 0) + ran_ms,
                write.until_ms,
                write.result,
                size,
                write.input_hash,
                write.error,
                write.error_type,
                items=None if write.key else write.item,
            ),
        )
        return write

    def checkpoint(
        self, writes: Iterable[StepWrite], consumed: Iterable[StepKey] = (), jobs: tuple[NewJob, ...] = ()
    ) -> Checkpoint:
        n, token, ran_ms, progress, message, grace_ms = self._attempt.touch(time.monotonic())
        self._has_steps = True
        steps, used = tuple(writes), tuple(consumed)
        return Checkpoint(n, token, ran_ms, steps, used, progress, _storable(message), self._flagged, grace_ms, jobs)

    def stored(self) -> None:
        """The store knows that the job has steps."""
        self._flagged = True

    def ended(self, step: StepKey, write: StepWrite, takes_answer: bool = False) -> Checkpoint:
        """The end of a step, with the follow-up jobs that it made if it has completed."""
        jobs = self._follow_ups.pop(step, ()) if self._follow_ups else ()
        kept = jobs if write.state is StepState.COMPLETED else ()
        return self.checkpoint((write,), (step,) if takes_answer else (), kept)

    def has_begun(self, before: float) -> bool:
        """Whether a step has been under way since before this time and is not stored so."""
        return any(self._begun.get(step, math.inf) <= before for step in self._unknown)

    def news(self) -> Checkpoint | None:
        """Steps that have run for a while and are not stored yet, and how far they are."""
        # A function that was given up may still report its progress.
        return self.under_way() if any(step in self._under_way for step in list(self._untold)) else None

    def under_way(self) -> Checkpoint:
        told = list(islice((step for step in list(self._untold) if step in self._under_way), TOLD_TOGETHER))
        for step in told:  # before the reports are read: later ones count as news
            self._untold.pop(step, None)
            self._unknown.pop(step, None)
        return self.checkpoint([self._write(step, flow.began(self._under_way[step])) for step in told])

    def with_outcome(self, write: StepWrite) -> None:
        """Write it in the transaction that ends the attempt."""
        self._last.append(write)

    def effects(self, outcome: Outcome) -> Effects | None:
        """Waits of a handler begin only if the attempt ends because of them."""
        last = list(self._last)
        awaits: list[StepKey] = []
        if outcome is self.suspended:
            for step, one in self.branches.blocked_steps():
                if one.pause.kind == "child":
                    awaits.append(step)
                if (wait := one.rest_of_wait()) is not None:
                    last.append(self._write(step, wait, waited_ms=one.passed_ms()))
        if isinstance(outcome, Failed) and outcome.error_type in WAIT_ERRORS:
            for step, (failed, _) in self._failed_waits.items():
                last.append(self._write(step, flow.given_up(failed.attempt, failed.error)))
        # Even if there is nothing to add: a job that has steps in the database is not settled as one without.
        return Effects(steps=tuple(last), awaits=tuple(awaits)) if last or self._has_steps else None


def _is_unread(step: ClaimedStep) -> bool:
    return step.state is StepState.COMPLETED and step.result is None and bool(step.result_size)


def _storable(message: str | None) -> str | None:
    return None if message is None else storable(message, MAX_MESSAGE_CHARACTERS)
