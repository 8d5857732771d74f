"""What the worker does besides running jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.lifecycle import DeadlinePassed, GraceOver, LeaseExpired
from treadle.store.base import Moved
from treadle.store.scripts.common import Script, as_facts, numbers
from treadle.store.scripts.ended import Ended, erase
from treadle.store.scripts.gates import enter_gates, gate_rows
from treadle.store.scripts.moving import end_attempts, moved, pending_move, relocate, take_pending


def promote(limit: int) -> Script[tuple[int, int | None]]:
    due = yield "take_due", [{"top": limit}]
    if due:
        attempts = dict(due)
        facts = as_facts((yield "job_facts", numbers(attempts)))
        if free := [job for job in facts if not job.gate]:
            yield "place_ready", [{"n": job.n, "attempt": attempts[job.n]} for job in free]
        yield from enter_gates([(job.gate, job.n, attempts[job.n]) for job in facts if job.gate])
    wait = (yield "next_due", [])[0][0]
    return len(due), None if wait is None else max(wait, 0)


def reclaim() -> Script[list[Moved]]:
    leases = dict((yield "expired_leases", []))
    if not leases:
        return []
    rows = [{"lease": lease} for lease in sorted(leases)]
    moved = yield from end_attempts("take_orphans", rows, lambda a: LeaseExpired(leases[a.lease]))
    yield "drop_leases", rows
    return moved


def end_overdue_cancels(grace_ms: Mapping[str, int], default_ms: int) -> Script[list[Moved]]:
    late = [
        {"n": n, "token": token, "lease": lease}
        for n, token, lease, topic, waited in (yield "cancelling", [])
        if waited >= grace_ms.get(topic, default_ms)
    ]
    if not late:
        return []
    return (yield from end_attempts("take_running", late, lambda _: GraceOver()))


def expire_overdue(limit: int) -> Script[list[Moved]]:
    due = [row[0] for row in (yield "due_deadlines", [{"top": limit}])]
    if not due:
        return []
    now: int = (yield "clock", [])[0][0]
    facts = {f.n: f for f in as_facts((yield "job_facts", numbers(due)))}
    taken, _ = yield from take_pending(facts)
    moves = [pending_move(facts[n], attempt, ready, DeadlinePassed()) for n, attempt, ready in taken]
    yield from relocate(moves, now)
    return [moved(move) for move in moves]


def prune(age_ms: int, limit: int) -> Script[int]:
    old = [row[0] for row in (yield "old_outcomes", [{"age": age_ms, "top": limit}])]
    if old:
        # The outcome first: whoever requeues at the same moment has it locked or finds nothing.
        ended = [Ended(*row) for row in (yield "find_outcomes", numbers(old))]
        yield "drop_outcomes", numbers(one.n for one in ended)
        yield "add_tally", [one.undone() for one in ended]
        yield from erase([one.n for one in ended])
    return len(old)


def tidy() -> Script[None]:
    folded = [
        {"minute": minute, "writer": 0, "topic": topic, "status": status, "count": count, "run_ms": run_ms}
        for minute, topic, status, count, run_ms in (yield "take_old_tally", [])
    ]
    if folded:
        yield "add_tally", folded
    if empty := gate_rows(row[0] for row in (yield "lock_empty_gates", [])):
        yield "drop_empty_gates", empty
    yield "drop_old_starts", []
    yield "drop_old_news", []


def save_templates(
    definitions: Mapping[str, tuple[str, int | None]], rates: Mapping[str, tuple[int | None, int | None]]
) -> Script[dict[str, int]]:
    """Save what changed, with one version more (or the author's own)."""
    rows = [{"topic": topic} for topic in sorted(definitions)]
    found = yield "lock_templates", rows
    if len(found) < len(rows):
        # A row must be there to be locked, or two first versions would be made at once.
        yield "add_templates", rows
        found = yield "lock_templates", rows
    saved = {topic: (text, version) for topic, text, version in found}
    versions: dict[str, int] = {}
    changed: list[dict[str, Any]] = []
    for topic, (text, fixed) in sorted(definitions.items()):
        old_text, old = saved.get(topic, (None, 0))
        same = old_text == text and (fixed is None or fixed == old)
        versions[topic] = old if same else fixed if fixed is not None else old + 1
        if not same:
            changed.append({"topic": topic, "version": versions[topic], "definition": text})
    if changed:
        yield "put_templates", changed
        yield (
            "set_rates",
            [{"topic": row["topic"], "n": rates[row["topic"]][0], "ms": rates[row["topic"]][1]} for row in changed],
        )
    return versions
