"""What workers report, made ready for statements that take each job once, and the hints that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from treadle.model.errors import Refused
from treadle.model.status import Status
from treadle.model.steps import LARGE_RESULT_BYTES
from treadle.policy.answers import is_timeout
from treadle.policy.judgement import follow_up_refused
from treadle.policy.lifecycle import decide
from treadle.store import wakeups
from treadle.store.values import HAS_STEPS, Checkpoint, Effects, Settlement, StepWrite, Touch

Report = TypeVar("Report", Touch, Checkpoint)


def has_only_steps(effects: Effects) -> bool:
    """Whether its effects need no table but that of the steps."""
    return not (effects.jobs or effects.events or effects.consumed or effects.output) and all(
        map(_is_small, effects.steps)
    )


def may_be_refused(one: Settlement) -> bool:
    return one.effects is not None and bool(one.effects.jobs)


def without_follow_ups(one: Settlement, refusal: Refused) -> Settlement:
    """What is settled instead if one of its follow-up jobs is refused: a failure, without its other effects but the
    steps that were done."""
    effects = one.effects and one.effects._replace(jobs=(), events=())
    return one._replace(transition=decide(one.job, follow_up_refused(refusal.message)), effects=effects)


def by_lease(settlements: Sequence[Settlement]) -> list[tuple[int, Sequence[Settlement]]]:
    leases = sorted({one.job.lease for one in settlements})
    if len(leases) == 1:
        return [(leases[0], settlements)]
    return [(lease, [one for one in settlements if one.job.lease == lease]) for lease in leases]


def only_newest(settlements: Sequence[Settlement]) -> tuple[list[Settlement], list[Settlement]]:
    """A worker may report two claims of one job together, if it lost the job and got it again: only the newest can be
    live."""
    tokens: dict[int, int] = {}
    for one in settlements:
        tokens[one.job.n] = max(one.job.token, tokens.get(one.job.n, 0))
    newest = [one for one in settlements if one.job.token == tokens[one.job.n]]
    return newest, [one for one in settlements if one.job.token < tokens[one.job.n]]


def once_per_job(reports: Sequence[Report]) -> list[Report]:
    """The newest claim of each job, several of its reports as one: a statement gets each job once."""
    newest: dict[int, Report] = {}
    for one in reports:
        known = newest.get(one.n)
        if known is None or one.token > known.token:
            newest[one.n] = one
        elif one.token == known.token:
            newest[one.n] = known.then(one)
    return list(newest.values())


def has_small_steps(one: Checkpoint) -> bool:
    """Whether it needs no table but that of the steps."""
    return not one.consumed and not one.jobs and all(map(_is_small, one.steps)) and not any(map(_times_out, one.steps))


def _is_small(step: StepWrite) -> bool:
    return step.result is None or len(step.result) * 4 <= LARGE_RESULT_BYTES


def _times_out(step: StepWrite) -> bool:
    return is_timeout(step.state, step.error_type)


def not_written(checkpoints: Sequence[Checkpoint], written: set[tuple[int, int]]) -> list[tuple[int, int]]:
    return list(dict.fromkeys((one.n, one.token) for one in checkpoints if (one.n, one.token) not in written))


def hints(settlements: Sequence[Settlement]) -> list[str]:
    """The hints for these endings."""
    tell = [wakeups.ENDED]
    if any(
        one.transition.to is Status.WAITING or (one.transition.to is Status.PENDING and one.transition.delay_ms)
        for one in settlements
    ):
        tell.append(wakeups.LATER)
    put_back = (Status.PENDING, Status.WAITING)
    if wakeups.LATER not in tell and any(one.job.flags & HAS_STEPS and _may_be_cancelled(one) for one in settlements):
        tell.append(wakeups.LATER)  # its children are cancelled next
    if any(one.job.flags or one.transition.to in put_back for one in settlements):
        tell.append(wakeups.READY)
    if new := [job for one in settlements if one.effects for job in one.effects.jobs]:
        tell += wakeups.of_new(new)
    return list(dict.fromkeys(tell))


def _may_be_cancelled(one: Settlement) -> bool:
    return one.transition.to is Status.CANCELLED or one.transition.if_cancelling is not None
