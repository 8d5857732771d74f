"""A task's function as a handler: Django's connections are looked after, and Django's signals sent."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections
from django.tasks import TaskContext
from django.tasks.signals import task_finished, task_started
from django.utils.json import normalize_json

from treadle import Context

if TYPE_CHECKING:
    from django.tasks import TaskResult

    from treadle.integrations.django.task import TreadleTask

TASKS_IN_PROCESSES = "treadle.integrations.django.processes"


def handler_of(task: TreadleTask) -> Callable[..., Any]:
    """The handler for a task. It keeps the function's name, or in a process one that sets Django up first."""

    def in_function(ctx: Context, payload: dict[str, Any]) -> Any:
        close_old_connections()
        try:
            before = _started(task, ctx)
            return normalize_json(task.func(*before, *payload.get("args", ()), **payload.get("kwargs", {})))
        finally:
            close_old_connections()

    async def in_coroutine(ctx: Context, payload: dict[str, Any]) -> Any:
        await sync_to_async(close_old_connections)()
        try:
            before = await sync_to_async(_started)(task, ctx)
            return normalize_json(await task.func(*before, *payload.get("args", ()), **payload.get("kwargs", {})))
        finally:
            await sync_to_async(close_old_connections)()

    handler = in_coroutine if inspect.iscoroutinefunction(task.func) else in_function
    handler.__name__ = task.func.__name__
    handler.__doc__ = task.func.__doc__
    handler.__module__ = TASKS_IN_PROCESSES
    handler.__qualname__ = task.module_path.replace(".", "/")
    return handler


def _started(task: TreadleTask, ctx: Context) -> tuple[TaskContext, ...]:
    """Tell that an attempt starts; the arguments that come before the user's."""
    backend = task.get_backend()
    result: TaskResult = backend.get_result(ctx.job_id)
    # The start of this attempt is stored with other starts, perhaps a little later.
    result.worker_ids.extend(["this one"] * (ctx.attempt - len(result.worker_ids)))
    task_started.send(type(backend), task_result=result)
    return (TaskContext(task_result=result),) if task.takes_context else ()


def send_finished(ctx: Context, _: object) -> None:
    """Once the end is stored; after a retry nothing has finished."""
    task = _task_of(ctx.topic)
    if task is not None:
        close_old_connections()
        backend = task.get_backend()
        task_finished.send(type(backend), task_result=backend.get_result(ctx.job_id))
        close_old_connections()


@functools.cache
def _task_of(topic: str) -> TreadleTask | None:
    from treadle.integrations.django.queues import _queues

    return next((queue.tasks[topic] for queue in _queues.values() if topic in queue.tasks), None)
