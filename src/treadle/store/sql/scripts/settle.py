"""Reports of an owner: endings with their effects, a lease for each job, claims that were never answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treadle.model.errors import LeaseLost
from treadle.policy.consequences import Move
from treadle.policy.lifecycle import Released
from treadle.store.sql.rows import STEPS
from treadle.store.sql.scripts.applier import apply_moves
from treadle.store.sql.scripts.children import look_again
from treadle.store.sql.scripts.common import (
    JobFacts,
    LeaseOwner,
    MovingJob,
    Script,
    TakenAttempt,
    as_facts,
    event_row,
    numbers,
)
from treadle.store.sql.scripts.insert import insert
from treadle.store.sql.scripts.moves import attempts, end_attempts
from treadle.store.sql.scripts.output import keep_output
from treadle.store.sql.scripts.steps import use_answers, write_steps
from treadle.store.sql.scripts.times import times_of
from treadle.store.values import Claimed, Settlement


def settle(settlements: Sequence[Settlement]) -> Script[list[Settlement]]:
    """Any endings under one lease; returns the lost ones."""
    lease = settlements[0].job.lease
    held = yield "keep_lease", [{"lease": lease}]
    if not held:
        return (yield from _lost(settlements))
    _, now, *worker = held[0]
    facts = {f.n: f for f in as_facts((yield "job_facts", numbers({one.job.n for one in settlements})))}
    keys = [{"n": one.job.n, "token": one.job.token, "lease": lease} for one in settlements]
    taken = {row[0]: TakenAttempt._make(row) for row in (yield "take_running", keys)}
    # Read before a cancel's lock was waited for: what is committed later is told later.
    now = max(now, *(attempt.cancel_at or 0 for attempt in taken.values())) if taken else now
    lost = yield from _lost([one for one in settlements if one.job.n not in taken])
    kept = [one for one in settlements if one.job.n in taken]
    if kept:
        owner = LeaseOwner(*worker)
        yield from _end([(one, _ended(one, taken[one.job.n], facts, owner, now)) for one in kept], now, lease)
    return lost


def _lost(settlements: Sequence[Settlement]) -> Script[list[Settlement]]:
    """Jobs that their owner has no more, but for those that an earlier call has settled, whose answer was lost."""
    if not settlements:
        return []
    ended = dict((yield "settled_by", [{"n": one.job.n, "token": one.job.token} for one in settlements]))
    return [one for one in settlements if not one.transition.may_end_as(ended.get(one.job.n))]


def _end(ended: Sequence[tuple[Settlement, MovingJob]], now: int, lease: int) -> Script[None]:
    # Effects come only with the ending that the owner reported, not with a cancel that it does not know of.
    as_reported = [one for one, job in ended if job.move.transition is one.transition]
    if any(one.effects for one, _ in ended):
        yield from _tell(as_reported, now)
        yield from _keep_steps(ended, now)
    yield from apply_moves([job for _, job in ended], now)
    if awaits := {job.facts.n: one.effects.awaits for one, job in ended if one.effects and one.effects.awaits}:
        yield from look_again(awaits)
    if times := times_of(as_reported, now, lease):
        yield "add_times", times
    yield from _follow_up(as_reported)


def _ended(
    one: Settlement, attempt: TakenAttempt, facts: Mapping[int, JobFacts], owner: LeaseOwner, now: int
) -> MovingJob:
    transition = one.transition.given(attempt.cancel_at is not None)
    if one.ran_ms is not None:
        attempt = attempt._replace(started_at=attempt.started_at or now - one.ran_ms)
    move = Move(attempt.status, transition, attempt, owner.name)
    return MovingJob(_with_steps(one, facts), move, attempt.token, owner.id, one.job.lease)


def _keep_steps(ended: Sequence[tuple[Settlement, MovingJob]], now: int) -> Script[None]:
    """Also for attempts that a cancel ends: what a step has done stays done."""
    effects = [(one.job, one.effects) for one, _ in ended if one.effects]
    if new := [job.n for job, some in effects if some.steps and not job.flags & STEPS]:
        yield "flag_steps", numbers(new)
    starts = {job.facts.n: job.move.attempt.started_at for _, job in ended if job.move.attempt}
    yield from write_steps([(job.n, step) for job, some in effects for step in some.steps], now, starts)
    yield from use_answers([(job.n, answer) for job, some in effects for answer in some.consumed])
    yield from keep_output({job.n: some.output for job, some in effects if some.output}, now)


def _tell(settlements: Sequence[Settlement], now: int) -> Script[None]:
    rows = [
        event_row(one.job.n, event.type, None, None, event.message, event.metadata, now)
        for one in settlements
        for event in (one.effects.events if one.effects else ())
    ]
    if rows:
        yield "add_events", rows


def _follow_up(settlements: Sequence[Settlement]) -> Script[None]:
    """Raises the refusal of any of the jobs, which undoes the transaction."""
    jobs = [job for one in settlements if one.effects for job in one.effects.jobs]
    if jobs:
        yield from insert(jobs, atomic=True)


def _with_steps(one: Settlement, facts: Mapping[int, JobFacts]) -> JobFacts:
    """Its facts, with the flag of the steps that this settlement brings."""
    job = facts[one.job.n]
    return job._replace(flags=job.flags | STEPS) if one.effects and one.effects.steps else job


def split_lease(lease: int, jobs: Sequence[Claimed], lease_ms: int) -> Script[list[int]]:
    if not (yield "keep_lease", [{"lease": lease}]):
        raise LeaseLost("the lease has run out")
    copies = [row[0] for row in (yield "copy_leases", [{"lease": lease, "ms": lease_ms} for _ in jobs])]
    yield (
        "move_to_leases",
        [{"n": job.n, "token": job.token, "old": lease, "lease": copy} for job, copy in zip(jobs, copies, strict=True)],
    )
    return copies


def release_unknown(lease: int, tokens: Sequence[int]) -> Script[int]:
    taken = yield from attempts("take_unknown", [{"lease": lease, "token": token} for token in (0, *tokens)])
    return len((yield from end_attempts(taken, lambda _: Released("the claim's answer was lost"))))
