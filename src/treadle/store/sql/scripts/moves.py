"""Putting jobs that were taken out of their place where their transition says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from treadle.model import events
from treadle.model.status import ENDED, Status
from treadle.policy.admission import dedupe_key_becomes, started_in_time
from treadle.policy.history import counted_as, ending, has_run, metadata, note, ran_ms
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


def relocate(moves: Sequence[Move], now: int) -> Script[None]:
    """Put jobs that were taken out of their places where their transitions say, and update all dependent rows."""
    ended = [move for move in moves if move.transition.to in ENDED]
    pending = [move for move in moves if move.transition.to is Status.PENDING]
    if ended:
        yield "add_outcomes", [_outcome_row(move, now) for move in ended]
    if counted := [row for move in (*ended, *pending) for row in _tally_rows(move, now)]:
        yield "add_tally", counted
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
    if notes := [row for move in (*pending, *waiting) for row in _note_rows(move)]:
        yield "add_notes", notes
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
    expiring = [move for move in moves if move.facts.flags & EXPIRES]
    met = [move for move in expiring if started_in_time(move.transition.attempt, has_run(move.attempt))]
    if met:
        yield "drop_deadlines", numbers(move.facts.n for move in met)
    if unspent := [move.facts.n for move in met if move.transition.attempt <= 0]:
        yield "started_in_time", numbers(unspent)  # first: `ready` has a copy of the flags
    delayed = [move for move in moves if move.transition.delay_ms]
    if delayed:
        yield "set_run_at", [{"n": m.facts.n, "run_at": now + m.transition.delay_ms} for m in delayed]
        yield "place_later", _moved_positions(delayed)
    if ready := [move for move in moves if not move.transition.delay_ms]:
        yield "place_ready", _moved_positions(ready)


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
    """The token is kept only if the owner ended its attempt."""
    token = move.attempt.token if move.attempt else None
    kept = ending(move.transition, move.attempt, now)._asdict()
    return kept | {"n": move.facts.n, "token": token, "topic": move.facts.topic, "worker": _worker(move)}


def _tally_rows(move: Move, now: int) -> list[dict[str, Any]]:
    status = counted_as(move.transition)
    if status is None:
        return []
    row = {"minute": now // 60_000, "writer": move.writer, "topic": move.facts.topic, "status": status, "count": 1}
    return [row | {"run_ms": ran_ms(move.attempt.started_at if move.attempt else None, now)}]


def _note_rows(move: Move) -> list[dict[str, Any]]:
    found = note(move.transition, move.attempt, bool(move.facts.flags & STEPS))
    return [] if found is None else [found._asdict() | {"n": move.facts.n, "worker": _worker(move)}]


def _worker(move: Move) -> int | None:
    return move.worker.id if move.worker else None


def moved_event_row(move: Move, now: int) -> dict[str, Any]:
    transition = move.transition
    told = metadata(transition, move.attempt, move.worker.name if move.worker else None)
    return event_row(
        move.facts.n,
        transition.event or "",
        move.source,
        transition.to,
        transition.message,
        dict(move.metadata or {}) | told,
        now,
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
