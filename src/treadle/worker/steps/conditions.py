"""The `when` of a step, as a function that callers can call: with a time limit, and stopped when its job is."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from treadle.model.steps import STEP_TIMEOUT_MS
from treadle.queue.handlers.hooks import is_async
from treadle.worker.call import Function
from treadle.worker.threads import Threads

YES = "true"
NO = "false"


def condition(when: Callable[[Any, Any], Any], step: Function, external: bool, threads: Threads) -> Function:
    """A plain function runs in a thread, because it may block; what it returns may have to be awaited."""

    async def ask(context: Any, payload: Any) -> bool:
        answer = when(context, payload) if is_async(when) else await threads.run(partial(when, context, payload))
        return bool(await answer if inspect.isawaitable(answer) else answer)

    made = copy.copy(step)
    made.invoke, made.wants_context = ask, True
    made.result_text = _text  # type: ignore[assignment]
    if external:  # how long it waits for its answer says nothing about its condition
        made.timeout_s = STEP_TIMEOUT_MS / 1000
    return made


def _text(answer: bool) -> str:
    return YES if answer else NO
