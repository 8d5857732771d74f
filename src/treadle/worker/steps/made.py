"""The part of a worker behind `ctx.step`, `ctx.wait_external` and `ctx.sleep`, on the worker's loop.

The function of a step runs where its handler runs. Only facts about a step, before and after it ran, pass through
here as plain data, because a handler may be in another process.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from treadle.model.errors import FollowUpRefused, JobCancelled, LeaseLost, Refused, StepEnded
from treadle.model.steps import DONE, STEP_ENDED, StepState, shown_step
from treadle.policy import flow
from treadle.policy.flow import Pause, Reply, StepChange
from treadle.policy.judgement import Cause
from treadle.queue.handlers.steps import Known, StepRecord, Wait, Waited
from treadle.store.values import ClaimedStep, StepKey
from treadle.telemetry.log_context import facts_of
from treadle.worker.call import Call
from treadle.worker.steps.branches import Blocked
from treadle.worker.steps.journal import Active, StepJournal

if TYPE_CHECKING:
    from treadle.store.protocol import Store
    from treadle.worker.attempt import Attempt
    from treadle.worker.steps.writer import StepWriter

log = logging.getLogger("treadle.worker")

# Steps and waits that begin in one turn of the loop: thousands that a handler gathers must not hold it.
STARTS_A_TURN = 20


class StepServices:
    def __init__(self, store: Store, writer: StepWriter) -> None:
        self._store = store
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._starts = 0
        self._queued: deque[asyncio.Future[None]] = deque()

    async def recall(self, call: Call, name: str, key: str, finish_ms: int | None, item: int | None = None) -> Known:
        """What the step has done before. If it has to run, it is under way from now on."""
        attempt = call.attempt
        steps, step = attempt.steps or steps_of(attempt), StepKey(name, key)
        if call.when_idle and (turn := self.turn(call)):
            await turn
        self.check(call, is_item=item is not None)
        task = task_of(call)
        found = steps.begin(step, task)
        if found is not None and found.state in DONE:
            with steps.branches.moving():
                return Known(True, await self.result(call.attempt, steps, step, found), 0)
        tries = flow.tries_before(found.state, found.attempt) if found else 0
        if item is not None:
            steps.begin_item(step, item)
        steps.started(step, tries + 1)
        steps.branches.enter(step, call)
        if finish_ms is None:
            steps.active[step] = Active(call, task, None)
        else:
            await self._delay_cancel(call, step, task, finish_ms)
        return Known(False, None, tries)

    async def _delay_cancel(self, call: Call, step: StepKey, task: asyncio.Task[Any] | None, finish_ms: int) -> None:
        """The step begins only when the store knows that a cancel waits for it."""
        steps = steps_of(call.attempt)
        inner = Call(call.attempt, call.function, call.payload, math.inf)
        inner.parent, inner.step, inner.key = call, step.name, step.key
        inner.finishes_by = time.monotonic() + finish_ms / 1000
        call.attempt.open(inner)
        steps.active[step] = Active(call, task, inner)
        try:
            await self._writer.write(call.attempt, steps.under_way())
            self.check(call, is_item=steps.is_item(step))
        except BaseException:
            steps.abandon(step)
            self._leave(call.attempt, steps, step)
            raise

    def _leave(self, attempt: Attempt, steps: StepJournal, step: StepKey) -> None:
        active = steps.active.pop(step, None)
        steps.branches.leave(step)
        if active is not None and active.must_finish is not None:
            attempt.close(active.must_finish)

    async def result(self, attempt: Attempt, steps: StepJournal, step: StepKey, found: ClaimedStep) -> str | None:
        if found.result is None and found.result_size:
            steps.read(await self._store.step_results(attempt.job.n, [step]))
            return (steps.get(step) or found).result
        return found.result

    async def record(self, call: Call, record: StepRecord | None, name: str, key: str) -> None:
        """Store the end of a step before anything else happens; None: it was interrupted."""
        attempt = call.attempt
        steps, step = attempt.steps or steps_of(attempt), StepKey(name, key)
        if record is not None and record.again:
            written = steps.failed_try(step, record.change, record.ran_ms, input_hash=record.input_hash)
            await self._writer.write(attempt, written)
            steps.started(step, record.attempt + 1)
            return
        active = steps.active.get(step)
        try:
            if active is not None and active.must_finish is not None:
                active.must_finish.finishes_by = 0.0  # a cancel waits only until this write
                attempt.news = True
            if record is None:
                steps.abandon(step)
            else:
                await self._end(attempt, steps, step, record)
                if key and record.change.state in STEP_ENDED and steps.is_item(step):
                    self._item_ended(call, steps, step)
        finally:
            self._leave(attempt, steps, step)

    async def _end(self, attempt: Attempt, steps: StepJournal, step: StepKey, record: StepRecord) -> None:
        change = record.change
        write = steps.noted(step, change, record.ran_ms, input_hash=record.input_hash)
        if change.state is StepState.PENDING and change.error is None:
            return steps.with_outcome(write)  # it waits, and so does its job: nothing can follow
        try:
            await self._writer.write(attempt, steps.ended(step, write))
        except Refused as refusal:
            end = flow.refused(refusal.message)
            write = steps.noted(step, flow.ended(end, change.attempt))
            await self._writer.write(attempt, steps.ended(step, write))
            raise FollowUpRefused(end.error or "") from refusal

    def _item_ended(self, call: Call, steps: StepJournal, item: StepKey) -> None:
        percent = steps.item_ended(item)
        if call.step == item.name:
            call.report(percent, "")  # a declared step, whose progress is a part of its flow's
        else:
            steps.report(StepKey(item.name), percent, "")

    # -- waits -------------------------------------------------------------------------------------

    async def wait(self, call: Call, wait: Wait) -> Waited:
        """What became of a wait; if it goes on, its row is written with the end of this attempt."""
        return await self.waiting(call, lambda branch: self._wait(call, wait, branch))

    async def waiting(self, call: Call, wait: Callable[[object], Awaitable[Waited]]) -> Waited:
        """What a branch of the handler waits for, once it has its turn and may begin."""
        steps = steps_of(call.attempt)
        if call.when_idle and (turn := self.turn(call)):
            await turn
        self.check(call)
        task = task_of(call)
        if task is None:
            return await wait(None)
        place = call, task
        steps.waits[place] = steps.waits.get(place, 0) + 1
        try:
            return await wait(task)
        finally:
            steps.waits[place] -= 1
            if not steps.waits[place]:
                del steps.waits[place]

    async def _wait(self, call: Call, wait: Wait, branch: object) -> Waited:
        steps, step = steps_of(call.attempt), StepKey(wait.name, wait.key)
        if wait.retries:
            return await self.block(call, wait, Pause("retry", shown_step(*step), wait.timeout_ms))
        if wait.refused is not None:
            return await self._waits_again(call, wait, step)
        found = steps.begin(step, branch)
        if found is not None and found.state is StepState.COMPLETED:
            with steps.branches.moving():
                return Waited("done", await self.result(call.attempt, steps, step, found))
        if found is not None and found.state is StepState.FAILED and found.error_type is not None:
            return _failed(steps, found, branch)
        reply = steps.early_answer(step)
        waits = found is not None and found.state is StepState.WAITING
        left_ms = found.left_ms if found is not None and waits else wait.timeout_ms
        if reply is not None or (waits and flow.is_overdue(left_ms)):
            return await self._ends(call, wait, reply, branch)
        return await self._goes_on(call, wait, found, left_ms)

    async def _ends(self, call: Call, wait: Wait, reply: Reply | None, branch: object) -> Waited:
        """It has its answer, or its time is over."""
        steps, step = steps_of(call.attempt), StepKey(wait.name, wait.key)
        found = steps.get(step)
        change = _end_of(wait, reply, found)
        with steps.branches.moving():
            try:
                write = steps.noted(step, change)
                await self._writer.write(call.attempt, steps.ended(step, write, change.takes_answer))
            except StepEnded:
                change = _end_of(wait, await self.late_answer(call.attempt, step), found)
                write = steps.noted(step, change)
                await self._writer.write(call.attempt, steps.ended(step, write, takes_answer=True))
        if change.state is StepState.COMPLETED:
            return Waited("done", change.result)
        known = steps.get(step)
        assert known
        return _failed(steps, known, branch)

    async def late_answer(self, attempt: Attempt, step: StepKey) -> Reply:
        """The answer to a wait that was about to time out."""
        n = attempt.job.n
        found = (await self._store.claimed_steps([n])).get(n)
        for one in found.answers if found else ():
            if (one.name, one.key) == step:
                return Reply(one.result, one.error)
        raise LeaseLost(attempt.lost_interrupt().reason)  # only its owner uses an answer

    async def _waits_again(self, call: Call, wait: Wait, step: StepKey) -> Waited:
        """An answer that came before its schema was known, and does not fit it, is dropped."""
        shown, job = shown_step(*step), call.job
        log.warning("job %s: the answer to step %s was dropped: %s", job.id, shown, wait.refused, extra=facts_of(job))
        return await self._goes_on(call, wait, None, wait.timeout_ms)

    async def _goes_on(self, call: Call, wait: Wait, found: ClaimedStep | None, left_ms: int | None) -> Waited:
        pause = Pause("sleep" if wait.sleeps else "answer", shown_step(wait.name, wait.key), left_ms)
        if found is not None and found.state is StepState.WAITING:
            return await self.block(call, wait, pause)
        steps_of(call.attempt).place(wait.name, wait.key)  # places follow the order of beginnings
        begins = flow.waits(found.attempt if found else 0, wait.timeout_ms, wait.schema)
        return await self.block(call, wait, pause, begins)

    async def block(self, call: Call, wait: Wait, pause: Pause, begins: StepChange | None = None) -> Waited:
        """Other branches of the handler go on; the job is set aside when none is left that could."""
        branches, step = steps_of(call.attempt).branches, StepKey(wait.name, wait.key)
        outer = frozenset(StepKey(*one) for one in wait.inside)
        if call.side_by_side:
            outer |= {StepKey(call.step)}
        blocked = Blocked(pause, outer, begins, time.monotonic(), call)
        if not await branches.block(step, blocked, call.when_idle):
            return Waited("waits", delay_ms=pause.delay_ms)
        try:
            return await self._ends(call, wait, None, None)
        finally:
            branches.moved()

    # -- both --------------------------------------------------------------------------------------

    def turn(self, call: Call) -> asyncio.Future[None] | None:
        """None, or done in a later turn of the loop if many have begun in this one."""
        self._starts += 1
        if self._starts == 1:
            self._loop.call_soon(self._next_turn)
        if self._starts <= STARTS_A_TURN:
            return None
        turn: asyncio.Future[None] = self._loop.create_future()
        self._queued.append(turn)
        steps_of(call.attempt).branches.moves_until(turn)
        return turn

    def _next_turn(self) -> None:
        self._starts = 0
        while self._queued and self._starts < STARTS_A_TURN:
            turn = self._queued.popleft()
            if not turn.done():
                turn.set_result(None)
                self._starts += 1
        if self._starts:
            self._loop.call_soon(self._next_turn)

    def check(self, call: Call, *, is_item: bool = False) -> None:
        """No step begins once a cancel was asked, or its handler has ended. A mapped step that must finish begins its
        items all the same."""
        call.check()
        attempt = call.attempt
        interrupt = attempt.interrupt
        goes_on = is_item and call.finishes_by is not None
        if interrupt is not None and interrupt.cause is Cause.CANCEL and not goes_on:
            raise JobCancelled(interrupt.reason)
        if attempt.ended or call.over:
            raise JobCancelled(f"the handler of job {call.job.id} has ended")


def _end_of(wait: Wait, reply: Reply | None, found: ClaimedStep | None) -> StepChange:
    waited = max(found.attempt if found else 0, 1)
    if reply is not None:
        return flow.answered(reply, waited, begins=found is None or reply.error is None)
    if wait.sleeps:
        return flow.slept(waited, begins=found is None)
    return flow.timed_out(shown_step(wait.name, wait.key), waited)


def _failed(steps: StepJournal, wait: ClaimedStep, branch: object) -> Waited:
    steps.wait_failed(wait, branch)
    return Waited("failed", None, wait.error, wait.error_type)


def task_of(call: Call) -> asyncio.Task[Any] | None:
    """The branch of a handler that runs on this loop."""
    return asyncio.current_task() if call.function.handler.kind == "async" else None


def steps_of(attempt: Attempt) -> StepJournal:
    if attempt.steps is None:
        attempt.steps = StepJournal(attempt)
    return attempt.steps
