"""The requests of handlers to their worker through `ctx`: awaited on the loop or blocking in a thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from treadle.model.errors import InvalidInput, StoreUnavailable
from treadle.model.steps import shown_step
from treadle.store.values import StepKey
from treadle.worker.blocking import BlockingConnection, BlockingHttp, BlockingPool, found, on_loop
from treadle.worker.errors import describe
from treadle.worker.resources import Resources, close_connection
from treadle.worker.threads import PLACES, Threads

if TYPE_CHECKING:
    from treadle.model.job import Job
    from treadle.queue import Queue
    from treadle.queue.handlers.children import ChildRequest
    from treadle.queue.handlers.context import Context
    from treadle.queue.handlers.steps import StepRecord, Wait
    from treadle.worker.attempt import Attempt
    from treadle.worker.call import Call
    from treadle.worker.checkpoints import ProgressWriter
    from treadle.worker.lease_keeper import LeaseKeeper
    from treadle.worker.output import OutputWriter
    from treadle.worker.steps.children import ParentServices
    from treadle.worker.steps.made import StepServices
    from treadle.worker.steps.mapped import MapServices

# A heartbeat in a tight loop must not cause a write in a tight loop.
BEAT_AT_MOST_EVERY_S = 1.0


def no_time_limit(seconds: float, error: Callable[[], BaseException]) -> AbstractContextManager[None]:
    """A thread can't be interrupted. It sees the limit of its step at its next checkpoint."""
    return nullcontext()


class LoopServices:
    """For coroutines: every result is awaited."""

    blocking = False
    describe = staticmethod(describe)
    time_limit = staticmethod(no_time_limit)

    def __init__(
        self,
        queue: Queue,
        keeper: LeaseKeeper,
        progress: ProgressWriter,
        steps: StepServices,
        maps: MapServices,
        output: OutputWriter,
        parents: ParentServices,
        connections: int,
        threads: Threads,
    ) -> None:
        self.in_thread = threads.wait
        self.call_in_process: Callable[..., Any] | None = None
        self.output = output
        self.recall_step, self.record_step, self.wait_step = steps.recall, steps.record, steps.wait
        self.turn = steps.turn
        self.begin_map, self.record_map = maps.begin_map, maps.record_map
        self.item_results, self.read_items = maps.item_results, maps.read_items
        self.children = parents.ask
        self._queue = queue
        self._keeper = keeper
        self._progress = progress
        self.resources = Resources(queue.store.user_database, connections)
        self.for_threads: Callable[[Call], ThreadServices]

    def thread_place(self, call: Call) -> asyncio.Semaphore:
        attempt = call.attempt
        if attempt.thread_places is None:
            attempt.thread_places = asyncio.Semaphore(PLACES)
        return attempt.thread_places

    async def heartbeat(self, call: Call, lease_ms: int | None = None) -> None:
        now, attempt = time.monotonic(), call.attempt
        if lease_ms is not None:
            # The jobs of a worker share its lease: the longest wish counts.
            attempt.lease.wanted_until = max(attempt.lease.wanted_until, now + lease_ms / 1000)
        wishes_more = attempt.lease.wanted_until > attempt.lease.until + BEAT_AT_MOST_EVERY_S
        if wishes_more or now - attempt.beaten_at >= min(BEAT_AT_MOST_EVERY_S, self._keeper.lease_s / 10):
            attempt.beaten_at = now
            await self._renew(attempt)
        call.check()

    async def _renew(self, attempt: Attempt) -> None:
        try:
            await self._keeper.renew_now(attempt.lease)
            await self._progress.write_now(attempt)
        except StoreUnavailable:
            pass  # the lease may still be alive: the keeper retries until it expires

    def emit(self, call: Call, channel: str, text: str) -> Awaitable[None]:
        return self.output.emit(call.attempt, channel, text)

    def enqueue(self, topic: str, payload: Any, options: dict[str, Any]) -> Awaitable[Any]:
        return self._queue.enqueue(topic, payload, **options)

    async def enqueue_with_outcome(
        self, call: Call, topic: str, payload: Any, options: dict[str, Any], step: Sequence[str] | None
    ) -> Job:
        """`step`: the innermost step around it that the handler made, by name and key."""
        new, job = await self._queue._prepare(topic, payload, **options)
        attempt = call.attempt
        if attempt.ended:
            raise InvalidInput(f"job {call.job.id} has ended: enqueue without with_outcome", field="with_outcome")
        around = StepKey(*step) if step else StepKey(call.step)
        if attempt.steps is not None and around.name and attempt.steps.follow_up(around, new):
            return job
        if step:
            raise InvalidInput(
                f"step {shown_step(*step)} has ended: enqueue without with_outcome", field="with_outcome"
            )
        attempt.follow_ups += (new,)
        return job

    def database(self) -> Any:
        return self.resources.connection() or self.resources.pool()

    def close_database(self, database: Any, context: Context) -> None:
        close_connection(database, context)

    def http(self) -> Any:
        return self.resources.http()


