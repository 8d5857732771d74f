"""Workers outside: claim jobs, report on them; and who works at all."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from treadle.http import documents as doc
from treadle.http.bodies import body_of
from treadle.http.openapi import spec
from treadle.http.routes.jobs import JobId
from treadle.http.server import Here, answer, needs
from treadle.job import from_ms, rfc3339
from treadle.policy import duration_ms
from treadle.store.base import Holding

router = APIRouter(tags=["workers"], dependencies=[needs("workers", jobs_api=True)])


@router.get("/api/workers", **spec(doc.WorkerList))
async def workers(here: Here) -> Response:
    """The workers whose lease is live."""
    found = await here.queue.store.workers()
    items = [
        {
            "name": worker.name,
            "topics": list(worker.topics),
            "capabilities": list(worker.capabilities),
            "slots": worker.slots,
            "running": worker.running,
            "lockedUntil": rfc3339(from_ms(worker.locked_until)),
        }
        for worker in found
    ]
    return answer({"items": items})


@router.post("/api/workers/claim", **spec(doc.ClaimedList, body=doc.ClaimBody))
async def claim(
    request: Request, here: Here, body: Annotated[doc.ClaimBody, Depends(body_of(doc.ClaimBody))]
) -> Response:
    """Take jobs to work on, each with the token that proves it; `wait` waits for one."""
    wait_s = duration_ms(body.wait, "wait") / 1000
    claimed = await here.external.claim(
        body.workerId, body.topics, body.capabilities, body.limit, wait_s, gone=request.is_disconnected
    )
    return answer({"items": [{**job.as_json(), "token": token} for job, token in claimed]})


@router.post("/api/workers/jobs/{id}/heartbeat", **spec(doc.HoldDocument, body=doc.TokenBody, errors=(404, 409)))
async def heartbeat(here: Here, id: JobId, body: Annotated[doc.TokenBody, Depends(body_of(doc.TokenBody))]) -> Response:
    """Still at it: the lease is renewed, and a wish to cancel is told."""
    return _held(*await here.external.heartbeat(id, body.token))


@router.post("/api/workers/jobs/{id}/progress", **spec(doc.HoldDocument, body=doc.ProgressBody, errors=(404, 409)))
async def progress(
    here: Here, id: JobId, body: Annotated[doc.ProgressBody, Depends(body_of(doc.ProgressBody))]
) -> Response:
    """How far it is; renews the lease as well."""
    return _held(*await here.external.progress(id, body.token, body.percent, body.message))


@router.post("/api/workers/jobs/{id}/complete", **spec(doc.JobDocument, body=doc.CompleteBody, errors=(404, 409)))
async def complete(
    here: Here, id: JobId, body: Annotated[doc.CompleteBody, Depends(body_of(doc.CompleteBody))]
) -> Response:
    """It is done; `result` rides on the job from now on."""
    return answer((await here.external.complete(id, body.token, body.result)).as_json())


@router.post("/api/workers/jobs/{id}/fail", **spec(doc.JobDocument, body=doc.FailBody, errors=(404, 409)))
async def fail(here: Here, id: JobId, body: Annotated[doc.FailBody, Depends(body_of(doc.FailBody))]) -> Response:
    """The attempt failed: it is tried again as its template says, unless the error is `fatal`."""
    return answer((await here.external.fail(id, body.token, body.error, body.fatal)).as_json())


@router.post("/api/workers/jobs/{id}/release", **spec(doc.JobDocument, body=doc.ReleaseBody, errors=(404, 409)))
async def release(
    here: Here, id: JobId, body: Annotated[doc.ReleaseBody, Depends(body_of(doc.ReleaseBody))]
) -> Response:
    """Give it back, the attempt unspent."""
    return answer((await here.external.release(id, body.token, body.reason)).as_json())


@router.post("/api/workers/jobs/{id}/ack-cancel", **spec(doc.JobDocument, body=doc.TokenBody, errors=(404, 409)))
async def acknowledge_cancel(
    here: Here, id: JobId, body: Annotated[doc.TokenBody, Depends(body_of(doc.TokenBody))]
) -> Response:
    """It was asked to stop, and has."""
    return answer((await here.external.acknowledge_cancel(id, body.token)).as_json())


def _held(held: Holding, until: int) -> Response:
    return answer({"lockedUntil": rfc3339(from_ms(until)), "cancelRequested": held.cancel_requested})
