"""What the code that runs right now is about: a request, a job. Log lines carry it."""

from __future__ import annotations

import re
from contextvars import ContextVar
from typing import Protocol

from uuid_utils import uuid7


class RunningJob(Protocol):
    """As much of a job as a log line shows."""

    @property
    def id(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def attempt(self) -> int: ...


request_id: ContextVar[str | None] = ContextVar("treadle_request_id", default=None)
running_job: ContextVar[RunningJob | None] = ContextVar("treadle_running_job", default=None)

# What may stand in a header, a log line and a file name without harm.
_ACCEPTED = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def facts_of(job: RunningJob) -> dict[str, object]:
    """For a log call's `extra`: of which job it speaks."""
    return {"job_id": job.id, "topic": job.topic, "attempt": job.attempt}


def new_request_id(given: str | None = None) -> str:
    """The caller's own id where it is a harmless one, else a new one."""
    return given if given and _ACCEPTED.fullmatch(given) else uuid7().hex
