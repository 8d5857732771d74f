"""Routes that are asked more than all others together go past the framework: no dependency, no checked parameter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from treadle.errors import TreadleError
from treadle.http.errors import ApiError, from_treadle, wrong_method

E = TypeVar("E", bound=Callable[..., Awaitable[Response]])


class _DirectRoute(APIRoute):
    """Described like any other, but called with the request and the parts of its path as they are."""


def direct(router: APIRouter, method: str, path: str, **options: Any) -> Callable[[E], E]:
    """A decorator for these routes; their functions take the request, and the parts of the path as texts."""

    def add(endpoint: E) -> E:
        router.add_api_route(path, endpoint, methods=[method], route_class_override=_DirectRoute, **options)
        return endpoint

    return add


class Direct:
    """Answers the direct routes, and leaves every other request to the application."""

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self._fixed: dict[str, dict[str, _DirectRoute | None]] = {}
        """By path and method. A path of its own goes before one with an id in it, direct or not, possible or not."""
        self._patterns: list[tuple[str, _DirectRoute]] = []
        for route in routes:
            assert isinstance(route, Route)
            found = route if isinstance(route, _DirectRoute) else None
            for method in route.methods or ():
                if "{" not in route.path:
                    self._fixed.setdefault(route.path, {})[method] = found
                elif found:
                    self._patterns.append((method, found))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            route, parts = self._find(scope["method"], path_here(scope))
            if route is None:
                await self._app(scope, receive, send)
                return
            scope["route"] = route
            response: Response = await route.endpoint(Request(scope, receive, send), **parts)
        except ApiError as error:
            response = error.response()
        except TreadleError as error:
            response = from_treadle(error).response()
        await response(scope, receive, send)

    def _find(self, method: str, path: str) -> tuple[_DirectRoute | None, dict[str, str]]:
        methods = self._fixed.get(path)
        if methods is not None:
            if method not in methods:
                raise wrong_method(method, methods)
            return methods[method], {}
        for its_method, route in self._patterns:
            if method == its_method and (match := route.path_regex.match(path)):
                return route, match.groupdict()
        return None, {}


def path_here(scope: Scope) -> str:
    """The path below where the application is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
