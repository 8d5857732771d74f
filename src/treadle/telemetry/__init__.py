"""What Treadle tells about itself: log facts, metrics, traces. It imports no other part, so every part may use it."""

from treadle.telemetry.context import RunningJob, facts_of, request_id, running_job
from treadle.telemetry.exposition import CONTENT_TYPE, exposition
from treadle.telemetry.histogram import Histogram
from treadle.telemetry.requests import HttpMetrics, Observed

__all__ = [
    "CONTENT_TYPE",
    "Histogram",
    "HttpMetrics",
    "Observed",
    "RunningJob",
    "exposition",
    "facts_of",
    "request_id",
    "running_job",
]
