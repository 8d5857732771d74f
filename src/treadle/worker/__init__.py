"""Claims jobs and runs their handlers: claim loop → executor → handler → settler → store."""

from treadle.context import Context
from treadle.worker.metrics import Metrics
from treadle.worker.worker import Worker

__all__ = ["Context", "Metrics", "Worker"]
