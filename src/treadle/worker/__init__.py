"""Claims jobs and runs their handlers: claim loop → slot → attempt → call → settler → store."""

from treadle.queue.handlers.context import Context
from treadle.worker.metrics import Metrics
from treadle.worker.worker import Worker

__all__ = ["Context", "Metrics", "Worker"]
