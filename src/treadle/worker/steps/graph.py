"""One attempt of a flow whose steps form a graph: the branches that can run side by side do.

A branch that can't go on (it waits, or is tried again later) leaves its place to others; the job is set aside when all
branches are blocked. When a step has failed for good, nothing new begins, and the steps that run finish: what they have
done is kept for the next attempt. Then the first failure decides.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from treadle.model.steps import DONE
from treadle.policy import flow
from treadle.policy.flow import NOT_BEGUN, FlowFacts, Pause, Plan, PlannedStep, StepEnd
from treadle.policy.graph import is_graph
from treadle.policy.judgement import CallResult, Cause, Interrupt
from treadle.policy.lifecycle import Outcome, Parked, Released, Snoozed
from treadle.store.values import StepKey
from treadle.worker.call import Call
from treadle.worker.steps.declared import AttemptOver, FlowAttempt, FlowRunner, StepCall
from treadle.worker.steps.running import RunningSteps

if TYPE_CHECKING:
    from treadle.queue.handlers.flows import FlowStep
    from treadle.worker.attempt import Attempt


class _Blocked(NamedTuple):
    """How a call ended that has to wait, and when."""

    outcome: Parked | Snoozed
    since: float

    def pause(self, name: str) -> Pause:
        if isinstance(self.outcome, Parked):
            return Pause("answer", name)
        passed_ms = int((time.monotonic() - self.since) * 1000)
        return Pause("retry", name, flow.left_of(self.outcome.delay_ms, passed_ms))


class GraphAttempt(FlowAttempt):
    def __init__(self, runner: FlowRunner, attempt: Attempt) -> None:
        super().__init__(runner, attempt)
        self._parallel = runner.handler.parallel
        self._running: RunningSteps[AttemptOver | None] = RunningSteps(self._steps.branches)
        self._alone = ""
        """The step that runs while no other one can."""
        self._blocked: dict[str, _Blocked] = {}
        self._over: AttemptOver | BaseException | None = None
        """How the attempt ends, once nothing runs any more."""
        self._calls: dict[str, tuple[Call, CallResult]] = {}
        self._counted_until = 0.0
        """Active time before this is counted: branches that run at the same time share it."""
        self._active_since = 0.0
        self._steps.branches.start_more = self._start_more
        self._steps.pauses_beside = self._pauses_beside

    async def _run(self) -> Outcome | None:
        try:
            while self._over is None or self._running.names:
                await self._go_on()
        finally:
            await self._running.stop()
        if isinstance(self._over, BaseException):
            raise self._over
        return self._over.outcome

    async def _go_on(self) -> None:
        """Begins what can begin, or waits until something has ended."""
        interrupt = self._interrupt()
        if self._over is None and not self._stops(interrupt):
            begun = await self._follow_plan(self._plan(interrupt))
            if begun or self._over is not None:
                return
        if self._running.names:
            for name, end in await self._running.ends():
                self._hear(name, end)
        elif self._over is None:
            shutdown = interrupt is not None and interrupt.cause is Cause.SHUTDOWN
            self._over = AttemptOver(Released("the worker stopped") if shutdown else None)

    def _stops(self, interrupt: Interrupt | None) -> bool:
        """Whether nothing more can begin; what a cancel allows is up to the policy."""
        return interrupt is not None and interrupt.cause is not Cause.CANCEL

    # -- what is next ------------------------------------------------------------------------------

    def _plan(self, interrupt: Interrupt | None) -> Plan:
        return flow.plan(self._planned, self._facts(interrupt.reason if interrupt else None), self._parallel)

    def _facts(self, cancelling: str | None = None) -> FlowFacts:
        steps, running = self._steps, self._running
        blocked = {name: one.pause(name) for name, one in self._blocked.items()}
        names = {self._alone} if self._alone else running.names
        return FlowFacts(steps.by_name, steps.answers, self._whens, cancelling, names, running.held, blocked)

    async def _follow_plan(self, plan: Plan) -> bool:
        """False if there is nothing to do but to wait."""
        begins = self._begins(plan)
        settles = plan.skip or plan.take_answer or plan.overdue or plan.failed
        if len(begins) == 1 and not settles and not self._running.names and self._parallel > 1:
            self._alone = begins[0]  # it needs no task
            try:
                self._hear(begins[0], await self._begun(begins[0]))
            finally:
                self._alone = ""
            return True
        self._start(begins)
        if plan.end is not None:
            self._over = await self._end(plan)
        elif settles:
            with self._steps.branches.moving():
                self._hear("", await self._follow(plan._replace(evaluate_when=())))
        return bool(begins or settles)

    def _begins(self, plan: Plan) -> list[str]:
        """Once the attempt is being set aside, nothing begins in it."""
        return [] if self._steps.suspended else [*plan.evaluate_when, *plan.start]

    def _start(self, names: list[str]) -> None:
        if not self._running.names:
            self._active_since = time.monotonic()
        for name in names:
            self._running.start(name, self._begun(name))

    async def _begun(self, name: str) -> AttemptOver | None:
        step = self._runner.steps[name]
        asks = step.when is not None and name not in self._whens
        return await (self._evaluate_when(step) if asks else self._call(step))

    def _start_more(self) -> bool:
        """All calls wait; their places are free for steps that were one too many."""
        if self._over is not None or self._interrupt() is not None or self._steps.suspended:
            return False
        begins = self._begins(self._plan(None))
        self._start(begins)
        return bool(begins)

    def _pauses_beside(self) -> list[Pause]:
        return flow.pauses(self._planned, self._facts())

    # -- how steps end -----------------------------------------------------------------------------

    def _hear(self, name: str, end: AttemptOver | BaseException | None) -> None:
        if end is None:
            return
        outcome = end.outcome if isinstance(end, AttemptOver) else None
        if isinstance(outcome, Parked) or (isinstance(outcome, Snoozed) and not outcome.pauses_topic):
            self._blocked[name] = _Blocked(outcome, time.monotonic())
        elif self._over is None:
            self._over = end
            if name in self._calls:  # for the hooks
                self._last_call, self._last_result = self._calls[name]

    async def _end(self, plan: Plan) -> AttemptOver:
        over = await super()._end(plan)
        suspended = self._steps.suspended
        if suspended is not None and isinstance(over.outcome, Parked | Snoozed):
            return AttemptOver(suspended)  # it knows what the calls wait for
        if len(self._blocked) == 1 and isinstance(over.outcome, Snoozed):
            [one] = self._blocked.values()
            if isinstance(one.outcome, Snoozed):
                return AttemptOver(replace(over.outcome, reason=one.outcome.reason))
        return over

    def _new_call(self, step: FlowStep[..., Any], *given: Any) -> StepCall:
        call = super()._new_call(step, *given)
        call.side_by_side = step.name in self._running.names
        return call

    async def _called(self, call: StepCall) -> CallResult | None:
        result = await super()._called(call)
        if result is not None:
            self._calls[call.step] = call, result
        return result

    async def _ended(self, step: FlowStep[..., Any], end: StepEnd, tries: int, ran_ms: int) -> AttemptOver | None:
        """Others may run for long: how it ended is stored now, unless its wait is a part of the attempt's end."""
        if end.outcome is None or end.lost or self._steps.suspended or not self._runs_beside(step.name):
            return await super()._ended(step, end, tries, ran_ms)
        await self._write(step.name, flow.ended(end, tries), ran_ms, self._input_hash)
        return AttemptOver(end.outcome)

    def _runs_beside(self, name: str) -> bool:
        return any(one != name for one in self._running.names)

    def _ends_the_flow(self, name: str) -> bool:
        if (
            name in self._runner.mapped
            or self._runner.ends != [name]
            or self._runs_beside(name)
            or self._steps.has_follow_ups(StepKey(name))
        ):
            return False
        known = self._steps.by_name
        return all(one.name == name or known.get(one.name, NOT_BEGUN).state in DONE for one in self._planned)

    def _should_stop(self) -> bool:
        return self._over is not None or super()._should_stop()

    # -- time --------------------------------------------------------------------------------------

    def _ran_ms(self, began: float) -> int:
        now = time.monotonic()
        since, self._counted_until = max(began, self._counted_until), now
        return int((now - since) * 1000)

    def _active_s(self) -> float:
        counted_s = super()._active_s()
        if not self._running.names:
            return counted_s
        return counted_s + time.monotonic() - max(self._counted_until, self._active_since)


def attempts_of(planned: Sequence[PlannedStep]) -> type[FlowAttempt]:
    return GraphAttempt if is_graph(planned) else FlowAttempt
