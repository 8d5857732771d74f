"""Putting jobs that were taken out of their place where their transition says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from treadle.model import events
from treadle.model.error_group import error_group
from treadle.model.status import ENDED, Status
from treadle.policy.admission import dedupe_key_becomes, started_in_time
from treadle.policy.lifecycle import Outcome, RowState, decide
from treadle.store.sql.rows import DEDUPE, EXPIRES, LIMITED, NOBODY, ONCE, STEPS
from treadle.store.sql.scripts.common import (
    JobFacts,
    LeaseOwner,
    Move,
    Script,
    TakenAttempt,
    as_facts,
    event_row,
    numbers,
)
from treadle.store.sql.scripts.limits import leave_ready, leave_running
from treadle.store.sql.scripts.steps import interrupt, park
from treadle.store.values import Moved

# What the tally calls an attempt that failed and is tried again.
RETRYING = "retrying"
# Of an error, in the history.
MOST_OF_A_STACK = 8192


def relocate(moves: Sequence[Move], now: int) -> Script[None]:
    """Put jobs that were taken out of their places where their transitions say, and update all dependent rows."""
    ended = [move for move in moves if move.transition.to in ENDED]
    pending = [move for move in moves if move.transition.to is Status.PENDING]
    if ended:
        yield "add_outcomes", [_outcome_row(move, now) for move in ended]
    if counted := [*ended, *(move for move in pending if move.transition.event == events.RETRYING)]:
        yield "add_tally", [_tally_row(move, now) for move in counted]
    if ended:
        yield from _untie(ended)
    if pending:
        yield from _put_back(pending, now)
    yield from interrupt(moves, now)
    waiting = [move for move in moves if move.transition.to is Status.WAITING]
    if waiting:
        # Told first: an answer that came early ends the wait right here.
        yield "add_events", [moved_event_row(move, now) for move in waiting]
        yield from park(waiting, now)
    if told_of := [move for move in (*pending, *waiting) if move.transition.error is not None or _ran(move)]:
        yield "add_notes", [_note_row(move) for move in told_of]
    told = [moved_event_row(move, now) for move in moves if move.transition.event and move not in waiting]
    if done := [move.facts.n for move in ended if not move.transition.event]:
        told.append(completed_row(done, now))
    if told:
        yield "add_events", told
    limited = [move for move in moves if move.facts.limit_key]
    yield from leave_ready(
        move.facts.limit_key or ""
        for move in limited
        if move.was_ready and (move.transition.to in ENDED or move.transition.delay_ms)
    )
    yield from leave_running(move.facts.limit_key or "" for move in limited if move.attempt)


def _put_back(moves: Sequence[Move], now: int) -> Script[None]:
    """Into the queue at their old place, or into `later`."""
    delayed = [move for move in moves if move.transition.delay_ms]
    if delayed:
        yield "set_run_at", [{"n": m.facts.n, "run_at": now + m.transition.delay_ms} for m in delayed]
        yield "place_later", _moved_positions(delayed)
    if ready := [move for move in moves if not move.transition.delay_ms]:
        yield "place_ready", _moved_positions(ready)
    if started := [m for m in moves if m.facts.flags & EXPIRES and started_in_time(m.transition.attempt)]:
        yield "drop_deadlines", numbers(move.facts.n for move in started)
    # Nor does it if a job has done some of its steps and goes on with the others, though its attempt was given back.
    if begun := [m.facts.n for m in moves if m.facts.flags & EXPIRES and m.facts.flags & STEPS and _ran(m)]:
        yield "drop_deadlines", numbers(begun)
        yield "started_in_time", numbers(begun)


def _ran(move: Move) -> bool:
    return move.attempt is not None and move.attempt.started_at is not None


def _moved_positions(moves: Iterable[Move]) -> list[dict[str, int]]:
    return [{"n": move.facts.n, "attempt": max(move.transition.attempt, 0)} for move in moves]


def _untie(ended: Sequence[Move]) -> Script[None]:
    """Free the keys and limits that a job held while it was live."""
    deduped = [move for move in ended if move.facts.flags & DEDUPE]
    done = [m for m in deduped if dedupe_key_becomes(m.transition.to, not m.facts.flags & ONCE)]
    if done:
        yield "keep_once", numbers(move.facts.n for move in done)
    if free := [move for move in deduped if move not in done]:
        yield "drop_keys", [{"n": move.facts.n, "kind": "dedupe"} for move in free]
    if expiring := [move for move in ended if move.facts.flags & EXPIRES]:
        yield "drop_deadlines", numbers(move.facts.n for move in expiring)
    if limited := [move for move in ended if move.facts.flags & LIMITED]:
        yield "drop_members", [{"key": move.facts.limit_key, "n": move.facts.n} for move in limited]


def _outcome_row(move: Move, now: int) -> dict[str, Any]:
    attempt, transition = move.attempt or TakenAttempt(move.facts.n, None, 0), move.transition
    return {
        "n": move.facts.n,
        "token": attempt.token,
        "topic": move.facts.topic,
        "status": transition.to,
        "attempt": transition.attempt,
        "ended_at": now,
        "claimed_at": attempt.claimed_at,
        "started_at": attempt.started_at,
        "cancel_at": attempt.cancel_at or (now if transition.to is Status.CANCELLED else None),
        "cancel_reason": attempt.cancel_reason
        or (transition.message or None if transition.to is Status.CANCELLED else None),
        "progress": attempt.progress,
        "message": attempt.message,
        "result": transition.result,
        "error": transition.error,
        "error_type": transition.error_type,
        "error_group": transition.error and error_group(transition.error_type or "", transition.error),
        "worker": move.worker.id if move.worker else None,
    }


def _tally_row(move: Move, now: int) -> dict[str, Any]:
    started = move.attempt.started_at if move.attempt else None
    return {
        "minute": now // 60_000,
        "writer": move.writer,
        "topic": move.facts.topic,
        "status": move.transition.to if move.transition.to in ENDED else RETRYING,
        "count": 1,
        "run_ms": max(now - started, 0) if started is not None else 0,
    }


def _note_row(move: Move) -> dict[str, Any]:
    """What people see of it until it runs again. Without steps it starts over, and so does its progress."""
    transition = move.transition
    attempt = move.attempt if move.facts.flags & STEPS else None
    return {
        "n": move.facts.n,
        "error": transition.error,
        "error_type": transition.error_type,
        "worker": move.worker.id if move.worker else None,
        "progress": attempt.progress if attempt else None,
        "message": attempt.message if attempt else None,
    }


def moved_event_row(move: Move, now: int) -> dict[str, Any]:
    transition = move.transition
    metadata: dict[str, Any] = dict(move.metadata or {})
    if move.attempt:
        metadata["attempt"] = move.attempt.attempt
        if move.attempt.started_at is not None:
            metadata["startedAt"] = move.attempt.started_at
    if transition.delay_ms:
        metadata["delayMs"] = transition.delay_ms
    if move.worker:
        metadata["worker"] = move.worker.name
    if transition.error_type:
        metadata["errorType"] = transition.error_type
    if move.attempt and transition.error:
        metadata["error"] = transition.error[-MOST_OF_A_STACK:]  # its end names the exception
    return event_row(
        move.facts.n, transition.event or "", move.source, transition.to, transition.message, metadata, now
    )


def completed_row(ns: Sequence[int], now: int) -> dict[str, Any]:
    """One line for all jobs that have just completed: their own timestamps have the rest."""
    return event_row(NOBODY, events.COMPLETED, Status.PROCESSING, Status.COMPLETED, "", ns, now)


def attempts(query: str, rows: Sequence[Mapping[str, Any]]) -> Script[list[TakenAttempt]]:
    """Take attempts out of `running`, on behalf of someone other than their owner.

    Their tokens are not stored: an outcome with its token tells an owner that it reported this itself.
    """
    return [TakenAttempt(*row)._replace(token=None) for row in (yield query, rows)] if rows else []


def end_attempts(taken: Sequence[TakenAttempt], outcome: Callable[[TakenAttempt], Outcome]) -> Script[list[Moved]]:
    """Let `decide` choose the transition of attempts that were taken out of `running`."""
    if not taken:
        return []
    now: int = (yield "clock", [])[0][0]
    facts = {f.n: f for f in as_facts((yield "job_facts", numbers(a.n for a in taken)))}
    leases = sorted({a.lease for a in taken if a.lease is not None})
    owners = {row[0]: LeaseOwner(*row[1:]) for row in (yield "lease_workers", [{"lease": lease} for lease in leases])}
    moves = []
    for attempt in taken:
        job = facts[attempt.n]
        state = RowState(attempt.status, attempt.attempt, job.max_attempts)
        owner = owners.get(attempt.lease or 0)
        moves.append(Move(job, attempt.status, decide(state, outcome(attempt)), attempt, owner))
    yield from relocate(moves, now)
    return [moved(move) for move in moves]


def moved(move: Move) -> Moved:
    return Moved(move.facts.id, move.facts.topic, move.transition.to, move.transition.event or "")


def pending_move(facts: JobFacts, attempt: int, ready: bool, outcome: Outcome) -> Move:
    transition = decide(RowState(Status.PENDING, attempt, facts.max_attempts), outcome)
    return Move(facts, Status.PENDING, transition, was_ready=ready)
