"""`queue.sync.schedules`: the methods of `queue.schedules`, blocking."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from treadle.queue.schedules import Schedules

if TYPE_CHECKING:
    from treadle.queue.sync import SyncJob, SyncQueue

P = ParamSpec("P")
R = TypeVar("R")


def _blocking(
    method: Callable[Concatenate[Schedules, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncSchedules, P], R]:
    @functools.wraps(method)
    def call(self: SyncSchedules, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._queue._run(method(self._schedules, *args, **kwargs))

    return call


class SyncSchedules:
    def __init__(self, queue: SyncQueue, schedules: Schedules) -> None:
        self._queue = queue
        self._schedules = schedules

    def run(self, schedule_id: str) -> SyncJob:
        """See `Schedules.run`."""
        return cast("SyncJob", self._queue._bind(self._queue._run(self._schedules.run(schedule_id))))

    create = _blocking(Schedules.create)
    list = _blocking(Schedules.list)
    get = _blocking(Schedules.get)
    update = _blocking(Schedules.update)
    enable = _blocking(Schedules.enable)
    disable = _blocking(Schedules.disable)
    delete = _blocking(Schedules.delete)
    events = _blocking(Schedules.events)
    now = _blocking(Schedules.now)
    disable_created_by = _blocking(Schedules.disable_created_by)
