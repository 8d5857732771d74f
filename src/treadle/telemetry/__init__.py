"""Logs, metrics and traces. Imports no other package of Treadle, so that every package can use it."""

from treadle.telemetry.histogram import Histogram
from treadle.telemetry.http_requests import HttpMetrics, Observed
from treadle.telemetry.log_context import LoggedJob, facts_of, request_id, running_job

__all__ = [
    "Histogram",
    "HttpMetrics",
    "LoggedJob",
    "Observed",
    "facts_of",
    "request_id",
    "running_job",
]
