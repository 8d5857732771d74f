"""The public API: `Queue`, its tasks, and jobs."""

from treadle.queue.new_jobs import EnqueueOptions, JobRequest
from treadle.queue.queue import Queue
from treadle.queue.sync import SyncJob
from treadle.queue.tasks import ArgumentsTask, PayloadTask, Task

__all__ = ["ArgumentsTask", "EnqueueOptions", "JobRequest", "PayloadTask", "Queue", "SyncJob", "Task"]
