"""Children that steps wait for: told to the parent when they end, looked at again when it parks or is requeued.

Two transactions may meet: one ends a child, one parks its parent. Both lock the row of the step. The one that ends the
child then looks whether the parent is parked, and the one that parks looks whether the child has ended. Whichever comes
second sees the other, so the parent goes on once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from treadle.model.steps import StepState
from treadle.policy.children import ChildEnd, heard
from treadle.policy.flow import StepChange
from treadle.policy.lifecycle import Answered
from treadle.store.sql.scripts.common import JobFacts, Script, numbers
from treadle.store.sql.scripts.steps import put_ended, wake
from treadle.store.values import StepKey, StepWrite


class _Heard(NamedTuple):
    """The end of a child, for one step of its parent."""

    n: int
    """The parent."""
    step: StepKey
    child: str
    topic: str
    end: ChildEnd

    def change(self, attempt: int) -> StepChange:
        return heard(self.end, self.topic, self.child, attempt)


def _heard(parent: int, job: JobFacts, end: ChildEnd) -> _Heard:
    return _Heard(parent, StepKey(job.parent_step or "", job.parent_key or ""), job.id, job.topic, end)


def tell_parents(ended: Iterable[tuple[JobFacts, ChildEnd]], now: int) -> Script[None]:
    """End the waits of their parents' steps, and let parked parents go on that wait for nothing more of a step."""
    ended = list(ended)
    ids = sorted({facts.parent_id for facts, _ in ended if facts.parent_id})
    parents = dict((yield "job_numbers", [{"id": id_} for id_ in ids]))
    told = [_heard(parents[facts.parent_id], facts, end) for facts, end in ended if facts.parent_id in parents]
    if not told:
        return
    # Places before steps, as everywhere.
    parked = {row[0] for row in (yield "lock_parked", numbers({one.n for one in told}))}
    alone, others = yield from _end_waits(told, parked, now)
    together = yield from _end_families(others, now)
    yield from wake(alone | together, Answered())


def _end_waits(told: Sequence[_Heard], parked: set[int], now: int) -> Script[tuple[set[int], list[_Heard]]]:
    """Of steps that wait for one child: the parents that may go on. And what was told to no such step."""
    rows = sorted((one.n, *one.step) for one in told)
    locked = yield "lock_child_waits", [{"n": n, "name": name, "key": key} for n, name, key in rows]
    waits = {(n, name, key): rest for n, name, key, *rest in locked}
    ended: list[tuple[int, StepWrite]] = []
    others = []
    for one in told:
        child, place, attempt, state, *_ = waits.get((one.n, *one.step), (None, 0, 0, None))
        if child is None:
            others.append(one)
        elif child == one.child and state == StepState.WAITING:
            ended.append((one.n, write_of(one.step, place, one.change(attempt))))
    if ended:
        yield from put_ended(ended, now, parked)
    return {n for n, _ in ended}, others


def _end_families(told: Sequence[_Heard], now: int) -> Script[set[int]]:
    """Of steps that wait for many: the parents whose step waits for none of them any more."""
    if not told:
        return set()
    named = sorted({(one.n, one.step.name) for one in told})
    waiting = {
        (n, name)
        for n, name, state, *_ in (yield "lock_families", [{"n": n, "name": name} for n, name in named])
        if state == StepState.WAITING
    }
    rows = [_row(one, now) for one in told if (one.n, one.step.name) in waiting]
    ended = (yield "end_children", sorted(rows, key=_identity)) if rows else []
    if not ended:
        return set()
    counts = Counter((n, name) for n, name, _ in ended)
    failed = Counter((n, name) for n, name, state in ended if state == StepState.FAILED)
    changes = [
        {"n": n, "name": name, "made": 0, "ended": count, "failed": failed[n, name]}
        for (n, name), count in sorted(counts.items())
    ]
    return {n for n, _, _, left, _ in (yield "count_families", changes) if left == 0}


def _row(one: _Heard, now: int) -> dict[str, Any]:
    return {"n": one.n, **one.step._asdict(), "child": one.child, **ended_row(one.change(1), now)}


def ended_row(change: StepChange, now: int) -> dict[str, Any]:
    """The columns of a child that has ended."""
    size = None if change.result is None else len(change.result.encode())
    return {
        "state": change.state,
        "ended_at": now,
        "result_size": size,
        "error": change.error,
        "result": change.result,
    }


def _identity(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["n"], row["name"], row["key"]


def write_of(step: StepKey, place: int, change: StepChange) -> StepWrite:
    return StepWrite(
        *step,
        change.state,
        place,
        change.attempt,
        error=change.error,
        error_type=change.error_type,
        result=change.result,
    )


def look_again(awaits: Mapping[int, Sequence[StepKey]]) -> Script[None]:
    """Jobs that were just parked: a child may have ended since their worker has read their steps."""
    rows = [{"n": n, **step._asdict()} for n, steps in sorted(awaits.items()) for step in sorted(steps)]
    found = yield "look_again", rows
    over = {n for n, state, left in found if state != StepState.WAITING or left == 0}
    yield from wake(over, Answered())
