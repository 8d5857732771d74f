"""Bulk changes that run in the background: list, look at and stop them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from treadle.http import documents as doc
from treadle.http import request_models as req
from treadle.http.access import refusal
from treadle.http.bodies import body_of
from treadle.http.errors import not_found
from treadle.http.openapi import spec
from treadle.http.server import Managed, Server, ServerDep, answer
from treadle.model.errors import JobNotFound
from treadle.model.job import rfc3339
from treadle.policy import rules
from treadle.queue.operations import Operation

LISTED = 100


async def _may_manage_all(request: Request, here: ServerDep, allowed: Managed) -> None:
    if allowed != rules.always:
        raise refusal(await here.access.caller(request))


router = APIRouter(tags=["operations"], dependencies=[Depends(_may_manage_all)])


@router.get("/api/operations", **spec(doc.OperationList))
async def operations(here: ServerDep) -> Response:
    """The newest operations; only callers who may change every job see them."""
    return answer({"items": [_as_json(one) for one in await here.operations.newest(LISTED)]})


@router.get("/api/operations/{id}", **spec(doc.OperationDocument, errors=(404,)))
async def operation(here: ServerDep, id: str) -> Response:
    """The state and progress of an operation."""
    return answer(_as_json(await _found(here, id)))


@router.post("/api/operations/{id}/stop", **spec(doc.OperationDocument, body=req.NoBody, errors=(404,)))
async def stop(
    request: Request,
    here: ServerDep,
    id: str,
    body: Annotated[req.NoBody, Depends(body_of(req.NoBody))],
) -> Response:
    """Stop an operation after its current batch; jobs that it has changed stay changed."""
    found = await _found(here, id)
    await here.operations.stop(id)
    await here.note(request, "stop_operation", id, filter=found.search.words)
    return answer(_as_json(await _found(here, id)))


async def _found(here: Server, id: str) -> Operation:
    try:
        return await here.operations.get(id)
    except JobNotFound:
        raise not_found() from None


def _as_json(operation: Operation) -> dict[str, Any]:
    return {
        "id": operation.id,
        "action": operation.action,
        "filter": operation.search.words,
        "asOf": rfc3339(operation.as_of),
        "state": operation.state,
        "expected": operation.expected,
        "changed": operation.changed,
        "refused": operation.refused,
        "percent": operation.percent,
        "createdBy": operation.by.name,
        "createdAt": rfc3339(operation.created_at),
        "updatedAt": rfc3339(operation.updated_at),
    }
