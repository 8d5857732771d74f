"""What the steps of jobs have done: written by their owner, answered from outside, taken up again by a requeue."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from treadle.model import events
from treadle.model.status import Status
from treadle.model.steps import LARGE_RESULT_BYTES, STEP_ENDED, StepState, shown_step
from treadle.policy.answers import (
    AnswerFacts,
    asks_again,
    ends_wait,
    forgets_answers,
    is_timeout,
    refuse_answer,
    step_ended,
)
from treadle.policy.children import keeps_children, still_waits
from treadle.policy.consequences import Waits
from treadle.policy.flow import Interrupted, Reply, StepChange, answered
from treadle.policy.history import end_of, step_metadata
from treadle.policy.lifecycle import Answered, Requeued, RowState, WaitOver, decide
from treadle.store.sql.scripts.common import LOOKS, JobFacts, Script, as_facts, event_row, not_found, numbers
from treadle.store.values import Answer, Checkpoint, ClaimedStep, NewJob, Refusal, StepKey, StepWrite, Touch

NO_STARTS: Mapping[int, int | None] = {}


def _names(steps: tuple[str, ...] | None) -> str | None:
    return None if steps is None else to_json(steps).decode()


# -- by their owner --------------------------------------------------------------------------------


def add_declared(jobs: Sequence[NewJob], ns: Sequence[int]) -> Script[None]:
    rows = [
        {"n": n, "name": step.name, "place": place, "title": step.title, "comes_after": _names(step.after)}
        for job, n in zip(jobs, ns, strict=True)
        for place, step in enumerate(job.steps)
    ]
    if rows:
        yield "add_steps", rows


def checkpoint(lease: int, checkpoints: Sequence[Checkpoint]) -> Script[list[tuple[int, int]]]:
    """Under one lease, each job once; the lost ones. Nothing is written for a job that its owner has lost."""
    rows = [
        Touch(one.n, one.token, one.ran_ms, one.progress, one.message, one.grace_ms)._asdict() | {"lease": lease}
        for one in checkpoints
    ]
    touched = yield "touch_running", rows
    mine = {(row[0], row[1]) for row in touched}
    kept = [one for one in checkpoints if (one.n, one.token) in mine]
    if new := [one.n for one in kept if not one.flagged]:
        yield "flag_steps", numbers(new)
    yield from _refuse_timeouts([(one.n, step) for one in kept for step in one.steps])
    if touched:
        starts, now = {row[0]: row[2] for row in touched}, max(row[3] for row in touched)
        yield from write_steps([(one.n, step) for one in kept for step in one.steps], now, starts)
        yield from use_answers([(one.n, answer) for one in kept for answer in one.consumed])
    return [(one.n, one.token) for one in checkpoints if (one.n, one.token) not in mine]


def _refuse_timeouts(steps: Sequence[tuple[int, StepWrite]]) -> Script[None]:
    """An answer was accepted after the worker had looked. Its job is locked, so none can arrive after this."""
    rows = [{"n": n, "name": one.name, "key": one.key} for n, one in steps if is_timeout(one.state, one.error_type)]
    for _, name, key in (yield "kept_answers", rows) if rows else []:
        raise step_ended(name, key)


def write_steps(
    writes: Iterable[tuple[int, StepWrite]], now: int, starts: Mapping[int, int | None] = NO_STARTS
) -> Script[None]:
    """The newest news of each step, with the results that are stored separately and the events of completed steps.

    `starts`: when the jobs began, which is never later than their steps.
    """
    newest = {(n, step.name, step.key): step for n, step in writes}
    if not newest:
        return
    yield from _put_steps([(n, step) for (n, _, _), step in newest.items()], now, starts)
    if told := [_step_event(n, step, now) for (n, _, _), step in newest.items() if step.told]:
        yield "add_events", told


def _put_steps(
    steps: Sequence[tuple[int, StepWrite]], now: int, starts: Mapping[int, int | None] = NO_STARTS
) -> Script[None]:
    yield "put_steps", [step_row(n, step, now, starts.get(n)) for n, step in steps]
    if large := [(n, step) for n, step in steps if _is_large(step)]:
        yield "put_step_results", [_result_row(n, step) for n, step in large]


def use_answers(used: Sequence[tuple[int, StepKey]]) -> Script[None]:
    if used:
        yield "drop_answers", [{"n": n, "name": step.name, "key": step.key} for n, step in used]


def _step_event(
    n: int, step: StepWrite, now: int, move: tuple[Status, Status] | None = None, answered_by: str | None = None
) -> dict[str, Any]:
    """`move`: what became of its job in the same transaction."""
    source, to = move or (None, None)
    metadata = step_metadata(step.name, step.key, step.attempt, step.started_ago_ms, answered_by)
    return event_row(n, events.STEP_COMPLETED, source, to, shown_step(step.name, step.key), metadata, now)


def _result_row(n: int, step: StepWrite) -> dict[str, Any]:
    return {"n": n, "name": step.name, "key": step.key, "result": step.result}


def _is_large(step: StepWrite) -> bool:
    return (step.result_size or 0) > LARGE_RESULT_BYTES


def step_row(n: int, step: StepWrite, now: int, job_started_at: int | None = None) -> dict[str, Any]:
    return {
        "n": n,
        "name": step.name,
        "key": step.key,
        "place": step.place,
        "state": step.state,
        "attempt": step.attempt,
        "progress": step.progress,
        "message": step.message,
        "started_at": None if step.started_ago_ms is None else max(now - step.started_ago_ms, job_started_at or 0),
        "ended_at": now if step.state in STEP_ENDED else None,
        "ran_ms": step.ran_ms,
        "until": None if step.until_ms is None else now + step.until_ms,
        "error": None if step.error is None else end_of(step.error),
        "error_type": step.error_type,
        "result": None if _is_large(step) else step.result,
        "result_size": step.result_size,
        "input_hash": step.input_hash,
        "title": step.title,
        "schema": step.schema,
        "item": step.item,
        "child": step.child,
    }


# -- when their job moves --------------------------------------------------------------------------


def interrupt(steps: Iterable[tuple[int, Interrupted]], now: int) -> Script[None]:
    """Steps of jobs that ended an attempt inside a step, or that will not go on."""
    alike: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for n, one in steps:
        row = one._asdict() | {"n": n, "ended_at": now if one.state in STEP_ENDED else None}
        alike.setdefault((one.was, one.state), []).append(row)
    for rows in alike.values():
        yield "interrupt_steps", rows


def park(waits: Mapping[int, Waits], now: int) -> Script[None]:
    """Set jobs aside until they are answered. One that has its answer already comes back in the same transaction."""
    yield "place_parked", [{"n": n, "attempt": one.attempt, "wake_at": one.at} for n, one in waits.items()]
    found = yield "early_answers", numbers(waits)
    for n, name, key, place, attempt, result, error, by in found:
        yield from _end_wait(n, StepKey(name, key), place, answered(Reply(result, error), attempt), by, now)
    yield from wake({row[0] for row in found}, Answered())


def wake(ns: Collection[int], outcome: Answered | WaitOver) -> Script[int]:
    """Parked jobs go back to the queue, at their old place."""
    taken = (yield "take_parked", numbers(ns)) if ns else []
    return (yield from woken(taken, outcome))


def woken(taken: Sequence[tuple[int, int]], outcome: Answered | WaitOver) -> Script[int]:
    """Nothing else follows: what its attempt had and held was settled when the job was parked."""
    if taken:
        rows = [
            {"n": n, "attempt": decide(RowState(Status.WAITING, attempt, attempt + 1), outcome).attempt}
            for n, attempt in sorted(taken)
        ]
        yield "place_ready", rows
    return len(taken)


# -- by an answer ----------------------------------------------------------------------------------


class _Found(NamedTuple):
    """A step that is to be answered."""

    state: StepState
    place: int
    attempt: int
    waits: bool
    """It takes answers."""
    timed_out: int
    """No answer came in time, and the job has failed because of it."""
    awaits_child: int


class Answering(NamedTuple):
    refusals: dict[int, Refusal]
    """By the answer's place in the batch."""
    woken: int


