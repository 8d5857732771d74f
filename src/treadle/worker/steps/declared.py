"""Runs the declared steps of a flow: ask the policy what is next, call it, store what it did, ask again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic_core import to_json

from treadle.model.durations import duration_ms, format_ms
from treadle.model.errors import LeaseLost, WaitTimeout
from treadle.model.steps import StepState
from treadle.policy import flow
from treadle.policy.flow import FlowFacts, Plan, PlannedStep, RetryInPlace, StepEnd, Tries, after_call
from treadle.policy.judgement import CallResult, Cause, Interrupt, Returned
from treadle.policy.lifecycle import Completed, Outcome, Parked, Released
from treadle.queue.handlers.flows import FlowHandler, FlowStep
from treadle.queue.handlers.steps import input_hash
from treadle.store.protocol import Store
from treadle.store.values import StepKey, StepWrite
from treadle.worker.attempt import Attempt
from treadle.worker.call import Begun, Call, Function, result_of
from treadle.worker.hook_runner import TopicHooks
from treadle.worker.recipe import AttemptEnd
from treadle.worker.steps.conditions import YES, condition
from treadle.worker.steps.journal import StepJournal
from treadle.worker.steps.writer import StepWriter
from treadle.worker.stray_cancels import absorb_cancel
from treadle.worker.threads import Threads

# How often a step that waits for its next try looks whether it should stop.
PAUSE_LOOK_S = 0.05


class StepCall(Call):
    """The call of one declared step. Its progress is a part of its job's."""

    planned: Sequence[PlannedStep]
    left_s: float
    """How long it may run: as long as its step, or what is left of the whole flow's time."""
    of_flow_s: float | None = None
    """The whole flow's limit, if that is the shorter one."""

    def report(self, percent: int, message: str) -> None:
        steps = self.attempt.steps
        if steps is not None:
            steps.report(StepKey(self.step), percent, message)
            percent = flow.progress(self.planned, steps.by_name, percent)
        self.attempt.report(percent, message)

    def begin(self, now: float) -> None:
        self.deadline = now + self.left_s

    def time_out(self) -> bool:
        if self.of_flow_s is None:
            return super().time_out()
        limit = format_ms(round(self.of_flow_s * 1000))
        return self.stop(Interrupt(Cause.TIMEOUT, f"the flow was active longer than its limit of {limit}"))


class FlowRunner:
    """How to run the attempts of one flow."""

    def __init__(
        self,
        handler: FlowHandler,
        functions: Mapping[str, Function],
        begin: Mapping[str, Callable[[Call], Begun]],
        store: Store,
        writer: StepWriter,
        hooks: TopicHooks | None,
        version: Callable[[], int | None],
        threads: Threads,
    ) -> None:
        self.handler = handler
        self.version = version
        """The number under which this code's template was saved."""
        self.limit_s = duration_ms(handler.template.timeout) / 1000 if handler.limited else None
        self.functions = functions
        self.steps = {step.name: step for step in handler.steps}
        self.places = {name: place for place, name in enumerate(self.steps)}
        self.planned = handler.planned()
        self.any_function = next(iter(functions.values()), None) or Function(handler)
        """For the call of a step without code."""
        self.conditions = {
            step.name: condition(step.when, functions.get(step.name) or Function(handler), step.spec.external, threads)
            for step in handler.steps
            if step.when is not None
        }
        self.begin = begin
        self.store = store
        self.writer = writer
        self.hooks = hooks

    def run(self, attempt: Attempt) -> AttemptEnd:
        return FlowAttempt(self, attempt).run()


