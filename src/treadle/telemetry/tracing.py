"""Traces that connect an enqueue with its runs, for programs that have set up OpenTelemetry.

The enqueue is a producer span, and its `traceparent` is stored with the job; each attempt is a consumer span in the
same trace. Without a tracer provider there are no spans, nothing is stored, and the package is not even imported: a
program that uses it has already imported it for its setup.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from treadle.telemetry.log_context import LoggedJob

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

SCOPE = "treadle"


class Traced(LoggedJob, Protocol):
    """The parts of a claimed job that its trace needs."""

    @property
    def trace(self) -> str | None: ...


class Sending:
    """An enqueue in progress; `traceparent` is stored with its jobs."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self.traceparent = _traceparent()

    def job(self, id: str) -> None:
        self._span.set_attribute("messaging.message.id", id)


class Processing:
    """An attempt in progress."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def outcome(self, name: str) -> None:
        self._span.set_attribute("treadle.outcome", name)

    def failed(self, error_line: str, error_type: str) -> None:
        from opentelemetry.trace import StatusCode

        self._span.set_attribute("error.type", error_type)
        self._span.set_status(StatusCode.ERROR, error_line)


class _Untraced:
    """Replaces all of them while tracing is off."""

    traceparent: str | None = None

    def __enter__(self) -> _Untraced:
        return self

    def __exit__(self, *_: object) -> None: ...

    def job(self, id: str) -> None: ...

    def outcome(self, name: str) -> None: ...

    def failed(self, error_line: str, error_type: str) -> None: ...


UNTRACED = _Untraced()
_last: tuple[Any, Tracer] | None = None


def on() -> bool:
    """Whether a tracer provider is set up."""
    return _tracer() is not None


def _tracer() -> Tracer | None:
    """Called at every enqueue; if the package is not in use, this is one dictionary lookup."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        return None
    global _last  # noqa: PLW0603 - making a tracer takes longer than using it
    if _last is None or _last[0] is not provider:
        _last = provider, provider.get_tracer(SCOPE)
    return _last[1]


def sending(topic: str | None, count: int = 1) -> AbstractContextManager[Sending | _Untraced]:
    """Wraps an enqueue of `count` jobs; the topic is None if there are several."""
    tracer = _tracer()
    return UNTRACED if tracer is None else _send(tracer, topic, count)


@contextmanager
def _send(tracer: Tracer, topic: str | None, count: int) -> Iterator[Sending]:
    from opentelemetry.trace import SpanKind

    attributes: dict[str, str | int] = {**_about("send", topic), "messaging.batch.message_count": count}
    if count == 1:
        del attributes["messaging.batch.message_count"]
    name = f"send {topic}" if topic else "send"
    with tracer.start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=attributes) as span:
        yield Sending(span)


@contextmanager
def processing(job: Traced) -> Iterator[Processing | _Untraced]:
    """Wraps an attempt while tracing is on: continues the trace of the enqueue and links to it."""
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, SpanKind, get_current_span

    tracer = _tracer()
    if tracer is None:  # set up when the worker started, and removed since
        yield UNTRACED
        return
    parent = _context_of(job.trace)
    producer = get_current_span(parent).get_span_context() if parent is not None else None
    with tracer.start_as_current_span(
        f"process {job.topic}",
        context=Context() if parent is None else parent,  # not a child of the span that the worker was started in
        kind=SpanKind.CONSUMER,
        links=[Link(producer)] if producer and producer.is_valid else [],
        attributes={
            **_about("process", job.topic),
            "messaging.message.id": job.id,
            "treadle.attempt": job.attempt,
        },
    ) as span:
        yield Processing(span)


def continuing(traceparent: str | None) -> AbstractContextManager[object]:
    """Work inside the block joins the caller's trace, unless this program already has an open span."""
    return UNTRACED if traceparent is None or not on() else _continue(traceparent)


@contextmanager
def _continue(traceparent: str) -> Iterator[None]:
    from opentelemetry import context
    from opentelemetry.trace import get_current_span

    found = None if get_current_span().get_span_context().is_valid else _context_of(traceparent)
    if found is None:
        yield
        return
    token = context.attach(found)
    try:
        yield
    finally:
        context.detach(token)


def current() -> str | None:
    """The traceparent of the current span, to send elsewhere."""
    return _traceparent() if on() else None


def _about(operation: str, topic: str | None) -> dict[str, str | int]:
    """Attributes named by OpenTelemetry's messaging conventions."""
    about: dict[str, str | int] = {"messaging.system": SCOPE, "messaging.operation.type": operation}
    if topic is not None:
        about["messaging.destination.name"] = topic
    return about


# Always W3C's format, regardless of the program's propagators, because that is what we store.


def _traceparent() -> str | None:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")


def _context_of(traceparent: str | None) -> Context | None:
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if traceparent is None:
        return None
    found = TraceContextTextMapPropagator().extract({"traceparent": traceparent})
    return found if get_current_span(found).get_span_context().is_valid else None
