"""Running some steps of a job again, and which ones that would be."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.model.errors import TemplateDisabled
from treadle.model.job import Job
from treadle.model.status import Status
from treadle.model.steps import DONE
from treadle.policy import flow
from treadle.policy.flow import Ran, Rerun
from treadle.policy.lifecycle import Outcome, Requeued
from treadle.queue import Queue
from treadle.store.values import Refusal, SteeredJob


def would_run(job: Job, mode: str, step: str | None) -> tuple[Sequence[str], Sequence[str]]:
    """The steps that a requeue would run, and the ones that it would keep."""
    names = [one["id"] for one in job.steps]
    ran = [Ran(one["id"], place, one["status"] in DONE) for place, one in enumerate(job.steps)]
    again = flow.rerun(ran, mode, step, job.status is Status.COMPLETED).names
    runs = names if again is None else [name for name in names if name in again]
    return runs, [name for name in names if name not in runs]


async def requeue(queue: Queue, job: Job, mode: str, step: str | None) -> None:
    """Put an ended job back; what of it runs again is decided under the store's lock."""
    if not (await queue.template(job.topic)).enabled:
        raise TemplateDisabled(f"the template of {job.topic} is disabled: requeue is not possible")

    def judge(found: SteeredJob) -> Outcome:
        ran = [Ran(one.name, one.place, one.state in DONE) for one in found.steps]
        again: Rerun = flow.rerun(ran, mode, step, found.status is Status.COMPLETED)
        return Requeued(True, found.stale, again.mode, again.names)

    [answer] = await queue.store.steer([job.id], judge)
    if isinstance(answer, Refusal):
        raise answer.error