class ThreadServices:
    """For plain functions in threads: the loop does the work while the thread waits."""

    blocking = True
    describe = staticmethod(describe)
    time_limit = staticmethod(no_time_limit)

    def __init__(self, services: LoopServices) -> None:
        self._services = services
        services.for_threads = lambda call: self
        self._ask_loop = on_loop(asyncio.get_running_loop())

    def call_in_process(self, *about: Any) -> Any:
        assert self._services.call_in_process
        return self._ask(self._services.call_in_process, *about)

    def heartbeat(self, call: Call, lease_ms: int | None = None) -> None:
        self._ask(self._services.heartbeat, call, lease_ms)

    def emit(self, call: Call, channel: str, text: str) -> None:
        room = self._services.output.emit_from_thread(call.attempt, channel, text)
        if room is not None:
            self._ask_loop(lambda: room)

    def enqueue(self, topic: str, payload: Any, options: dict[str, Any]) -> Any:
        connection = options.get("connection")
        if isinstance(connection, BlockingConnection):
            options["connection"] = connection.source
        return self._ask(self._services.enqueue, topic, payload, options)

    def enqueue_with_outcome(
        self, call: Call, topic: str, payload: Any, options: dict[str, Any], step: Sequence[str] | None
    ) -> Any:
        return self._ask(self._services.enqueue_with_outcome, call, topic, payload, options, step)

    def turn(self, call: Call) -> None:
        """A thread holds up no loop."""

    def recall_step(self, call: Call, name: str, key: str, finish_ms: int | None, item: int | None = None) -> Any:
        return self._ask(self._services.recall_step, call, name, key, finish_ms, item)

    def begin_map(self, call: Call, name: str, total: int, declared: bool) -> Any:
        return self._ask(self._services.begin_map, call, name, total, declared)

    def record_map(self, call: Call, record: StepRecord | None, name: str, declared: bool) -> Any:
        return self._ask(self._services.record_map, call, record, name, declared)

    def read_items(self, call: Call, name: str, first: int, last: int) -> Sequence[tuple[int, str | None]]:
        return self._services.read_items(call, name, first, last)

    def record_step(self, call: Call, record: StepRecord | None, name: str, key: str) -> Any:
        return self._ask(self._services.record_step, call, record, name, key)

    def wait_step(self, call: Call, wait: Wait) -> Any:
        return self._ask(self._services.wait_step, call, wait)

    def children(self, call: Call, request: ChildRequest) -> Any:
        return self._ask(self._services.children, call, request)

    def database(self) -> Any:
        resources = self._services.resources
        return resources.connection() or BlockingPool(found(self._ask_loop, resources.pool), self._ask_loop)

    def close_database(self, database: Any, context: Context) -> None:
        close_connection(database, context)

    def http(self) -> Any:
        return BlockingHttp(found(self._ask_loop, self._services.resources.http), self._ask_loop)

    def _ask(self, request: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        return self._ask_loop(lambda: request(*arguments))
