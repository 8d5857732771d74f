"""How to run jobs of a topic: from an attempt to its outcome."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import Any

from treadle.model.retry import Retry
from treadle.model.steps import DONE
from treadle.policy.flow import unserved_step
from treadle.policy.judgement import CallResult, judge
from treadle.policy.lifecycle import Outcome
from treadle.store.values import ClaimedSteps
from treadle.worker.attempt import Attempt
from treadle.worker.call import Begun, Call, Function, result_of
from treadle.worker.hook_runner import TopicHooks
from treadle.worker.metrics import Times

AttemptEnd = Outcome | None | Coroutine[Any, Any, Outcome | None]
"""The outcome of an attempt that ended without waiting, or a coroutine that returns it. None if the lease is lost."""
Run = Callable[[Attempt], AttemptEnd]


class Recipe:
    """How to run a topic's attempts, and where to record their times."""

    __slots__ = ("note_run", "note_start", "retry", "run")

    def __init__(self, run: Run, times: Times, retry: Retry) -> None:
        self.run = run
        self.retry = retry
        self.note_start = times.new_starts.append
        self.note_run = times.new_runs.append


class SingleCall:
    """A plain handler: one call, with its result as the job's result."""

    __slots__ = ("_begin", "_function", "_hooks", "_retry")

    def __init__(self, function: Function, begin: Callable[[Call], Begun], hooks: TopicHooks | None) -> None:
        self._function = function
        self._begin = begin
        self._retry = function.handler.template.retry
        self._hooks = hooks

    def run(self, attempt: Attempt) -> AttemptEnd:
        if attempt.job.steps is not None and (snoozed := _of_newer_code(attempt.job.steps)):
            return snoozed
        function = self._function
        call = Call(attempt, function, attempt.job.payload, attempt.started + function.timeout_s)
        attempt.calls = (call,)
        if self._hooks:
            return self._after_hooks(call, self._hooks)
        result = self._begin(call)
        if result.__class__ is CoroutineType:
            return self._rest(call, result)
        return judge(result, call.interruption(), self._retry, attempt.job.attempt)  # type: ignore[arg-type]

    async def _rest(self, call: Call, begun: Coroutine[Any, Any, CallResult]) -> Outcome | None:
        return self._judge(call, await _finished(call, begun))

    def _judge(self, call: Call, result: CallResult) -> Outcome | None:
        attempt = call.attempt
        return judge(result, call.interruption(), self._retry, attempt.job.attempt, attempt.suspended)

    async def _after_hooks(self, call: Call, hooks: TopicHooks) -> Outcome | None:
        result = await hooks.start(call)
        if result is None:
            result = await _finished(call, result_of(self._begin(call)))
        outcome = self._judge(call, result)
        if outcome is not None:
            hooks.expect(call, result)
        return outcome


def _of_newer_code(steps: ClaimedSteps) -> Outcome | None:
    """A job with declared steps was made by code that has a flow here: it is left to a worker that has it, too."""
    declared = [step for step in steps.steps if step.declared]
    if not declared:
        return None
    pending = [step.name for step in sorted(declared, key=lambda step: step.place) if step.state not in DONE]
    return unserved_step((pending or [declared[-1].name])[0])


async def _finished(call: Call, begun: Coroutine[Any, Any, CallResult]) -> CallResult:
    """The result, once nothing of the handler runs any more."""
    result = await begun
    steps = call.attempt.steps
    if steps is not None:
        call.over = True
        if steps.active or steps.waits:
            await steps.finish(call)
    return result


async def outcome_of(running: AttemptEnd) -> Outcome | None:
    return await running if isinstance(running, CoroutineType) else running  # type: ignore[return-value]
