"""What people ask for: cancel, requeue, release, reschedule, delete."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from treadle.errors import NotCancelable, NotRepeatable, TreadleError, WrongState
from treadle.lifecycle import CancelRequested, Released, Requeued, Status, decide, wrong_state
from treadle.store.base import DEDUPE, EXPIRES, ONCE, NewJob, Refusal, RowState
from treadle.store.scripts.common import LOOKS, Facts, Move, Script, as_facts, not_found, numbers
from treadle.store.scripts.ended import Ended, erase
from treadle.store.scripts.gates import enter_gates, gate_rows, leave_gates
from treadle.store.scripts.lanes import lane_of, register_lanes
from treadle.store.scripts.moving import (
    end_attempts,
    moved_event_row,
    pending_move,
    relocate,
    take_pending,
    take_pending_wherever,
)


def cancel(ids: Sequence[str], reason: str, uncancelable: Collection[str]) -> Script[dict[str, Refusal | None]]:
    """Cancel what is pending, ask what runs to stop. None: done (or asked before)."""
    answers: dict[str, Refusal | None] = {id_: not_found(id_) for id_ in ids}
    facts = {f.n: f for f in as_facts((yield "find_jobs", [{"id": id_} for id_ in ids]))}
    left = set(facts)
    for _ in range(LOOKS):
        now: int = (yield "clock", [])[0][0]
        taken, left = yield from take_pending(left)
        moves = [pending_move(facts[n], a, ready, CancelRequested(reason)) for n, a, ready in taken]
        yield from relocate(moves, now)
        answers |= {facts[n].id: None for n, _, _ in taken}
        left -= yield from _ask_to_stop(facts, left, reason, uncancelable, answers, now)
        left -= yield from _refuse_ended(facts, left, "cancel", answers)
        if not left:
            break
        # Found nowhere: it moved between two of the looks.
    return answers


def _ask_to_stop(
    facts: Mapping[int, Facts],
    ns: Collection[int],
    reason: str,
    uncancelable: Collection[str],
    answers: dict[str, Refusal | None],
    now: int,
) -> Script[set[int]]:
    fixed = [n for n in ns if facts[n].topic in uncancelable]
    found: set[int] = set()
    if fixed:
        for n, _, _ in (yield "find_running", numbers(fixed)):
            found.add(n)
            answers[facts[n].id] = Refusal(
                facts[n].id,
                NotCancelable(f"{facts[n].topic} does not support cancelling a running job", status="processing"),
            )
    soft = [n for n in ns if n not in fixed]
    if soft:
        marked = yield "mark_cancel", [{"n": n, "reason": reason} for n in sorted(soft)]
        moves = []
        for n, attempt in marked:
            state = RowState(Status.PROCESSING, attempt, facts[n].max_attempts)
            moves.append(Move(facts[n], Status.PROCESSING, decide(state, CancelRequested(reason))))
        if moves:
            yield "add_events", [moved_event_row(move, now) for move in moves]
        found |= {row[0] for row in (yield "find_running", numbers(soft))}
        answers |= {facts[n].id: None for n in found if n in soft}
    return found


def _refuse_ended(
    facts: Mapping[int, Facts], ns: Collection[int], action: str, answers: dict[str, Refusal | None]
) -> Script[set[int]]:
    if not ns:
        return set()
    ended = {row[0]: row[1] for row in (yield "find_outcomes", numbers(ns))}
    for n, status in ended.items():
        answers[facts[n].id] = Refusal(facts[n].id, wrong_state(Status(status), action))
    return set(ended)


def requeue(ids: Sequence[str], force: bool, stale_after_ms: int) -> Script[dict[str, Refusal | None]]:
    answers: dict[str, Refusal | None] = {id_: not_found(id_) for id_ in ids}
    now: int = (yield "clock", [])[0][0]
    facts = {f.n: f for f in as_facts((yield "find_jobs", [{"id": id_} for id_ in ids]))}
    for job in facts.values():
        answers[job.id] = Refusal(job.id, WrongState("the job has not ended: requeue is not possible", status="live"))
    ended = [Ended(*row) for row in (yield "find_outcomes", numbers(facts))] if facts else []
    moves: list[Move] = []
    for one in ended:
        job = facts[one.n]
        stale = one.ended_at + stale_after_ms <= now
        state = RowState(Status(one.status), one.attempt, job.max_attempts)
        try:
            transition = decide(state, Requeued(force, stale))
            yield from _retake_dedupe(job)
        except TreadleError as error:
            answers[job.id] = Refusal(job.id, error)
            continue
        answers[job.id] = None
        moves.append(Move(job, state.status, transition, metadata=_history(one)))
    if moves:
        ns = [move.facts.n for move in moves]
        yield "drop_outcomes", numbers(ns)
        yield "drop_notes", numbers(ns)  # the failures before this ending are history like the ending itself
        yield "add_tally", [one.undone() for one in ended if one.n in ns]
        yield "set_run_at", [{"n": n, "run_at": now} for n in sorted(ns)]
        if expiring := [move.facts.n for move in moves if move.facts.flags & EXPIRES]:
            yield "clear_deadline", numbers(expiring)
        if gated := [move.facts for move in moves if move.facts.gate]:
            yield "add_members", [{"gate": job.gate, "n": job.n} for job in gated]
            yield from _ensure_gates(gated)
        yield from relocate(moves, now)
    return answers


def _ensure_gates(jobs: Sequence[Facts]) -> Script[None]:
    """An empty gate may have been tidied away; its limit was 1 unless the next enqueue says otherwise."""
    wanted = {job.gate for job in jobs if job.gate}
    known = {row[0] for row in (yield "relock_gates", gate_rows(wanted))}
    if missing := sorted(wanted - known):
        yield "lock_gates", [{"gate": gate, "max": 1} for gate in missing]


def _history(one: Ended) -> dict[str, Any]:
    """The old outcome, kept in the history."""
    outcome = {
        "status": one.status,
        "attempt": one.attempt,
        "endedAt": one.ended_at,
        "startedAt": one.started_at,
        "result": one.result,
        "error": one.error,
        "errorType": one.error_type,
    }
    return {"outcome": outcome}


def _retake_dedupe(job: Facts) -> Script[None]:
    if job.flags & DEDUPE and job.dedupe_key is not None:
        rows = [{"kind": "dedupe", "key": job.dedupe_key, "n": job.n, "hash": None}]
        if not (yield "take_keys", rows):
            raise WrongState("another live job has the same dedupe keys: requeue is not possible", status="ended")
        if job.flags & ONCE:
            yield from _refuse_completed_twin(job)
        yield "drop_keys", [{"n": job.n, "kind": "once"}]


def _refuse_completed_twin(job: Facts) -> Script[None]:
    """Looked for after its dedupe key was taken: a twin may complete while we wait for that."""
    for _, _, _, other in (yield "find_keys", [{"kind": "once", "key": job.dedupe_key}]):
        if other != job.id:
            yield "drop_keys", [{"n": job.n, "kind": "dedupe"}]
            raise NotRepeatable(
                f"{job.topic} is not repeatable and job {other} has completed for the same keys", jobId=other
            )


def release(ids: Sequence[str]) -> Script[dict[str, Refusal | None]]:
    answers: dict[str, Refusal | None] = {id_: not_found(id_) for id_ in ids}
    facts = as_facts((yield "find_jobs", [{"id": id_} for id_ in ids]))
    for job in facts:
        answers[job.id] = Refusal(job.id, WrongState("the job is not running: release is not possible", status=""))
    if facts:
        moved = yield from end_attempts(
            "take_running_by_number", numbers(job.n for job in facts), lambda _: Released("released by hand")
        )
        answers |= {one.id: None for one in moved}
    return answers


def reschedule(id_: str, run_at: int | None, priority: int | None, max_attempts: int | None) -> Script[Refusal | None]:
    found = as_facts((yield "find_jobs", [{"id": id_}]))
    if not found:
        return not_found(id_)
    job = found[0]
    now: int = (yield "clock", [])[0][0]
    taken, _ = yield from take_pending_wherever([job.n])
    if not taken:
        return Refusal(id_, WrongState("the job is not pending: it can't be changed", status=""))
    _, attempt, in_gate = taken[0]
    allowed = job.max_attempts if max_attempts is None else max(max_attempts, attempt + 1)
    when = job.run_at if run_at is None else run_at
    lane = job.lane
    if priority is not None and priority != job.priority:
        wanted = NewJob(job.id, job.topic, "", priority, job.capability)
        lane = (yield from register_lanes([wanted]))[lane_of(wanted)]
    yield "move_job", [{"n": job.n, "lane": lane, "run_at": when, "max_attempts": allowed}]
    if when > now:
        yield "place_later", [{"n": job.n, "attempt": attempt}]
        if job.gate and in_gate:
            yield from leave_gates([job.gate])
    elif job.gate and not in_gate:
        yield from enter_gates([(job.gate, job.n, attempt)])
    else:
        yield "place_ready", [{"n": job.n, "attempt": attempt}]
    return None


def delete(ids: Sequence[str], force: bool) -> Script[dict[str, Refusal | None]]:
    answers: dict[str, Refusal | None] = {id_: not_found(id_) for id_ in ids}
    facts = {f.n: f for f in as_facts((yield "find_jobs", [{"id": id_} for id_ in ids]))}
    for job in facts.values():
        answers[job.id] = Refusal(job.id, wrong_state(Status.PROCESSING, "delete"))
    if not facts:
        return answers
    taken, left = yield from take_pending_wherever(facts)
    gone = [n for n, _, _ in taken]
    ended = [Ended(*row) for row in (yield "find_outcomes", numbers(left))] if left else []
    for one in ended:
        if one.status == Status.COMPLETED and not force:
            answers[facts[one.n].id] = Refusal(facts[one.n].id, wrong_state(Status.COMPLETED, "delete"))
    ended = [one for one in ended if one.status != Status.COMPLETED or force]
    if ended:
        yield "drop_outcomes", numbers(one.n for one in ended)
        yield "add_tally", [one.undone() for one in ended]
    gone += [one.n for one in ended]
    yield from erase(gone)
    if gated := [facts[n] for n in gone if facts[n].gate]:
        yield "drop_members", [{"gate": job.gate, "n": job.n} for job in gated]
        yield from leave_gates(facts[n].gate or "" for n, _, ready in taken if ready and facts[n].gate)
    answers |= {facts[n].id: None for n in gone}
    return answers
