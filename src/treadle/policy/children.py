"""Children that a job waits for: which child a step has, and what the step hears of its end, as pure functions.

A child is its parent, step, key and generation. The step's row names the child that it has now, so an ended child that
was replaced by another one is not heard any more.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from treadle.model.error_line import error_line
from treadle.model.errors import ChildFailed, HasChildren, TooDeep
from treadle.model.status import ENDED, Status
from treadle.model.steps import StepState
from treadle.policy.flow import StepChange
from treadle.policy.lifecycle import Requeued, Transition

MAX_DEPTH = 20
"""How many jobs may wait, one for the other, for a child."""
CHILD_FAILED = ChildFailed.__name__


class ChildEnd(NamedTuple):
    """How a child has ended, for the step that waits for it."""

    result: str | None = None
    """JSON text."""
    problem: str | None = None
    """Why there is no result; None: it has completed."""


def child_ended(transition: Transition) -> ChildEnd:
    if transition.deletes:
        return ChildEnd(problem="was deleted")
    return how_it_ended(transition.to, transition.result, transition.error, transition.message)


def how_it_ended(status: Status, result: str | None, error: str | None, message: str | None) -> ChildEnd:
    """`message`: why it was cancelled."""
    if status is Status.COMPLETED:
        return ChildEnd("null" if result is None else result)
    why = error_line(error) if error else message
    verb = "failed" if status is Status.FAILED else "expired" if status is Status.EXPIRED else "was cancelled"
    return ChildEnd(problem=f"{verb}: {why}" if why else verb)


def heard(end: ChildEnd, topic: str, child: str, attempt: int) -> StepChange:
    """What becomes of the step."""
    if end.problem is None:
        return StepChange(StepState.COMPLETED, attempt, end.result)
    return not_completed(f"{topic} {child} {end.problem}", attempt)


def not_made(topic: str, problem: str, attempt: int) -> StepChange:
    """Of a child that may not be created."""
    return not_completed(f"{topic} was refused: {problem}", attempt)


def not_completed(problem: str, attempt: int) -> StepChange:
    return StepChange(StepState.FAILED, attempt, error=problem, error_type=CHILD_FAILED)


def cancels_children(transition: Transition) -> str | None:
    """Why the children are cancelled that an ended job waited for; None: they go on."""
    return "its parent was cancelled" if transition.to is Status.CANCELLED else None


# -- which child a step has ------------------------------------------------------------------------


class Choice(Enum):
    WAIT = "wait for the child that it has"
    TAKE = "take the result of the child that it had"
    MAKE = "make another one"


WAIT, TAKE, MAKE = Choice


def choose(has_child: bool, status: Status | None) -> Choice:
    """`status`: of the child that the step had; None: it is gone, or there was none."""
    if not has_child or status is None:
        return MAKE
    if status is Status.COMPLETED:
        return TAKE
    return MAKE if status in ENDED else WAIT


def check_depth(waiting: int) -> None:
    """`waiting`: how many jobs wait for the one that makes a child."""
    if waiting + 1 > MAX_DEPTH:
        raise TooDeep(f"{MAX_DEPTH} jobs wait for each other's children already; a child may not have more above it")


# -- requeues and deletions ------------------------------------------------------------------------


def keeps_children(requeued: Requeued) -> bool:
    """Whether the steps that run again look at the children that they had. With `all` and `from` they begin anew."""
    return requeued.mode == "unfinished" and requeued.payload is None


def still_waits(state: StepState, awaits_child: bool) -> bool:
    """Of a step that a requeue repeats: its child has not ended, and ends its wait as before."""
    return awaits_child and state is StepState.WAITING


def check_deletable(job_id: str, awaits_children: bool, status: Status) -> None:
    if awaits_children:
        raise HasChildren(
            f"job {job_id} waits for children that have not ended; cancel them, or delete it when they have ended",
            status=str(status),
        )
