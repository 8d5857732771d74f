"""Requests by people (cancel, requeue, release, reschedule, delete): find the jobs, ask a judge, apply its answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from typing import Any

from pydantic_core import from_json

from treadle.model.errors import TreadleError
from treadle.model.status import ENDED, Status
from treadle.policy.admission import DEDUPE, Admit, Refuse, Request, UniqueKey
from treadle.policy.history import requeue_metadata
from treadle.policy.lifecycle import (
    CancelRequested,
    Outcome,
    Requeued,
    Transition,
    decide,
    is_stale,
)
from treadle.policy.rerun import repeated
from treadle.store import wakeups
from treadle.store.requests import returning
from treadle.store.sql.rows import EXPIRES, ONCE, STEPS
from treadle.store.sql.scripts.admitting import Admission, apply, ask, replace
from treadle.store.sql.scripts.common import LOOKS, JobFacts, Move, Script, as_facts, not_found, numbers
from treadle.store.sql.scripts.ended import EndedRow, erase
from treadle.store.sql.scripts.keys import ChangedJob, set_keys, with_keys, with_owners
from treadle.store.sql.scripts.limits import leave_ready
from treadle.store.sql.scripts.moves import attempts, end_attempts, moved_event_row, relocate
from treadle.store.sql.scripts.steps import run_again, steps_of
from treadle.store.values import NO_CHANGES, ClaimedStep, Judge, NewJob, Refusal, SteeredJob

PENDING_PLACES = ("ready", "later", "held")


@dataclass(frozen=True, slots=True)
class JudgedJob:
    """A job that was found and locked, and what happens to it."""

    facts: JobFacts
    place: str
    status: Status
    attempt: int
    ended: EndedRow | None = None
    outcome: Outcome | None = None
    transition: Transition | None = None
    steps: tuple[ClaimedStep, ...] = ()

    @property
    def to(self) -> Transition:
        assert self.transition, "it was judged"
        return self.transition


Look = Callable[[Mapping[int, JobFacts], Collection[int]], Script[list[JudgedJob]]]


@dataclass(slots=True)
class Steering:
    """The results of this script so far."""

    answers: dict[str, Refusal | None]
    """None: done as asked."""
    hints: set[str] = field(default_factory=set)
    writer: int = 0
    """The tally row that counts the endings."""
    changed: Mapping[str, NewJob] = field(default_factory=lambda: NO_CHANGES)
    """By id: jobs that come back with another payload."""

    def refuse(self, job: JobFacts, error: Exception) -> None:
        self.answers[job.id] = Refusal(job.id, error)


class Undone(Exception):
    """Carries the answers of a dry run out of the transaction that it rolls back."""

    def __init__(self, steering: Steering) -> None:
        super().__init__("a dry run")
        self.steering = steering


def steer(
    ids: Sequence[str],
    judge: Judge,
    stale_after_ms: int,
    *,
    dry_run: bool = False,
    changed: Mapping[str, NewJob] = NO_CHANGES,
) -> Script[Steering]:
    steering = Steering({id_: not_found(id_) for id_ in ids}, changed=changed)
    yield from _steer(steering, judge, stale_after_ms, _look)
    if dry_run:
        raise Undone(steering)
    return steering


def _steer(steering: Steering, judge: Judge, stale_after_ms: int, look: Look) -> Script[None]:
    ids = list(steering.answers)
    facts = {f.n: f for f in as_facts((yield "find_jobs", [{"id": id_} for id_ in ids]))}
    left = set(facts)
    for _ in range(LOOKS):
        if not left:
            break
        now: int = (yield "clock", [])[0][0]
        found = yield from look(facts, left)
        # Its clock was read before it waited for locks, and what was committed meanwhile came first.
        now = max(now, *(one.ended.ended_at if one.ended else 0 for one in found)) if found else now
        left -= {one.facts.n for one in found}
        yield from _apply(_judged(found, judge, stale_after_ms, now, steering), now, steering)
        # Jobs that were found nowhere moved between two of the looks.


def cancel(reasons: Mapping[str, str]) -> Script[None]:
    """Cancel jobs that new ones replace, each for its own reason."""
    yield from steer(list(reasons), lambda job: CancelRequested(reasons[job.id]), 0)


def cancel_idle(reasons: Mapping[str, str], writer: int) -> Script[list[str]]:
    """Cancel the jobs that no worker has; returns the others, of which nothing is locked."""
    steering = Steering({id_: not_found(id_) for id_ in reasons}, writer=writer)
    yield from _steer(steering, lambda job: CancelRequested(reasons[job.id]), 0, _look_for_idle)
    return [id_ for id_, refusal in steering.answers.items() if refusal is not None]


def _look_for_idle(facts: Mapping[int, JobFacts], ns: Collection[int]) -> Script[list[JudgedJob]]:
    """Lock the jobs that wait for a worker or for an answer."""
    return (yield from _look_in((*PENDING_PLACES, "parked"), facts, ns))


def _look_in(places: Sequence[str], facts: Mapping[int, JobFacts], ns: Collection[int]) -> Script[list[JudgedJob]]:
    found: list[JudgedJob] = []
    left = set(ns)
    for place in places:
        status = Status.PENDING if place in PENDING_PLACES else Status.WAITING
        rows = (yield f"lock_{place}", numbers(left)) if left else []
        found += [JudgedJob(facts[n], place, status, attempt) for n, attempt in rows]
        left -= {row[0] for row in rows}
    return found


def _look(facts: Mapping[int, JobFacts], ns: Collection[int]) -> Script[list[JudgedJob]]:
    """Lock the jobs where they are. One that is moving between two places at this moment may be in none."""
    found = yield from _look_in(PENDING_PLACES, facts, ns)
    left = set(ns) - {one.facts.n for one in found}
    rows = (yield "lock_running", numbers(left)) if left else []
    for n, attempt, cancel_at in rows:
        status = Status.PROCESSING if cancel_at is None else Status.CANCELLING
        found.append(JudgedJob(facts[n], "running", status, attempt))
    left -= {row[0] for row in rows}
    parked = yield from _look_in(["parked"], facts, left)
    found += parked
    left -= {one.facts.n for one in parked}
    for one in [EndedRow(*row) for row in (yield "find_outcomes", numbers(left))] if left else []:
        found.append(JudgedJob(facts[one.n], "ended", Status(one.status), one.attempt, one))
    steps = yield from steps_of({one.facts.n for one in found if one.ended and one.facts.flags & STEPS})
    return [replace_fields(one, steps=steps.get(one.facts.n, ())) for one in found] if steps else found


def _judged(
    found: Sequence[JudgedJob], judge: Judge, stale_after_ms: int, now: int, steering: Steering
) -> list[JudgedJob]:
    judged = []
    for one in found:
        job = one.facts
        stale = one.ended is not None and is_stale(one.ended.ended_at, stale_after_ms, now)
        state = SteeredJob(job.id, job.topic, one.status, one.attempt, job.max_attempts, stale, one.steps)
        try:
            outcome = judge(state)
            transition = decide(state, outcome)
        except TreadleError as error:
            steering.refuse(job, error)
        else:
            judged.append(replace_fields(one, outcome=outcome, transition=transition))
            steering.answers[job.id] = None
    return judged


def _apply(verdicts: Sequence[JudgedJob], now: int, steering: Steering) -> Script[None]:
    kinds: dict[Callable[..., Script[None]], list[JudgedJob]] = defaultdict(list)
    for one in verdicts:
        if how := _how(one):
            kinds[how].append(one)
    for how, some in kinds.items():
        yield from how(some, now, steering)


def _how(one: JudgedJob) -> Callable[[Sequence[JudgedJob], int, Steering], Script[None]] | None:
    """None: nothing has to change."""
    to = one.to
    if to.deletes:
        return _delete
    if to.patch:
        return _reschedule
    if one.status in ENDED:
        return _requeue
    if one.status is Status.PENDING:
        return _end_pending if to.to in ENDED else None
    if one.status is Status.WAITING:
        return _cancel_parked
    if to.to is Status.CANCELLING:
        return _ask_to_stop if to.event else None
    return _take_back


def _take(verdicts: Iterable[JudgedJob]) -> Script[None]:
    """Take pending jobs, which are locked, out of their places."""
    by_place: dict[str, list[int]] = defaultdict(list)
    for one in verdicts:
        by_place[one.place].append(one.facts.n)
    for place, ns in by_place.items():
        yield f"take_{place}", numbers(ns)


def _end_pending(verdicts: Sequence[JudgedJob], now: int, steering: Steering) -> Script[None]:
    yield from _take(verdicts)
    moves = [Move(v.facts, v.status, v.to, was_ready=v.place == "ready", writer=steering.writer) for v in verdicts]
    yield from relocate(moves, now)
    steering.hints |= {wakeups.ENDED, wakeups.READY}


def _ask_to_stop(verdicts: Sequence[JudgedJob], now: int, steering: Steering) -> Script[None]:
    by_reason: dict[str, list[int]] = defaultdict(list)
    for one in verdicts:
        by_reason[one.to.message].append(one.facts.n)
    for reason, ns in by_reason.items():
        yield "mark_cancel", [{"n": n, "reason": reason} for n in ns]
    yield "add_events", [moved_event_row(Move(v.facts, v.status, v.to), now) for v in verdicts]
    steering.hints.add(wakeups.CANCEL)


def _cancel_parked(verdicts: Sequence[JudgedJob], now: int, steering: Steering) -> Script[None]:
    """Both of their transitions in one transaction."""
    yield "take_parked", numbers(v.facts.n for v in verdicts)
    yield "add_events", [moved_event_row(Move(v.facts, v.status, v.to), now) for v in verdicts]
    moves = [Move(v.facts, v.to.to, v.to.then, writer=steering.writer) for v in verdicts if v.to.then]
    yield from relocate(moves, now)
    steering.hints |= {wakeups.ENDED, wakeups.READY}


def _take_back(verdicts: Sequence[JudgedJob], _now: int, steering: Steering) -> Script[None]:
    """Take jobs from their workers, which learn about it at their next write."""
    outcomes = {v.facts.n: v.outcome for v in verdicts}
    taken = yield from attempts("take_running_by_number", numbers(outcomes))

    def outcome(one: Any) -> Outcome:
        found = outcomes[one.n]
        assert found, "it was judged"
        return found

    yield from end_attempts(taken, outcome)
    steering.hints |= {wakeups.READY, wakeups.ENDED}


def _requeue(verdicts: Sequence[JudgedJob], now: int, steering: Steering) -> Script[None]:
    payloads = yield from _old_payloads(verdicts)
    changed = yield from with_owners({v.facts.n: new for v in verdicts if (new := steering.changed.get(v.facts.id))})
    moves = [
        Move(facts, v.status, v.to, metadata=requeue_metadata(v.ended, payloads.get(facts.n)))
        for v in verdicts
        if v.ended
        for facts in [with_keys(v.facts, changed)]
    ]
    asked = yield from ask([_returning(move.facts, changed) for move in moves], [move.facts.n for move in moves])
    once = {v.facts.n for v in verdicts if v.facts.flags & ONCE}
    moves = yield from _admitted(moves, asked, steering, once)
    if not moves:
        return
    ns = {move.facts.n for move in moves}
    yield from set_keys({n: one for n, one in changed.items() if n in ns})
    yield "drop_outcomes", numbers(ns)
    yield "drop_notes", numbers(ns)  # the failures before this ending are history like the ending itself
    yield "add_tally", [v.ended.undone() for v in verdicts if v.ended and v.facts.n in ns]
    yield "set_run_at", [{"n": n, "run_at": now} for n in sorted(ns)]
    yield from _start_again([v for v in verdicts if v.facts.n in ns])
    if expiring := [move.facts.n for move in moves if move.facts.flags & EXPIRES]:
        yield "clear_deadline", numbers(expiring)
    if limited := [move.facts for move in moves if move.facts.limit_key]:
        yield "add_members", [{"key": job.limit_key, "n": job.n} for job in limited]
    yield from relocate(moves, now)
    yield from replace(asked, cancel, within_batch=True)
    steering.hints.add(wakeups.READY)


def _old_payloads(verdicts: Sequence[JudgedJob]) -> Script[dict[int, Any]]:
    """Of jobs that get a new one: the old one stays in the history."""
    edited = [v.facts.n for v in verdicts if isinstance(v.outcome, Requeued) and v.outcome.payload is not None]
    rows = (yield "job_payloads", numbers(edited)) if edited else []
    return {n: from_json(text) for n, text in rows}


def _start_again(verdicts: Sequence[JudgedJob]) -> Script[None]:
    """The steps that run again, and new payloads."""
    again: dict[int, list[ClaimedStep]] = {}
    requeued: dict[int, Requeued] = {}
    payloads = []
    for one in verdicts:
        if isinstance(one.outcome, Requeued):
            if one.facts.flags & STEPS:
                again[one.facts.n] = repeated(one.steps, one.outcome)
                requeued[one.facts.n] = one.outcome
            if one.outcome.payload is not None:
                payloads.append({"n": one.facts.n, "payload": one.outcome.payload})
    yield from run_again(again, requeued)
    if payloads:
        yield "set_payloads", payloads


def _admitted(moves: Sequence[Move], asked: Admission, steering: Steering, once: Collection[int]) -> Script[list[Move]]:
    """The jobs that may come back: their keys are free, and so is a place under their concurrency policy."""
    yield from apply(asked, cancel)
    admitted = []
    for move, decision in zip(moves, asked.decisions, strict=True):
        if isinstance(decision, Refuse):
            steering.refuse(move.facts, decision.error)
        if isinstance(decision, Admit):
            admitted.append(move)
    if again := [move.facts.n for move in admitted if move.facts.n in once]:
        yield "drop_keys", [{"n": n, "kind": "once"} for n in again]
    return admitted


def _returning(job: JobFacts, changed: Mapping[int, ChangedJob]) -> Request:
    if new := changed.get(job.n):
        return returning(new.job, new.held)
    unique = () if job.dedupe_key is None else (UniqueKey(DEDUPE, job.dedupe_key),)
    return Request(job.id, job.topic, unique, None, not job.flags & ONCE, job.limit, returning=True)


def _reschedule(verdicts: Sequence[JudgedJob], now: int, steering: Steering) -> Script[None]:
    """Only named fields change: of two patches of different fields neither may undo the other."""
    yield from _take(verdicts)
    rows = [{"n": v.facts.n, "now": now, **(v.to.patch._asdict() if v.to.patch else {})} for v in verdicts]
    due = {n for n, run_at in (yield "patch_jobs", rows) if run_at <= now}
    ready = [v for v in verdicts if v.facts.n in due]
    later = [v for v in verdicts if v.facts.n not in due]
    for query, some in (("place_ready", ready), ("place_later", later)):
        if some:
            yield query, [{"n": v.facts.n, "attempt": v.attempt} for v in some]
    yield from leave_ready(v.facts.limit_key for v in later if v.facts.limit_key and v.place == "ready")
    steering.hints |= {wakeups.READY, wakeups.LATER}


def _delete(verdicts: Sequence[JudgedJob], _now: int, steering: Steering) -> Script[None]:
    yield from _take(v for v in verdicts if v.status is Status.PENDING)
    if ended := [v.ended for v in verdicts if v.ended]:
        yield "drop_outcomes", numbers(one.n for one in ended)
        yield "add_tally", [one.undone() for one in ended]
    yield from erase([v.facts.n for v in verdicts])
    if limited := [v for v in verdicts if v.facts.limit_key]:
        yield "drop_members", [{"key": v.facts.limit_key, "n": v.facts.n} for v in limited]
        yield from leave_ready(v.facts.limit_key or "" for v in limited if v.place == "ready")
    steering.hints.add(wakeups.READY)
