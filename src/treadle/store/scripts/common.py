"""What scripts are made of."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from treadle.errors import JobNotFound
from treadle.lifecycle import Status, Transition
from treadle.store.base import Refusal

T = TypeVar("T")
Rows = list[Any]
Script = Generator[tuple[str, Sequence[Mapping[str, Any]]], Rows, T]

# How often a script looks again for a job that moved between two of its statements.
LOOKS = 5


class Facts(NamedTuple):
    """What moving a job needs to know of it."""

    n: int
    id: str
    topic: str
    lane: int
    run_at: int
    max_attempts: int
    flags: int
    gate: str | None
    dedupe_key: str | None
    priority: int
    capability: str


class Attempt(NamedTuple):
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


@dataclass(frozen=True, slots=True)
class Move:
    """A job that has been taken out of its place, and what becomes of it."""

    facts: Facts
    source: Status
    transition: Transition
    attempt: Attempt | None = None
    """Set when it ran."""
    in_gate: bool = False
    """It was ready or running, so it counts in its gate."""
    writer: int = 0
    metadata: Mapping[str, Any] | None = None


def numbers(ns: Iterable[int]) -> list[dict[str, int]]:
    return [{"n": n} for n in sorted(ns)]


def as_facts(rows: Rows) -> list[Facts]:
    return [Facts(*row) for row in rows]


def not_found(id_: str) -> Refusal:
    return Refusal(id_, JobNotFound(f"no job has the id {id_}", id=id_))
