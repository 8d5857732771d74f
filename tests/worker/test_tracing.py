"""One trace from an enqueue to its runs if OpenTelemetry is set up, and nothing at all if it is not."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.waiting import ended, until
from tests.worker import process_handlers
from tests.worker.conftest import Start
from treadle import Context, Job, Queue, Retry
from treadle.store.values import Claimed, Wants
from treadle.telemetry import running_job, tracing
from treadle.testing.workbench import new_job

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Spans:
    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def only(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """A tracer provider for the time of one test; set the way it can only be set once in a real program."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield Spans(exporter)
    provider.shutdown()


def trace_id(span: ReadableSpan) -> int:
    return _context(span).trace_id


def span_id(span: ReadableSpan) -> int:
    return _context(span).span_id


def _context(span: ReadableSpan) -> trace.SpanContext:
    context = span.get_span_context()
    assert context
    return context


def joined(run: ReadableSpan, enqueue: ReadableSpan) -> bool:
    """The run continues the trace of the enqueue, and links to it."""
    assert run.parent
    return (
        trace_id(run) == trace_id(enqueue)
        and run.parent.span_id == span_id(enqueue)
        and [link.context.span_id for link in run.links] == [span_id(enqueue)]
    )


async def claimed(queue: Queue, topic: str, count: int = 1) -> list[Claimed]:
    lease = await queue.store.open_lease("test", 60_000)
    return (await queue.store.claim(lease, Wants([topic], [], count, count))).jobs


async def test_a_run_continues_the_trace_of_its_enqueue(queue: Queue, start: Start, spans: Spans) -> None:
    @queue.job
    async def mail() -> None: ...

    await start(queue)
    job = await ended(queue, await mail.enqueue())
    enqueue, run = spans.only("send mail"), await until(lambda: spans.named("process mail"))
    assert joined(run[0], enqueue)
    assert (enqueue.kind, run[0].kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    for span in (enqueue, run[0]):
        assert span.attributes is not None
        assert span.attributes["messaging.system"] == "treadle"
        assert span.attributes["messaging.destination.name"] == "mail"
        assert span.attributes["messaging.message.id"] == job.id
    assert run[0].attributes is not None
    assert run[0].attributes["treadle.outcome"] == "completed"
    assert run[0].attributes["treadle.attempt"] == 1


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_what_a_handler_does_belongs_to_its_run(queue: Queue, start: Start, spans: Spans, kind: str) -> None:
    async def parent_async(ctx: Context) -> None:
        with trace.get_tracer("user").start_as_current_span("inner"):
            await ctx.enqueue("child")

    def parent_sync(ctx: Context) -> None:
        with trace.get_tracer("user").start_as_current_span("inner"):
            ctx.enqueue("child")

    queue.register("parent", parent_async if kind == "coroutine" else parent_sync)
    await start(queue)
    await ended(queue, await queue.enqueue("parent"))
    [run] = await until(lambda: spans.named("process parent"))
    inner, child = spans.only("inner"), spans.only("send child")
    assert inner.parent
    assert inner.parent.span_id == span_id(run)
    assert child.parent
    assert child.parent.span_id == span_id(inner)
    assert {trace_id(span) for span in (run, inner, child)} == {trace_id(spans.only("send parent"))}


async def test_one_job_does_not_inherit_the_span_of_the_one_before(queue: Queue, start: Start, spans: Spans) -> None:
    @queue.job
    async def mail() -> None: ...

    first, second = await mail.enqueue(), await mail.enqueue()
    await start(queue, slots=1)
    await ended(queue, first)
    await ended(queue, second)
    runs = await until(lambda: len(spans.named("process mail")) == 2 and spans.named("process mail"))
    enqueues = {trace_id(span): span for span in spans.named("send mail")}
    assert len(enqueues) == 2
    assert all(joined(run, enqueues[trace_id(run)]) for run in runs)


async def test_a_failed_attempt_and_the_next_are_spans_of_one_trace(queue: Queue, start: Start, spans: Spans) -> None:
    @queue.job(retry=Retry(2, backoff="fixed", delay="10ms"))
    async def fragile(ctx: Context) -> None:
        if not ctx.is_retry:
            raise ValueError("broken\nbadly")

    await start(queue)
    await ended(queue, await fragile.enqueue())
    failed, fine = await until(lambda: len(spans.named("process fragile")) == 2 and spans.named("process fragile"))
    assert joined(failed, spans.only("send fragile"))
    assert joined(fine, spans.only("send fragile"))
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "ValueError: broken")
    assert failed.attributes is not None
    assert (failed.attributes["error.type"], failed.attributes["treadle.outcome"]) == ("ValueError", "failed")
    assert fine.status.status_code is not StatusCode.ERROR


