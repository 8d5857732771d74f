"""The public API: `Queue`, its tasks, and jobs."""

from treadle.queue.enqueueing.new_jobs import EnqueueOptions, JobRequest
from treadle.queue.handlers.tasks import ArgumentsTask, PayloadTask, Task
from treadle.queue.queue import Queue
from treadle.queue.sync import SyncJob

__all__ = ["ArgumentsTask", "EnqueueOptions", "JobRequest", "PayloadTask", "Queue", "SyncJob", "Task"]
