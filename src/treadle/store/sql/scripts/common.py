"""The building blocks of scripts."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from pydantic_core import to_json

from treadle.model.errors import JobNotFound
from treadle.model.status import Status
from treadle.policy.admission import QUEUE, Limit
from treadle.policy.consequences import Move, Tally
from treadle.store.values import Refusal

T = TypeVar("T")
Rows = list[Any]
Script = Generator[tuple[str, Sequence[Mapping[str, Any]]], Rows, T]

# How often a script looks again for a job that moved between two of its statements.
LOOKS = 5


class JobFacts(NamedTuple):
    """What moving a job needs to know of it."""

    n: int
    id: str
    topic: str
    lane: int
    run_at: int
    max_attempts: int
    flags: int
    limit_key: str | None
    dedupe_key: str | None
    priority: int
    capability: str
    limit_policy: str | None = None
    limit_most: int | None = None
    parent_id: str | None = None
    parent_step: str | None = None
    """The step of its parent that waits for it; None: none does."""
    parent_key: str | None = None

    @property
    def limit(self) -> Limit | None:
        if self.limit_key is None:
            return None
        return Limit(self.limit_key, self.limit_policy or QUEUE, self.limit_most or 1)


class TakenAttempt(NamedTuple):
    """A row taken out of `running`."""

    n: int
    token: int | None
    attempt: int
    claimed_at: int | None = None
    started_at: int | None = None
    cancel_at: int | None = None
    cancel_reason: str | None = None
    progress: int | None = None
    message: str | None = None
    lease: int | None = None

    @property
    def status(self) -> Status:
        return Status.PROCESSING if self.cancel_at is None else Status.CANCELLING


class LeaseOwner(NamedTuple):
    """A worker as outcomes know it, and its name for the history."""

    id: int | None
    name: str | None


class MovingJob(NamedTuple):
    """A job that was taken out of its place, and its move."""

    facts: JobFacts
    move: Move
    token: int | None = None
    """Of its owner, if it reported the end of its attempt itself."""
    worker: int | None = None
    """Who had it then."""
    writer: int = 0
    """Whose row of the tally counts it."""


def numbers(ns: Iterable[int]) -> list[dict[str, int]]:
    return [{"n": n} for n in sorted(ns)]


def as_facts(rows: Rows) -> list[JobFacts]:
    return list(map(JobFacts._make, rows))


def not_found(id_: str) -> Refusal:
    return Refusal(id_, JobNotFound(f"no job has the id {id_}", id=id_))


def event_row(
    n: int, type_: str, source: str | None, to: str | None, message: str, metadata: object, now: int
) -> dict[str, Any]:
    return {
        "n": n,
        "type": type_,
        "from_status": source,
        "to_status": to,
        "message": message,
        "metadata": to_json(metadata).decode(),
        "created_at": now,
    }


def tally_row(tally: Tally, topic: str, writer: int = 0) -> dict[str, Any]:
    return {
        "minute": tally.at // 60_000,
        "writer": writer,
        "topic": topic,
        "status": tally.status,
        "count": tally.change,
        "run_ms": tally.run_ms,
    }