async def test_many_jobs_share_the_span_that_made_them(queue: Queue, start: Start, spans: Spans) -> None:
    @queue.job
    async def mail() -> None: ...

    await start(queue)
    for job in await mail.enqueue_many([{}] * 5):
        await ended(queue, job)
    enqueue = spans.only("send mail")
    assert enqueue.attributes is not None
    assert enqueue.attributes["messaging.batch.message_count"] == 5
    runs = await until(lambda: len(spans.named("process mail")) == 5 and spans.named("process mail"))
    assert all(joined(run, enqueue) for run in runs)


async def test_callers_that_share_a_transaction_keep_their_own_traces(queue: Queue, spans: Spans) -> None:
    jobs: list[Job] = await asyncio.gather(*(queue.enqueue("mail", {"i": i}) for i in range(50)))
    expected = {
        span.attributes["messaging.message.id"]: f"{trace_id(span):032x}"
        for span in spans.named("send mail")
        if span.attributes
    }
    found = {one.id: (one.trace or "").split("-")[1] for one in await claimed(queue, "mail", 50)}
    assert found == expected
    assert len(set(found.values())) == len(jobs)


async def test_a_refused_enqueue_is_an_error_of_its_span(queue: Queue, spans: Spans) -> None:
    await queue.enqueue("mail", {"a": 1}, idempotency_key="k")
    with pytest.raises(Exception, match="another payload"):
        await queue.enqueue("mail", {"a": 2}, idempotency_key="k")
    assert [span.status.status_code for span in spans.named("send mail")] == [StatusCode.UNSET, StatusCode.ERROR]


async def test_an_enqueue_inside_a_span_is_its_child(queue: Queue, spans: Spans) -> None:
    with trace.get_tracer("user").start_as_current_span("request"):
        await queue.enqueue("mail")
    child = spans.only("send mail")
    assert child.parent
    assert child.parent.span_id == span_id(spans.only("request"))


async def test_an_enqueue_for_a_caller_elsewhere_joins_the_callers_trace(queue: Queue, spans: Spans) -> None:
    with tracing.continuing(PARENT):
        await queue.enqueue("mail")
    assert f"{trace_id(spans.only('send mail')):032x}" == PARENT.split("-")[1]


@pytest.mark.parametrize("bad", [None, "", "nonsense", "00-" + "0" * 32 + "-b7ad6b7169203331-01", "x" * 5000])
async def test_a_bad_traceparent_is_no_error(queue: Queue, spans: Spans, bad: str | None) -> None:
    with tracing.continuing(bad):
        await queue.enqueue("mail")
    assert spans.only("send mail").parent is None


async def test_a_process_handler_is_part_of_its_trace(queue: Queue, start: Start, spans: Spans) -> None:
    queue.register("plain", process_handlers.plain, process=True)
    await start(queue)
    await ended(queue, await queue.enqueue("plain", {"x": 1}), 60)
    [run] = await until(lambda: spans.named("process plain"))
    assert joined(run, spans.only("send plain"))


async def test_the_blocking_face_traces_too(url: str, spans: Spans) -> None:
    def enqueue() -> None:
        with Queue(url).sync as queue, trace.get_tracer("user").start_as_current_span("request"):
            queue.enqueue("mail")

    await asyncio.to_thread(enqueue)
    child = spans.only("send mail")
    assert child.parent
    assert child.parent.span_id == span_id(spans.only("request"))


@pytest.mark.parametrize(
    "options",
    [{}, {"delay_ms": 1}, {"idempotency_key": "k"}, {"expires_in_ms": 60_000}, {"max_attempts": 1}],
    ids=str,
)
@pytest.mark.parametrize("count", [1, 3])
async def test_a_trace_is_kept_on_every_way_of_a_job(queue: Queue, options: dict[str, Any], count: int) -> None:
    keyed = "idempotency_key" in options
    jobs = [
        new_job(trace=PARENT, **{**options, **({"idempotency_key": str(i)} if keyed else {})}) for i in range(count)
    ]
    await queue.store.insert(jobs)

    async def found() -> list[Claimed]:
        await queue.store.advance()
        return await claimed(queue, "mail", count)

    assert [job.trace for job in await until(found)] == [PARENT] * count


async def test_without_a_provider_nothing_is_kept(queue: Queue, start: Start) -> None:
    seen: list[Any] = []

    @queue.job
    async def mail() -> None:
        seen.append((trace.get_current_span().get_span_context().is_valid, running_job.get()))

    assert not tracing.on()
    await queue.enqueue("mail")
    await start(queue)
    await until(lambda: seen)
    assert seen[0][0] is False
    assert seen[0][1].trace is None


def test_who_does_not_use_the_package_does_not_import_it() -> None:
    script = (
        "import sys, asyncio, treadle, treadle.worker, treadle.telemetry\n"
        "from treadle.telemetry import tracing\n"
        "assert not tracing.on()\n"
        "assert tracing.current() is None\n"
        "with tracing.sending('mail') as sending: assert sending.traceparent is None\n"
        "sys.exit(any(name.startswith(('opentelemetry', 'prometheus_client')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
