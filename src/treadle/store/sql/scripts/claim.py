"""The claim as a script: for jobs with a concurrency limit, a rate limit or a deadline, and for last attempts.

It looks at the heads of the worker's lanes, asks `admission.start` which of the jobs may start, and applies the answer.
The stores have a faster way for all other jobs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from treadle.model.errors import LeaseLost
from treadle.policy.admission import (
    EXPIRE,
    HOLD,
    SKIP,
    START,
    START_WITHIN_MS,
    Candidate,
    Limit,
    StartFacts,
    StartVerdict,
    rate,
    start,
    within,
)
from treadle.policy.lifecycle import DeadlinePassed
from treadle.store.lanes import lane_keys, quota, turns
from treadle.store.sql.rows import EXPIRES, LIMITED
from treadle.store.sql.scripts.applier import apply_moves
from treadle.store.sql.scripts.common import Script, as_facts, numbers
from treadle.store.sql.scripts.limits import key_rows
from treadle.store.sql.scripts.moves import pending_job
from treadle.store.values import Claim, Claimed, Wants

# How often a claim looks behind jobs that it had to hold.
LOOKS = 6
# Another transaction has a key locked, usually for a millisecond.
LOCKED_MS = 20


class Head(NamedTuple):
    """A ready job that a claim has found."""

    n: int
    rank: int
    run_at: int
    attempt: int
    max_attempts: int
    flags: int
    topic: str
    limit_key: str | None
    limit_policy: str | None
    limit_most: int | None
    expires_at: int | None
    size: int

    @property
    def limit(self) -> Limit | None:
        if not self.flags & LIMITED or self.limit_key is None:
            return None
        return Limit(self.limit_key, self.limit_policy or "", self.limit_most or 1)

    def candidate(self, now: int) -> Candidate:
        expires_at = self.expires_at if self.flags & EXPIRES else None
        return Candidate.of(self.n, self.topic, self.limit, self.attempt, self.max_attempts, expires_at, now)


class RateAllowance(NamedTuple):
    """What the rate limits of topics allow now."""

    left: Mapping[str, int]
    """How many may start now."""
    opens_in_ms: Mapping[str, int]
    """For topics where none may: when the next one may."""
    now: int

    def after(self, started: Sequence[Head]) -> RateAllowance:
        used = Counter(head.topic for head in started)
        return self._replace(left={topic: left - used[topic] for topic, left in self.left.items()})


def claim(lease: int, wants: Wants) -> Script[Claim]:
    """Held and expired jobs don't count towards what the worker asked for, so it looks behind them, a few times."""
    held = yield "hold_lease", [{"lease": lease}]
    if not held:
        raise LeaseLost("the lease has run out")
    rates = yield from _allowance(wants.topics, held[0][1])
    jobs: list[Claimed] = []
    more = 0
    for _ in range(LOOKS):
        rest = wants._replace(limit=wants.limit - len(jobs), free=max(wants.free - len(jobs), 0))
        look = yield from _look(rest, rates, more)
        jobs += yield from _apply(look, lease, rates)
        rates = rates.after(look.of(START))
        moved = len(look.of(HOLD)) + len(look.of(EXPIRE))
        if not moved or look.full:
            break
        more = max(2 * more, moved)
    return Claim(jobs, _again(look, moved, bool(jobs)), rates.now)


class Look(NamedTuple):
    """The next jobs in order, and the decision for each."""

    heads: list[Head]
    verdicts: list[StartVerdict]
    full: bool
    """No more may be taken."""
    cut: bool
    """There may be more rows than this look covered."""
    locked: bool
    """Another transaction has a key locked."""
    waits: list[int]
    """In how many ms rates let others through."""

    def of(self, verdict: StartVerdict) -> list[Head]:
        return [head for head, one in zip(self.heads, self.verdicts, strict=True) if one is verdict]


def _look(wants: Wants, rates: RateAllowance, more: int) -> Script[Look]:
    heads, cut, waits = yield from _heads(wants._replace(limit=wants.limit + more), rates)
    running = yield from _lock_limits(heads)
    facts = StartFacts(running, rates.left, wants.free)
    verdicts = start([head.candidate(rates.now) for head in heads], facts)
    fitting = within(verdicts, [head.size for head in heads], wants.limit, wants.max_bytes)
    locked = any(head.limit and head.limit.key not in running for head in heads[: len(fitting)])
    counted = sum(verdict in (START, SKIP) for verdict in fitting)
    full = len(fitting) < len(heads) or counted >= wants.limit
    return Look(heads[: len(fitting)], fitting, full, cut or len(fitting) < len(heads), locked, waits)


