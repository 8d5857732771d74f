"""Wraps every HTTP request: an id for its log lines, its trace, and its time and status for the metrics."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from treadle.telemetry import tracing
from treadle.telemetry.histogram import CALLS, Histogram
from treadle.telemetry.labels import MOST_ROUTES, MOST_TOPICS, OTHER, Labels
from treadle.telemetry.log_context import new_request_id, request_id

log = logging.getLogger("treadle.http")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_METHODS = frozenset("GET HEAD POST PUT PATCH DELETE OPTIONS".split())
LOGGED_CHARACTERS = 200


class HttpMetrics:
    """Answered requests by (method, route, status), and durations by route."""

    __slots__ = ("_routes", "_topics", "ended", "requests", "seconds")

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.seconds: dict[str, Histogram] = {}
        self.ended: Counter[tuple[str, str]] = Counter()
        """By (topic, status): jobs ended by external workers through this server."""
        self._routes = Labels(MOST_ROUTES)
        self._topics = Labels(MOST_TOPICS)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """`route` is the template, such as "/api/jobs/{id}", never the requested path."""
        route = self._routes.of(route)
        self.requests[method if method in _METHODS else OTHER, route, status] += 1
        if route not in self.seconds:
            self.seconds[route] = Histogram(CALLS)
        self.seconds[route].observe(seconds)

    def count_ended(self, topic: str, status: str) -> None:
        self.ended[self._topics.of(topic), status] += 1


class Observed:
    """Wraps an ASGI app to observe its requests. Must be the outermost layer, so that no request is missed."""

    def __init__(self, app: App, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        number = new_request_id(_header(scope, b"x-request-id"))
        token = request_id.set(number)
        try:
            with tracing.continuing(_header(scope, b"traceparent")):
                if scope["type"] == "http":
                    await self._answer(_Exchange(scope, send, number, self._metrics), receive)
                else:
                    await self._app(scope, receive, send)
        finally:
            request_id.reset(token)

    async def _answer(self, exchange: _Exchange, receive: Receive) -> None:
        try:
            await self._app(exchange.scope, receive, exchange.send)
        finally:
            exchange.ended()


class _Exchange:
    """One request up to the start of its response; a stream may continue for hours after that."""

    def __init__(self, scope: Scope, send: Send, number: str, metrics: HttpMetrics) -> None:
        self.scope = scope
        self._send = send
        self._number = number
        self._metrics = metrics
        self._started = time.perf_counter()
        self._told = False

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ())]
            if not any(name.lower() == b"x-request-id" for name, _ in headers):
                message["headers"] = [*headers, (b"x-request-id", self._number.encode())]
            self._tell(message["status"])
        await self._send(message)

    def ended(self) -> None:
        """If the app sent no response, the server answers 500."""
        self._tell(500)

    def _tell(self, status: int) -> None:
        if self._told:
            return
        self._told = True
        seconds = time.perf_counter() - self._started
        route = getattr(self.scope.get("route"), "path", None) or OTHER
        self._metrics.observe(self.scope["method"], route, status, seconds)
        level = logging.WARNING if status >= 500 else logging.DEBUG
        # Never the query, because it may contain a token.
        path = str(self.scope.get("path", ""))[:LOGGED_CHARACTERS]
        log.log(level, "%s %s: %d in %.1f ms", self.scope["method"], path, status, seconds * 1e3)


def _header(scope: Scope, name: bytes) -> str | None:
    for key, value in scope.get("headers", ()):
        if key == name:
            return str(value, "latin-1")
    return None
