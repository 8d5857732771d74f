"""Answers to steps that wait: checked against what the step asks for, then stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle.model.errors import InvalidInput, StepEnded, UnknownStep
from treadle.model.job import Job, short_text
from treadle.model.payload import dumps
from treadle.model.steps import STEP_ENDED, StepSpec, checked_key, checked_path, find, is_sleep
from treadle.queue.handlers.flows import FlowHandler
from treadle.store.values import Answer

if TYPE_CHECKING:
    from treadle.queue.queue import Queue

MAX_ERROR = 10_000


async def signal(
    queue: Queue, job_id: str, step: str, value: Any, error: str | None, key: str | int, answered_by: str | None
) -> Job:
    if error is not None and value is not None:
        raise InvalidInput("give a result or an error, not both", field="error")
    if error is not None and (not isinstance(error, str) or not 1 <= len(error) <= MAX_ERROR):
        raise InvalidInput(f"error: use 1 to {MAX_ERROR:,} characters", field="error")
    job = await queue.get(job_id)
    name, run = checked_path(step), checked_key(key)
    spec, unannounced = await _declared(queue, job, name)
    text = None if error is not None else await _checked(queue, job, spec, name, run, value)
    if error is not None:
        dumps(error, "error")
    answer = Answer(job_id, name, run, text, error, short_text(answered_by, "answered_by"), unannounced)
    [refusal] = await queue.store.answer([answer])
    if refusal is not None:
        raise refusal.error
    return await queue.get(job_id)


async def step_spec(queue: Queue, job: Job, name: str) -> StepSpec | None:
    """What the template says of a declared step that takes answers."""
    return find((await queue.template(job.topic)).steps, name)


async def _declared(queue: Queue, job: Job, name: str) -> tuple[StepSpec | None, bool]:
    """The declared step, and whether its job may come to wait for it though nothing is known of it yet."""
    template, handler = await queue.template(job.topic), queue.handlers.get(job.topic)
    spec = find(template.steps, name)
    if spec is not None and not spec.external:
        raise _no_answer(job, name, "it runs code")
    if spec is None and is_sleep(name):
        raise _no_answer(job, name, "it sleeps")
    if not template.steps:
        return None, not job.ended and (handler is None or handler.wants_context)
    outer = name.partition("/")[0]
    return spec, spec is not None or (outer != name and find(template.steps, outer) is not None)


def _no_answer(job: Job, name: str, why: str) -> UnknownStep | StepEnded:
    if any(step["id"] == name and step["status"] in STEP_ENDED for step in job.steps):
        return StepEnded(f"step {name} of job {job.id} has ended", step=name)
    return UnknownStep(f"step {name} of job {job.id} takes no answer: {why}", step=name)


async def _checked(queue: Queue, job: Job, spec: StepSpec | None, name: str, key: str, value: Any) -> str:
    """The answer as stored; InvalidAnswer names the path of what is wrong."""
    handler = queue.handlers.get(job.topic)
    step = handler.step(name) if isinstance(handler, FlowHandler) else None
    if step is not None and step.result is not None:
        return step.result.checked(value)
    schema = spec.answer_schema if spec is not None else await _schema_of_wait(queue, job.id, name, key)
    text = dumps(value, "result")
    if schema is not None:
        from treadle.model.schema import check_answer  # not loaded in processes that need none

        check_answer(name, schema, text)
    return text


async def _schema_of_wait(queue: Queue, job_id: str, name: str, key: str) -> dict[str, Any] | None:
    """Of a wait that a handler makes: it says what it expects when it begins to wait."""
    page = await queue.store.steps(job_id, name, 0, 1000)
    items = page.items if page else []
    return next((item["answerSchema"] for item in items if (item["key"] or "") == key), None)
