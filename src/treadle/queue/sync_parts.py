"""`queue.sync.schedules`, `queue.sync.templates` and `queue.sync.webhooks`: the same methods, blocking."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from treadle.queue.schedules.api import Schedules
from treadle.queue.templates import Templates
from treadle.queue.webhooks import Webhooks

if TYPE_CHECKING:
    from treadle.queue.sync import SyncJob, SyncQueue

P = ParamSpec("P")
R = TypeVar("R")
PartT = TypeVar("PartT")


class SyncPart(Generic[PartT]):
    def __init__(self, queue: SyncQueue, part: PartT) -> None:
        self._queue = queue
        self._part = part


def _blocking(
    method: Callable[Concatenate[PartT, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncPart[PartT], P], R]:
    @functools.wraps(method)
    def call(self: SyncPart[PartT], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._queue._run(method(self._part, *args, **kwargs))

    return call


class SyncSchedules(SyncPart[Schedules]):
    def run(self, schedule_id: str) -> SyncJob:
        """See `Schedules.run`."""
        return cast("SyncJob", self._queue._bind(self._queue._run(self._part.run(schedule_id))))

    create = _blocking(Schedules.create)
    list = _blocking(Schedules.list)
    next = _blocking(Schedules.next)
    page = _blocking(Schedules.page)
    recent_jobs = _blocking(Schedules.recent_jobs)
    get = _blocking(Schedules.get)
    update = _blocking(Schedules.update)
    enable = _blocking(Schedules.enable)
    disable = _blocking(Schedules.disable)
    delete = _blocking(Schedules.delete)
    events = _blocking(Schedules.events)
    now = _blocking(Schedules.now)
    check = _blocking(Schedules.check)
    draft = _blocking(Schedules.draft)
    disable_created_by = _blocking(Schedules.disable_created_by)


class SyncTemplates(SyncPart[Templates]):
    list = _blocking(Templates.list)
    get = _blocking(Templates.get)
    versions = _blocking(Templates.versions)
    use = _blocking(Templates.use)
    enable = _blocking(Templates.enable)
    disable = _blocking(Templates.disable)
    update = _blocking(Templates.update)


class SyncWebhooks(SyncPart[Webhooks]):
    create = _blocking(Webhooks.create)
    list = _blocking(Webhooks.list)
    get = _blocking(Webhooks.get)
    update = _blocking(Webhooks.update)
    delete = _blocking(Webhooks.delete)
    rotate = _blocking(Webhooks.rotate)
    hints = _blocking(Webhooks.hints)
    deliveries = _blocking(Webhooks.deliveries)
    delivery = _blocking(Webhooks.delivery)
    counts = _blocking(Webhooks.counts)
    redeliver = _blocking(Webhooks.redeliver)
    redeliver_since = _blocking(Webhooks.redeliver_since)
    test = _blocking(Webhooks.test)
    poll = _blocking(Webhooks.poll)
    has_key = _blocking(Webhooks.has_key)
