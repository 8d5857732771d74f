"""Log formats of long-running commands: text for people, JSON for machines (TREADLE_LOG_FORMAT).

Content from payloads, errors and requests is escaped, so that one record can't look like two.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from treadle.cli.output import safe
from treadle.telemetry.log_context import facts_of, request_id, running_job

_NAMES = {"job_id": "jobId", "topic": "topic", "attempt": "attempt", "request_id": "requestId"}


def configure(log_format: str, level: str = "info") -> None:
    """Log to stderr, unless the user's code has already set up a handler."""
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
        root.addHandler(handler)
        root.setLevel(level.upper())


class TextLines(logging.Formatter):
    """`time level logger: message [job] [request]`; a traceback follows on separate, indented lines."""

    def format(self, record: logging.LogRecord) -> str:
        facts = _facts(record)
        message = _line(record.getMessage())
        text = f"{_time(record)} {record.levelname.lower()} {_line(record.name)}: {message}"
        if (job := str(facts.get("jobId", ""))) not in message:
            text += f" [{_line(job)}]"
        if "requestId" in facts:
            text += f" [request {_line(str(facts['requestId']))}]"
        # An error's text may contain lines that look like log lines; ours are never indented.
        return "\n  ".join([text, *(safe(line) for line in _trace(self, record).splitlines())])


class JsonLines(logging.Formatter):
    """One JSON object per line, in plain ASCII; everything else is escaped."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_facts(record),
        }
        if trace := _trace(self, record):
            entry["error"] = trace
        return json.dumps(entry, default=str).replace("\x7f", "\\u007f")


def _facts(record: logging.LogRecord) -> dict[str, object]:
    """The job and the request of a record: given by the caller, or taken from the running code."""
    known: dict[str, object] = {}
    if (job := running_job.get()) is not None and not hasattr(record, "job_id"):
        known |= facts_of(job)
    if (request := request_id.get()) is not None:
        known["request_id"] = request
    known |= {name: getattr(record, name) for name in _NAMES if hasattr(record, name)}
    return {shown: known[name] for name, shown in _NAMES.items() if name in known}


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = []
    if record.exc_info:
        parts.append(formatter.formatException(record.exc_info))
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return "\n".join(parts)


def _line(text: str) -> str:
    return safe(text).replace("\n", "\\n")


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
