"""Jobs: cancel, requeue, change and delete, one or all that match."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from treadle import bulk, rules
from treadle.errors import WrongState
from treadle.http import documents as doc
from treadle.http.bodies import body_of
from treadle.http.errors import ApiError, bad_field
from treadle.http.instants import optional_instant
from treadle.http.openapi import spec
from treadle.http.routes.jobs import JobId, visible
from treadle.http.server import Here, Managed, answer
from treadle.lifecycle import Status

router = APIRouter(tags=["jobs"])


@router.post("/api/jobs/bulk", **spec(doc.BulkDocument, body=doc.BulkBody, errors=(409,)))
async def change_many(
    request: Request, here: Here, allowed: Managed, body: Annotated[doc.BulkBody, Depends(body_of(doc.BulkBody))]
) -> Response:
    """Do the same to every job that matches; `dryRun` only counts them."""
    caller = await here.access.caller(request)
    if body.force and body.action == "delete" and not caller.is_superuser:
        raise ApiError(403, "forbidden", "Only superusers can delete completed jobs.")
    try:
        wanted = rules.parse_filter(body.filter)
    except rules.InvalidRule as error:
        raise bad_field("filter", error.message, "invalid_filter") from None
    change = bulk.Change(
        body.action,
        reason=body.reason,
        force=body.force,
        run_at=optional_instant(body.runAt, "runAt"),
        priority=body.priority,
        max_attempts=body.maxRetries,
    )
    done = await bulk.apply(here.queue, change, rules.both(allowed, wanted), dry_run=body.dryRun)
    return answer(
        {
            "action": body.action,
            "dryRun": body.dryRun,
            "matched": done.matched,
            "changed": done.changed,
            "refused": done.refused,
        }
    )


@router.post("/api/jobs/{id}/requeue", **spec(doc.JobDocument, body=doc.RequeueBody, errors=(404, 409)))
async def requeue(
    here: Here,
    allowed: Managed,
    id: JobId,
    body: Annotated[doc.RequeueBody, Depends(body_of(doc.RequeueBody))],
    force: bool = False,
) -> Response:
    """Put an ended job back with all its attempts; a completed one only with `force`."""
    job = await visible(here, allowed, id)
    if body.mode == "from" and body.step is None:
        raise bad_field("step", "mode from needs the step to start at")
    if body.step is not None and body.step not in [step["id"] for step in job.steps]:
        raise bad_field("step", "this job has no such step")
    return answer((await here.queue.requeue(id, force=force)).as_json())


@router.post("/api/jobs/{id}/cancel", **spec(doc.JobDocument, body=doc.CancelBody, errors=(404, 409)))
async def cancel(
    here: Here, allowed: Managed, id: JobId, body: Annotated[doc.CancelBody, Depends(body_of(doc.CancelBody))]
) -> Response:
    """Stop a job: at once if it waits, at its next checkpoint if it runs. Once more changes nothing."""
    await visible(here, allowed, id)
    try:
        job = await here.queue.cancel(id, body.reason)
    except WrongState as error:
        if error.data["status"] != Status.CANCELLED:
            raise
        job = await visible(here, allowed, id)
    return answer(job.as_json())


@router.patch("/api/jobs/{id}", **spec(doc.JobDocument, body=doc.JobPatch, errors=(404, 409)))
async def patch(
    here: Here, allowed: Managed, id: JobId, body: Annotated[doc.JobPatch, Depends(body_of(doc.JobPatch))]
) -> Response:
    """Change a pending job."""
    await visible(here, allowed, id)
    if body.maxRetries is not None and body.maxAttempts is not None:
        raise bad_field("maxRetries", "give maxRetries or maxAttempts, not both: they say the same")
    attempts = body.maxAttempts if body.maxRetries is None else body.maxRetries
    job = await here.queue.reschedule(
        id, run_at=optional_instant(body.runAt, "runAt"), priority=body.priority, max_attempts=attempts
    )
    return answer(job.as_json())


@router.delete("/api/jobs/{id}", **spec(status=204, errors=(404, 409)))
async def delete(request: Request, here: Here, allowed: Managed, id: JobId, force: bool = False) -> Response:
    """Delete a pending, failed, cancelled or expired job; superusers with `force` a completed one too."""
    job = await visible(here, allowed, id)
    caller = await here.access.caller(request)
    if force and job.status is Status.COMPLETED and not caller.is_superuser:
        raise ApiError(403, "forbidden", "Only superusers can delete completed jobs.")
    await here.queue.delete(id, force=force and caller.is_superuser)
    return Response(status_code=204)
