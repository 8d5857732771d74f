"""`ctx.map`, and the body of a mapped step: one step for each item of a list, at most `limit` of them at once.

Only the items that run are in memory: how each of them ended is stored before the next one begins in its place, and the
results are read in pages when they are asked for.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import to_json

from treadle.model.durations import Duration
from treadle.model.errors import InvalidInput
from treadle.model.handler import ResultType, is_async, result_type
from treadle.model.lazy_list import LazyList
from treadle.model.retry import Retry
from treadle.model.steps import StepState
from treadle.policy.mapping import (
    ItemKey,
    checked_items,
    checked_key_of,
    checked_limit,
    checked_max_failed,
    keys_of,
    may_fail,
)
from treadle.queue.handlers.steps import Run, StepRecord, item_key, nested

if TYPE_CHECKING:
    from treadle.queue.handlers.context import Context

_item: ContextVar[Any] = ContextVar("treadle_item_value")
"""The item for which a mapped step's function is called here."""


def without_item(function: Callable[..., Any]) -> tuple[Callable[..., Any], ResultType | None]:
    """A mapped step's function without its last parameter, which gets the item, and the type of that."""
    signature = inspect.signature(function, eval_str=True)
    parameters = list(signature.parameters.values())
    last = parameters[-1] if parameters else None
    if last is None or last.kind not in (last.POSITIONAL_ONLY, last.POSITIONAL_OR_KEYWORD):
        name = getattr(function, "__qualname__", repr(function))
        raise InvalidInput(f"{name}: the last parameter of a mapped step gets the item; it has none", field="map")

    @functools.wraps(function)
    async def call_async(*args: Any) -> Any:
        return await function(*args, _item.get())

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return function(*args, _item.get())

    made: Any = call_async if is_async(function) else call
    made.__signature__ = signature.replace(parameters=parameters[:-1])
    annotated = last.annotation is not inspect.Parameter.empty
    return made, ResultType(last.annotation, "the item") if annotated else None


def set_item(value: Any, type_: ResultType | None) -> None:
    """What a mapped step's function gets in this context, in its type."""
    _item.set(value if type_ is None else type_.value(to_json(value).decode()))


ReadItems = Callable[[int, int], Sequence[tuple[int, str | None]]]


class MapOptions(NamedTuple):
    """How to run the items."""

    key: ItemKey = None
    limit: int = 8
    max_failed: int | str = 0
    timeout: Duration | None = None
    retry: Retry | None = None
    cancelable: bool = True

    def checked(self, name: str) -> MapOptions:
        checked_key_of(name, self.key)
        checked_limit(name, self.limit)
        checked_max_failed(name, self.max_failed)
        return self


class MapStart(NamedTuple):
    """What a worker knows of a map that is about to run."""

    completed: bool
    done: Sequence[str] = ()
    """The keys of the items that need not run again."""


class _Item(NamedTuple):
    place: int
    key: str
    value: Any


class ItemRun(Run):
    """The run of one item: a step with a key, which has a place in the list."""

    def __init__(self, mapped: Map, item: _Item) -> None:
        options = mapped.options
        self._placed_at = mapped.name, item.key
        super().__init__(
            mapped.ctx,
            mapped.name,
            mapped.function,
            (item.value,),
            item.key,
            options.timeout,
            options.retry,
            options.cancelable,
            item=item.place,
        )
        self._type = mapped.type

    def _placed(self, ctx: Context, name: str, key: str | int) -> tuple[str, str]:
        return self._placed_at


