"""An attempt and its calls: what stops each of them, and which may finish first."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.waiting import give_way
from treadle import Context, JobCancelled, LeaseLost
from treadle.model.handler import Handler
from treadle.model.template import Template
from treadle.policy.judgement import Cause, Interrupt, Raised, Returned
from treadle.store.values import Claimed
from treadle.worker.attempt import Attempt
from treadle.worker.call import Call, Function, result_of
from treadle.worker.callers.loop import LoopCaller
from treadle.worker.callers.thread import ThreadCaller
from treadle.worker.errors import describe
from treadle.worker.lease_keeper import Lease
from treadle.worker.threads import Threads

JOB = Claimed(1, "01890000-0000-7000-8000-000000000000", "mail", "{}", 1, 3, 0, None, None, None, token=1, lease=1)


class NoServices:
    blocking = False
    call_in_process = None
    describe = staticmethod(describe)

    def turn(self, call: Any) -> Any: ...

    def recall_step(self, call: Any, name: str, key: str, finish_ms: int | None, item: int | None = None) -> Any: ...
    def begin_map(self, call: Any, name: str, total: int, declared: bool) -> Any: ...
    def record_map(self, call: Any, record: Any, name: str, declared: bool) -> Any: ...
    def read_items(self, call: Any, name: str, first: int, last: int) -> Any: ...

    def record_step(self, call: Any, record: Any, name: str, key: str) -> Any: ...
    def time_limit(self, seconds: float, error: Any) -> Any: ...

    def wait_step(self, call: Any, wait: Any) -> Any: ...

    def children(self, call: Any, request: Any) -> Any: ...

    def heartbeat(self, call: Any, lease_ms: int | None = None) -> Any: ...
    def enqueue_with_outcome(self, call: Any, topic: str, payload: Any, options: dict[str, Any], step: Any) -> Any: ...
    def emit(self, call: Any, channel: str, text: str) -> Any: ...

    def enqueue(self, topic: str, payload: Any, options: dict[str, Any]) -> Any: ...

    def database(self) -> Any: ...

    def close_database(self, database: Any, context: Any) -> None: ...

    def http(self) -> Any: ...


@pytest.fixture
def attempt() -> Attempt:
    return Attempt(JOB, Lease(1, 1e9), started=0.0)


def call_of(attempt: Attempt, function: Callable[..., Any] | None = None, **fields: Any) -> Call:
    def nothing() -> None: ...

    call = Call(attempt, Function(Handler(function or nothing, Template("mail"))), '{"x": 1}', deadline=1e9)
    for name, value in fields.items():
        setattr(call, name, value)
    attempt.open(call)
    return call


def cause(call: Call) -> Cause | None:
    return call.interrupt.cause if call.interrupt else None


def test_a_cancel_stops_every_call_except_ones_that_must_finish(attempt: Attempt) -> None:
    first, second = call_of(attempt), call_of(attempt, finishes_by=1e9)
    assert attempt.stop(Cause.CANCEL, "enough")
    assert (cause(first), cause(second)) == (Cause.CANCEL, None)
    second.check()
    assert second.cancelled, "it may look, and hurry"
    with pytest.raises(JobCancelled, match="enough"):
        first.check()


@pytest.mark.parametrize("why", [Cause.TIMEOUT, Cause.SHUTDOWN, Cause.LOST])
def test_nothing_else_waits_for_a_call_that_must_finish(attempt: Attempt, why: Cause) -> None:
    call = call_of(attempt, finishes_by=1e9)
    attempt.stop(why, "now")
    assert cause(call) is why


def test_a_cancel_reaches_the_outer_call_when_the_step_inside_it_has_finished(attempt: Attempt) -> None:
    outer = call_of(attempt)
    step = call_of(attempt, finishes_by=1e9, parent=outer)
    inside_step = call_of(attempt, parent=step)
    attempt.stop(Cause.CANCEL, "enough")
    assert (cause(outer), cause(step)) == (None, None)
    attempt.close(inside_step)
    attempt.close(step)
    assert cause(outer) is Cause.CANCEL
    assert outer.interrupted_at > 0, "its grace counts from here"


def test_one_call_over_its_time_leaves_the_others_alone(attempt: Attempt) -> None:
    slow, other = call_of(attempt), call_of(attempt)
    assert slow.time_out()
    assert not slow.time_out()
    assert (cause(slow), cause(other), attempt.interrupt) == (Cause.TIMEOUT, None, None)
    with pytest.raises(TimeoutError, match="limit of 10m"):
        slow.check()


def test_a_lost_lease_beats_every_other_interrupt(attempt: Attempt) -> None:
    call = call_of(attempt)
    attempt.stop(Cause.CANCEL, "enough")
    assert attempt.stop(Cause.LOST, "gone")
    assert not attempt.stop(Cause.SHUTDOWN, "bye")
    assert cause(call) is Cause.LOST
    with pytest.raises(LeaseLost, match=JOB.id):
        call.check()


def test_a_lease_that_the_keeper_lost_counts_before_the_loop_hears_of_it(attempt: Attempt) -> None:
    call = call_of(attempt)
    call.stop(Interrupt(Cause.TIMEOUT, "too long"))
    attempt.lease.lost = True
    interrupt = call.interruption()
    assert interrupt
    assert interrupt.cause is Cause.LOST


async def test_an_attempt_can_make_many_calls_of_several_kinds_side_by_side(attempt: Attempt) -> None:
    met = asyncio.Barrier(2)
    loop = asyncio.get_running_loop()

    async def on_the_loop(ctx: Context, payload: dict[str, int]) -> int:
        await met.wait()
        return payload["x"]

    def in_a_thread(ctx: Context, payload: dict[str, int]) -> int:
        asyncio.run_coroutine_threadsafe(met.wait(), loop).result(10)
        return payload["x"] + 1

    def refuses(payload: dict[str, int]) -> object:
        return object()

    threads = Threads()
    in_threads = ThreadCaller(NoServices(), threads)
    try:
        results = await asyncio.gather(
            result_of(LoopCaller(NoServices()).begin(call_of(attempt, on_the_loop))),
            result_of(in_threads.begin(call_of(attempt, in_a_thread))),
            result_of(in_threads.begin(call_of(attempt, refuses))),
        )
    finally:
        threads.close()
    assert list(results[:2]) == [Returned("1"), Returned("2")]
    assert isinstance(results[2], Raised)
    assert results[2].kind == "refused"


async def test_a_coroutine_that_never_waits_has_its_result_without_being_awaited(attempt: Attempt) -> None:
    async def quick() -> str:
        return "done"

    assert LoopCaller(NoServices()).begin(call_of(attempt, quick)) == Returned('"done"')


async def test_a_coroutine_that_waits_is_stopped_at_its_await(attempt: Attempt) -> None:
    async def endless() -> None:
        await asyncio.get_running_loop().create_future()

    call = call_of(attempt, endless)
    running = asyncio.create_task(result_of(LoopCaller(NoServices()).begin(call)))
    await give_way()
    attempt.stop(Cause.CANCEL, "enough")
    result = await running
    assert isinstance(result, Raised)
    assert result.kind == "stop"
    assert call.on_interrupt is None
