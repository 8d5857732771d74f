"""A store with calls that tests can watch, hold up, change or make fail, verb by verb."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, cast

from treadle import Queue, StoreUnavailable
from treadle.policy.retention import Rules
from treadle.queue.enqueueing.intake import Intake
from treadle.store.protocol import Store

Around = Callable[..., Awaitable[Any]]
"""`async def around(call, *arguments): return await call(*arguments)`"""


class Failures:
    """How many calls have still to fail."""

    def __init__(self, left: float) -> None:
        self.left = left

    def stop(self) -> None:
        self.left = 0


class FaultyStore:
    """The store itself, until something is put around a verb. `open` and `close` always work."""

    def __init__(self, store: Store, around_all: Around | None = None) -> None:
        self._store = store
        self._around_all = around_all
        self._around: dict[str, Around] = {}
        self.calls: Counter[str] = Counter()

    def __getattr__(self, verb: str) -> Any:
        attribute = getattr(self._store, verb)
        if verb in ("open", "close") or not inspect.iscoroutinefunction(attribute):
            return attribute
        return functools.partial(self._call, verb, attribute)

    @property
    def retention(self) -> Rules:
        return self._store.retention

    @retention.setter
    def retention(self, rules: Rules) -> None:
        self._store.retention = rules

    async def _call(self, verb: str, call: Around, *values: Any, **options: Any) -> Any:
        self.calls[verb] += 1
        if self._around_all:
            call = functools.partial(self._around_all, verb, call)
        around = self._around.get(verb)
        return await (around(call, *values, **options) if around else call(*values, **options))

    def around(self, verb: str, around: Around) -> None:
        """Instead of a call of `verb`, from now on: `around(call, *arguments)`."""
        assert inspect.iscoroutinefunction(getattr(self._store, verb)), verb
        self._around[verb] = around

    def before(self, verb: str, look: Callable[..., object]) -> None:
        """Show the arguments of each call first."""

        async def around(call: Around, *arguments: Any, **options: Any) -> Any:
            look(*arguments, **options)
            return await call(*arguments, **options)

        self.around(verb, around)

    def after(self, verb: str, look: Callable[[Any], object]) -> None:
        """Show each answer."""

        async def around(call: Around, *arguments: Any, **options: Any) -> Any:
            answer = await call(*arguments, **options)
            look(answer)
            return answer

        self.around(verb, around)

    def fail(
        self, verb: str, times: float = float("inf"), error: Exception | None = None, *, lose_answer: bool = False
    ) -> Failures:
        """Let the next calls fail: before anything is done, or after it was done and only the answer is lost."""
        failures, error = Failures(times), error or StoreUnavailable("away")

        async def around(call: Around, *arguments: Any, **options: Any) -> Any:
            if not failures.left:
                return await call(*arguments, **options)
            failures.left -= 1
            if lose_answer:
                await call(*arguments, **options)
            raise error

        self.around(verb, around)
        return failures

    def heal(self) -> None:
        self._around.clear()

    def mute(self) -> None:
        """No more hints, as behind a pooler."""
        self.subscribe = lambda wake, **_: lambda: None


def faulty(queue: Queue) -> FaultyStore:
    """Wrap the store that an open queue has on this loop in a faulty one, for all later calls."""
    session = queue._sessions.current()
    faults = FaultyStore(session.store)
    session.store = cast(Store, faults)
    session.intake = Intake(session.store)
    return faults


class FaultyQueue(Queue):
    """Make all its stores faulty: the one on its loop, and later the ones of its workers' lease keepers."""

    def __init__(self, url: str, around_all: Around | None = None, **options: Any) -> None:
        self._around_all = around_all
        self.stores: list[FaultyStore] = []
        super().__init__(url, **options)
        self.stores.clear()  # one was made to check the URL

    async def __aenter__(self) -> FaultyQueue:
        await self.open()
        return self

    def new_store(self) -> Store:
        self.stores.append(FaultyStore(super().new_store(), self._around_all))
        return cast(Store, self.stores[-1])

    @property
    def faults(self) -> FaultyStore:
        """The store that this loop's workers use."""
        return cast(FaultyStore, self.store)
