"""Maps in a worker: what is known of the items when one begins, and the body of a mapped step of a flow."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from treadle.model.errors import Fail, InvalidInput, TooManySteps
from treadle.model.handler import ResultType
from treadle.model.steps import DONE, StepState
from treadle.policy.judgement import Cause, Raised, Returned
from treadle.queue.handlers.context import Context
from treadle.queue.handlers.flows import FlowStep
from treadle.queue.handlers.mapped import Map, MapStart, set_item
from treadle.queue.handlers.steps import StepRecord, item_key
from treadle.store.values import StepKey
from treadle.worker.call import Begun, Call, Function, result_of
from treadle.worker.errors import ItemFailed
from treadle.worker.steps.made import StepServices, steps_of

if TYPE_CHECKING:
    from treadle.queue.handlers.context import HandlerServices
    from treadle.store.protocol import Store
    from treadle.worker.lease_keeper import LeaseKeeper
    from treadle.worker.steps.writer import StepWriter

# A mapped step has no limit: its items have.
LONGEST_S = 10 * 365 * 86_400.0


class MapServices:
    """The part of a worker behind `ctx.map`, on the worker's loop but for `read_items`."""

    def __init__(self, store: Store, writer: StepWriter, steps: StepServices, keeper: LeaseKeeper) -> None:
        self._store = store
        self._writer = writer
        self._steps = steps
        self._keeper = keeper

    async def begin_map(self, call: Call, name: str, total: int, declared: bool) -> MapStart:
        """What was done before. The map is under way from now on, and stored so, with the number of its items."""
        self._steps.check(call)
        attempt, steps, step = call.attempt, steps_of(call.attempt), StepKey(name)
        found = steps.get(step)
        if not declared:
            steps.begin(step)
            if found is not None and found.state in DONE:
                return MapStart(True)
            steps.started(step, 1)
        before = found is not None and found.items is not None
        items = await self._store.step_items(attempt.job.n, name) if before else []
        done = steps.begin_items(step, total, items)
        await self._writer.write(attempt, steps.under_way_now(step))
        return MapStart(False, done)

    async def record_map(self, call: Call, record: StepRecord | None, name: str, declared: bool) -> None:
        """How it ended. A declared one ends with its call."""
        if not declared:
            await self._steps.record(call, record, name, "")

    async def item_results(self, call: Call, name: str, first: int, last: int) -> Sequence[tuple[int, str | None]]:
        return await self._store.item_results(call.job.n, name, first, last)

    def read_items(self, call: Call, name: str, first: int, last: int) -> Sequence[tuple[int, str | None]]:
        """Blocking, from any thread: the keeper's thread reads them."""
        return self.read_items_of(call.job.n, name, first, last)

    def read_items_of(self, n: int, name: str, first: int, last: int) -> Sequence[tuple[int, str | None]]:
        return self._keeper.read(lambda store: store.item_results(n, name, first, last))


def mapped_function(
    step: FlowStep[..., Any],
    function: Function,
    begin: Mapping[str, Callable[[Call], Begun]],
    in_thread: HandlerServices,
) -> Function:
    """The body of a mapped step: a coroutine that calls the step's function for each item."""
    options, source = step.mapped, step.spec.map
    assert options
    assert source
    kind = function.handler.kind

    async def map_all(ctx: Context, payload: Any) -> None:
        call = ctx._call
        assert isinstance(call, Call)

        async def on_loop(item: Any) -> Any:
            set_item(item, step.item)
            return await function.invoke(ctx, payload)

        def blocking(item: Any) -> Any:
            set_item(item, step.item)
            return function.invoke(Context(call, in_thread, payload), payload)

        async def in_process(item: Any) -> Any:
            return await _in_process(call, function, step, item, begin["process"])

        one = {"async": on_loop, "thread": blocking, "process": in_process}[kind]
        try:
            mapped = Map(ctx, step.name, one, _items_of(ctx, call, source), options, step.result or _ANY)
        except (InvalidInput, TooManySteps) as error:
            raise Fail(error.message) from error
        await mapped.awaited()

    made = copy.copy(function)
    made.handler = copy.copy(function.handler)
    made.handler.kind = "async"
    made.invoke, made.wants_context, made.timeout_s = map_all, True, LONGEST_S
    return made


_ANY = ResultType(None, "an item")


def _items_of(ctx: Context, call: Call, source: str) -> Any:
    """The list that a step returned; nothing is to be done for one that was skipped."""
    steps = call.attempt.steps
    known = steps.get(StepKey(source)) if steps else None
    return [] if known is not None and known.state is StepState.SKIPPED else ctx.results[source]


async def _in_process(
    outer: Call, function: Function, step: FlowStep[..., Any], item: Any, begin: Callable[[Call], Begun]
) -> Any:
    call = Call(outer.attempt, function, outer.payload, time.monotonic() + function.timeout_s)
    call.parent, call.step, call.key = outer, step.name, item_key.get()
    call.item = to_json(item).decode()
    outer.attempt.open(call)
    try:
        result = await result_of(begin(call))
    finally:
        outer.attempt.close(call)
    interrupt = call.interruption()
    if interrupt is not None and (interrupt.cause is not Cause.CANCEL or not isinstance(result, Returned)):
        raise interrupt.error()
    if isinstance(result, Raised):
        raise ItemFailed(result)
    return (step.result or _ANY).value(result.text)
