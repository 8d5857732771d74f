"""The part of a worker behind `ctx.run`, `ctx.run_many` and `ctx.map` over a task, on the worker's loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from uuid_utils import uuid7

from treadle.model.errors import LeaseLost, Refused, StoreBusy, StoreUnavailable
from treadle.model.steps import StepState, shown_step
from treadle.policy.children import CHILD_FAILED, not_completed
from treadle.policy.flow import Pause, StepChange
from treadle.queue.backoff import StoreRetry
from treadle.queue.handlers.children import ChildRequest, Ended, FamilyState
from treadle.queue.handlers.steps import Wait, Waited
from treadle.store.values import ClaimedStep, MadeChild, MadeChildren, NewChild, NewChildren, NewJob, StepKey
from treadle.telemetry import tracing
from treadle.worker.call import Call
from treadle.worker.steps.made import StepServices, steps_of, task_of

if TYPE_CHECKING:
    from treadle.queue import Queue
    from treadle.store.protocol import Store
    from treadle.worker.attempt import Attempt
    from treadle.worker.steps.journal import StepJournal
    from treadle.worker.steps.writer import StepWriter

# Before children that need a locked key are tried again.
BUSY_PAUSE_S = 0.02


class ParentServices:
    def __init__(
        self,
        queue: Queue,
        store: Store,
        steps: StepServices,
        writer: StepWriter,
        on_lost: Callable[[Attempt], None],
    ) -> None:
        self._queue = queue
        self._store = store
        self._steps = steps
        self._writer = writer
        self._on_lost = on_lost
        self._retry = StoreRetry(store.outage, "making children")

    async def ask(self, call: Call, request: ChildRequest) -> Any:
        match request.what:
            case "run":
                return await self._steps.waiting(call, lambda branch: self._run(call, request, branch))
            case "find":
                return self._find(call, request)
            case "make":
                with steps_of(call.attempt).branches.moving():
                    made = await self._make(call, request, request.total)
                self._note_family(call.attempt, request.step, made)
                return made.made, made.left, made.failed
            case "wait":
                return await self._steps.waiting(call, lambda _: self._block(call, request))
            case "end":
                return await self._end(call, request)
            case "results":
                with steps_of(call.attempt).branches.moving():
                    rows = await self._store.child_results(call.attempt.job.n, request.step, request.after)
                return [Ended(one.key, one.place, one.result, one.error, one.child) for one in rows]

    # -- one ---------------------------------------------------------------------------------------

    async def _run(self, call: Call, request: ChildRequest, branch: object) -> Waited:
        steps, step = steps_of(call.attempt), StepKey(request.step, request.key)
        found = steps.begin(step, branch)
        if found is None or not _is_settled(found):
            with steps.branches.moving():
                [made] = (await self._make(call, request, None)).children
                found = self._note(steps, step, made)
        if found.state is StepState.COMPLETED:
            with steps.branches.moving():
                result = await self._steps.result(call.attempt, steps, step, found)
                return Waited("done", result, child=found.child)
        if found.state is StepState.FAILED:
            steps.wait_failed(found, branch)
            return Waited("failed", None, found.error, found.error_type, child=found.child)
        return await self._block(call, request)

    def _note(self, steps: StepJournal, step: StepKey, made: MadeChild) -> ClaimedStep:
        error_type = CHILD_FAILED if made.state is StepState.FAILED else None
        size = None if made.result is None else len(made.result)
        known = ClaimedStep(
            *step,
            steps.place(*step),
            made.state,
            made.attempt,
            0,
            None,
            made.result,
            size,
            None,
            made.error,
            error_type,
        )
        known = known._replace(child=made.child)
        steps.has_child(step, known)
        return known

    # -- many --------------------------------------------------------------------------------------

    def _find(self, call: Call, request: ChildRequest) -> FamilyState:
        self._steps.check(call)
        steps, step = steps_of(call.attempt), StepKey(request.step)
        branch = task_of(call)
        found = steps.begin(step, branch)
        if found is None or (found.state is not StepState.COMPLETED and not _is_settled(found)):
            return FamilyState(StepState.PENDING)
        if found.state is StepState.FAILED:
            steps.wait_failed(found, branch)
        return FamilyState(found.state, found.made or 0, found.left or 0, found.failed or 0, found.error)

    def _note_family(self, attempt: Attempt, name: str, made: MadeChildren) -> None:
        steps, step = steps_of(attempt), StepKey(name)
        known = ClaimedStep(*step, steps.place(*step), StepState.WAITING, 1)
        steps.has_child(step, known._replace(made=made.made, left=made.left, failed=made.failed))

    async def _end(self, call: Call, request: ChildRequest) -> None:
        """All have ended, and the step with them."""
        steps, step = steps_of(call.attempt), StepKey(request.step)
        change = StepChange(StepState.COMPLETED, 1) if request.error is None else not_completed(request.error, 1)
        with steps.branches.moving():
            await self._writer.write(call.attempt, steps.ended(step, steps.noted(step, change)))
        known = steps.get(step)
        if request.error is not None and known is not None:
            steps.wait_failed(known, task_of(call))

    # -- both --------------------------------------------------------------------------------------

    async def _block(self, call: Call, request: ChildRequest) -> Waited:
        wait = Wait(request.step, request.key, None, None, False, request.inside)
        return await self._steps.block(call, wait, Pause("child", shown_step(request.step, request.key)))

    async def _make(self, call: Call, request: ChildRequest, total: int | None) -> MadeChildren:
        """Waits for the store as long as the lease may be alive."""
        attempt = call.attempt
        children = await self._new_children(attempt, request)
        place = steps_of(attempt).place(request.step, "" if total is not None else request.key)
        while True:
            self._steps.check(call)
            ran_ms = attempt.ran_ms(time.monotonic())
            wanted = NewChildren(
                attempt.job.n, attempt.job.token, ran_ms, request.step, place, children, total, request.restart
            )
            try:
                made = await self._store.make_children(attempt.lease.id, wanted)
            except StoreBusy:
                await asyncio.sleep(BUSY_PAUSE_S)
            except StoreUnavailable as error:
                self._retry.failed(error)
                await self._retry.pause()
            else:
                self._retry.worked()
                if made is None:
                    self._on_lost(attempt)
                    raise LeaseLost(attempt.lost_interrupt().reason)
                return made

    async def _new_children(self, attempt: Attempt, request: ChildRequest) -> tuple[NewChild, ...]:
        job, topic = attempt.job, request.topic
        given = {"created_by": job.created_by, "scope": job.scope, "scope_id": job.scope_id, **request.options}
        with tracing.sending(topic, len(request.items)) as sending:
            trace = sending.traceparent or job.trace
        try:
            jobs: Sequence[NewJob] = await self._queue._new_jobs(topic, [item[2] for item in request.items], **given)
            refused = None
        except Refused as refusal:  # the template is disabled
            jobs = [NewJob(str(uuid7()), topic, "{}") for _ in request.items]
            refused = refusal.message
        as_parent = request.options.get("priority") is None
        return tuple(
            NewChild(key, _of_parent(new, request.step, key, trace), place, as_parent, refused)
            for new, (key, place, _) in zip(jobs, request.items, strict=True)
        )


def _of_parent(new: NewJob, step: str, key: str, trace: str | None) -> NewJob:
    """A child is its parent, step and key, so a key of its template has nothing to say."""
    given = new.given._replace(idempotency_key=None, parent_step=step, parent_key=key)
    return new._replace(given=given, trace=trace)


def _is_settled(found: ClaimedStep) -> bool:
    """Whether the step has its child, and needs no other one."""
    if found.state is StepState.FAILED:
        return found.error_type is not None
    return found.state in (StepState.WAITING, StepState.COMPLETED)
