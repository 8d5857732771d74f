"""Inserting jobs again: the answer to an earlier try was lost, for example with the connection at COMMIT.

The client makes the ids, so a job that an earlier try stored is recognized and answered as it was the first time.
Another job under the same id is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from treadle.model.errors import InvalidInput, KeyReused, Refused
from treadle.store.values import Inserted, NewJob

Answers = list[Inserted | Refused]
Insert = Callable[[Sequence[NewJob]], Awaitable[Answers]]
# Of the jobs that exist: id, topic, payload, time of creation.
Find = Callable[[Sequence[NewJob]], Awaitable[Sequence[Any]]]


async def insert_again(jobs: Sequence[NewJob], atomic: bool, found: Sequence[Any], insert: Insert) -> Answers:
    """Answer for the jobs that were found, and insert the others."""
    there = _answers(jobs, found, atomic)
    missing = [job for job in jobs if job.id not in there]
    told = iter(await insert(missing) if missing else ())
    return [there[job.id] if job.id in there else next(told) for job in jobs]


def check_ids(jobs: Sequence[NewJob]) -> None:
    if len({job.id for job in jobs}) < len(jobs):
        raise InvalidInput("two jobs of one batch have the same id", field="id")


async def as_first_answered(jobs: Sequence[NewJob], answers: Answers, find: Find) -> Answers:
    """If a job already holds its own key, the earlier try succeeded."""
    own = [job for job, answer in zip(jobs, answers, strict=True) if _is_own(job, answer)]
    if not own:
        return answers
    there = _answers(own, await find(own), atomic=False)
    return [
        there[job.id] if _is_own(job, answer) and job.id in there else answer
        for job, answer in zip(jobs, answers, strict=True)
    ]


def _is_own(job: NewJob, answer: Inserted | Refused) -> bool:
    return isinstance(answer, Inserted) and answer.existing_id == job.id


def _answers(jobs: Sequence[NewJob], found: Sequence[Any], atomic: bool) -> dict[str, Inserted | Refused]:
    stored = {id_: (topic, payload, at) for id_, topic, payload, at in found}
    answers: dict[str, Inserted | Refused] = {}
    for job in jobs:
        if job.id not in stored:
            continue
        *same, at = stored[job.id]
        if same == [job.topic, job.payload]:
            answers[job.id] = Inserted(at)
            continue
        refusal = KeyReused(f"the id {job.id} belongs to a job with another topic or payload", jobId=job.id)
        if atomic:
            raise refusal
        answers[job.id] = refusal
    return answers
