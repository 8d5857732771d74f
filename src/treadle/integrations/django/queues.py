"""The queue of each backend, with all its tasks as handlers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from treadle import Queue
from treadle.integrations.django.databases import url_of
from treadle.integrations.django.running import handler_of, send_finished

if TYPE_CHECKING:
    from treadle.integrations.django.task import TreadleTask

PREFIX = "django:"


class TaskQueue:
    """One for each backend of `TASKS`, shared by all threads."""

    def __init__(self, database: str) -> None:
        self.database = database
        self.tasks: dict[str, TreadleTask] = {}
        self._queue: Queue | None = None
        self._lock = threading.RLock()

    def add(self, task: TreadleTask) -> None:
        """Remember a task. Its handler is registered when the queue is needed, because a program may only import it."""
        topic = f"{PREFIX}{task.module_path}"
        with self._lock:
            if self.tasks.setdefault(topic, task) is task and self._queue is not None:
                self._register(self._queue, topic, task)

    def get(self) -> Queue:
        """The queue; opened anew if the tests have switched to another database."""
        url = url_of(self.database)
        with self._lock:
            if self._queue is None:
                queue = Queue(url)
                queue.on_success(send_finished)
                queue.on_failure(send_finished)
                for topic, task in self.tasks.items():
                    self._register(queue, topic, task)
                self._queue = queue
            elif self._queue.url != url:
                self._queue.sync.close()
                self._queue.use(url)
            return self._queue

    def _register(self, queue: Queue, topic: str, task: TreadleTask) -> None:
        queue.register(topic, handler_of(task), **task.job_options())


_queues: dict[str, TaskQueue] = {}
_lock = threading.Lock()


def queue_of(backend: str, database: str) -> TaskQueue:
    """Django makes a backend for each thread; all with this alias share the queue."""
    with _lock:
        found = _queues.get(backend)
        if found is None or found.database != database:
            found = _queues[backend] = TaskQueue(database)
        return found
