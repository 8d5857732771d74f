"""Assembles the application."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Protocol

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from treadle.http import openapi
from treadle.http.application_auth import Auth
from treadle.http.errors import MOST_FIELDS, NOT_FOUND, ApiError, from_treadle, in_words, wrong_method
from treadle.http.fast_routes import FastRoutes, path_here
from treadle.http.public_path import PublicPath
from treadle.http.routes import (
    accounts,
    jobs,
    operations,
    schedules,
    service,
    settings,
    setup,
    steering,
    templates,
    topics,
    webhooks,
    workers,
)
from treadle.http.security_headers import SecurityHeaders
from treadle.http.server import Server, Servers
from treadle.http.streams import output, realtime, sse, websocket
from treadle.model.errors import TreadleError
from treadle.telemetry import HttpMetrics, Observed

if TYPE_CHECKING:
    from treadle.queue import Queue

# Fixed paths come before paths with a job id or a topic.
ROUTES: list[BaseRoute] = [
    route
    for module in (
        websocket,
        realtime,
        sse,
        output,
        jobs,
        steering,
        operations,
        topics,
        schedules,
        templates,
        webhooks,
        workers,
        accounts,
        settings,
        setup,
        service,
    )
    for route in module.router.routes
]


class Pages(Protocol):
    """Extra pages served with the API, such as the dashboard, which this layer does not import."""

    @property
    def routes(self) -> Sequence[BaseRoute]: ...

    def begin(self, server: Server) -> None:
        """Called when the server of this event loop has been created."""


def create_app(
    queue: Queue,
    *,
    auth: Auth | None = None,
    worker_metrics: Sequence[Any] = (),
    pages: Callable[[Servers], Pages] | None = None,
) -> FastAPI:
    """The HTTP API of a queue, to serve directly or to mount in another application.

    `auth` says which of the application's own users calls. `worker_metrics` are the counters of workers in this
    process, for `/metrics`. `pages` adds further routes.
    """
    metrics = HttpMetrics()
    servers = Servers(queue, metrics, auth)

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
            Middleware(PublicPath, public_url=queue.settings.public_url),
            Middleware(Observed, metrics=metrics),
            Middleware(SecurityHeaders),
            Middleware(
                _ForBrowsers,
                allow_origins=queue.settings.allowed_origins,
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=["Retry-After", "X-Request-ID"],
            ),
            Middleware(FastRoutes, routes=ROUTES),
        ],
        exception_handlers={
            ApiError: _api_error,
            TreadleError: _treadle_error,
            HTTPException: _http_error,
            RequestValidationError: _bad_parameters,
            WebSocketRequestValidationError: _bad_parameters,
        },
    )
    app.state.servers = servers
    app.state.http_metrics = metrics
    app.state.worker_metrics = worker_metrics
    # Not include_router: every request would be matched against each router again, a tenth of its time.
    app.router.routes += ROUTES
    if pages is not None:
        beside = pages(servers)
        servers.on_made.append(beside.begin)
        app.router.routes += beside.routes
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]
    return app


class _ForBrowsers(CORSMiddleware):
    """Skips the CORS middleware for requests without an Origin header, which don't need it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = scope["type"] == "http" and any(name == b"origin" for name, _ in scope["headers"])
        await (super().__call__ if named else self.app)(scope, receive, send)


def _described(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        app.openapi_schema = openapi.describe(app)
    return app.openapi_schema


async def _api_error(connection: HTTPConnection, error: Any) -> Response:
    found: ApiError = error
    return await _told(connection, found)


async def _treadle_error(connection: HTTPConnection, error: Any) -> Response:
    return await _told(connection, from_treadle(error))


async def _told(connection: HTTPConnection, error: ApiError) -> Response:
    """The answer to a request, which may have asked for a WebSocket."""
    answer = error.response()
    if isinstance(connection, WebSocket):
        await connection.send_denial_response(answer)
    return answer


async def _http_error(request: Request, error: Any) -> Response:
    """Errors raised by the framework: unknown path or method."""
    if error.status_code == 404:
        return ApiError(404, "not_found", NOT_FOUND).response()
    if error.status_code == 405:
        return wrong_method(request.method, _methods(request))
    return ApiError(error.status_code, "bad_request", str(error.detail)[:300], headers=error.headers).response()


def _methods(request: Request) -> set[str]:
    """The methods of all routes with this path; the framework reports only those of the first one."""
    path = path_here(request.scope)
    fitting = [route for route in ROUTES if isinstance(route, APIRoute) and route.path_regex.match(path)]
    return {method for route in fitting for method in route.methods or ()}


async def _bad_parameters(connection: HTTPConnection, error: Any) -> Response:
    data: dict[str, Any] = {}
    for one in error.errors()[:MOST_FIELDS]:
        name = ".".join(str(part) for part in one["loc"][1:])[:200]
        data.setdefault(name, {"code": "invalid_input", "message": in_words(one)})
    name, first = next(iter(data.items()))
    return await _told(connection, ApiError(400, "invalid_input", f"{name}: {first['message']}", data))
