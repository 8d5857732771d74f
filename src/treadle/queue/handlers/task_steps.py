"""A task as a step: `ctx.step("resize", resize, image)` with what `@queue.job` returned.

It gets its payload and a context as a job would. Its timeout, retry and process are honoured; what would need a job of
its own, such as a capability or a rate limit, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from treadle.model.durations import duration_ms
from treadle.model.errors import InvalidInput
from treadle.model.handler import Handler, is_async
from treadle.model.retry import Retry
from treadle.queue.handlers.tasks import Task, bound

if TYPE_CHECKING:
    from treadle.queue.handlers.context import Context, HandlerServices

_NEEDS_A_JOB = ("capability", "rate", "concurrency", "idempotency_key", "dedupe_keys")


class TaskCall:
    """One call of a task's function inside the job of another handler."""

    def __init__(self, ctx: Context, step: str, task: Task[..., Any, Any], args: Sequence[Any]) -> None:
        self.handler: Handler = task.handler
        _check_options(step, self.handler)
        self.function: Callable[..., Any] = self.handler.function
        self.timeout_ms = duration_ms(self.handler.template.timeout)
        self.in_process = self.handler.kind == "process" and ctx._services.call_in_process is not None
        if ctx._services.blocking and not self.in_process and is_async(self.function) and self.handler.wants_context:
            raise InvalidInput(
                f"step {step}: {task.topic} is a coroutine with ctx, which a plain function can't run; "
                "make this handler a coroutine too, or use ctx.run",
                field="function",
            )
        self.payload = _payload_text(step, self.handler, args)
        self._outer = ctx
        self._ctx: Context | None = None

    @property
    def retry(self) -> Retry | None:
        """The default of tasks is meant for jobs: a step without a policy of its own fails, and its job is retried."""
        retry = self.handler.template.retry
        return None if retry == Retry() else retry

    def arguments(self, services: HandlerServices) -> tuple[Any, ...]:
        from treadle.queue.handlers.context import Context

        payload = self.handler.payload(self.payload)
        self._ctx = Context(self._outer._call, services, payload)
        return self.handler.arguments(self._ctx, payload)

    def close(self) -> None:
        if self._ctx is not None:
            self._ctx._close()


def _check_options(step: str, handler: Handler) -> None:
    template = handler.template
    given = [name for name in _NEEDS_A_JOB if getattr(template, name)]
    if given:
        raise InvalidInput(
            f"step {step}: {handler.topic} has {', '.join(given)}, which only a job of its own can honour; use ctx.run",
            field="function",
        )


def _payload_text(step: str, handler: Handler, args: Sequence[Any]) -> str:
    if handler.takes_arguments:
        return handler.payload_text(bound(handler, args, {}))
    if len(args) > 1:
        raise InvalidInput(f"step {step}: {handler.topic} takes its payload, not {len(args)} arguments", field="args")
    return handler.payload_text(args[0] if args else None)
