"""Putting jobs that were taken out of their place where their transition says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import to_json

from treadle import events
from treadle.lifecycle import ENDED, Outcome, Status, decide
from treadle.store.base import DEDUPE, EXPIRES, GATED, NOBODY, ONCE, Moved, RowState
from treadle.store.scripts.common import LOOKS, Attempt, Facts, Move, Script, as_facts, numbers
from treadle.store.scripts.gates import enter_gates, leave_gates


def relocate(moves: Sequence[Move], now: int) -> Script[None]:
    """Put jobs that were taken out of their places where their transitions say, with all that hangs on it."""
    ended = [move for move in moves if move.transition.to in ENDED]
    pending = [move for move in moves if move.transition.to is Status.PENDING]
    if ended:
        yield "add_outcomes", [_outcome_row(move, now) for move in ended]
        yield "add_tally", [_tally_row(move, now) for move in ended]
        yield from _untie(ended)
    if pending:
        yield from _put_back(pending, now)
    if failures := [move for move in pending if move.transition.error is not None]:
        yield "add_notes", [_note_row(move) for move in failures]
    told = [moved_event_row(move, now) for move in moves if move.transition.event]
    if done := [move.facts.n for move in ended if not move.transition.event]:
        told.append(completed_row(done, now))
    if told:
        yield "add_events", told
    yield from leave_gates(
        move.facts.gate
        for move in moves
        if move.facts.gate and move.in_gate and (move.transition.to in ENDED or move.transition.delay_ms)
    )


def _put_back(moves: Sequence[Move], now: int) -> Script[None]:
    """To the queue at their old place, or set aside for a while."""
    delayed = [move for move in moves if move.transition.delay_ms]
    if delayed:
        yield "set_run_at", [{"n": m.facts.n, "run_at": now + m.transition.delay_ms} for m in delayed]
        yield "place_later", _moved_positions(delayed)
    ready = [move for move in moves if not move.transition.delay_ms and (move.in_gate or not move.facts.gate)]
    if ready:
        yield "place_ready", _moved_positions(ready)
    yield from enter_gates(
        [
            (move.facts.gate, move.facts.n, move.transition.attempt)
            for move in moves
            if move.facts.gate and not move.in_gate and not move.transition.delay_ms
        ]
    )


def _moved_positions(moves: Iterable[Move]) -> list[dict[str, int]]:
    return [{"n": move.facts.n, "attempt": max(move.transition.attempt, 0)} for move in moves]


def _untie(ended: Sequence[Move]) -> Script[None]:
    """What a job held while it lived."""
    deduped = [move for move in ended if move.facts.flags & DEDUPE]
    done = [m for m in deduped if m.facts.flags & ONCE and m.transition.to is Status.COMPLETED]
    if done:
        yield "keep_once", numbers(move.facts.n for move in done)
    if free := [move for move in deduped if move not in done]:
        yield "drop_keys", [{"n": move.facts.n, "kind": "dedupe"} for move in free]
    if expiring := [move for move in ended if move.facts.flags & EXPIRES]:
        yield "drop_deadlines", numbers(move.facts.n for move in expiring)
    if gated := [move for move in ended if move.facts.flags & GATED]:
        yield "drop_members", [{"gate": move.facts.gate, "n": move.facts.n} for move in gated]


def _outcome_row(move: Move, now: int) -> dict[str, Any]:
    attempt, transition = move.attempt or Attempt(move.facts.n, None, 0), move.transition
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
    }


def _tally_row(move: Move, now: int) -> dict[str, Any]:
    started = move.attempt.started_at if move.attempt else None
    return {
        "minute": now // 60_000,
        "writer": move.writer,
        "topic": move.facts.topic,
        "status": move.transition.to,
        "count": 1,
        "run_ms": max(now - started, 0) if started is not None else 0,
    }


def _note_row(move: Move) -> dict[str, Any]:
    transition = move.transition
    return {"n": move.facts.n, "error": transition.error, "error_type": transition.error_type}


def moved_event_row(move: Move, now: int) -> dict[str, Any]:
    transition = move.transition
    metadata: dict[str, Any] = dict(move.metadata or {})
    if move.attempt:
        metadata["attempt"] = move.attempt.attempt
        if move.attempt.started_at is not None:
            metadata["startedAt"] = move.attempt.started_at
    if transition.delay_ms:
        metadata["delayMs"] = transition.delay_ms
    if transition.error_type:
        metadata["errorType"] = transition.error_type
    return event_row(
        move.facts.n, transition.event or "", move.source, transition.to, transition.message, metadata, now
    )


def completed_row(ns: Sequence[int], now: int) -> dict[str, Any]:
    """One line for all jobs that have just completed: their own timestamps tell the rest."""
    return event_row(NOBODY, events.COMPLETED, Status.PROCESSING, Status.COMPLETED, "", ns, now)


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


def end_attempts(query: str, rows: Sequence[Mapping[str, Any]], outcome: Any) -> Script[list[Moved]]:
    """Take attempts out of `running` and let `decide` say what becomes of them."""
    now: int = (yield "clock", [])[0][0]
    # Without their tokens: an ending with its token tells an owner that it is the one that he reported himself.
    attempts = [Attempt(*row)._replace(token=None) for row in (yield query, rows)]
    if not attempts:
        return []
    facts = {f.n: f for f in as_facts((yield "job_facts", numbers(a.n for a in attempts)))}
    moves = []
    for attempt in attempts:
        job = facts[attempt.n]
        state = RowState(attempt.status, attempt.attempt, job.max_attempts)
        moves.append(Move(job, attempt.status, decide(state, outcome(attempt)), attempt, in_gate=True))
    yield from relocate(moves, now)
    return [moved(move) for move in moves]


def moved(move: Move) -> Moved:
    return Moved(move.facts.id, move.facts.topic, move.transition.to, move.transition.event or "")


def take_pending(ns: Iterable[int]) -> Script[tuple[list[tuple[int, int, bool]], set[int]]]:
    """Take pending jobs out of whatever place they are in: (n, attempt, was ready), and what was not pending."""
    left = set(ns)
    taken: list[tuple[int, int, bool]] = []
    for place in ("ready", "later", "held"):
        if left:
            rows = yield f"take_{place}", numbers(left)
            taken += [(n, attempt, place == "ready") for n, attempt in rows]
            left -= {row[0] for row in rows}
    return taken, left


def take_pending_wherever(ns: Iterable[int]) -> Script[tuple[list[tuple[int, int, bool]], set[int]]]:
    """The same, and look again for those who moved from one place to another between two of the looks."""
    taken: list[tuple[int, int, bool]] = []
    left = set(ns)
    for _ in range(LOOKS):
        found, left = yield from take_pending(left)
        taken += found
        if not left:
            break
        elsewhere = {row[0] for row in (yield "find_running", numbers(left))}
        elsewhere |= {row[0] for row in (yield "find_outcomes", numbers(left))}
        if elsewhere == left:
            break
    return taken, left


def pending_move(facts: Facts, attempt: int, ready: bool, outcome: Outcome) -> Move:
    transition = decide(RowState(Status.PENDING, attempt, facts.max_attempts), outcome)
    return Move(facts, Status.PENDING, transition, in_gate=ready)
