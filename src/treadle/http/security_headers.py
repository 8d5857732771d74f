"""Wraps the application: security headers, HEAD requests, and a last resort for errors."""

from __future__ import annotations

import logging
import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from treadle.http.errors import ApiError, internal
from treadle.http.fast_routes import path_here

log = logging.getLogger("treadle.http")

HEADERS_ONLY = "treadle.headers_only"
"""The scope entry that marks a HEAD request converted to GET."""

_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "X-XSS-Protection": "1; mode=block",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "Vary": "Origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; form-action 'self'; base-uri 'none'",
}
# Answers about jobs, which no cache may keep. The dashboard says for each of its files.
_API = ("/api/", "/_api/", "/metrics")
_RAW = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


class SecurityHeaders:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        head = scope["method"] == "HEAD"
        # A copy, because the server must still see HEAD; otherwise it would wait for the body.
        asked = {**scope, "method": "GET", HEADERS_ONLY: True} if head else scope
        started = False

        async def reply(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                scope["route"] = asked.get("route")
                _dress(message["headers"], asked)
            elif head:
                message = {**message, "body": b""}
            await send(message)

        try:
            if not _HOST.fullmatch(_host(scope)):
                raise ApiError(400, "invalid_host", "The Host header is not a host name.")
            await self.app(asked, receive, reply)
        except ApiError as error:
            await error.response()(scope, receive, reply)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if started:
                raise
            await internal().response()(scope, receive, reply)


def _host(scope: Scope) -> str:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")


def _dress(headers: list[tuple[bytes, bytes]], scope: Scope) -> None:
    there = {name for name, _ in headers}
    headers += [one for one in _RAW if one[0] not in there]
    if b"cache-control" not in there and path_here(scope).startswith(_API):
        headers.append((b"cache-control", b"no-store"))
