"""Runs the declared steps of a flow: ask the policy what is next, call it, store what it did, ask again."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from pydantic_core import to_json

from treadle.model.durations import duration_ms, format_ms
from treadle.model.errors import LeaseLost, PayloadTooLarge, Refused, StepEnded
from treadle.model.lazy_list import PAGE
from treadle.model.payload import MAX_BYTES
from treadle.policy import flow
from treadle.policy.flow import FlowFacts, Plan, PlannedStep, RetryInPlace, StepChange, StepEnd, Tries, after_call
from treadle.policy.graph import ends, whole_result
from treadle.policy.judgement import CallResult, Cause, Interrupt, Returned
from treadle.policy.lifecycle import Completed, Failed, Outcome, Released
from treadle.queue.handlers.flows import FlowHandler, FlowStep
from treadle.queue.handlers.steps import input_hash
from treadle.store.protocol import Store
from treadle.store.values import StepKey
from treadle.worker.attempt import Attempt
from treadle.worker.call import Begun, Call, Function, result_of
from treadle.worker.hook_runner import TopicHooks
from treadle.worker.recipe import AttemptEnd
from treadle.worker.steps.conditions import YES, condition
from treadle.worker.steps.journal import StepJournal
from treadle.worker.steps.made import StepServices
from treadle.worker.steps.writer import StepWriter
from treadle.worker.stray_cancels import absorb_cancel
from treadle.worker.threads import Threads

ReadItems = Callable[[int, str, int, int], Sequence[tuple[int, str | None]]]
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
            percent = flow.progress(self.planned, steps.by_name, steps.current_percent())
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
        made: StepServices,
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
        self.titles = {step.name: step.shown_title for step in handler.steps}
        self.places = {name: place for place, name in enumerate(self.steps)}
        self.planned = handler.planned()
        self.attempts: type[FlowAttempt] = FlowAttempt
        self.mapped = {step.name for step in handler.steps if step.mapped is not None}
        self.read_items: ReadItems | None = None
        self.whole = Function(handler)
        """For hooks that hear of the whole flow."""
        self.ends = ends(self.planned)
        self.any_function = next(iter(functions.values()), None) or self.whole
        """For the call of a step without code."""
        self.conditions = {
            step.name: condition(step.when, functions.get(step.name) or self.whole, step.spec.external, threads)
            for step in handler.steps
            if step.when is not None
        }
        self.begin = begin
        self.store = store
        self.writer = writer
        self.made = made
        self.hooks = hooks

    def run(self, attempt: Attempt) -> AttemptEnd:
        return self.attempts(self, attempt).run()


class AttemptOver(NamedTuple):
    outcome: Outcome | None
    """None: the lease is lost."""


class FlowAttempt:
    """One attempt of one flow whose steps come one after the other."""

    def __init__(self, runner: FlowRunner, attempt: Attempt) -> None:
        self._runner = runner
        self._attempt = attempt
        attempt.steps = self._steps = StepJournal(attempt, runner.places)
        if runner.mapped and runner.read_items is not None:
            self._steps.read_items = partial(runner.read_items, attempt.job.n)
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
        if self._runner.hooks and outcome is not None:
            self._expect(self._runner.hooks, outcome)
        return outcome

    def _expect(self, hooks: TopicHooks, outcome: Outcome) -> None:
        """The hooks get the flow's result, whether a call of this attempt returned it or an answer brought it."""
        if isinstance(outcome, Completed):
            whole = Call(self._attempt, self._runner.whole, self._attempt.job.payload, math.inf)
            hooks.expect(whole, Returned(outcome.result))
        elif self._last_call and self._last_result:
            hooks.expect(self._last_call, self._last_result)

    async def _run(self) -> Outcome | None:
        while True:
            interrupt = self._interrupt()
            if interrupt is not None and interrupt.cause is not Cause.CANCEL:
                return Released("the worker stopped") if interrupt.cause is Cause.SHUTDOWN else None
            steps, cancelling = self._steps, interrupt.reason if interrupt else None
            plan = flow.plan(self._planned, FlowFacts(steps.by_name, steps.answers, self._whens, cancelling))
            # One at a time, and then a new plan: what follows may depend on how this one ended.
            ended = await (self._call(self._runner.steps[plan.start[0]]) if plan.start else self._follow(plan))
            if ended is not None:
                return ended.outcome

    def _interrupt(self) -> Interrupt | None:
        return self._attempt.lost_interrupt() if self._attempt.lost else self._attempt.interrupt

    async def _follow(self, plan: Plan) -> AttemptOver | None:
        if plan.end is not None:
            return await self._end(plan)
        if plan.evaluate_when:
            return await self._evaluate_when(self._runner.steps[plan.evaluate_when[0]])
        for name in plan.skip:
            await self._write(name, flow.skipped())
        for name in plan.take_answer:
            reply = self._steps.answers[name]
            await self._write(name, flow.answered(reply, max(self._waited(name), 1), begins=True))
        for name in plan.overdue:
            await self._time_out(name)
        return self._waits_failed(plan.failed) if plan.failed and not plan.overdue else None

    # -- writing -----------------------------------------------------------------------------------

    async def _write(self, name: str, change: StepChange, ran_ms: int = 0, input_hash: str | None = None) -> None:
        """Stored before the next step begins."""
        key = StepKey(name)
        title = self._runner.titles[name]
        write = self._steps.noted(key, change, ran_ms, input_hash=input_hash, title=title)
        percent = flow.progress(self._planned, self._steps.by_name, self._steps.current_percent())
        self._attempt.report(percent, "")
        await self._runner.writer.write(self._attempt, self._steps.ended(key, write, change.takes_answer))

    def _ends_the_flow(self, name: str) -> bool:
        """Whether nothing can follow this step, so that its end and the job's are one write."""
        last = self._planned[-1].name == name and name not in self._runner.mapped
        return last and not self._steps.has_follow_ups(StepKey(name))

    async def _end(self, plan: Plan) -> AttemptOver:
        for name in plan.wait:
            self._begin_to_wait(self._runner.steps[name])
        if isinstance(plan.end, Completed):
            await self._read_large_results()
            return AttemptOver(await self._completed())
        return AttemptOver(plan.end)

    async def _completed(self) -> Outcome:
        texts, lists = self._steps.results(), self._steps.lists()
        for name in self._runner.ends:
            if name in lists:
                texts[name] = await self._list_text(name, lists[name])
        result = whole_result(texts, self._runner.ends)
        if result is not None and len(result.encode()) > MAX_BYTES:
            return Failed(
                f"the result of the flow is {len(result.encode()):,} bytes of JSON, the limit is {MAX_BYTES:,}; "
                "end it with a step that returns less",
                PayloadTooLarge.__name__,
            )
        return Completed(result)

    async def _list_text(self, name: str, total: int) -> str:
        """The results of a mapped step's items as one list, as far as that can be a result."""
        found: dict[int, str | None] = {}
        size = 0
        for first in range(0, total, PAGE):
            page = await self._runner.store.item_results(self._attempt.job.n, name, first, first + PAGE)
            found |= dict(page)
            size += sum(len(text) for _, text in page if text is not None)
            if size > MAX_BYTES:
                break
        return f"[{','.join(found.get(place) or 'null' for place in range(total))}]"

    # -- waits -------------------------------------------------------------------------------------

    def _waited(self, name: str) -> int:
        """How often it has waited."""
        known = self._steps.get(StepKey(name))
        return known.attempt if known else 0

    async def _time_out(self, name: str) -> None:
        """An answer that was accepted in the last moment counts."""
        steps, key = self._steps, StepKey(name)
        waits = steps.get(key)
        try:
            await self._write(name, flow.timed_out(name, self._waited(name)))
        except StepEnded:
            assert waits, "only a step that is known is overdue"
            steps.answered(waits, await self._runner.made.late_answer(self._attempt, key))

    def _waits_failed(self, names: Sequence[str]) -> AttemptOver:
        """The job's policy decides whether another attempt waits again, for all of them."""
        failed = [known for name in names if (known := self._steps.get(StepKey(name)))]
        first = failed[0]
        step = self._runner.steps[first.name]
        self._last_call = self._new_call(step)
        self._last_result = flow.failed_wait(first.error or "", first.error_type or "")
        end = after_call(first.name, self._last_result, None, self._tries(step, 1))
        assert isinstance(end, StepEnd)
        for known in failed:
            given_up = flow.given_up(known.attempt, known.error)
            self._steps.with_outcome(self._steps.noted(StepKey(known.name), given_up))
        return AttemptOver(end.outcome)

    def _begin_to_wait(self, step: FlowStep[..., Any]) -> None:
        spec = step.spec
        schema = None if spec.answer_schema is None else to_json(spec.answer_schema).decode()
        change = flow.waits(self._waited(step.name), spec.timeout_ms, schema)
        self._steps.with_outcome(self._steps.noted(StepKey(step.name), change, title=step.shown_title))

    # -- calls -------------------------------------------------------------------------------------

    async def _evaluate_when(self, step: FlowStep[..., Any]) -> AttemptOver | None:
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

    async def _call(self, step: FlowStep[..., Any]) -> AttemptOver | None:
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
            ran_ms = self._ran_ms(began)
            counts = self._tries(step, tries)
            if call.of_flow_s is not None and call.interrupt is not None and call.interrupt.cause is Cause.TIMEOUT:
                counts = counts._replace(step_retry=None)  # another try would have no time
            end = after_call(step.name, result, call.interruption(), counts, self._attempt.suspended)
            if not isinstance(end, RetryInPlace):
                return await self._ended(step, end, tries, ran_ms)
            known_of = {"input_hash": self._input_hash, "title": step.shown_title}
            written = self._steps.failed_try(key, flow.tried(end, tries), ran_ms, **known_of)
            await self._runner.writer.write(self._attempt, written)
            if await self._pause(end.delay_ms / 1000):
                return None  # the loop sees the interrupt

    async def _called(self, call: StepCall) -> CallResult | None:
        """None: the attempt was interrupted before the step could start."""
        attempt, hooks = self._attempt, self._runner.hooks
        attempt.open(call)
        try:
            if call.finishes_by is not None:  # the store has to know that a cancel waits for it
                await self._runner.writer.write(attempt, self._steps.under_way())
            if self._interrupt() is not None:
                self._steps.abandon(StepKey(call.step))
                return None
            first, self._last_call = self._last_call is None, call
            result = await hooks.start(call) if hooks and first else None
            if result is None:
                result = await self._result(call, call.function.handler.kind)
            call.over = True
            if self._steps.active or self._steps.waits:
                await self._steps.finish(call)
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
            left_s = max(self._limit_s - self._active_s(), 0.0)
            call.left_s = min(call.left_s, left_s)
            call.of_flow_s = self._limit_s if left_s < function.timeout_s else None
        call.begin(time.monotonic())
        call.step = step.name
        call.finishes_by = None if step.spec.cancelable else call.deadline
        call.planned = self._planned
        return call

    def _ran_ms(self, began: float) -> int:
        """How long the flow was active in a call that began then."""
        return int((time.monotonic() - began) * 1000)

    def _active_s(self) -> float:
        return self._steps.active_ms() / 1000

    def _tries(self, step: FlowStep[..., Any], tries: int) -> Tries:
        retry = self._runner.handler.template.retry
        own = None if step.mapped else step.retry  # each of the items is tried by it
        return Tries(tries, own, self._attempt.job.attempt, retry)

    async def _ended(self, step: FlowStep[..., Any], end: StepEnd, tries: int, ran_ms: int) -> AttemptOver | None:
        if end.lost:
            return AttemptOver(None)
        change = flow.ended(end, tries)
        if end.outcome is None and not self._ends_the_flow(step.name):
            try:
                await self._write(step.name, change, ran_ms, self._input_hash)
            except Refused as refusal:
                return await self._ended(step, flow.refused(refusal.message), tries, 0)
            return None
        known_of = {"input_hash": self._input_hash, "title": step.shown_title}
        self._steps.with_outcome(self._steps.noted(StepKey(step.name), change, ran_ms, **known_of))
        return AttemptOver(Completed(end.result) if end.outcome is None else end.outcome)

    async def _read_large_results(self) -> None:
        """`ctx.results` answers without waiting, so everything it may be asked for is here before the call."""
        if unread := self._steps.unread():
            self._steps.read(await self._runner.store.step_results(self._attempt.job.n, unread))

    async def _pause(self, seconds: float) -> bool:
        """Wait for the next try; True if the attempt was interrupted while waiting."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._should_stop():
            await asyncio.sleep(min(left, PAUSE_LOOK_S))
        return self._should_stop()

    def _should_stop(self) -> bool:
        return self._interrupt() is not None
