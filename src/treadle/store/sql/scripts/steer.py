"""Requests by people (cancel, requeue, release, reschedule, delete): find the jobs, ask a judge, apply its answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from typing import Any

from pydantic_core import from_json

from treadle.model.errors import TreadleError
from treadle.model.status import Status
from treadle.policy.admission import DEDUPE, Admit, Refuse, Request, UniqueKey
from treadle.policy.consequences import Move, changes_nothing, leaves_place, rescheduled
from treadle.policy.lifecycle import (
    CancelRequested,
    Outcome,
    Requeued,
    Transition,
    decide,
)
from treadle.policy.rerun import repeated
from treadle.policy.retention import Rules
from treadle.store import wakeups
from treadle.store.requests import returning
from treadle.store.sql.rows import ONCE, STEPS, traits_in
from treadle.store.sql.scripts.admitting import Admission, ask, replace
from treadle.store.sql.scripts.admitting import apply as apply_admission
from treadle.store.sql.scripts.applier import apply, apply_moves
from treadle.store.sql.scripts.common import LOOKS, JobFacts, MovingJob, Script, as_facts, not_found, numbers
from treadle.store.sql.scripts.ended import EndedRow
from treadle.store.sql.scripts.keys import ChangedJob, set_keys, with_keys, with_owners
from treadle.store.sql.scripts.moves import attempts, end_attempts
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
    awaits_children: bool = False
    stale_at: int | None = None

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
    may_cancel_children: bool = False
    """Jobs with steps were cancelled, and perhaps waited for children."""

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
    retention: Rules,
    *,
    dry_run: bool = False,
    changed: Mapping[str, NewJob] = NO_CHANGES,
) -> Script[Steering]:
    steering = Steering({id_: not_found(id_) for id_ in ids}, changed=changed)
    yield from _steer(steering, judge, retention, _look)
    if dry_run:
        raise Undone(steering)
    return steering


def _steer(steering: Steering, judge: Judge, retention: Rules, look: Look) -> Script[None]:
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
        yield from _apply(_judged(found, judge, retention, now, steering), now, steering)
        # Jobs that were found nowhere moved between two of the looks.


def cancel(reasons: Mapping[str, str]) -> Script[None]:
    """Cancel jobs that new ones replace, each for its own reason."""
    yield from steer(list(reasons), lambda job: CancelRequested(reasons[job.id]), Rules())


def cancel_idle(reasons: Mapping[str, str], writer: int) -> Script[list[str]]:
    """Cancel the jobs that no worker has; returns the others, of which nothing is locked."""
    steering = Steering({id_: not_found(id_) for id_ in reasons}, writer=writer)
    yield from _steer(steering, lambda job: CancelRequested(reasons[job.id]), Rules(), _look_for_idle)
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
    with_steps = {one.facts.n for one in found if one.facts.flags & STEPS}
    if not with_steps:
        return found
    awaiting = {row[0] for row in (yield "awaiting", numbers(with_steps))}
    steps = yield from steps_of({one.facts.n for one in found if one.ended and one.facts.flags & STEPS})
    return [
        replace_fields(one, steps=steps.get(one.facts.n, ()), awaits_children=one.facts.n in awaiting) for one in found
    ]


def _judged(
    found: Sequence[JudgedJob], judge: Judge, retention: Rules, now: int, steering: Steering
) -> list[JudgedJob]:
    judged = []
    for one in found:
        job = one.facts
        stale_at = None if one.ended is None else retention.stale_at(job.topic, one.status, one.ended.ended_at, now)
        stale = stale_at is not None
        state = SteeredJob(
            job.id, job.topic, one.status, one.attempt, job.max_attempts, stale, one.steps, one.awaits_children
        )
        try:
            outcome = judge(state)
            transition = decide(state, outcome)
        except TreadleError as error:
            steering.refuse(job, error)
        else:
            judged.append(replace_fields(one, outcome=outcome, transition=transition, stale_at=stale_at))
            steering.answers[job.id] = None
    return judged


def _apply(verdicts: Sequence[JudgedJob], now: int, steering: Steering) -> Script[None]:
    kinds: dict[Callable[..., Script[None]], list[JudgedJob]] = defaultdict(list)
    for one in verdicts:
        if not changes_nothing(one.status, one.to):
            kinds[_how(one)].append(one)
    for how, some in kinds.items():
        yield from how(some, now, steering)


def _how(one: JudgedJob) -> Callable[[Sequence[JudgedJob], int, Steering], Script[None]]:
    """How the job is taken out of its place, and what has to be asked before it may go on."""
    if one.to.patch:
        return _reschedule
    if one.to.deletes:
        return _delete
    if one.ended:
        return _requeue
    if not leaves_place(one.to):
        return _ask_to_stop
    return _take_back if one.place == "running" else _end


def _take(verdicts: Iterable[JudgedJob]) -> Script[None]:
    """Take jobs that no worker has, which are locked, out of their places."""
    by_place: dict[str, list[int]] = defaultdict(list)
    for one in verdicts:
        if not one.ended:
            by_place[one.place].append(one.facts.n)
    for place, ns in by_place.items():
        yield f"take_{place}", numbers(ns)


def _moving(one: JudgedJob, writer: int = 0) -> MovingJob:
    move = Move(one.status, one.to, was_ready=one.place == "ready", ended=one.ended, stale_at=one.stale_at)
    return MovingJob(one.facts, move, writer=writer)


def _end(verdicts: Sequence[JudgedJob], now: int, steering: Steering) -> Script[None]:
    yield from _take(verdicts)
    yield from apply_moves([_moving(one, steering.writer) for one in verdicts], now)
    steering.may_cancel_children |= any(one.facts.flags & STEPS for one in verdicts)
    steering.hints |= {wakeups.ENDED, wakeups.READY}


def _ask_to_stop(verdicts: Sequence[JudgedJob], now: int, steering: Steering) -> Script[None]:
    yield from apply_moves(map(_moving, verdicts), now)
    steering.hints.add(wakeups.CANCEL)


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
    verdicts = [replace_fields(one, facts=with_keys(one.facts, changed)) for one in verdicts]
    requests = [_returning(v.facts, v.outcome, changed) for v in verdicts]
    asked = yield from ask(requests, [v.facts.n for v in verdicts])
    admitted = yield from _admitted(verdicts, asked, steering)
    if not admitted:
        return
    yield from set_keys({v.facts.n: changed[v.facts.n] for v in admitted if v.facts.n in changed})
    yield from _start_again(admitted)
    jobs = [_moving(one) for one in admitted]
    moves = [job.move._replace(old_payload=payloads.get(job.facts.n)) for job in jobs]
    yield from apply_moves([job._replace(move=move) for job, move in zip(jobs, moves, strict=True)], now)
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


def _admitted(verdicts: Sequence[JudgedJob], asked: Admission, steering: Steering) -> Script[list[JudgedJob]]:
    """The jobs that may come back: their keys are free, and so is a place under their concurrency policy."""
    yield from apply_admission(asked, cancel)
    admitted = []
    for one, decision in zip(verdicts, asked.decisions, strict=True):
        if isinstance(decision, Refuse):
            steering.refuse(one.facts, decision.error)
        if isinstance(decision, Admit):
            admitted.append(one)
    return admitted


def _returning(job: JobFacts, outcome: Outcome | None, changed: Mapping[int, ChangedJob]) -> Request:
    if new := changed.get(job.n):
        return returning(new.job, new.held)
    unique = () if job.dedupe_key is None else (UniqueKey(DEDUPE, job.dedupe_key),)
    replaces = outcome.may_replace if isinstance(outcome, Requeued) else True
    return Request(
        job.id, job.topic, unique, None, not job.flags & ONCE, job.limit, returning=True, may_replace=replaces
    )


def _reschedule(verdicts: Sequence[JudgedJob], now: int, steering: Steering) -> Script[None]:
    """Only named fields change: of two patches of different fields neither may undo the other."""
    yield from _take(verdicts)
    rows = [{"n": v.facts.n, "now": now, **(v.to.patch._asdict() if v.to.patch else {})} for v in verdicts]
    run_at = dict((yield "patch_jobs", rows))
    moves = []
    for one in verdicts:
        job, traits = _moving(one), traits_in(one.facts.flags)
        moves.append((job, rescheduled(job.move, one.attempt, run_at[one.facts.n], traits, now)))
    yield from apply(moves, now)
    steering.hints |= {wakeups.READY, wakeups.LATER}


def _delete(verdicts: Sequence[JudgedJob], now: int, steering: Steering) -> Script[None]:
    yield from _take(verdicts)
    yield from apply_moves(map(_moving, verdicts), now)
    steering.hints.add(wakeups.READY)