def _apply(look: Look, lease: int, rates: RateAllowance) -> Script[list[Claimed]]:
    yield from _hold(look.of(HOLD))
    yield from _expire(look.of(EXPIRE), rates.now)
    starting = look.of(START)
    return (yield from _start(starting, lease, rates)) if starting else []


def _again(look: Look, moved: int, came: bool) -> int | None:
    if moved or (came and look.cut):
        return 0
    return LOCKED_MS if look.locked else min(look.waits, default=None)


def _heads(wants: Wants, rates: RateAllowance) -> Script[tuple[list[Head], bool, list[int]]]:
    """The next jobs in order; whether there may be more; when a rate limit lets others through (ms)."""
    found = yield "lane_heads", lane_keys(wants)
    lanes = [lane for lane, topic, *_ in found if rates.left.get(topic, 1) > 0]
    waits = [rates.opens_in_ms[topic] for _, topic, *_ in found if topic in rates.opens_in_ms]
    if not lanes or wants.limit <= 0:
        return [], False, waits
    top = wants.limit if len(lanes) == 1 else quota(wants.limit, len(lanes))
    peeked: dict[int, list[Head]] = {}
    for lane in lanes:
        peeked[lane] = [Head(*row) for row in (yield "peek_lane", [{"lane": lane, "top": top}])]
    places = {lane: [(head.rank, head.run_at, head.n) for head in heads] for lane, heads in peeked.items()}
    in_turn, cut = turns(places, wants.limit, top)
    next_of = {lane: iter(heads) for lane, heads in peeked.items()}
    return [next(next_of[lane]) for lane in in_turn], cut, waits


def _lock_limits(heads: Sequence[Head]) -> Script[dict[str, int]]:
    rows = key_rows(head.limit.key for head in heads if head.limit)
    if not rows:
        return {}
    yield "make_limits", rows
    return dict((yield "lock_free_limits", rows))


def _hold(heads: Sequence[Head]) -> Script[None]:
    if heads:
        yield "drop_ready", numbers(head.n for head in heads)
        yield "place_held", [{"n": head.n, "attempt": head.attempt} for head in heads]


def _expire(heads: Sequence[Head], now: int) -> Script[None]:
    if heads:
        yield "drop_ready", numbers(head.n for head in heads)
        facts = as_facts((yield "job_facts", numbers(head.n for head in heads)))
        yield from apply_moves([pending_job(job, 0, True, DeadlinePassed()) for job in facts], now)


def _start(heads: Sequence[Head], lease: int, rates: RateAllowance) -> Script[list[Claimed]]:
    token: int = (yield "next_token", [])[0][0]
    ns = numbers(head.n for head in heads)
    yield "drop_ready", ns
    yield (
        "start_running",
        [
            {"n": head.n, "token": token, "lease": lease, "attempt": head.attempt + 1, "claimed_at": rates.now}
            for head in heads
        ],
    )
    limited = Counter(head.limit.key for head in heads if head.limit)
    if limited:
        yield "count_running", [{"key": key, "change": count} for key, count in sorted(limited.items())]
    rated = Counter(head.topic for head in heads if head.topic in rates.left)
    if rated:
        yield (
            "add_starts",
            [{"topic": topic, "at": rates.now, "token": token, "count": count} for topic, count in rated.items()],
        )
    jobs = {row[0]: row for row in (yield "claimed_jobs", ns)}
    return [_claimed(head, jobs[head.n], token, lease, head.topic in rates.left) for head in heads]


def _claimed(head: Head, row: Any, token: int, lease: int, rated: bool) -> Claimed:
    n, id_, topic, payload, max_attempts, flags, by, scope, scope_id, due, trace = row
    within = START_WITHIN_MS if rated else None
    return Claimed(
        n, id_, topic, payload, head.attempt + 1, max_attempts, flags, by, scope, scope_id, token, lease, due, trace,
        within,
    )  # fmt: skip


def _allowance(topics: Sequence[str], now: int) -> Script[RateAllowance]:
    """What topics under a rate limit may start now.

    The clock is read again at the end: we may have waited for the lock, and a start must not be dated before the moment
    at which it was allowed.
    """
    rated = yield "rated_topics", [{"topic": topic} for topic in topics]
    if not rated:
        return RateAllowance({}, {}, now)
    recent: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for topic, at, count in (yield "recent_starts", [{"topic": row[0]} for row in rated]):
        recent[topic].append((at, count))
    now = (yield "clock", [])[0][0]
    left: dict[str, int] = {}
    opens_in_ms: dict[str, int] = {}
    for topic, limit, window in rated:
        left[topic], opens = rate(limit, window, recent[topic], now)
        if opens is not None:
            opens_in_ms[topic] = opens
    return RateAllowance(left, opens_in_ms, now)
