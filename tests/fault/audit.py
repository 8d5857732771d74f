"""The end state of all jobs: none lost, none stuck, none ended twice, and every second run explained.

An attempt that was started ends exactly once: by an event that says so (reclaimed, released, retrying, …)
or by completing. So for each attempt of a job there may be no more starts in the journal than ends in the
store; one more is an unexplained run.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from tests.fault.journal import Journal
from treadle import Queue, Status
from treadle.model.status import ENDED
from treadle.policy.lifecycle import WORKER_LOST

ENDS_AN_ATTEMPT = frozenset(
    f"job:{word}" for word in "reclaimed released retrying snoozed waiting expired failed cancelled".split()
)
LEFT_BEHIND = "ready later held running members deadlines".split()
"""Tables in which nothing is left when all jobs have ended."""


@dataclass
class Ledger:
    """All jobs of a database and what happened to them."""

    jobs: dict[str, Row] = field(default_factory=dict)
    events: dict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))

    def count(self, event: str) -> int:
        return sum(line.type == event for lines in self.events.values() for line in lines)

    def with_status(self, status: str) -> set[str]:
        return {id_ for id_, row in self.jobs.items() if row.status == status}


@dataclass(frozen=True)
class Row:
    topic: str
    status: str | None
    attempt: int | None
    token: int | None
    max_attempts: int
    key: str | None


@dataclass(frozen=True)
class Line:
    type: str
    attempt: int | None
    message: str
    at_ms: int


async def read(queue: Queue) -> Ledger:
    ledger = Ledger()
    for id_, *row in await query(
        queue,
        "SELECT CAST(j.id AS text), j.topic, o.status, o.attempt, o.token, j.max_attempts, j.idempotency_key "
        "FROM {jobs} j LEFT JOIN {outcomes} o ON o.n = j.n",
    ):
        ledger.jobs[id_] = Row(*row)
    for id_, type_, metadata, message, at in await query(
        queue,
        "SELECT CAST(j.id AS text), e.type, CAST(e.metadata AS text), e.message, e.created_at "
        "FROM {events} e JOIN {jobs} j ON j.n = e.n ORDER BY e.id",
    ):
        ledger.events[id_].append(Line(type_, json.loads(metadata).get("attempt"), message, at))
    return ledger


async def query(queue: Queue, sql: str) -> list[Any]:
    """Rows; tables are written as {jobs}, {outcomes}, …"""
    store: Any = queue.store
    prefix = "treadle." if store.dialect == "postgres" else "treadle_"
    rows: list[Any] = await store.read(sql.replace("{", prefix).replace("}", ""), [])
    return rows


async def audit(
    queue: Queue, journal: Journal, *, expected: Collection[str] | None = None, lost: Collection[str] = ()
) -> Ledger:
    """Everything that must hold once all jobs have ended. `expected`: exactly the jobs that must exist."""
    ledger = await read(queue)
    if expected is not None:
        missing, surplus = set(expected) - set(ledger.jobs), set(ledger.jobs) - set(expected)
        assert not missing, f"{len(missing)} jobs are lost: {sorted(missing)[:3]}"
        assert not surplus, f"{len(surplus)} jobs nobody asked for: {sorted(surplus)[:3]}"
    stuck = {id_: row.topic for id_, row in ledger.jobs.items() if row.status is None}
    assert not stuck, f"{len(stuck)} jobs have not ended: {list(stuck.items())[:3]}"
    await in_order(queue)
    await _nothing_left_behind(queue)
    await _counted_once(queue, ledger)
    _attempts_explained(ledger, journal)
    _endings_happened(ledger, journal)
    _losses_have_a_culprit(ledger, lost)
    return ledger


async def in_order(queue: Queue) -> None:
    """True at any time: one place for each job, keys counted right, the file intact."""
    findings = await queue.store.examine()
    # The quick test server has no fsync, and `doctor` is right to say so.
    wrong = [one for one in findings if one.level == "fail" and one.check != "durability"]
    assert not wrong, wrong


async def _nothing_left_behind(queue: Queue) -> None:
    left = {}
    for table in LEFT_BEHIND:
        left[table] = (await query(queue, f"SELECT count(*) FROM {{{table}}}"))[0][0]
    left["counted keys"] = (await query(queue, "SELECT count(*) FROM {limits} WHERE running <> 0"))[0][0]
    left["dedupe keys"] = (await query(queue, "SELECT count(*) FROM {keys} WHERE kind = 'dedupe'"))[0][0]
    assert not any(left.values()), left


async def _counted_once(queue: Queue, ledger: Ledger) -> None:
    """The tally is written with each ending: a job that ended twice would be counted twice."""
    counts = (await queue.store.stats()).counts
    ended = Counter(row.status for row in ledger.jobs.values())
    assert {status: counts[status] for status in ENDED} == {status: ended[status] for status in ENDED}
    for id_, lines in ledger.events.items():
        endings = [line for line in lines if line.type in ("job:expired", "job:failed", "job:cancelled")]
        ended_so = ledger.jobs[id_].status != Status.COMPLETED
        assert len(endings) == ended_so, f"job {id_} ended {len(endings)} times: {lines}"


def _attempts_explained(ledger: Ledger, journal: Journal) -> None:
    for id_, starts in journal.by_job("start").items():
        job = ledger.jobs.get(id_)
        if job is None:
            continue  # pruned
        tokens = [start.token for start in starts]
        assert tokens == sorted(set(tokens)), f"job {id_} was started out of order or twice with one token: {tokens}"
        ends = Counter(line.attempt for line in ledger.events[id_] if line.type in ENDS_AN_ATTEMPT)
        ends[job.attempt] += job.status == Status.COMPLETED
        started = Counter(start.attempt for start in starts)
        unexplained = {attempt: n - ends[attempt] for attempt, n in started.items() if n > ends[attempt]}
        assert not unexplained, f"job {id_}: runs without an end {unexplained}; {starts}; {ledger.events[id_]}"
        assert max(started) <= job.max_attempts, f"job {id_} was tried {max(started)} times of {job.max_attempts}"


def _endings_happened(ledger: Ledger, journal: Journal) -> None:
    """A completed job was done by the attempt that is stored as its end."""
    done = {(entry.job_id, entry.token) for entry in journal.entries("done")}
    for id_, row in ledger.jobs.items():
        assert row.attempt is None or row.attempt <= row.max_attempts
        if row.status == Status.COMPLETED:
            assert (id_, row.token) in done, f"job {id_} is completed, but nobody did it with token {row.token}"


def _losses_have_a_culprit(ledger: Ledger, lost: Collection[str]) -> None:
    for id_, lines in ledger.events.items():
        for line in lines:
            worker = line.message.removeprefix(f"{WORKER_LOST}: ")
            if worker != line.message:
                assert worker in lost, f"job {id_} was taken from {worker}, who had done nothing wrong: {lines}"