class FlowAttempt:
    """One attempt of one flow."""

    def __init__(self, runner: FlowRunner, attempt: Attempt) -> None:
        self._runner = runner
        self._attempt = attempt
        attempt.steps = self._steps = StepJournal(attempt, runner.places)
        loaded = attempt.job.steps
        newer = loaded is not None and (loaded.version or 0) > (runner.version() or 0)
        self._planned = runner.handler.planned(loaded.steps) if loaded and newer else runner.planned
        self._limit_s = runner.limit_s
        self._whens: dict[str, bool] = {}
        self._input_hash = input_hash(attempt.job.payload.encode())
        self._last_call: Call | None = None
        self._last_result: CallResult | None = None

    async def run(self) -> Outcome | None:
        try:
            outcome = await self._run()
        except LeaseLost:
            return None
        if self._runner.hooks and self._last_call and self._last_result and outcome is not None:
            self._runner.hooks.expect(self._last_call, self._last_result)
        return outcome

    async def _run(self) -> Outcome | None:
        while True:
            interrupt = self._interrupt()
            if interrupt is not None and interrupt.cause is not Cause.CANCEL:
                return Released("the worker stopped") if interrupt.cause is Cause.SHUTDOWN else None
            steps, cancelling = self._steps, interrupt.reason if interrupt else None
            plan = flow.plan(self._planned, FlowFacts(steps.by_name, steps.answers, self._whens, cancelling))
            name = plan.start
            ended = await (self._follow(plan) if name is None else self._call(self._runner.steps[name]))
            if ended is not None:
                return ended.outcome

    def _interrupt(self) -> Interrupt | None:
        return self._attempt.lost_interrupt() if self._attempt.lost else self._attempt.interrupt

    async def _follow(self, plan: Plan) -> _End | None:
        if plan.end is not None:
            return self._end(plan.end)
        if plan.evaluate_when is not None:
            return await self._evaluate_when(self._runner.steps[plan.evaluate_when])
        if plan.skip is not None:
            await self._write(StepWrite(plan.skip, "", StepState.SKIPPED, self._steps.place(plan.skip)))
        elif plan.take_answer is not None:
            await self._take_answer(plan.take_answer)
        elif plan.overdue is not None:
            return self._wait_failed(plan.overdue, flow.not_answered(plan.overdue), WaitTimeout.__name__)
        elif plan.failed is not None:
            known = self._steps.get(StepKey(plan.failed))
            assert known, "only a step that is known has failed"
            return self._wait_failed(plan.failed, known.error or "", known.error_type or "")
        elif plan.wait is not None:
            return self._park(self._runner.steps[plan.wait])
        return None

    # -- writing -----------------------------------------------------------------------------------

    async def _write(self, write: StepWrite, consumed: tuple[StepKey, ...] = ()) -> None:
        """Stored before the next step begins."""
        self._steps.note(write)
        percent = flow.progress(self._planned, self._steps.by_name, 0)
        self._attempt.report(percent, "")
        await self._runner.writer.write(self._attempt, self._steps.checkpoint([write], consumed))

    def _ends_the_flow(self, name: str) -> bool:
        """Whether nothing can follow this step, so that its end and the job's are one write."""
        return self._planned[-1].name == name

    def _end(self, outcome: Outcome) -> _End:
        if isinstance(outcome, Completed):
            name = self._planned[-1].name if self._planned else ""
            return _End(Completed(self._steps.results().get(name)))
        return _End(outcome)

    # -- waits -------------------------------------------------------------------------------------

    async def _take_answer(self, name: str) -> None:
        end = flow.answered(self._steps.answers[name])
        write = StepWrite(name, "", end.state, self._steps.place(name), 1, started_ago_ms=0)
        ended = write._replace(result=end.result, error=end.error, error_type=end.error_type)
        await self._write(ended, (StepKey(name),))

    def _wait_failed(self, name: str, error: str, error_type: str) -> _End:
        """The job's policy decides whether another attempt waits again."""
        step = self._runner.steps[name]
        self._last_call, self._last_result = self._new_call(step), flow.failed_wait(error, error_type)
        end = after_call(name, self._last_result, None, self._tries(step, 1))
        assert isinstance(end, StepEnd)
        known = self._steps.get(StepKey(name))
        attempt = known.attempt if known else 0
        self._steps.with_outcome(StepWrite(name, "", StepState.FAILED, self._steps.place(name), attempt, error=error))
        return _End(end.outcome)

    def _park(self, step: FlowStep[..., Any]) -> _End:
        spec = step.spec
        schema = None if spec.answer_schema is None else to_json(spec.answer_schema).decode()
        place = self._steps.place(step.name)
        known = self._steps.get(StepKey(step.name))
        attempt = (known.attempt if known else 0) + 1
        write = StepWrite(step.name, "", StepState.WAITING, place, attempt, spec.title or step.name)
        self._steps.with_outcome(write._replace(started_ago_ms=0, until_ms=spec.timeout_ms, schema=schema))
        return _End(Parked(step.name))

    # -- calls -------------------------------------------------------------------------------------

    async def _evaluate_when(self, step: FlowStep[..., Any]) -> _End | None:
        await self._read_large_results()
        call = self._new_call(step, self._runner.conditions[step.name])
        call.finishes_by = None
        self._attempt.open(call)
        try:
            result = await self._result(call, "async")
        finally:
            self._attempt.close(call)
        interrupt = call.interruption()
        if interrupt is not None and interrupt.cause is not Cause.TIMEOUT:
            return None  # the loop sees it
        if interrupt is None and isinstance(result, Returned):
            self._whens[step.name] = result.text == YES
            return None
        self._last_call, self._last_result = call, result
        end = after_call(step.name, result, interrupt, self._tries(step, 1)._replace(step_retry=None))
        assert isinstance(end, StepEnd), "a condition is not tried in place"
        return await self._ended(step, end, 1, 0)

    async def _call(self, step: FlowStep[..., Any]) -> _End | None:
        key = StepKey(step.name)
        known = self._steps.get(key)
        tries = flow.tries_before(known.state, known.attempt) if known else 0
        await self._read_large_results()
        while True:
            tries += 1
            call = self._new_call(step)
            self._steps.started(key, tries)
            began = time.monotonic()
            result = await self._called(call)
            if result is None:
                return None  # the loop sees the interrupt
            ran_ms = int((time.monotonic() - began) * 1000)
            counts = self._tries(step, tries)
            if call.of_flow_s is not None and call.interrupt is not None and call.interrupt.cause is Cause.TIMEOUT:
                counts = counts._replace(step_retry=None)  # another try would have no time
            end = after_call(step.name, result, call.interruption(), counts, self._attempt.suspended)
            if not isinstance(end, RetryInPlace):
                return await self._ended(step, end, tries, ran_ms)
            failed = StepEnd(StepState.PENDING, None, end.error, end.error_type)
            written = self._steps.failed_try(self._ended_step(step, failed, tries, ran_ms))
            await self._runner.writer.write(self._attempt, written)
            if await self._pause(end.delay_ms / 1000):
                return None  # the loop sees the interrupt

    async def _called(self, call: StepCall) -> CallResult | None:
        """None: the attempt was interrupted before the step could start."""
        attempt, hooks = self._attempt, self._runner.hooks
        first = self._last_call is None
        attempt.open(call)
        try:
            if call.finishes_by is not None:  # the store has to know that a cancel waits for it
                await self._runner.writer.write(attempt, self._steps.under_way())
            if self._interrupt() is not None:
                self._steps.abandon(StepKey(call.step))
                return None
            self._last_call = call
            result = await hooks.start(call) if hooks and first else None
            if result is None:
                result = await self._result(call, call.function.handler.kind)
        finally:
            attempt.close(call)
        self._last_result = result
        return result

    async def _result(self, call: StepCall, kind: str) -> CallResult:
        result = await result_of(self._runner.begin[kind](call))
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            await absorb_cancel(task)  # it was meant for the call, which ended without seeing it
        return result

    def _new_call(self, step: FlowStep[..., Any], function: Function | None = None) -> StepCall:
        function = function or self._runner.functions.get(step.name) or self._runner.any_function
        call = StepCall(self._attempt, function, self._attempt.job.payload, 0.0)
        call.left_s = function.timeout_s
        if self._limit_s is not None:  # only active time counts
            left_s = max(self._limit_s - self._steps.active_ms() / 1000, 0.0)
            call.left_s = min(call.left_s, left_s)
            call.of_flow_s = self._limit_s if left_s < function.timeout_s else None
        call.begin(time.monotonic())
        call.step = step.name
        call.finishes_by = None if step.spec.cancelable else call.deadline
        call.planned = self._planned
        return call

    def _tries(self, step: FlowStep[..., Any], tries: int) -> Tries:
        retry = self._runner.handler.template.retry
        return Tries(tries, step.retry, self._attempt.job.attempt, retry)

    async def _ended(self, step: FlowStep[..., Any], end: StepEnd, tries: int, ran_ms: int) -> _End | None:
        if end.lost:
            return _End(None)
        write = self._ended_step(step, end, tries, ran_ms)
        if end.outcome is not None:
            self._steps.note(write)
            self._steps.with_outcome(write)
            return _End(end.outcome)
        if self._ends_the_flow(step.name):
            self._steps.note(write)
            self._steps.with_outcome(write)
            return _End(Completed(end.result))
        await self._write(write)
        return None

    def _ended_step(self, step: FlowStep[..., Any], end: StepEnd, tries: int, ran_ms: int) -> StepWrite:
        said = self._steps.reported(StepKey(step.name))
        return StepWrite(
            step.name,
            "",
            end.state,
            self._steps.place(step.name),
            flow.spent(end, tries),
            step.spec.title or step.name,
            said.percent,
            said.message,
            started_ago_ms=self._steps.started_ago_ms(StepKey(step.name)),
            ran_ms=ran_ms,
            error=end.error,
            error_type=end.error_type,
            result=end.result,
            input_hash=self._input_hash,
        )

    async def _read_large_results(self) -> None:
        """`ctx.results` answers without waiting, so everything it may be asked for is here before the call."""
        if unread := self._steps.unread():
            self._steps.read(await self._runner.store.step_results(self._attempt.job.n, unread))

    async def _pause(self, seconds: float) -> bool:
        """Wait for the next try; True if the attempt was interrupted while waiting."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and self._interrupt() is None:
            await asyncio.sleep(min(left, PAUSE_LOOK_S))
        return self._interrupt() is not None


class _End(NamedTuple):
    outcome: Outcome | None
    """None: the lease is lost."""
