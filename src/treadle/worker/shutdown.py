"""How a worker stops: give back jobs that have not started, let the rest finish, interrupt them, close the lease.

A second stop skips the waiting: everything is given back, and the worker is gone within a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from treadle.policy.judgement import Cause
from treadle.queue.background import end
from treadle.telemetry.log_context import facts_of
from treadle.worker.assembly import Assembly

log = logging.getLogger("treadle.worker")

# After the drain: time for handlers to clean up after their cancel, and to write the last endings.
CLEAN_UP_S = 2.0
LAST_WRITES_S = 5.0
# After a second stop: time to give back the running jobs.
GIVE_BACK_S = 0.5
SHOWN_JOBS = 10


async def wind_down(engine: Assembly, drain_s: float) -> None:
    if not engine.started:
        return
    until = time.monotonic() + drain_s
    await _finish_jobs(engine, until)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(LAST_WRITES_S, until - time.monotonic())):
            await engine.settler.flushed()
            await engine.hooks.finish()
    # Before resigning, because a task that still runs would stand for election again.
    await end(engine.tasks)
    await _say_goodbye(engine)


async def _finish_jobs(engine: Assembly, until: float) -> None:
    slots = engine.slots
    engine.claims.stop()
    slots.release(slots.inbox.take_all(), "the worker stopped")
    # A running claim is never cancelled; the claim loop gives its jobs back.
    await asyncio.wait({engine.claiming}, timeout=max(LAST_WRITES_S, until - time.monotonic()))
    if not await _idle_within(engine, until - time.monotonic()):
        await _interrupt_all(engine)


async def _idle_within(engine: Assembly, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(seconds, 0)):
            await engine.slots.idle.wait()
    return engine.slots.idle.is_set()


async def _interrupt_all(engine: Assembly) -> None:
    for attempt in list(engine.slots.running()):
        attempt.stop(Cause.SHUTDOWN, "the worker stopped")
    await _idle_within(engine, CLEAN_UP_S)
    for attempt in list(engine.slots.running()):
        job = attempt.job
        log.warning("job %s (%s) did not stop and is given back", job.id, job.topic, extra=facts_of(job))
        engine.slots.abandon(attempt)


async def _say_goodbye(engine: Assembly) -> None:
    engine.unsubscribe()
    engine.threads.close()
    # A handler that swallows its cancel must not keep the worker from stopping.
    await asyncio.wait(engine.slots.close(), timeout=0.1)
    await engine.processes.close()
    await engine.resources.close()
    await engine.keeper.stop()
    try:
        await engine.store.close_lease(engine.slots.lease.id)
    except Exception as error:  # it expires by itself
        log.warning("the lease could not be closed: %s", error)
    if engine.maintenance:
        await engine.maintenance.resign()


async def leave_now(engine: Assembly) -> None:
    """Give back every job and leave. Jobs that can't be written in time are reclaimed when the lease expires."""
    if not engine.started:
        return
    _give_back_all(engine)
    try:
        async with asyncio.timeout(GIVE_BACK_S):
            await asyncio.wait({engine.claiming})  # it may have claimed again a job that was just given back
            await engine.settler.flushed()
            await engine.store.close_lease(engine.slots.lease.id)
    except Exception as error:  # there is no time for a retry
        log.warning("not all jobs could be given back; their lease runs out: %r", error)
    abandon(engine)


def _give_back_all(engine: Assembly) -> None:
    slots, left = engine.slots, list(engine.slots.running())
    engine.claims.stop()
    engine.processes.abandon()
    slots.release(slots.inbox.take_all(), "the worker stopped")
    for attempt in left:
        attempt.stop(Cause.SHUTDOWN, "the worker stopped")
        slots.abandon(attempt)
    if left:
        shown = ", ".join(f"{attempt.job.topic} {attempt.job.id}" for attempt in left[:SHOWN_JOBS])
        more = f" and {len(left) - SHOWN_JOBS} more" if len(left) > SHOWN_JOBS else ""
        log.warning("left %d jobs behind and gave them back: %s%s", len(left), shown, more)


def abandon(engine: Assembly) -> None:
    """Stop everything without waiting."""
    engine.unsubscribe()
    engine.keeper.abandon()
    engine.processes.abandon()
    engine.threads.close()
    engine.slots.close()
    for task in engine.tasks:
        task.cancel()
