"""External workers: claim jobs, report on them, list live workers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from treadle.http import documents as doc
from treadle.http import request_models as req
from treadle.http.bodies import body_of
from treadle.http.errors import not_found
from treadle.http.openapi import spec
from treadle.http.routes.jobs import JobId
from treadle.http.server import Server, ServerDep, answer, needs
from treadle.insights.workers import live_workers
from treadle.model.durations import duration_ms
from treadle.model.job import from_ms, rfc3339
from treadle.store.values import Holding

router = APIRouter(tags=["workers"], dependencies=[needs("workers", jobs_api=True)])


@router.get("/api/workers", **spec(doc.WorkerList))
async def workers(here: ServerDep) -> Response:
    """Workers with a live lease."""
    found = await live_workers(here.queue.store)
    items = [
        {
            "name": worker.name,
            "topics": list(worker.topics),
            "capabilities": list(worker.capabilities),
            "slots": worker.slots,
            "running": worker.running,
            "lockedUntil": rfc3339(from_ms(worker.locked_until)),
            "draining": worker.draining,
            "host": worker.host,
            "version": worker.version,
        }
        for worker in found
    ]
    return answer({"items": items})


@router.post("/api/workers/claim", **spec(doc.ClaimedList, body=req.ClaimBody))
async def claim(
    request: Request, here: ServerDep, body: Annotated[req.ClaimBody, Depends(body_of(req.ClaimBody))]
) -> Response:
    """Claim jobs, each with the token needed to report on it; `wait` waits until one is available."""
    claimed = await here.external.claim(
        body.workerId,
        body.topics,
        body.capabilities,
        body.limit,
        wait_s=duration_ms(body.wait, "wait") / 1000,
        lease=body.lease,
        gone=request.is_disconnected,
    )
    tokens = await here.claim_tokens.texts([(job.id, token) for job, token in claimed])
    return answer({"items": [{**job.as_json(), "token": text} for (job, _), text in zip(claimed, tokens, strict=True)]})


@router.post("/api/workers/{name:path}/drain", **spec(status=204, body=req.NoBody, errors=(404,)))
async def drain(
    request: Request, here: ServerDep, name: str, body: Annotated[req.NoBody, Depends(body_of(req.NoBody))]
) -> Response:
    """Ask a worker to claim nothing more, finish its jobs and stop. It learns this from its next heartbeat."""
    return await _asked(request, here, "drain", name, await here.queue.drain(name))


@router.post("/api/workers/{name:path}/undrain", **spec(status=204, body=req.NoBody, errors=(404,)))
async def undrain(
    request: Request, here: ServerDep, name: str, body: Annotated[req.NoBody, Depends(body_of(req.NoBody))]
) -> Response:
    """Let a worker that was asked to drain go on, if it has not stopped yet. It learns this from its next heartbeat."""
    return await _asked(request, here, "undrain", name, await here.queue.undrain(name))


async def _asked(request: Request, here: Server, action: str, name: str, known: bool) -> Response:
    if not known:
        raise not_found()
    await here.note(request, action, name)
    return Response(status_code=204)


@router.post("/api/workers/jobs/{id}/heartbeat", **spec(doc.HoldDocument, body=req.HeartbeatBody, errors=(404, 409)))
async def heartbeat(
    here: ServerDep, id: JobId, body: Annotated[req.HeartbeatBody, Depends(body_of(req.HeartbeatBody))]
) -> Response:
    """Renew the lease; the response says whether a cancel was requested."""
    proves = await here.claim_tokens.proof(id, body.token)
    return _held(*await here.external.heartbeat(id, proves, body.lease))


@router.post("/api/workers/jobs/{id}/progress", **spec(doc.HoldDocument, body=req.ProgressBody, errors=(404, 409)))
async def progress(
    here: ServerDep, id: JobId, body: Annotated[req.ProgressBody, Depends(body_of(req.ProgressBody))]
) -> Response:
    """Report progress; also renews the lease."""
    proves = await here.claim_tokens.proof(id, body.token)
    return _held(*await here.external.progress(id, proves, body.percent, body.message))


@router.post("/api/workers/jobs/{id}/output", **spec(doc.HoldDocument, body=req.OutputBody, errors=(404, 409)))
async def append_output(
    here: ServerDep, id: JobId, body: Annotated[req.OutputBody, Depends(body_of(req.OutputBody))]
) -> Response:
    """Append values to a channel of the job's output; also renews the lease."""
    proves = await here.claim_tokens.proof(id, body.token)
    return _held(*await here.external.output(id, proves, body.channel, body.values))


@router.post("/api/workers/jobs/{id}/complete", **spec(doc.JobDocument, body=req.CompleteBody, errors=(404, 409)))
async def complete(
    here: ServerDep, id: JobId, body: Annotated[req.CompleteBody, Depends(body_of(req.CompleteBody))]
) -> Response:
    """Complete the job; `result` is stored with it."""
    proves = await here.claim_tokens.proof(id, body.token)
    return answer((await here.external.complete(id, proves, body.result)).as_json())


@router.post("/api/workers/jobs/{id}/fail", **spec(doc.JobDocument, body=req.FailBody, errors=(404, 409)))
async def fail(here: ServerDep, id: JobId, body: Annotated[req.FailBody, Depends(body_of(req.FailBody))]) -> Response:
    """Report a failed attempt. It is retried according to its template unless the error is `fatal`."""
    proves = await here.claim_tokens.proof(id, body.token)
    return answer((await here.external.fail(id, proves, body.error, body.fatal)).as_json())


@router.post("/api/workers/jobs/{id}/release", **spec(doc.JobDocument, body=req.ReleaseBody, errors=(404, 409)))
async def release(
    here: ServerDep, id: JobId, body: Annotated[req.ReleaseBody, Depends(body_of(req.ReleaseBody))]
) -> Response:
    """Give the job back without using up the attempt."""
    proves = await here.claim_tokens.proof(id, body.token)
    return answer((await here.external.release(id, proves, body.reason)).as_json())


@router.post("/api/workers/jobs/{id}/ack-cancel", **spec(doc.JobDocument, body=req.TokenBody, errors=(404, 409)))
async def acknowledge_cancel(
    here: ServerDep, id: JobId, body: Annotated[req.TokenBody, Depends(body_of(req.TokenBody))]
) -> Response:
    """Confirm that the job stopped after a cancel request."""
    proves = await here.claim_tokens.proof(id, body.token)
    return answer((await here.external.acknowledge_cancel(id, proves)).as_json())


def _held(held: Holding, until: int) -> Response:
    return answer({"lockedUntil": rfc3339(from_ms(until)), "cancelRequested": held.cancel_requested})
