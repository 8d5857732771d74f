"""The server: health, metrics, capabilities."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from treadle.http import documents as doc
from treadle.http.access import refusal
from treadle.http.exposition import CONTENT_TYPE, exposition
from treadle.http.openapi import spec
from treadle.http.server import ServerDep, answer

router = APIRouter(tags=["service"])


@router.get("/api/health", **spec(doc.Health, open_to_all=True))
async def health(request: Request, here: ServerDep) -> Response:
    """200 if the database answers."""
    await here.access.caller(request)
    await here.access.check_query(request)
    await here.queue.store.now()
    return answer({"message": "API is healthy.", "code": 200, "data": {}})


@router.get("/metrics", **spec(kind="text/plain"))
async def metrics(request: Request, here: ServerDep) -> Response:
    """Metrics in the Prometheus text format."""
    caller = await here.access.caller(request)
    if not (here.queue.settings.metrics_public or caller.is_superuser or caller.kind == "api_key"):
        raise refusal(caller)
    await here.access.check_query(request)
    state = request.app.state
    text = await exposition(here.queue, state.worker_metrics, state.http_metrics)
    return Response(text, headers={"Content-Type": CONTENT_TYPE})


@router.get("/api/openapi.json", include_in_schema=False)
async def openapi(request: Request, here: ServerDep) -> Response:
    await here.access.caller(request)
    await here.access.check_query(request)
    where = request.scope.get("root_path") or "/"  # the mount point, if mounted in another application
    return answer({**request.app.openapi(), "servers": [{"url": where}]})
