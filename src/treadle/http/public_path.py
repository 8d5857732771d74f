"""Serving under the path of the public address, such as https://example.com/queue."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send


class PublicPath:
    """Makes links and redirects begin with the path of the public address.

    A proxy may pass the path on or cut it off; both work. An application that mounts this one has set the path itself.
    """

    def __init__(self, app: ASGIApp, public_url: str) -> None:
        self.app = app
        self._path = urlsplit(public_url).path.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._path and scope["type"] in ("http", "websocket") and not scope.get("root_path"):
            path: str = scope["path"]
            passed_on = path == self._path or path.startswith(f"{self._path}/")
            scope = {**scope, "root_path": self._path, "path": path if passed_on else self._path + path}
        await self.app(scope, receive, send)
