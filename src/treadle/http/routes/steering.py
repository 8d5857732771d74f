"""Jobs: cancel, requeue, change and delete, one job or all that match."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from treadle.accounts import Caller
from treadle.http import candidates
from treadle.http import documents as doc
from treadle.http import request_models as req
from treadle.http.access import Remaking, refusal
from treadle.http.bodies import ANYBODY, SIGNED_IN, body_of, is_large, read_body
from treadle.http.candidates import Candidate
from treadle.http.errors import ApiError, bad_field
from treadle.http.instants import optional_instant
from treadle.http.openapi import spec
from treadle.http.query_params import flag
from treadle.http.routes.jobs import JobId, no_foreign_ids, replaceable, visible
from treadle.http.server import Managed, Server, ServerDep, answer
from treadle.insights.search import JobSearch
from treadle.model.errors import TreadleError
from treadle.model.job import Job, from_ms
from treadle.model.status import Status
from treadle.policy import rules
from treadle.policy.rules import Condition
from treadle.queue import bulk
from treadle.queue.audit import Actor
from treadle.queue.on_behalf import on_behalf_of
from treadle.queue.operations import dry_run as dry_run_of
from treadle.queue.signals import step_spec

router = APIRouter(tags=["jobs"])

InQuery = Annotated[bool | None, Query(description="here or in the body")]


@router.post("/api/jobs/bulk", **spec(doc.BulkDocument, body=req.BulkBody, errors=(409,)))
async def change_many(
    request: Request,
    here: ServerDep,
    allowed: Managed,
    body: Annotated[req.BulkBody, Depends(body_of(req.BulkBody))],
    force: InQuery = None,
    dryRun: InQuery = None,
) -> Response:
    """Apply one action to every matching job; `dryRun` only counts them."""
    caller = await here.access.caller(request)
    forced, dry_run = flag("force", force, body.force), flag("dryRun", dryRun, body.dryRun)
    if forced and body.action == "delete" and not caller.is_superuser:
        raise ApiError(403, "forbidden", "Only superusers can delete completed jobs.")
    try:
        wanted = rules.parse_filter(body.filter)
    except rules.InvalidRule as error:
        raise bad_field("filter", error.message, "invalid_filter") from None
    change = bulk.BulkChange(
        body.action,
        reason=body.reason,
        force=forced,
        run_at=optional_instant(body.runAt, "runAt"),
        priority=body.priority,
        max_attempts=_attempts(body),
    )
    as_of = optional_instant(body.asOf, "asOf")
    remaking = await here.access.remaking(request, "enqueue", "manage") if change.action == "patch" else None
    may = _could_enqueue(here, remaking, body) if remaking and remaking.restricted else None
    if body.background and not dry_run:
        if allowed != rules.always or may is not None:
            raise refusal(caller)  # an operation outlives the request that the rule was about
        return await _in_background(here, caller, change, body, as_of)
    async with here.searching(request, "bulk"):
        condition = rules.both(allowed, wanted)
        with on_behalf_of(allowed):
            done = await bulk.apply(here.queue, change, condition, as_of=as_of, dry_run=dry_run, may=may)
    if not dry_run:
        await here.note(
            request,
            change.action,
            filter=body.filter,
            reason=change.reason,
            changed=done.changed,
            skipped=done.refused,
        )
    return _changed(body, done.matched, done.changed, done.refused, dry_run=dry_run)


def _could_enqueue(here: Server, remaking: Remaking, body: req.BulkBody) -> bulk.MayChange:
    async def may(job: Job) -> bool:
        template = await here.queue.template(job.topic)
        try:
            remaking.admit(candidates.patched(job, template, body))
        except ApiError:
            return False
        return True

    return may


def _changed(
    body: req.BulkBody, matched: int, changed: int, refused: int, *, dry_run: bool = False, operation: str | None = None
) -> Response:
    return answer(
        {
            "action": body.action,
            "dryRun": dry_run,
            "matched": matched,
            "changed": changed,
            "refused": refused,
            "operationId": operation,
        }
    )


async def _in_background(
    here: Server, caller: Caller, change: bulk.BulkChange, body: req.BulkBody, as_of: datetime | None
) -> Response:
    search = JobSearch(filter=body.filter)
    moment = as_of or from_ms(await here.queue.store.now())
    assert moment
    expected = sum(one.count for one in await dry_run_of(here.queue, change, search, moment) if not one.skipped)
    operation = await here.operations.start(change, search, moment, Actor(caller.name, caller.kind), expected)
    return _changed(body, expected, operation.changed, operation.refused, operation=operation.id)


@router.post("/api/jobs/{id}/requeue", **spec(doc.RequeuedDocument, body=req.RequeueBody, errors=(404, 409)))
async def requeue(
    request: Request,
    here: ServerDep,
    allowed: Managed,
    id: JobId,
    body: Annotated[req.RequeueBody, Depends(body_of(req.RequeueBody))],
    force: InQuery = None,
    dryRun: InQuery = None,
) -> Response:
    """Put an ended job back with all its attempts; a completed one only with `force`.

    Of a job with steps, only what has not completed runs again (`unfinished`), everything (`all`), or a step and all
    after it (`from`). A job with a new `payload` has to pass the enqueue rule, like a new one. `dryRun` changes
    nothing: it returns the unchanged job with the steps that would run, or the reason why it can't be requeued.
    """
    job = await visible(here, allowed, id)
    if body.payload is not None:
        remaking = await here.access.remaking(request, "enqueue")
        if remaking.restricted:
            again = candidates.requeued(job, await here.queue.template(job.topic), body.payload)
            await _admit(request, remaking, again)
    how: dict[str, Any] = {"force": flag("force", force, body.force), "mode": body.mode, "step": body.step}
    how["payload"] = body.payload
    if flag("dryRun", dryRun, body.dryRun):
        with on_behalf_of(await replaceable(request, here, [job.topic])):
            async with no_foreign_ids(request, here):
                plan = await here.queue.requeue_plan(id, **how)
        return answer({**plan.job.as_json(), "wouldRun": plan.steps})
    with on_behalf_of(await replaceable(request, here, [job.topic])):
        async with no_foreign_ids(request, here):
            done = await here.queue.requeue(id, **how)
    await here.note(request, "requeue", id)
    return answer({**done.as_json(), "wouldRun": None})


@router.post("/api/jobs/{id}/signal", **spec(doc.JobDocument, body=req.SignalBody, errors=(404, 409)))
async def signal(request: Request, here: ServerDep, id: JobId) -> Response:
    """Answer a step that waits, or will, with a result or an error. The first answer counts."""
    body = await _may_answer(request, here, id)
    if "result" not in body.model_fields_set and body.error is None:
        raise bad_field("result", "give a result (null is a valid one) or an error")
    caller = await here.access.caller(request)
    done = await here.queue.signal(
        id, body.step, body.result, error=body.error, key=body.key, answered_by=caller.account_id
    )
    await here.note(request, "signal", id)
    return answer(done.as_json())


async def _may_answer(request: Request, here: Server, id: str) -> req.SignalBody:
    """A step may have its own rule; otherwise everyone who may manage the job may answer.

    The body names the step, so it is read first; callers without access get no validation errors.
    """
    allowed: Condition | None = None
    denied: ApiError | None = None
    try:
        allowed = await here.access.manage(request)
    except ApiError as error:
        denied = error
    try:
        body = await read_body(request, req.SignalBody, SIGNED_IN if denied is None else ANYBODY)
    except (ApiError, TreadleError) as error:
        raise denied or error from None
    (job,) = await here.jobs([id])
    found = None if job is None else await step_spec(here.queue, job, body.step)
    own_rule = found.answer_rule if found else None
    if job is not None and own_rule is not None and await here.access.may_answer(request, job, own_rule):
        return body
    if denied is not None or allowed is None:
        raise denied or refusal(await here.access.caller(request))
    await visible(here, allowed, id)
    if own_rule is not None:
        raise refusal(await here.access.caller(request))
    return body


@router.post("/api/jobs/{id}/cancel", **spec(doc.JobDocument, body=req.CancelBody, errors=(404, 409)))
async def cancel(
    request: Request,
    here: ServerDep,
    allowed: Managed,
    id: JobId,
    body: Annotated[req.CancelBody, Depends(body_of(req.CancelBody))],
) -> Response:
    """Cancel a job: immediately if it is waiting, at its next checkpoint if it is running. 409 if it has ended."""
    await visible(here, allowed, id)
    job = await here.queue.cancel(id, body.reason)
    await here.note(request, "cancel", id, reason=body.reason)
    return answer(job.as_json())


@router.post("/api/jobs/{id}/release", **spec(doc.JobDocument, body=req.NoBody, errors=(404, 409)))
async def release_running(
    request: Request,
    here: ServerDep,
    allowed: Managed,
    id: JobId,
    body: Annotated[req.NoBody, Depends(body_of(req.NoBody))],
) -> Response:
    """Take a running job from its worker and put it back without using up the attempt."""
    await visible(here, allowed, id)
    (refused,) = await here.queue.release_many([id])
    if refused is not None:
        raise refused
    await here.note(request, "release", id)
    return answer((await here.queue.get(id)).as_json())


@router.patch("/api/jobs/{id}", **spec(doc.JobDocument, body=req.JobPatch, errors=(404, 409)))
async def patch(
    request: Request,
    here: ServerDep,
    allowed: Managed,
    id: JobId,
    body: Annotated[req.JobPatch, Depends(body_of(req.JobPatch))],
) -> Response:
    """Change a pending job. The changed job has to pass the enqueue rule, like a new one."""
    found = await visible(here, allowed, id)
    remaking = await here.access.remaking(request, "enqueue", "manage")
    if remaking.restricted:
        await _admit(request, remaking, candidates.patched(found, await here.queue.template(found.topic), body))
    job = await here.queue.reschedule(
        id, run_at=optional_instant(body.runAt, "runAt"), priority=body.priority, max_attempts=_attempts(body)
    )
    await here.note(request, "edit", id)
    return answer(job.as_json())


async def _admit(request: Request, remaking: Remaking, candidate: Candidate) -> None:
    if is_large(request):
        await asyncio.to_thread(remaking.admit, candidate)
    else:
        remaking.admit(candidate)


def _attempts(body: req.JobPatch | req.BulkBody) -> int | None:
    if body.maxRetries is not None and body.maxAttempts is not None:
        raise bad_field("maxRetries", "give maxRetries or maxAttempts, not both: they mean the same")
    return body.maxAttempts if body.maxRetries is None else body.maxRetries


@router.delete("/api/jobs/{id}", **spec(status=204, body=req.DeleteBody, errors=(404, 409)))
async def delete(
    request: Request,
    here: ServerDep,
    allowed: Managed,
    id: JobId,
    body: Annotated[req.DeleteBody, Depends(body_of(req.DeleteBody))],
    force: InQuery = None,
) -> Response:
    """Delete a pending, failed, cancelled or expired job. Superusers can delete a completed one with `force`."""
    job = await visible(here, allowed, id)
    caller, forced = await here.access.caller(request), flag("force", force, body.force)
    if forced and job.status is Status.COMPLETED and not caller.is_superuser:
        raise ApiError(403, "forbidden", "Only superusers can delete completed jobs.")
    await here.queue.delete(id, force=forced and caller.is_superuser)
    await here.note(request, "delete", id)
    return Response(status_code=204)
