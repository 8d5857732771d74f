"""The busiest routes bypass the framework: no dependencies, no validated parameters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from treadle.http.errors import ApiError, from_treadle, wrong_method
from treadle.model.errors import TreadleError

E = TypeVar("E", bound=Callable[..., Awaitable[Response]])


class _DirectRoute(APIRoute):
    """Described in OpenAPI like any other route, but called with the request and the raw path parameters."""


def direct(router: APIRouter, method: str, path: str, **options: Any) -> Callable[[E], E]:
    """A decorator for these routes; their functions take the request and the path parameters as strings."""

    def add(endpoint: E) -> E:
        router.add_api_route(path, endpoint, methods=[method], route_class_override=_DirectRoute, **options)
        return endpoint

    return add


class FastRoutes:
    """Answers the direct routes and passes every other request to the application."""

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self._fixed: dict[str, dict[str, Route]] = {}
        """By path and method. A fixed path wins over a pattern, even if its route is not direct or lacks the method."""
        self._patterns: list[tuple[str, _DirectRoute]] = []
        for route in routes:
            if not isinstance(route, Route):
                continue  # a WebSocket's
            for method in route.methods or ():
                if "{" not in route.path:
                    self._fixed.setdefault(route.path, {})[method] = route
                elif isinstance(route, _DirectRoute):
                    self._patterns.append((method, route))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._find(scope) if scope["type"] == "http" else None
        if found is None:
            await self._app(scope, receive, send)
        else:
            await (await self._answer(*found, Request(scope, receive, send)))(scope, receive, send)

    def _find(self, scope: Scope) -> tuple[Route, dict[str, str]] | None:
        """The direct route to call, or a fixed path that lacks this method; None passes the request on."""
        method, path = scope["method"], path_here(scope)
        methods = self._fixed.get(path)
        if methods is not None:
            route = methods.get(method)
            if route is None:
                return next(iter(methods.values())), {}
            return (route, {}) if isinstance(route, _DirectRoute) else None
        for its_method, pattern in self._patterns:
            if method == its_method and (match := pattern.path_regex.match(path)):
                return pattern, match.groupdict()
        return None

    async def _answer(self, route: Route, parts: dict[str, str], request: Request) -> Response:
        request.scope["route"] = route
        if request.method not in (route.methods or ()):
            return wrong_method(request.method, self._fixed[route.path])
        try:
            found: Response = await route.endpoint(request, **parts)
        except ApiError as error:
            return error.response()
        except TreadleError as error:
            return from_treadle(error).response()
        return found


def path_here(scope: Scope) -> str:
    """The path relative to the application's mount point."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
