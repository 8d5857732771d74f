"""The backend of `django.tasks`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage
from django.tasks import DEFAULT_TASK_QUEUE_NAME, TaskResult
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
from django.tasks.signals import task_enqueued
from django.utils import timezone
from django.utils.json import normalize_json

from treadle import InvalidInput, JobNotFound, Queue
from treadle.integrations.django import checks, results
from treadle.integrations.django.databases import joined
from treadle.integrations.django.queues import PREFIX, TaskQueue, queue_of
from treadle.integrations.django.task import TreadleTask

if TYPE_CHECKING:
    from django.tasks import Task

NORMAL = 50
"""Treadle's normal priority, which is Django's 0."""


class TreadleBackend(BaseTaskBackend):
    """Tasks as jobs in one of the project's databases."""

    task_class = TreadleTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self.database: str = self.options.get("database", "default")
        self.tasks: TaskQueue = queue_of(alias, self.database)

    @property
    def queue(self) -> Queue:
        """The queue itself, for what `django.tasks` has no words for."""
        return self.tasks.get()

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Store the task; inside `atomic()` it exists if and when that transaction commits."""
        self.validate_task(task)
        payload = {"args": normalize_json(list(args)), "kwargs": normalize_json(dict(kwargs))}
        options: dict[str, Any] = {"priority": task.priority + NORMAL, "connection": joined(self.database)}
        if task.run_after is not None:
            aware = timezone.is_aware(task.run_after)
            options["run_at"] = task.run_after if aware else timezone.make_aware(task.run_after)
        if task.queue_name != DEFAULT_TASK_QUEUE_NAME:
            options["capability"] = task.queue_name
        try:
            job = self.queue.sync.enqueue(f"{PREFIX}{task.module_path}", payload, **options)
        except InvalidInput as error:
            raise InvalidTask(str(error)) from error
        result = results.result_of(job, (), task, self.alias)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult:
        connection = joined(self.database)
        try:
            job = self.queue.sync.get(result_id, connection=connection)
            events = self.queue.sync.events(result_id) if job.attempt or job.ended else ()
        except JobNotFound:
            raise TaskResultDoesNotExist(result_id) from None
        return results.result_of(job, events, results.task_of(job, self.alias), self.alias)

    def check(self, **_: Any) -> Iterable[CheckMessage]:
        return checks.check_backend(self)
