"""What the pages show of the whole queue: rows of the named queries as values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from treadle.model.status import Status
from treadle.store.views import (
    Backlog,
    BusyKey,
    EndedCount,
    History,
    LimitReached,
    LiveWorker,
    Obstacle,
    RateReached,
    RateUsed,
    Stats,
    Times,
    Topic,
    Wait,
)

Ask = Callable[[str, Sequence[Mapping[str, Any]] | None], Awaitable[list[Any]]]
"""Runs a named query."""
Counts = dict[str, dict[str, int]]
"""Jobs by topic and status."""
# Concurrency keys under which jobs wait; a page names a few of them.
MOST_KEYS = 100


async def stats(ask: Ask, topic: str | None, since: int | None, live: bool) -> Stats:
    minute = -(2**40) if since is None else since // 60_000
    topics = await _live(ask) if live else {}
    run_ms = 0
    for name, status, count, ran in await ask("ended_counts", [{"minute": minute}]):
        topics.setdefault(name, dict.fromkeys(Status, 0))[status] = int(count)
        if status == Status.COMPLETED and topic in (None, name):
            run_ms += int(ran)
    if topic is not None:
        topics = {name: counts for name, counts in topics.items() if name == topic}
    return Stats.of(topics, run_ms)


async def _live(ask: Ask) -> Counts:
    """Jobs that have not ended."""
    topics: Counts = {}
    for name, status, count in await ask("live_counts", None):
        topics.setdefault(name, dict.fromkeys(Status, 0))[status] = int(count)
    return topics


async def history(ask: Ask, since: int, step_minutes: int) -> History:
    spans = [{"minute": since // 60_000, "step": step_minutes}]
    ended = await ask("tally_history", spans)
    times = await ask("times_history", spans)
    return History(
        [EndedCount(int(minute) * 60_000, topic, status, int(n), int(ran)) for minute, topic, status, n, ran in ended],
        [Times(int(minute) * 60_000, topic, kind, bucket, int(n)) for minute, topic, kind, bucket, n in times],
    )


async def topics(ask: Ask, backlog: bool) -> list[Topic]:
    waiting: dict[str, list[Backlog]] = {}
    keys: dict[str, list[BusyKey]] = {}
    rates: dict[str, RateUsed] = {}
    if backlog:  # pending jobs are counted once: there may be hundreds of thousands
        for topic, capability, due, n, first, held in await ask("backlog", None):
            waiting.setdefault(topic, []).append(Backlog(topic, capability, bool(due), int(n), int(first), int(held)))
        for topic, *busy in await ask("busy_keys", [{"top": MOST_KEYS}]):
            keys.setdefault(topic, []).append(BusyKey(*busy))
        rates = {topic: RateUsed(*map(int, used)) for topic, *used in await ask("rates_used", None)}
        pending = {topic: sum(one.jobs for one in parts) for topic, parts in waiting.items()}
        running = {topic: int(n) for topic, n in await ask("running_counts", None)}
    else:
        counts = await _live(ask)
        pending = {topic: found[Status.PENDING] for topic, found in counts.items()}
        running = {topic: found[Status.PROCESSING] for topic, found in counts.items()}
    return [
        Topic(
            name,
            paused,
            pending.get(name, 0),
            running.get(name, 0),
            waiting.get(name, ()),
            keys.get(name, ()),
            rates.get(name),
        )
        for name, paused in await ask("list_topics", None)
    ]


async def waits(ask: Ask, most: int) -> list[Wait]:
    return [
        Wait(topic, step, int(jobs), int(since), None if until is None else int(until), id)
        for topic, step, jobs, since, until, id in await ask("waits", [{"top": most}])
    ]


async def workers(ask: Ask, named: str | None) -> list[LiveWorker]:
    found = await ask("live_workers", [{"worker": named}])
    return [_worker(name, from_json(serves), *times) for name, serves, *times in found]


def _worker(name: str, can: Mapping[str, Any], until: int, running: int, renewed_at: int) -> LiveWorker:
    return LiveWorker(
        name,
        can.get("topics", []),
        can.get("capabilities", []),
        can.get("slots", 0),
        until,
        running,
        renewed_at,
        can.get("draining", False),
        can.get("host", ""),
        can.get("version", ""),
    )


async def obstacles(ask: Ask, id: str) -> list[Obstacle]:
    found: list[Obstacle] = []
    behind = await ask("held_behind", [{"id": id}])
    if behind:
        found.append(LimitReached(behind[0][0], [row[2] for row in behind], behind[0][3]))
    for limit, window_ms, used in await ask("rate_used", [{"id": id}]):
        if used >= limit:
            found.append(RateReached(limit, window_ms))
    return found
