"""The part of a worker behind `ctx.step`, `ctx.wait_external` and `ctx.sleep`, on the worker's loop.

The function of a step runs where its handler runs. Only facts about a step, before and after it ran, pass through
here as plain data, because a handler may be in another process.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import TYPE_CHECKING

from treadle.model.errors import JobCancelled, WaitTimeout
from treadle.model.steps import DONE, StepState, shown_step
from treadle.policy.flow import Pause, Reply, answered, not_answered, tries_before
from treadle.policy.judgement import Cause
from treadle.queue.handlers.steps import TURNS, Known, StepRecord, Wait, Waited
from treadle.store.values import ClaimedStep, StepKey, StepWrite
from treadle.telemetry.log_context import facts_of
from treadle.worker.call import Call
from treadle.worker.steps.journal import Blocked, StepJournal

if TYPE_CHECKING:
    from treadle.store.protocol import Store
    from treadle.worker.attempt import Attempt
    from treadle.worker.steps.writer import StepWriter

log = logging.getLogger("treadle.worker")

# How often a branch that waits looks whether others still go on.
LOOK_EVERY_S = 0.01


class StepServices:
    def __init__(self, store: Store, writer: StepWriter) -> None:
        self._store = store
        self._writer = writer

    async def recall(self, call: Call, name: str, key: str, finish_ms: int | None) -> Known:
        """What the step has done before. If it has to run, it is under way from now on."""
        steps, step = steps_of(call.attempt), StepKey(name, key)
        self._check(call)
        found = steps.begin(step)
        if found is not None and found.state in DONE:
            with steps.moving():
                return Known(True, await self._result(call.attempt, steps, step, found), 0)
        tries = tries_before(found.state, found.attempt) if found else 0
        steps.started(step, tries + 1)
        steps.active.add(step)
        inner = Call(call.attempt, call.function, call.payload, math.inf)
        inner.parent, inner.step, inner.key = call, name, key
        steps.calls[step] = inner
        call.attempt.open(inner)
        if finish_ms is not None:
            inner.finishes_by = time.monotonic() + finish_ms / 1000
            await self._delay_cancel(call, inner, step)
        return Known(False, None, tries)

    async def _delay_cancel(self, call: Call, inner: Call, step: StepKey) -> None:
        """The step begins only when the store knows that a cancel waits for it."""
        steps = steps_of(call.attempt)
        try:
            await self._writer.write(call.attempt, steps.under_way())
            self._check(call)
        except BaseException:
            steps.active.discard(step)
            steps.abandon(step)
            steps.calls.pop(step, None)
            call.attempt.close(inner)
            raise

    async def _result(self, attempt: Attempt, steps: StepJournal, step: StepKey, found: ClaimedStep) -> str | None:
        if found.result is None and found.result_size:
            steps.read(await self._store.step_results(attempt.job.n, [step]))
            return (steps.get(step) or found).result
        return found.result

    async def record(self, call: Call, record: StepRecord | None, name: str, key: str) -> None:
        """Store the end of a step before anything else happens; None: it was interrupted."""
        attempt = call.attempt
        steps, step = steps_of(attempt), StepKey(name, key)
        if record is not None and record.again:
            await self._writer.write(attempt, steps.failed_try(_write_of(record, steps, step)))
            steps.started(step, record.attempt + 1)
            return
        inner = steps.calls.pop(step, None)
        try:
            steps.abandon(step)  # from here on, it is no longer reported as running
            if inner is not None and inner.finishes_by is not None:
                inner.finishes_by = 0.0  # a cancel waits only until this write
                attempt.news = True
            if record is None:
                return
            write = _write_of(record, steps, step)
            if write.state is StepState.PENDING and write.error is None:
                steps.with_outcome(write)  # it waits, and so does its job: nothing can follow
            else:
                await self._writer.write(attempt, steps.checkpoint([write]))
            steps.note(write)
        finally:
            with steps.moving():
                steps.active.discard(step)
            if inner is not None:
                attempt.close(inner)

    async def wait(self, call: Call, wait: Wait) -> Waited:
        """What became of a wait; if it goes on, its row is written with the end of this attempt."""
        steps, step = steps_of(call.attempt), StepKey(wait.name, wait.key)
        self._check(call)
        if wait.retries:
            return await self._block(call, wait, Pause("retry", shown_step(*step), wait.timeout_ms))
        if wait.refused is not None:
            return await self._waits_again(call, wait, step)
        found = steps.begin(step)
        if found is not None and found.state is StepState.COMPLETED:
            with steps.moving():
                return Waited("done", await self._result(call.attempt, steps, step, found))
        if found is not None and found.state is StepState.FAILED and found.error_type is not None:
            return _failed(steps, found)
        reply = steps.early_answer(step)
        left_ms = found.left_ms if found and found.state is StepState.WAITING else wait.timeout_ms
        over = found is not None and found.state is StepState.WAITING and left_ms is not None and left_ms <= 0
        if reply is None and not over:
            return await self._goes_on(call, wait, found, left_ms)
        return await self._ends(call, wait, reply)

    async def _ends(self, call: Call, wait: Wait, reply: Reply | None) -> Waited:
        """It has its answer, or its time is over."""
        steps, step = steps_of(call.attempt), StepKey(wait.name, wait.key)
        found = steps.get(step)
        write = StepWrite(*step, StepState.COMPLETED, steps.place(*step), max(found.attempt if found else 0, 1))
        if found is None:
            write = write._replace(started_ago_ms=steps.started_ago_ms(step))
        if reply is not None:
            end = answered(reply)
            write = write._replace(state=end.state, result=end.result, error=end.error, error_type=end.error_type)
            write = write._replace(started_ago_ms=0 if end.error is None else None)
        elif not wait.sleeps:
            error = not_answered(shown_step(*step))
            write = write._replace(state=StepState.FAILED, error=error, error_type=WaitTimeout.__name__)
        consumed = [step] if reply is not None else []
        with steps.moving():
            await self._writer.write(call.attempt, steps.checkpoint([write], consumed))
        steps.note(write)
        if write.state is StepState.COMPLETED:
            return Waited("done", write.result)
        known = steps.get(step)
        assert known
        return _failed(steps, known)

    async def _waits_again(self, call: Call, wait: Wait, step: StepKey) -> Waited:
        """An answer that came before its schema was known, and does not fit it, is dropped."""
        shown, job = shown_step(*step), call.job
        log.warning("job %s: the answer to step %s was dropped: %s", job.id, shown, wait.refused, extra=facts_of(job))
        return await self._goes_on(call, wait, None, wait.timeout_ms)

    async def _goes_on(self, call: Call, wait: Wait, found: ClaimedStep | None, left_ms: int | None) -> Waited:
        step = StepKey(wait.name, wait.key)
        pause = Pause("sleep" if wait.sleeps else "answer", shown_step(*step), left_ms)
        if found is not None and found.state is StepState.WAITING:
            return await self._block(call, wait, pause)
        write = StepWrite(
            *step,
            StepState.WAITING,
            steps_of(call.attempt).place(*step),
            (found.attempt if found else 0) + 1,
            until_ms=wait.timeout_ms,
            schema=wait.schema,
        )
        return await self._block(call, wait, pause, write)

    async def _block(self, call: Call, wait: Wait, pause: Pause, write: StepWrite | None = None) -> Waited:
        """Other branches of the handler go on; the job is set aside when none is left that could."""
        steps, step = steps_of(call.attempt), StepKey(wait.name, wait.key)
        outer = frozenset(StepKey(*one) for one in wait.inside)
        steps.block(step, Blocked(pause, outer, write, time.monotonic()))
        try:
            while not await _is_stuck(steps, call):
                await asyncio.sleep(LOOK_EVERY_S)
                if steps.has_slept(step):
                    steps.unblock(step)
                    return await self._ends(call, wait, None)
        except BaseException:
            steps.unblock(step)
            raise
        steps.suspend()
        return Waited("waits", delay_ms=pause.delay_ms)

    def _check(self, call: Call) -> None:
        """No step begins once a cancel was asked."""
        call.check()
        interrupt = call.attempt.interrupt
        if interrupt is not None and interrupt.cause is Cause.CANCEL:
            raise JobCancelled(interrupt.reason)


async def _is_stuck(steps: StepJournal, call: Call) -> bool:
    """Whether no branch can go on. One that has just heard how its step or wait ended has time to do something."""
    while not steps.can_go_on:
        seen = steps.moves
        if call.when_idle:
            await call.when_idle()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        if not steps.can_go_on and steps.moves == seen:
            return True
    return False


def _write_of(record: StepRecord, steps: StepJournal, step: StepKey) -> StepWrite:
    return StepWrite(
        *step,
        StepState(record.state),
        steps.place(*step),
        record.attempt,
        started_ago_ms=steps.started_ago_ms(step),
        ran_ms=record.ran_ms,
        error=record.error,
        error_type=record.error_type,
        result=record.result,
        input_hash=record.input_hash,
    )


def _failed(steps: StepJournal, wait: ClaimedStep) -> Waited:
    steps.wait_failed(wait)
    return Waited("failed", None, wait.error, wait.error_type)


def steps_of(attempt: Attempt) -> StepJournal:
    if attempt.steps is None:
        attempt.steps = StepJournal(attempt)
    return attempt.steps
