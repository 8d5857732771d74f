"""On whose behalf jobs are made. Under `replace_same_scope` a new or requeued job cancels live ones; a request may only
cancel those that its caller may manage.

The condition goes with the request's task, from the front end to the job that is stored, past everything in between
that has no business with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from treadle.policy.rules import Condition, always

_may_replace: ContextVar[Condition] = ContextVar("may_replace", default=always)


def may_replace() -> Condition:
    """Which live jobs the caller of this request may cancel; all of them outside a request."""
    return _may_replace.get()


@contextlib.contextmanager
def on_behalf_of(condition: Condition) -> Iterator[None]:
    token = _may_replace.set(condition)
    try:
        yield
    finally:
        _may_replace.reset(token)
