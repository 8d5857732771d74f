"""Makes the children that a step waits for, each once, with the row of the step in the same transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from treadle.model.errors import Refused
from treadle.model.status import Status
from treadle.model.steps import STEP_ENDED, StepState
from treadle.policy.children import MAKE, TAKE, Choice, check_depth, choose, heard, how_it_ended, not_made
from treadle.policy.flow import StepChange
from treadle.store.sql.scripts.children import ended_row, write_of
from treadle.store.sql.scripts.common import JobFacts, Script, as_facts, numbers
from treadle.store.sql.scripts.insert import insert
from treadle.store.sql.scripts.steps import checkpoint, put_ended
from treadle.store.values import (
    Checkpoint,
    Inserted,
    MadeChild,
    MadeChildren,
    NewChild,
    NewChildren,
    NewJob,
    StepKey,
    StepWrite,
)


class _Had(NamedTuple):
    """What a run of a step knows of its child before this."""

    state: StepState
    child: str | None
    place: int = 0
    attempt: int = 0
    error: str | None = None
    error_type: str | None = None
    """None: a failure that was given up, so the next attempt makes another child."""

    @property
    def ended(self) -> bool:
        given_up = self.state is StepState.FAILED and self.error_type is None
        return self.state in STEP_ENDED and not given_up


class _State(NamedTuple):
    """How a job is."""

    topic: str
    status: Status | None
    """None: it lives."""
    result: str | None
    error: str | None
    cancel_reason: str | None


NOTHING_HAD = _Had(StepState.PENDING, None)


def make_children(lease: int, wanted: NewChildren) -> Script[MadeChildren | None]:
    """None: the job is lost."""
    if (yield from checkpoint(lease, [Checkpoint(wanted.n, wanted.token, wanted.ran_ms)])):
        return None
    parent = as_facts((yield "job_facts", numbers([wanted.n])))[0]
    return (yield from (_make_one(parent, wanted) if wanted.total is None else _make_many(parent, wanted)))


# -- one -------------------------------------------------------------------------------------------


def _make_one(parent: JobFacts, wanted: NewChildren) -> Script[MadeChildren]:
    [one] = wanted.children
    step = StepKey(wanted.step, one.key)
    rows = yield "lock_child_waits", [{"n": wanted.n, **step._asdict()}]
    had = {row[2]: _Had(StepState(row[6]), *row[3:6], *row[7:]) for row in rows}
    before = had.get(one.key, NOTHING_HAD)
    if before.ended:  # told again after a commit without an answer
        results = yield "step_results", [{"n": wanted.n, **step._asdict()}]
        result = results[0][2] if results else None
        return MadeChildren((MadeChild(before.state, before.child, result, before.error, before.attempt),))
    [(made, change)] = (yield from _made(parent, wanted, had)).values()
    now: int = (yield "clock", [])[0][0]
    write = StepWrite(*step, StepState.WAITING, wanted.place, made.attempt, started_ago_ms=0, child=made.child)
    if change is not None:
        write = write_of(step, wanted.place, change)._replace(started_ago_ms=0, child=made.child)
    yield from put_ended([(wanted.n, write)], now, ())
    return MadeChildren((made,))


# -- many ------------------------------------------------------------------------------------------


def _make_many(parent: JobFacts, wanted: NewChildren) -> Script[MadeChildren]:
    family = {"n": wanted.n, "name": wanted.step}
    now: int = (yield "clock", [])[0][0]
    known = yield "lock_families", [family]
    counted = known[0][3] if known and not wanted.restart else 0
    if wanted.restart or not known:
        yield from _restart(wanted, family, now)
    # Told again after a commit without an answer, some of them were counted.
    new = tuple(one for one in wanted.children if one.place >= counted)
    found = yield "find_children", [{**family, "key": one.key} for one in new]
    had = {row[0]: _Had(StepState(row[1]), row[2], row[3]) for row in found}
    made = yield from _made(parent, wanted._replace(children=new), had)
    rows = [_child_row(family, one, *made[one.key], now) for one in new if not _is_done(had.get(one.key))]
    if rows:
        yield "put_children", sorted(rows, key=lambda row: str(row["key"]))
    before = [one.state for one in had.values()]
    after = [child.state for child, _ in made.values()]
    change = {
        **family,
        "total": wanted.total,
        "made": len(new),
        "ended": before.count(StepState.WAITING) - after.count(StepState.WAITING),
        "failed": after.count(StepState.FAILED) - before.count(StepState.FAILED),
    }
    [(_, _, *counts)] = yield "count_families", [change]
    return MadeChildren(tuple(child for child, _ in made.values()), *counts)


def _restart(wanted: NewChildren, family: Mapping[str, Any], now: int) -> Script[None]:
    write = StepWrite(wanted.step, "", StepState.WAITING, wanted.place, 1, started_ago_ms=0)
    yield from put_ended([(wanted.n, write)], now, ())
    yield "reopen_children", [family]
    yield "restart_families", [family]


def _is_done(had: _Had | None) -> bool:
    return had is not None and had.state is StepState.COMPLETED


def _child_row(
    family: Mapping[str, Any], one: NewChild, made: MadeChild, change: StepChange | None, now: int
) -> dict[str, Any]:
    row = {**family, "key": one.key, "place": one.place, "child": made.child, "started_at": now, "state": made.state}
    return row | ended_row(change, now) if change else row


# -- both ------------------------------------------------------------------------------------------

_Made = dict[str, tuple[MadeChild, StepChange | None]]
"""By key: the child, and what has happened to it already; None: it is waited for, or ended before."""


def _made(parent: JobFacts, wanted: NewChildren, had: Mapping[str, _Had]) -> Script[_Made]:
    known = [one.child for one in had.values() if one.child is not None and one.state is not StepState.COMPLETED]
    rows = (yield "child_states", [{"id": id_} for id_ in sorted(known)]) if known else []
    states = {row[0]: _State(row[1], Status(row[2]) if row[2] else None, *row[3:]) for row in rows}
    made: _Made = {}
    new: list[NewChild] = []
    for one in wanted.children:
        before = had.get(one.key, NOTHING_HAD)
        if before.state is StepState.COMPLETED:
            made[one.key] = MadeChild(StepState.COMPLETED, before.child), None
            continue
        state = states.get(before.child or "")
        choice = choose(state is not None, _status_of(state))
        if choice is MAKE:
            new.append(one)
        made[one.key] = _kept(choice, before, state)
    if new:
        made |= yield from _new(parent, wanted, new, had)
    return made


def _status_of(state: _State | None) -> Status | None:
    """A job that lives has no outcome yet."""
    return None if state is None else state.status or Status.PROCESSING


def _kept(choice: Choice, before: _Had, state: _State | None) -> tuple[MadeChild, StepChange | None]:
    if choice is not TAKE or state is None or before.child is None:
        return MadeChild(StepState.WAITING, before.child, attempt=max(before.attempt, 1)), None
    end = how_it_ended(Status.COMPLETED, state.result, None, None)
    change = heard(end, state.topic, before.child, max(before.attempt, 1))
    return MadeChild(change.state, before.child, change.result, attempt=change.attempt), change


def _new(parent: JobFacts, wanted: NewChildren, children: Sequence[NewChild], had: Mapping[str, _Had]) -> Script[_Made]:
    check_depth((yield "awaited_depth", numbers([parent.n]))[0][0])
    rows = [{"parent": parent.id, "name": wanted.step, "key": one.key} for one in children]
    last = dict((yield "last_generations", rows))
    able = [one for one in children if one.refused is None]
    jobs = [_job(parent, one, last.get(one.key)) for one in able]
    answers = (yield from insert(jobs, atomic=False)) if jobs else []
    refused = {one.key: one.refused for one in children}
    for one, answer in zip(able, answers, strict=True):
        refused[one.key] = _refusal(answer)
    made: _Made = {}
    for one in children:
        attempt = had.get(one.key, NOTHING_HAD).attempt + 1
        problem = refused[one.key]
        if problem is None:
            made[one.key] = MadeChild(StepState.WAITING, one.job.id, attempt=attempt), None
        else:
            change = not_made(one.job.topic, problem, attempt)
            made[one.key] = MadeChild(change.state, None, error=change.error, attempt=attempt), change
    return made


def _job(parent: JobFacts, one: NewChild, generation: int | None) -> NewJob:
    given = one.job.given._replace(parent_id=parent.id, parent_generation=(generation or 0) + 1)
    return one.job._replace(given=given, priority=parent.priority if one.as_parent else one.job.priority)


def _refusal(answer: Inserted | Refused) -> str | None:
    if isinstance(answer, Refused):
        return answer.message
    if answer.existing_id is not None:
        return "a live job has the same dedupe keys"
    return None
