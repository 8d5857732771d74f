"""The HTTP API: `create_app(queue)` is an ASGI application."""

from treadle.http.app import create_app

__all__ = ["create_app"]
