"""`ctx.run`, `ctx.run_many` and `ctx.map` over a task, seen from the handler.

Each is a generator of requests to the worker, so that it is written once: `awaited` drives it in a coroutine,
`blocking` elsewhere. Items become payloads here, one window after the other. The worker does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic_core import from_json

from treadle.model.errors import ChildFailed, DoubledStep, InvalidInput, Suspend, TooManySteps
from treadle.model.steps import MAX_ROWS, StepState, checked_key, shown_step
from treadle.policy.flow import wait_error
from treadle.queue.enqueueing.new_jobs import TopicOwner, UnknownOption, checked_options, topic_of
from treadle.queue.handlers.steps import Waited, nested, steps_around

if TYPE_CHECKING:
    from treadle.model.handler import Handler
    from treadle.queue.handlers.context import Context

# Children that one transaction makes.
MADE_TOGETHER = 500

What = Literal["run", "find", "make", "wait", "end", "results"]
Key = str | Callable[[Any], Any] | None


class ChildRequest(NamedTuple):
    """A request to the worker, as plain data but for the payloads."""

    what: What
    step: str
    key: str = ""
    topic: str = ""
    options: Mapping[str, Any] = {}
    inside: Sequence[Sequence[str]] = ()
    """The steps around it, with their keys."""
    items: Sequence[tuple[str, int, Any]] = ()
    """To make: key, place in the list, payload."""
    total: int = 0
    restart: bool = False
    error: str | None = None
    after: int = -1
    """The results behind this place."""


class FamilyState(NamedTuple):
    """What a step knows of its many children."""

    state: str
    made: int = 0
    left: int = 0
    failed: int = 0
    error: str | None = None


class Ended(NamedTuple):
    """How one of them has ended."""

    key: str
    place: int
    result: str | None
    """JSON text; None: it did not complete."""
    error: str | None
    child: str | None


Requests = Generator[ChildRequest, Any, Any]


async def awaited(ctx: Context, requests: Requests) -> Any:
    if (turn := ctx._services.turn(ctx._call)) is not None:
        await turn
    try:
        request = next(requests)
        while True:
            request = requests.send(await ctx._services.children(ctx._call, request))
    except StopIteration as done:
        return done.value


def blocking(ctx: Context, requests: Requests) -> Any:
    try:
        request = next(requests)
        while True:
            request = requests.send(ctx._services.children(ctx._call, request))
    except StopIteration as done:
        return done.value


class Target:
    """The topic or task whose jobs are made."""

    def __init__(self, topic: str | TopicOwner, options: Mapping[str, Any]) -> None:
        self.topic = topic_of(topic)
        self._handler: Handler | None = getattr(topic, "handler", None)
        self.options = {**getattr(topic, "_options", {}), **_checked(options)}

    def payload(self, item: Any) -> Any:
        """An item as payload: of a task that takes arguments, anything but a mapping is its first one."""
        handler = self._handler
        if handler is None or not handler.takes_arguments or isinstance(item, Mapping):
            return item
        return handler.bind((item,), {})

    def result(self, text: str | None) -> Any:
        value = None if text is None else from_json(text)
        return self._handler.result(value) if self._handler else value


def _checked(options: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in ("idempotency_key", "key_owner"):
        if name in options:
            raise InvalidInput(f"{name}: a child is made once for its step and key; use key=", field=name)
    if "connection" in options:
        message = "connection: a child is stored with the step that waits for it; use ctx.enqueue(…, connection=…)"
        raise InvalidInput(message, field="connection")
    if "parent_id" in options:
        raise UnknownOption("parent_id: a child's parent is the job that makes it", field="parent_id")
    return checked_options(options)


def check_own_options(name: str, **given: Any) -> None:
    """Options of a step that a task has itself."""
    for option, value in given.items():
        if value is not None:
            raise InvalidInput(
                f"map {name}: {option}: a task has its own; set it there, or use ctx.step for a function", field=option
            )


# -- one -------------------------------------------------------------------------------------------


def run(
    ctx: Context, topic: str | TopicOwner, payload: Any, key: str | int | None, options: Mapping[str, Any]
) -> Requests:
    ctx._check()
    target = Target(topic, options)
    step, checked = nested(ctx, target.topic), checked_key("" if key is None else key)
    item = (checked, 0, target.payload(payload))
    answer = yield ChildRequest("run", step, checked, target.topic, target.options, steps_around(), [item])
    waited = Waited(*answer)
    if waited.state == "waits":
        ctx._leave(Suspend("park", shown_step(step, checked)))
    if waited.state == "failed":
        raise wait_error(waited.error or "", waited.error_type, waited.child)
    return target.result(waited.result)


# -- many ------------------------------------------------------------------------------------------


class FanOut:
    """The children of one step, made in windows of `limit`."""

    def __init__(
        self,
        ctx: Context,
        name: str,
        topic: str | TopicOwner,
        items: Any,
        key: Key,
        limit: int | None,
        max_failed: int | str,
        options: Mapping[str, Any],
    ) -> None:
        ctx._check()
        self._ctx = ctx
        self._target = Target(topic, options)
        self._step = nested(ctx, name)
        self._items = items if isinstance(items, Sequence) else list(items)
        self._key = key
        self._limit = _checked_limit(limit)
        if len(self._items) > MAX_ROWS:
            raise TooManySteps(f"step {name}: {len(self._items):,} items; at most {MAX_ROWS:,} are possible")
        self._may_fail = failures_allowed(max_failed, len(self._items))

    def requests(self) -> Requests:
        found = FamilyState(*(yield self._ask("find")))
        if found.state == StepState.COMPLETED:
            return (yield from self._results())
        if found.state == StepState.FAILED:
            raise ChildFailed(found.error or "")
        yield from self._make(found)
        rows = yield from self._ended()
        problem = self._problem(rows)
        if problem is None and not rows.keys() >= set(self._keys()):  # the list has other items than before
            yield from self._make(FamilyState(StepState.PENDING))
            rows = yield from self._ended()
            problem = self._problem(rows)
        yield self._ask("end", error=problem)
        if problem is not None:
            raise ChildFailed(problem)
        return self._values(rows)

    def _make(self, found: FamilyState) -> Requests:
        """Returns when all have ended; until then it leaves the handler after each window."""
        restart = found.state != StepState.WAITING
        if restart:
            self._check_doubles()
        total = len(self._items)
        at, left, failed = (0, 0, 0) if restart else (found.made, found.left, found.failed)
        while at < total and (self._limit is None or left < self._limit) and failed <= self._may_fail:
            room = total if self._limit is None else self._limit - left
            window = range(at, min(at + min(room, MADE_TOGETHER), total))
            items = [(self._key_of(i), i, self._target.payload(self._items[i])) for i in window]
            _, left, failed = yield self._ask("make", items=items, total=total, restart=restart)
            at, restart = window.stop, False
        if left:
            yield self._ask("wait")
            self._ctx._leave(Suspend("park", self._step))

    def _ended(self) -> Generator[ChildRequest, Any, dict[str, Ended]]:
        rows: dict[str, Ended] = {}
        after = -1
        while page := [Ended(*row) for row in (yield self._ask("results", after=after))]:
            rows |= {one.key: one for one in page}
            after = page[-1].place
        return rows

    def _results(self) -> Requests:
        rows = yield from self._ended()
        return self._values(rows)

    def _values(self, rows: Mapping[str, Ended]) -> list[Any]:
        found = [rows.get(key) for key in self._keys()]
        return [None if one is None else self._target.result(one.result) for one in found]

    def _problem(self, rows: Mapping[str, Ended]) -> str | None:
        failed = [one for one in rows.values() if one.error is not None]
        if len(failed) <= self._may_fail:
            return None
        first = failed[0]
        return f"{len(failed):,} of {len(self._items):,} children did not complete, first {first.key}: {first.error}"

    def _ask(self, what: What, **more: Any) -> ChildRequest:
        target = self._target
        return ChildRequest(what, self._step, "", target.topic, target.options, steps_around(), **more)

    # -- keys --------------------------------------------------------------------------------------

    def _keys(self) -> list[str]:
        return [self._key_of(i) for i in range(len(self._items))]

    def _key_of(self, index: int) -> str:
        if self._key is None:
            return str(index)
        return checked_key(key_of(self._items[index], self._key, index))

    def _check_doubles(self) -> None:
        if self._key is None:
            return
        seen: set[str] = set()
        for key in self._keys():
            if key in seen:
                message = f"step {self._step}: two items have the key {key[:100]!r}; give each its own"
                raise DoubledStep(message, step=self._step)
            seen.add(key)


def key_of(item: Any, key: str | Callable[[Any], Any], index: int) -> Any:
    """By a function, or by the name of a field."""
    if callable(key):
        return key(item)
    try:
        return item[key] if isinstance(item, Mapping) else getattr(item, key)
    except (KeyError, AttributeError):
        raise InvalidInput(f"key: item {index} has no {key[:100]!r}", field="key") from None


def _checked_limit(limit: int | None) -> int | None:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InvalidInput(f"limit: {str(limit)[:40]!r} is not a number from 1", field="limit")
    return limit


def failures_allowed(given: int | str, total: int) -> int:
    """How many may fail: a number, or a share such as "2%"."""
    if isinstance(given, str) and given.endswith("%"):
        try:
            share = float(given[:-1])
        except ValueError:
            share = -1.0
        if 0 <= share <= 100:
            return int(total * share / 100)
    elif isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    raise InvalidInput(
        f'max_failed: {str(given)[:40]!r} is not a number from 0 or a share such as "2%"', field="max_failed"
    )
