"""Log lines of commands that run for long: text for people, JSON for machines (TREADLE_LOG_FORMAT)."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from treadle.cli.output import safe

_FACTS = ("job_id", "topic", "attempt")


def configure(log_format: str) -> None:
    """To stderr; a handler that the user's own code has set stays the only one."""
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
        root.addHandler(handler)
        root.setLevel(logging.INFO)


class TextLines(logging.Formatter):
    """`time level logger: message [job]`; a trace follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        message = safe(record.getMessage()).replace("\n", "\\n")
        job = getattr(record, "job_id", None)
        where = f" [{job}]" if job else ""
        text = f"{_time(record)} {record.levelname.lower()} {record.name}: {message}{where}"
        return f"{text}\n{safe(self.formatException(record.exc_info))}" if record.exc_info else text


class JsonLines(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "at": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: getattr(record, name) for name in _FACTS if hasattr(record, name)},
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
