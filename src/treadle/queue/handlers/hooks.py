"""User functions that run around jobs: hooks in the worker's process, middleware around handlers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args

from treadle.model.errors import InvalidInput
from treadle.model.handler import Handler

Moment = Literal["on_start", "on_success", "on_failure", "on_retry"]
MOMENTS: tuple[Moment, ...] = get_args(Moment)

Hook = Callable[..., Any]
"""Sync or async. `on_start` takes `(ctx)`, `on_success` `(ctx, result)`, `on_failure` and `on_retry` `(ctx, error)`."""
Middleware = Callable[[Any, Callable[[], Any]], Any]
"""`async def f(ctx, call): return await call()` for coroutines, `def f(ctx, call): return call()` for functions."""

AnyHook = TypeVar("AnyHook", bound=Hook)


class Hooks:
    """The hooks and middleware registered on a queue."""

    def __init__(self) -> None:
        self.middleware: list[Middleware] = []
        self.worker_start: list[Hook] = []
        self.worker_stop: list[Hook] = []
        self._everywhere: dict[Moment, list[Hook]] = {moment: [] for moment in MOMENTS}
        self._of_topic: dict[str, dict[Moment, Hook]] = {}

    def add(self, moment: Moment, hook: AnyHook) -> AnyHook:
        self._everywhere[moment].append(_checked(moment, hook))
        return hook

    def remove(self, moment: Moment, hook: Hook) -> None:
        self._everywhere[moment].remove(hook)

    def add_middleware(self, middleware: AnyHook) -> AnyHook:
        self.middleware.append(_checked("middleware", middleware))
        return middleware

    def add_worker_start(self, hook: AnyHook) -> AnyHook:
        self.worker_start.append(_checked("on_worker_start", hook))
        return hook

    def add_worker_stop(self, hook: AnyHook) -> AnyHook:
        self.worker_stop.append(_checked("on_worker_stop", hook))
        return hook

    def take_options(self, topic: str, options: dict[str, Any]) -> None:
        """Take one topic's hooks out of its handler's options."""
        own = {moment: hook for moment in MOMENTS if (hook := options.pop(moment, None)) is not None}
        self._of_topic[topic] = {moment: _checked(moment, hook) for moment, hook in own.items()}

    def of(self, topic: str) -> Mapping[Moment, Sequence[Hook]]:
        """The hooks that run for jobs of this topic: first the queue's, then the topic's."""
        own = self._of_topic.get(topic, {})
        found = {moment: [*self._everywhere[moment], *([own[moment]] if moment in own else [])] for moment in MOMENTS}
        return {moment: hooks for moment, hooks in found.items() if hooks}


def _checked(name: str, hook: AnyHook) -> AnyHook:
    if not callable(hook):
        raise InvalidInput(f"{name}: {hook!r} is not a function", field=name)
    return hook


def is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def fitting(handler: Handler, middleware: Sequence[Middleware]) -> list[Middleware]:
    """The async ones for a coroutine, the sync ones for a function, because neither can wrap the other."""
    return [one for one in middleware if is_async(one) == is_async(handler.function)]


def wrapped(handler: Handler, middleware: Sequence[Middleware]) -> Callable[[Any, Any], Any]:
    """The handler's function wrapped in this middleware, the first outermost; takes context and payload."""
    invoke = _invoke(handler)
    for one in reversed(middleware):
        invoke = _around(one, invoke)
    return invoke


def _invoke(handler: Handler) -> Callable[[Any, Any], Any]:
    function, arguments = handler.function, handler.arguments
    if handler.wants_payload:
        return function if handler.wants_context else lambda context, payload: function(payload)
    return lambda context, payload: function(*arguments(context, payload))


def _around(middleware: Middleware, invoke: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda context, payload: middleware(context, lambda: invoke(context, payload))
