"""The request and the job that the current code works on, for log lines."""

from __future__ import annotations

import re
from contextvars import ContextVar
from typing import Protocol

from uuid_utils import uuid7


class LoggedJob(Protocol):
    """The fields of a job that a log line shows."""

    @property
    def id(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def attempt(self) -> int: ...


request_id: ContextVar[str | None] = ContextVar("treadle_request_id", default=None)
running_job: ContextVar[LoggedJob | None] = ContextVar("treadle_running_job", default=None)

# Characters that are safe in a header, a log line and a file name.
_ACCEPTED = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def facts_of(job: LoggedJob) -> dict[str, object]:
    """For a log call's `extra`: the job that it is about."""
    return {"job_id": job.id, "topic": job.topic, "attempt": job.attempt}


def new_request_id(given: str | None = None) -> str:
    """The caller's id if it is safe, otherwise a new one."""
    return given if given and _ACCEPTED.fullmatch(given) else uuid7().hex