def answer(answers: Sequence[Answer]) -> Script[Answering]:
    """The first answer of a step counts. A job that waits for it goes on in the same transaction."""
    facts = {f.id: f for f in as_facts((yield "find_jobs", [{"id": id_} for id_ in sorted({a.id for a in answers})]))}
    refusals = {i: not_found(one.id) for i, one in enumerate(answers) if one.id not in facts}
    places = yield from _lock({f.n for f in facts.values()})
    now: int = (yield "clock", [])[0][0]
    count = 0
    for i, one in enumerate(answers):
        if one.id not in facts:
            continue
        job = facts[one.id]
        error, moved = yield from _answer(one, job, places.get(job.n), now)
        if error is not None:
            refusals[i] = Refusal(one.id, error)
        count += moved
    return Answering(refusals, count)


def _lock(ns: Collection[int]) -> Script[dict[int, str]]:
    """Lock the jobs where they are; one that moves at this moment may be in no place, and is looked for again."""
    found: dict[int, str] = {}
    left = set(ns)
    for _ in range(LOOKS):
        for place in ("ready", "later", "held", "running", "parked"):
            rows = (yield f"lock_{place}", numbers(left)) if left else []
            found |= dict.fromkeys((row[0] for row in rows), place)
            left -= found.keys()
        ended = {row[0] for row in (yield "find_outcomes", numbers(left))} if left else set()
        found |= dict.fromkeys(ended, "ended")
        left -= ended
        if not left:
            break
    return found