class Map:
    """One map over one list."""

    def __init__(
        self,
        ctx: Context,
        name: str,
        function: Callable[..., Any],
        items: Any,
        options: MapOptions,
        declared: ResultType | None = None,
    ) -> None:
        """`declared`: it is the body of a mapped step, whose items have this type; else a step that a handler makes."""
        ctx._check()
        if not callable(function):
            raise InvalidInput(f"map {str(name)[:100]}: {function!r} is not a function", field="function")
        if item_key.get():
            raise InvalidInput(f"map {name[:100]}: an item of a map can't map in turn; use ctx.step", field="items")
        self.ctx = ctx
        self.name = name if declared else nested(ctx, name)
        self.function = function
        self.type = declared or result_type(function)
        self.options = options.checked(self.name)
        self._declared = declared is not None
        self._items = checked_items(self.name, items)
        self._keys = keys_of(self.name, self._items, options.key)
        self._may_fail = may_fail(options.max_failed, len(self._keys))
        self._failures = 0
        self._first_failure: Exception | None = None
        self._stopped = False
        """No other item begins."""
        self._problem: BaseException | None = None
        """What ended a lane that is no failure of an item."""
        self._taking = threading.Lock()
        self._began = time.monotonic()

    # -- in a coroutine ----------------------------------------------------------------------------

    async def awaited(self) -> LazyList[Any]:
        services, call = self.ctx._services, self.ctx._call
        start: MapStart = await services.begin_map(call, self.name, len(self._keys), self._declared)
        if not start.completed:
            recorded = False
            try:
                await self._side_by_side(self._todo(start))
                recorded = True
                await services.record_map(call, self._record(), self.name, self._declared)
            finally:
                if not recorded:
                    await services.record_map(call, None, self.name, self._declared)
            self._raise_failure()
        return self._results()

    async def _side_by_side(self, todo: Iterator[_Item]) -> None:
        lanes = [asyncio.create_task(self._lane(todo)) for _ in range(min(self.options.limit, len(self._keys)))]
        try:
            if lanes:
                await asyncio.wait(lanes)
        except BaseException:
            self._stopped = True
            for lane in lanes:
                lane.cancel()
            await asyncio.wait(lanes)
            raise
        self._raise_problem()

    async def _lane(self, todo: Iterator[_Item]) -> None:
        while (item := self._next(todo)) is not None:
            item_key.set(item.key)
            run: ItemRun | None = None
            try:
                run = ItemRun(self, item)
                await run.awaited()
            except BaseException as error:  # raised again by the handler's own task
                self._ended_with(run, error)

    # -- in a thread or a process ------------------------------------------------------------------

    def blocking(self) -> LazyList[Any]:
        services, call = self.ctx._services, self.ctx._call
        start: MapStart = services.begin_map(call, self.name, len(self._keys), self._declared)
        if not start.completed:
            recorded = False
            try:
                self._in_threads(self._todo(start))
                recorded = True
                services.record_map(call, self._record(), self.name, self._declared)
            finally:
                if not recorded:
                    services.record_map(call, None, self.name, self._declared)
            self._raise_failure()
        return self._results()

    def _in_threads(self, todo: Iterator[_Item]) -> None:
        """The last lane runs here."""
        others = min(self.options.limit, len(self._keys)) - 1
        lanes = [
            threading.Thread(target=copy_context().run, args=(self._lane_here, todo), daemon=True, name="treadle-map")
            for _ in range(others)
        ]
        try:
            for lane in lanes:
                lane.start()
            copy_context().run(self._lane_here, todo)
        except BaseException:
            self._stopped = True
            raise
        finally:
            for lane in lanes:
                lane.join()
        self._raise_problem()

    def _lane_here(self, todo: Iterator[_Item]) -> None:
        while (item := self._next(todo)) is not None:
            item_key.set(item.key)
            run: ItemRun | None = None
            try:
                run = ItemRun(self, item)
                run.blocking()
            except BaseException as error:  # raised again by the handler's own thread
                self._ended_with(run, error)

    # -- both --------------------------------------------------------------------------------------

    def _todo(self, start: MapStart) -> Iterator[_Item]:
        done = frozenset(start.done)
        return (
            _Item(place, key, item)
            for place, (key, item) in enumerate(zip(self._keys, self._items, strict=True))
            if key not in done
        )

    def _next(self, todo: Iterator[_Item]) -> _Item | None:
        with self._taking:
            return None if self._stopped else next(todo, None)

    def _ended_with(self, run: ItemRun | None, error: BaseException) -> None:
        """An item has failed, or its lane was interrupted."""
        if run is not None and run.failed and isinstance(error, Exception):
            self._failures += 1
            if self._first_failure is None:
                self._first_failure = error
            self._stopped = self._stopped or self._failures > self._may_fail
            return
        self._stopped = True
        if self._problem is None:
            self._problem = error

    def _raise_problem(self) -> None:
        if self._problem is not None and self._failures <= self._may_fail:
            raise self._problem

    def _record(self) -> StepRecord:
        """Too many failures are the failure of the map."""
        ran_ms = int((time.monotonic() - self._began) * 1000)
        if self._failures <= self._may_fail or self._first_failure is None:
            return StepRecord(StepState.COMPLETED, 1, ran_ms, None, None, None, None)
        described = self.ctx._services.describe(self._first_failure)
        return StepRecord(StepState.FAILED, 1, ran_ms, None, described.text, described.type, None)

    def _raise_failure(self) -> None:
        if self._failures > self._may_fail and self._first_failure is not None:
            raise self._first_failure

    def _results(self) -> LazyList[Any]:
        services, call, name = self.ctx._services, self.ctx._call, self.name
        return results(len(self._keys), lambda first, last: services.read_items(call, name, first, last), self.type)


def results(total: int, read: ReadItems, type_: ResultType | None) -> LazyList[Any]:
    """The results of a map in the order of its list; None for items that failed."""

    def page(first: int, last: int) -> list[Any]:
        found = dict(read(first, last))
        reader = type_ or ResultType(None, "the item")
        return [reader.value(found.get(place)) for place in range(first, last)]

    return LazyList(total, page)


async def awaited_map(ctx: Context, name: str, function: Callable[..., Any], items: Any, options: MapOptions) -> Any:
    return await Map(ctx, name, function, items, options).awaited()
