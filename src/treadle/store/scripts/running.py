"""The owner's verbs: claim, settle, touch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from treadle.errors import LeaseLost
from treadle.lifecycle import Released
from treadle.store.base import EXPIRES, Claim, Claimed, Settlement, Touch
from treadle.store.scripts.common import Attempt, Facts, Move, Script, as_facts, numbers
from treadle.store.scripts.gates import gate_rows
from treadle.store.scripts.moving import end_attempts, relocate


def claim(lease: int, topics: Sequence[str], capabilities: Sequence[str], limit: int, free: int) -> Script[Claim]:
    """The claim lane by lane: SQLite's way, and PostgreSQL's where a rate limit is involved."""
    held = yield "hold_lease", [{"lease": lease}]
    if not held:
        raise LeaseLost("the lease has run out")
    now: int = held[0][1]
    allowance, next_at, now = yield from _rate_allowance(topics, now)
    names = [{"topic": topic} for topic in topics] + [{"capability": name} for name in capabilities]
    chosen: list[Any] = []
    looked, overdue = 0, False  # what is looked at counts, taken or not: as in PostgreSQL's own statement
    starts: dict[str, int] = {}
    for lane, topic in (yield "lane_heads", names):
        if topic in allowance:
            # Under a rate limit nothing is prefetched: a start is counted when it is claimed.
            top = min(free - looked, allowance[topic])
        else:
            top = limit - looked
        if top <= 0:
            continue
        for row in (yield "peek_lane", [{"lane": lane, "top": top}]):
            _, attempt, max_attempts, flags, *_, expires_at = row
            looked += 1
            if attempt + 1 >= max_attempts and looked > free:
                continue
            if flags & EXPIRES and expires_at is not None and expires_at <= now:
                overdue = True
            else:
                chosen.append(row)
                if topic in allowance:
                    allowance[topic] -= 1
                    starts[topic] = starts.get(topic, 0) + 1
        if looked >= limit:
            break
    if not chosen:
        return Claim([], next_at, overdue)
    token: int = (yield "next_token", [])[0][0]
    yield "drop_ready", [{"n": row[0]} for row in chosen]
    yield (
        "start_running",
        [{"n": row[0], "token": token, "lease": lease, "attempt": row[1] + 1, "claimed_at": now} for row in chosen],
    )
    if starts:
        yield (
            "add_starts",
            [{"topic": topic, "at": now, "token": token, "count": count} for topic, count in starts.items()],
        )
    jobs = [
        Claimed(n, id_, topic, payload, attempt + 1, max_attempts, flags, by, scope, scope_id, token, lease, due, trace)
        for n, attempt, max_attempts, flags, id_, topic, payload, by, scope, scope_id, due, trace, _ in chosen
    ]
    return Claim(jobs, next_at, overdue, now)


def _rate_allowance(topics: Sequence[str], now: int) -> Script[tuple[dict[str, int], int | None, int]]:
    """For topics under a rate limit: how many may start now, in how many ms the next window opens, and when now is.

    The clock is read again at the end: we may have waited for the lock, and a start must not be dated before the
    moment for which it was allowed.
    """
    rated = yield "rated_topics", [{"topic": topic} for topic in topics]
    if not rated:
        return {}, None, now
    recent: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for topic, at, count in (yield "recent_starts", [{"topic": row[0]} for row in rated]):
        recent[topic].append((at, count))
    now = (yield "clock", [])[0][0]
    allowance: dict[str, int] = {}
    waits: list[int] = []
    for topic, limit, window in rated:
        used = recent[topic]
        allowance[topic] = max(limit - sum(count for _, count in used), 0)
        if not allowance[topic] and used:
            waits.append(max(used[0][0] + window - now, 1))
    return allowance, min(waits, default=None), now


def settle(settlements: Sequence[Settlement]) -> Script[list[Settlement]]:
    """Any endings under one lease; returns the lost ones."""
    lease = settlements[0].job.lease
    held = yield "hold_lease", [{"lease": lease}]
    now: int = held[0][1] if held else 0
    taken: dict[int, Attempt] = {}
    facts: dict[int, Facts] = {}
    if held:
        facts = {f.n: f for f in as_facts((yield "job_facts", numbers({one.job.n for one in settlements})))}
        # Gates before places, as an enqueue that replaces this very job locks them.
        if gates := gate_rows(job.gate for job in facts.values() if job.gate):
            yield "relock_gates", gates
        keys = [{"n": one.job.n, "token": one.job.token, "lease": lease} for one in settlements]
        taken = {row[0]: Attempt(*row) for row in (yield "take_running", keys)}
    lost = [one for one in settlements if one.job.n not in taken]
    if lost:
        # An ending with my token was written by me: the answer to its COMMIT was lost.
        rows = [{"n": one.job.n, "token": one.job.token} for one in lost]
        done = {row[0] for row in (yield "settled_by", rows)}
        lost = [one for one in lost if one.job.n not in done]
    kept = [one for one in settlements if one.job.n in taken]
    if kept:
        yield from relocate([_settled(one, taken[one.job.n], facts[one.job.n], now) for one in kept], now)
    return lost


def _settled(one: Settlement, attempt: Attempt, facts: Facts, now: int) -> Move:
    transition = one.transition
    if attempt.cancel_at is not None and transition.if_cancelling:
        transition = transition.if_cancelling
    if one.ran_ms is not None:
        attempt = attempt._replace(started_at=attempt.started_at or now - one.ran_ms)
    return Move(facts, attempt.status, transition, attempt, in_gate=True, writer=one.job.lease)


def touch(lease: int, touches: Sequence[Touch]) -> Script[list[int]]:
    held = yield "hold_lease", [{"lease": lease}]
    if not held:
        return [one.n for one in touches]
    now: int = held[0][1]
    rows = [
        {
            "n": one.n,
            "token": one.token,
            "lease": lease,
            "started_at": now - one.ran_ms,
            "progress": one.progress,
            "message": one.message,
        }
        for one in touches
    ]
    known = {row[0] for row in (yield "touch_running", rows)}
    return [one.n for one in touches if one.n not in known]


def release_unknown(lease: int, tokens: Sequence[int]) -> Script[int]:
    rows = [{"lease": lease, "token": token} for token in (0, *tokens)]
    return len((yield from end_attempts("take_unknown", rows, lambda _: Released("the claim's answer was lost"))))
