"""One consumer span an attempt, around whatever runs the handler; only where somebody traces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from treadle.lifecycle import CancelAcknowledged, Completed, Failed, Outcome, Released, Snoozed
from treadle.telemetry import tracing
from treadle.worker.run import Run

Perform = Callable[[Run], Awaitable[Outcome | None]]

_NAMES: dict[type, str] = {
    Completed: "completed",
    Failed: "failed",
    Snoozed: "snoozed",
    Released: "released",
    CancelAcknowledged: "cancelled",
    type(None): "lost",
}


def traced(perform: Perform) -> Perform:
    """The same, traced, if a tracer provider is set up by the time a worker starts."""
    if not tracing.on():
        return perform

    async def perform_in_span(run: Run) -> Outcome | None:
        with tracing.processing(run.job) as attempt:
            outcome = await perform(run)
            if isinstance(outcome, Failed):
                attempt.failed(outcome.error, outcome.error_type)
            attempt.outcome(_NAMES[type(outcome)])
        return outcome

    return perform_in_span