def _answer(one: Answer, job: JobFacts, place: str | None, now: int) -> Script[tuple[Exception | None, int]]:
    """Why it is refused, if it is, and how many jobs it woke."""
    rows = yield "lock_steps", [{"n": job.n, "name": one.step, "key": one.key}]
    found = _Found(StepState(rows[0][3]), *rows[0][4:]) if rows else None
    known = AnswerFacts(place not in (None, "ended"), unannounced=one.unannounced)
    if found:
        known = known._replace(state=found.state, waits=found.waits, timed_out=bool(found.timed_out))
        known = known._replace(awaits_child=bool(found.awaits_child))
    elif one.unannounced:
        known = known._replace(names=(yield "count_names", [{"n": job.n, "name": one.step}])[0][0])
    refused = refuse_answer(one.id, one.step, one.key, known)
    if refused is not None:
        return refused, 0
    row = {"n": job.n, "name": one.step, "key": one.key, "created_at": now}
    kept = yield "add_answers", [row | {"answered_by": one.answered_by, "error": one.error, "result": one.result}]
    if not kept:
        return step_ended(one.step, one.key), 0
    if found is not None and ends_wait(found.state, place == "running"):
        change = answered(Reply(one.result, one.error), found.attempt)
        yield from _end_wait(job.n, StepKey(one.step, one.key), found.place, change, one.answered_by, now)
        return None, (yield from wake({job.n}, Answered()))
    yield "flag_steps", numbers([job.n])
    yield "flag_ready", numbers([job.n])
    return None, 0


def put_ended(steps: Sequence[tuple[int, StepWrite]], now: int, parked: Collection[int]) -> Script[None]:
    """Steps whose wait has ended; the jobs in `parked` go on because of it."""
    yield from _put_steps(steps, now)
    moves = dict.fromkeys(parked, (Status.WAITING, Status.PENDING))
    if told := [_step_event(n, step, now, moves.get(n)) for n, step in steps if step.told]:
        yield "add_events", told


def _end_wait(n: int, step: StepKey, place: int, change: StepChange, answered_by: str | None, now: int) -> Script[None]:
    ended = StepWrite(
        *step,
        change.state,
        place,
        change.attempt,
        error=change.error,
        error_type=change.error_type,
        result=change.result,
    )
    yield from _put_steps([(n, ended)], now)
    if ended.told:
        yield "add_events", [_step_event(n, ended, now, (Status.WAITING, Status.PENDING), answered_by)]
    yield from use_answers([(n, step)])


# -- by a requeue ----------------------------------------------------------------------------------


def steps_of(ns: Collection[int]) -> Script[dict[int, tuple[ClaimedStep, ...]]]:
    found: dict[int, list[ClaimedStep]] = {}
    for n, name, key, place, state, attempt, declared, after, child, left in (
        (yield "find_steps", numbers(ns)) if ns else []
    ):
        step = ClaimedStep(name, key, place, StepState(state), attempt)
        before = None if after is None else tuple(from_json(after))
        found.setdefault(n, []).append(step._replace(declared=bool(declared), after=before, child=child, left=left))
    return {n: tuple(steps) for n, steps in found.items()}


def _repeat_children(
    steps: Mapping[int, Sequence[ClaimedStep]], requeued: Mapping[int, Requeued]
) -> Script[Mapping[int, Sequence[ClaimedStep]]]:
    """Steps that wait for children, or have waited, keep them or begin anew; returns the other steps."""
    others: dict[int, list[ClaimedStep]] = {}
    detached, forgotten = [], []
    for n, some in steps.items():
        keeps = keeps_children(requeued[n])
        for step in some:
            if keeps and still_waits(step.state, step.child is not None or bool(step.left)):
                continue
            if keeps and step.child is not None:
                detached.append({"n": n, "name": step.name, "key": step.key})
                continue
            others.setdefault(n, []).append(step)
            if not keeps and step.left is not None:
                forgotten.append({"n": n, "name": step.name})
    if detached:
        yield "detach_steps", detached
    if forgotten:
        yield "forget_children", forgotten
    return others


def run_again(steps: Mapping[int, Sequence[ClaimedStep]], requeued: Mapping[int, Requeued]) -> Script[None]:
    """Declared steps are pending again; steps that a handler makes are forgotten."""
    steps = yield from _repeat_children(steps, requeued)
    rows = [{"n": n, "name": step.name, "key": step.key} for n, some in steps.items() for step in some]
    if rows:
        for query in ("forget_step_results", "reset_steps", "forget_steps"):
            yield query, rows
    asked = [(n, StepKey(step.name, step.key)) for n, some in steps.items() for step in asks_again(some, requeued[n])]
    yield from use_answers(asked)
    if anew := [n for n, one in requeued.items() if forgets_answers(one)]:
        yield "drop_all_answers", numbers(anew)
