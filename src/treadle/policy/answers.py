"""Which answers to steps count, as pure functions: the first one, against other answers, timeouts and requeues.

An answer that was accepted is used: at once if its step waits and nobody works on the job, else when its step begins to
wait or the job is set aside again. Of an answer and a timeout, the one that is stored first counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from treadle.model.errors import StepEnded, TooManySteps, TreadleError, UnknownStep, WaitTimeout, WrongState
from treadle.model.steps import MAX_NAMES, STEP_ENDED, StepState, shown_step
from treadle.policy.lifecycle import Requeued
from treadle.policy.rerun import StepRunT


class AnswerFacts(NamedTuple):
    """What a store finds, under its locks, of a step that is to be answered."""

    job_lives: bool
    state: StepState | None = None
    """None: the job has no such step."""
    waits: bool = False
    """The step takes answers."""
    names: int = 0
    """If the job has no such step: how many names its steps and early answers have with this one."""
    timed_out: bool = False
    """No answer came in time, and the job has failed because of it: its next attempt waits again."""
    unannounced: bool = False
    """The answer is kept even if there is no such step yet."""
    awaits_child: bool = False
    """Only the end of its child ends its wait."""


def refuse_answer(job_id: str, step: str, key: str, facts: AnswerFacts) -> TreadleError | None:
    """Why a step takes no answer; None if it does.

    Of an answer and a timeout, the one that is stored first counts: a stored timeout refuses the answer here, and an
    answer that was accepted refuses the timeout (`is_timeout`).
    """
    if facts.awaits_child:
        shown = shown_step(step[:100], key[:100])
        return UnknownStep(f"step {shown} waits for a child, not for an answer", step=step[:100])
    waits_again = facts.timed_out and facts.job_lives and facts.state is StepState.FAILED
    if not waits_again and facts.state in STEP_ENDED and (facts.state is not StepState.FAILED or facts.waits):
        return step_ended(step, key)
    if not facts.job_lives and facts.state is not None:
        return WrongState("the job has ended: signal is not possible")
    if not facts.job_lives or (facts.state is None and not facts.unannounced):
        shown = shown_step(step[:100], key[:100])
        return UnknownStep(f"job {job_id} has no step {shown} that takes an answer", step=step[:100])
    if facts.state is None and facts.names > MAX_NAMES:
        return TooManySteps(f"job {job_id} has steps and early answers of {MAX_NAMES} names already")
    return None


def ends_wait(state: StepState, running: bool) -> bool:
    """Whether an answer ends its wait now. Otherwise it is kept.

    A job that runs may have more than one wait, and its worker has read this one as unanswered: it finds the answer
    when it sets the job aside again.
    """
    return state is StepState.WAITING and not running


def is_timeout(state: StepState, error_type: str | None) -> bool:
    """Whether a worker says of a step that no answer came in time. A store refuses that with `step_ended` if one was
    accepted since the worker looked: then the answer counts."""
    return state is StepState.FAILED and error_type == WaitTimeout.__name__


def step_ended(step: str, key: str) -> StepEnded:
    """Also for an answer that comes second, before its step waits."""
    shown = shown_step(step, key)
    return StepEnded(f"step {shown} has its answer already or is over; the first answer counts", step=step)


def forgets_answers(requeued: Requeued) -> bool:
    """Whether a requeue drops the answers that came early, also for steps that are not known yet.

    They were given to what the job was. With `unfinished` the job goes on as it is, so they stay: who has answered is
    not asked again. With `from` only those go whose steps run again.
    """
    return requeued.payload is not None or requeued.steps is None


def asks_again(steps: Iterable[StepRunT], requeued: Requeued) -> list[StepRunT]:
    """Of the runs that a requeue makes undone, the ones whose early answers are dropped."""
    return list(steps) if requeued.mode == "from" else []
