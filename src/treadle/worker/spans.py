"""One consumer span per attempt, around its handler; only if a tracer provider is set up."""

from __future__ import annotations

from treadle.model.error_line import error_line
from treadle.policy.lifecycle import CancelAcknowledged, Completed, Failed, Outcome, Released, Snoozed
from treadle.telemetry import tracing
from treadle.worker.attempt import Attempt
from treadle.worker.recipe import Run, outcome_of

_NAMES: dict[type, str] = {
    Completed: "completed",
    Failed: "failed",
    Snoozed: "snoozed",
    Released: "released",
    CancelAcknowledged: "cancelled",
    type(None): "lost",
}


def traced(run: Run) -> Run:
    """The same with tracing, if a tracer provider is set up when the worker starts."""
    if not tracing.on():
        return run

    async def run_in_span(attempt: Attempt) -> Outcome | None:
        with tracing.processing(attempt.job) as span:
            outcome = await outcome_of(run(attempt))
            if isinstance(outcome, Failed):
                span.failed(error_line(outcome.error, outcome.error_type), outcome.error_type)
            span.outcome(_NAMES[type(outcome)])
        return outcome

    return run_in_span
