"""The application, put together."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from treadle.errors import TreadleError
from treadle.http import openapi, streams
from treadle.http.direct import Direct, path_here
from treadle.http.errors import NOT_FOUND, ApiError, from_treadle, wrong_method
from treadle.http.routes import accounts, jobs, service, settings, setup, steering, topics, workers
from treadle.http.server import Servers
from treadle.http.shell import Shell
from treadle.telemetry import HttpMetrics, Observed

if TYPE_CHECKING:
    from treadle.queue import Queue

# Fixed paths before those with a job's id or a topic in them.
ROUTES: list[BaseRoute] = [
    route
    for module in (streams, jobs, steering, topics, workers, accounts, settings, setup, service)
    for route in module.router.routes
]


def create_app(queue: Queue, *, worker_metrics: Sequence[Any] = ()) -> FastAPI:
    """The HTTP API of a queue, to be served by itself or mounted in another application.

    `worker_metrics`: of the workers in this process, for `/metrics`.
    """
    metrics = HttpMetrics()
    servers = Servers(queue, metrics)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await servers.get()
        yield
        await servers.close()

    app = FastAPI(
        title="Treadle",
        version=version("treadle"),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        middleware=[
            Middleware(Observed, metrics=metrics),
            Middleware(Shell),
            Middleware(_ForBrowsers, allow_origins=["*"], allow_methods=["*"], allow_headers=["*"]),
            Middleware(Direct, routes=ROUTES),
        ],
        exception_handlers={
            ApiError: _api_error,
            TreadleError: _treadle_error,
            HTTPException: _http_error,
            RequestValidationError: _bad_parameters,
        },
    )
    app.state.servers = servers
    app.state.http_metrics = metrics
    app.state.worker_metrics = worker_metrics
    # Not include_router: each request would be matched by every router once more, a tenth of its time.
    app.router.routes += ROUTES
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]
    return app


class _ForBrowsers(CORSMiddleware):
    """Of no use, and not free, to clients that are no browsers and name no origin."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = scope["type"] == "http" and any(name == b"origin" for name, _ in scope["headers"])
        await (super().__call__ if named else self.app)(scope, receive, send)


def _described(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        app.openapi_schema = openapi.describe(app)
    return app.openapi_schema


async def _api_error(request: Request, error: Any) -> Response:
    found: ApiError = error
    return found.response()


async def _treadle_error(request: Request, error: Any) -> Response:
    return from_treadle(error).response()


async def _http_error(request: Request, error: Any) -> Response:
    """What the framework refuses by itself: no such path, no such method there."""
    if error.status_code == 404:
        return ApiError(404, "not_found", NOT_FOUND).response()
    if error.status_code == 405:
        return wrong_method(request.method, _methods(request)).response()
    return ApiError(error.status_code, "bad_request", str(error.detail)[:300], headers=error.headers).response()


def _methods(request: Request) -> set[str]:
    """Of all routes with this path: the framework tells only the first one's."""
    path = path_here(request.scope)
    fitting = [route for route in ROUTES if isinstance(route, APIRoute) and route.path_regex.match(path)]
    return {method for route in fitting for method in route.methods or ()}


async def _bad_parameters(request: Request, error: Any) -> Response:
    data: dict[str, Any] = {}
    for one in error.errors():
        name = ".".join(str(part) for part in one["loc"][1:])[:200]
        data.setdefault(name, {"code": "invalid_input", "message": one["msg"]})
    name, first = next(iter(data.items()))
    return ApiError(400, "invalid_input", f"{name}: {first['message']}", data).response()
