"""Writes what follows from the moves of a batch: one statement for each kind of consequence, for all jobs together.

What follows is decided in `policy/consequences.py`; nothing here asks for a status. The order is that of the locks,
with the limits last because other workers want them. Two more things depend on it. `ready` copies the flags of a job,
so they change before the job comes there. A job is told to wait before it is parked, because an early answer ends its
wait immediately.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from treadle.model import events
from treadle.model.status import Status
from treadle.policy.consequences import BEHIND, HELD, LATER, NOTHING_FREED, PARKED, READY, Consequences, Place, after
from treadle.policy.history import Ending
from treadle.store.sql.rows import NOBODY, traits_in
from treadle.store.sql.scripts.children import tell_parents
from treadle.store.sql.scripts.common import MovingJob, Script, event_row, numbers, tally_row
from treadle.store.sql.scripts.ended import erase
from treadle.store.sql.scripts.limits import leave_ready, leave_running
from treadle.store.sql.scripts.outbox import offer
from treadle.store.sql.scripts.steps import interrupt, park

Moves = Sequence[tuple[MovingJob, Consequences]]


def apply_moves(jobs: Iterable[MovingJob], now: int) -> Script[None]:
    """Write what follows from the moves of jobs that were taken out of their places."""
    yield from apply([(job, after(job.move, traits_in(job.facts.flags), now)) for job in jobs], now)


def apply(moves: Moves, now: int) -> Script[None]:
    yield from _ask_to_stop(moves)
    yield from _take_back(moves)
    yield from _end(moves)
    yield from _free(moves)
    yield from _put(moves)
    yield from _cancel_children(moves)
    yield from _move_steps(moves, now)
    yield from _tell(moves, now)
    yield from _park(moves, now)
    yield from _note(moves)
    yield from _offer(moves, now)
    yield from _tell_parents(moves, now)
    yield from _wake(moves)
    yield from _pause(moves)


def _ask_to_stop(moves: Moves) -> Script[None]:
    by_reason: dict[str, list[int]] = defaultdict(list)
    for job, what in moves:
        if what.asks_to_stop is not None:
            by_reason[what.asks_to_stop].append(job.facts.n)
    for reason, ns in by_reason.items():
        yield "mark_cancel", [{"n": n, "reason": reason} for n in ns]


def _take_back(moves: Moves) -> Script[None]:
    """Endings, with what they left."""
    if gone := [job.facts.n for job, _ in moves if job.move.ended]:
        yield "drop_outcomes", numbers(gone)
    again = [(job, what.reopens) for job, what in moves if what.reopens]
    if not again:
        return
    # The failures before the ending are history, like the ending itself.
    yield "drop_notes", numbers(job.facts.n for job, _ in again)
    yield "reset_channels", numbers(job.facts.n for job, _ in again)
    if once := [job for job, takes in again if takes.once_key]:
        yield "drop_keys", [{"n": job.facts.n, "kind": "once"} for job in once]
    if expired := [job.facts.n for job, takes in again if takes.deadline]:
        yield "clear_deadline", numbers(expired)
    if members := [job for job, takes in again if takes.limit]:
        yield "add_members", _members(members)


def _end(moves: Moves) -> Script[None]:
    if ended := [_outcome_row(job, what.ending) for job, what in moves if what.ending]:
        yield "add_outcomes", ended
    if counted := [tally_row(what.tally, job.facts.topic, job.writer) for job, what in moves if what.tally]:
        yield "add_tally", counted
    yield from erase([job.facts.n for job, what in moves if what.erases])


def _outcome_row(job: MovingJob, ending: Ending) -> dict[str, Any]:
    facts = job.facts
    return ending._asdict() | {"n": facts.n, "token": job.token, "topic": facts.topic, "worker": job.worker}


def _free(moves: Moves) -> Script[None]:
    """Keys, deadlines and memberships."""
    if kept := [job.facts.n for job, what in moves if what.keeps_key]:
        yield "keep_once", numbers(kept)
    freed = [(job, what.frees) for job, what in moves if what.frees is not NOTHING_FREED]
    if not freed:
        return
    if keys := [job.facts.n for job, frees in freed if frees.dedupe_key]:
        yield "drop_keys", [{"n": n, "kind": "dedupe"} for n in keys]
    if deadlines := [job.facts.n for job, frees in freed if frees.deadline]:
        yield "drop_deadlines", numbers(deadlines)
    if in_time := [job.facts.n for job, frees in freed if frees.expiry]:
        yield "started_in_time", numbers(in_time)
    if members := [job for job, frees in freed if frees.limit]:
        yield "drop_members", _members(members)


def _members(jobs: Iterable[MovingJob]) -> list[dict[str, Any]]:
    return [{"key": job.facts.limit_key, "n": job.facts.n} for job in jobs]


def _put(moves: Moves) -> Script[None]:
    """Into the queue, or aside until they are due."""
    waiting = [(job.facts.n, what.waits) for job, what in moves if what.waits and what.waits.place is not PARKED]
    if timed := [{"n": n, "run_at": waits.at} for n, waits in waiting if waits.at is not None]:
        yield "set_run_at", timed
    for place, query in _PLACES:
        if rows := [{"n": n, "attempt": waits.attempt} for n, waits in waiting if waits.place is place]:
            yield query, rows


_PLACES: Sequence[tuple[Place, str]] = ((LATER, "place_later"), (READY, "place_ready"))


def _cancel_children(moves: Moves) -> Script[None]:
    """Before the steps that wait for them are ended."""
    reasons = [{"n": job.facts.n, "reason": what.cancels_children} for job, what in moves if what.cancels_children]
    if reasons:
        yield "cancel_children", reasons


def _move_steps(moves: Moves, now: int) -> Script[None]:
    yield from interrupt([(job.facts.n, one) for job, what in moves for one in what.steps], now)
    if anew := [job.facts.n for job, what in moves if what.restarts_clock]:
        yield "restart_clocks", numbers(anew)


def _tell(moves: Moves, now: int) -> Script[None]:
    rows = [event_row(job.facts.n, *told, now) for job, what in moves for told in what.told]
    if done := [job.facts.n for job, what in moves if what.ending and not what.told]:
        rows.append(event_row(*COMPLETED_TOGETHER, done, now))
    if rows:
        yield "add_events", rows


COMPLETED_TOGETHER = (NOBODY, events.COMPLETED, Status.PROCESSING, Status.COMPLETED, "")
"""One line for all jobs that have just completed: their own timestamps have the rest."""


def _park(moves: Moves, now: int) -> Script[None]:
    if parked := {job.facts.n: what.waits for job, what in moves if what.waits and what.waits.place is PARKED}:
        yield from park(parked, now)


def _note(moves: Moves) -> Script[None]:
    if notes := [what.note._asdict() | {"n": job.facts.n, "worker": job.worker} for job, what in moves if what.note]:
        yield "add_notes", notes


def _offer(moves: Moves, now: int) -> Script[None]:
    """To webhooks."""
    if offers := [(job.facts, what.offers) for job, what in moves if what.offers]:
        yield from offer(offers, now)


def _tell_parents(moves: Moves, now: int) -> Script[None]:
    ended = [(job.facts, what.parents) for job, what in moves if what.parents]
    if ended:
        yield from tell_parents(ended, now)


def _wake(moves: Moves) -> Script[None]:
    waking = [(what.wakes, job.facts.limit_key or "") for job, what in moves if what.wakes]
    if waking:
        yield from leave_ready(key for who, key in waking if who is BEHIND)
        yield from leave_running(key for who, key in waking if who is HELD)


def _pause(moves: Moves) -> Script[None]:
    until: dict[str, int] = {}
    for job, what in moves:
        if what.topic_paused_until is not None:
            until[job.facts.topic] = max(until.get(job.facts.topic, 0), what.topic_paused_until)
    if until:
        yield "extend_pause", [{"topic": topic, "until": until[topic]} for topic in sorted(until)]
