"""Flask's application context around handlers: `use_app_context(queue, app)`."""

from __future__ import annotations

import functools
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from treadle import Context, InvalidInput, Queue

if TYPE_CHECKING:
    from flask import Flask


class _Application:
    """An application, or the factory that makes it before the first job."""

    def __init__(self, app: Flask | Callable[[], Flask]) -> None:
        self._made = cast("Flask", app) if hasattr(app, "app_context") else None
        self._factory = cast("Callable[[], Flask]", app)
        self._making = threading.Lock()

    def get(self) -> Flask:
        with self._making:
            if self._made is None:
                self._made = self._factory()
        return self._made

    def in_function(self, ctx: Context, call: Callable[[], Any]) -> Any:
        with self.get().app_context():
            return call()

    async def in_coroutine(self, ctx: Context, call: Callable[[], Awaitable[Any]]) -> Any:
        with self.get().app_context():
            return await call()


def use_app_context(queue: Queue, app: Flask | Callable[[], Flask]) -> None:
    """Run every handler inside the application's context, so that `current_app`, `g` and extensions work.

    `app` may also be the application factory; it is called once in each process, before the first job. For handlers
    with `process=True`, call this in a module that the handler's module imports.
    """
    if not callable(app):
        raise InvalidInput(f"app: a Flask application or its factory, not {type(app).__name__}", field="app")
    application = _applications[queue] = _Application(app)
    queue.middleware(_ImportedByName(application.in_function))
    queue.middleware(application.in_coroutine)


class _ImportedByName:
    """Calls `around`. A process for a handler, which imports middleware by name, finds `in_process` instead."""

    def __init__(self, around: Callable[..., Any]) -> None:
        self._around = around
        functools.update_wrapper(self, in_process)

    def __call__(self, ctx: Context, call: Callable[[], Any]) -> Any:
        return self._around(ctx, call)


_applications: WeakKeyDictionary[Queue, _Application] = WeakKeyDictionary()


def in_process(ctx: Context, call: Callable[[], Any]) -> Any:
    """The middleware of a handler in a process, which has imported the handler's module and what that imports."""
    found = [application for queue, application in _applications.items() if ctx.topic in queue.handlers]
    if not found:
        raise InvalidInput(f"{ctx.topic}: no Flask application is known; call use_app_context where its module is")
    return found[-1].in_function(ctx, call)
