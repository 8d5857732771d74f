"""Tasks and flows with blocking methods: `task.sync` and `flow.sync`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, overload

from typing_extensions import Unpack

from treadle.model.handler import Handler
from treadle.queue.enqueueing.new_jobs import EnqueueOptions, merged
from treadle.queue.handlers.flows import FlowPayloadT
from treadle.queue.handlers.tasks import Args, PayloadT, ResultT, SignatureT, bound, payloads_of

if TYPE_CHECKING:
    from treadle.queue.sync import SyncJob, SyncQueue


class SyncPayloadTask(Generic[PayloadT, ResultT]):
    """`task.sync` of a task with a payload."""

    def __init__(self, queue: SyncQueue, topic: str, options: EnqueueOptions) -> None:
        self._queue = queue
        self._topic = topic
        self._options = options

    def enqueue(self, payload: PayloadT | None = None, **options: Unpack[EnqueueOptions]) -> SyncJob[ResultT]:
        """See `Queue.enqueue`."""
        return self._queue.enqueue(self._topic, payload, **merged(self._options, options))

    def enqueue_many(self, payloads: Iterable[PayloadT], **options: Unpack[EnqueueOptions]) -> list[SyncJob[ResultT]]:
        """See `Queue.enqueue_many`."""
        return self._queue.enqueue_many(self._topic, payloads, **merged(self._options, options))


class SyncArgumentsTask(Generic[Args, ResultT, SignatureT]):
    """`task.sync` of a task with arguments."""

    def __init__(self, queue: SyncQueue, handler: Handler, options: EnqueueOptions) -> None:
        self._queue = queue
        self._handler = handler
        self._options = options

    @overload  # of a function without arguments, as in `ArgumentsTask`
    def enqueue(
        self: SyncArgumentsTask[[], ResultT, Callable[[], None]],
        payload: Mapping[str, Any] | None = None,
        /,
        **options: Unpack[EnqueueOptions],
    ) -> SyncJob[ResultT]: ...
    @overload
    def enqueue(self, *args: Args.args, **kwargs: Args.kwargs) -> SyncJob[ResultT]: ...
    def enqueue(self, *args: Any, **kwargs: Any) -> SyncJob[ResultT]:
        """See `Queue.enqueue`."""
        return self._queue.enqueue(self._handler.topic, bound(self._handler, args, kwargs), **self._options)

    def enqueue_many(self, calls: Iterable[Mapping[str, Any] | tuple[Any, ...]]) -> list[SyncJob[ResultT]]:
        """See `ArgumentsTask.enqueue_many`."""
        return self._queue.enqueue_many(self._handler.topic, payloads_of(self._handler, calls), **self._options)


class SyncFlow(Generic[FlowPayloadT]):
    """`flow.sync`."""

    def __init__(self, queue: SyncQueue, topic: str, options: EnqueueOptions) -> None:
        self._queue = queue
        self._topic = topic
        self._options = options

    @overload
    def enqueue(self, payload: FlowPayloadT, **options: Unpack[EnqueueOptions]) -> SyncJob[Any]: ...
    @overload
    def enqueue(self: SyncFlow[dict[str, Any]], **options: Unpack[EnqueueOptions]) -> SyncJob[Any]: ...
    def enqueue(self, payload: Any = None, **options: Unpack[EnqueueOptions]) -> SyncJob[Any]:
        """See `Queue.enqueue`."""
        return self._queue.enqueue(self._topic, payload, **merged(self._options, options))

    def enqueue_many(self, payloads: Iterable[FlowPayloadT], **options: Unpack[EnqueueOptions]) -> list[SyncJob[Any]]:
        """See `Queue.enqueue_many`."""
        return self._queue.enqueue_many(self._topic, payloads, **merged(self._options, options))
