"""Awaiting a coroutine with context variables of its own, without the cost of a task.

Slots are long-lived tasks, so whatever one handler puts into a context variable (a request id, a
trace span, a session) would be there for the next job. A task per job prevents that for 8 µs a job;
this costs 0.5 µs (measured, Python 3.11).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any


async def isolated(coroutine: Coroutine[Any, Any, Any]) -> Any:
    context = copy_context()
    try:
        waits_for = context.run(coroutine.send, None)
    except StopIteration as returned:  # most quick handlers never wait for anything
        return returned.value
    return await _go_on(context, coroutine, waits_for)


@types.coroutine
def _go_on(context: Context, coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """Pass what the coroutine waits for up to the loop, and what the loop sends back down to it."""
    resume: Callable[[Any], Any]
    while True:
        try:
            sent = yield waits_for
        except BaseException as error:  # a cancel, most of the time: it belongs to the handler
            resume, value = coroutine.throw, error
        else:
            resume, value = coroutine.send, sent
        try:
            waits_for = context.run(resume, value)
        except StopIteration as returned:
            return returned.value
