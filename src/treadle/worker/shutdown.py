"""How a worker stops: give back jobs that have not started, let the rest finish, interrupt them, close the lease.

A second stop skips the waiting: everything is given back, and the worker is gone within a second.

Every wait has a limit, so a store that does not answer can't keep a worker from exiting. It needs no goodbye:
leases and terms of office run out by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable

from treadle.policy.judgement import Cause
from treadle.queue.background import end
from treadle.telemetry.log_context import facts_of
from treadle.worker.assembly import Assembly

log = logging.getLogger("treadle.worker")

# After the drain: time for handlers to clean up after their cancel, and for everything that is still to be written.
CLEAN_UP_S = 2.0
LAST_WRITES_S = 5.0
# What each of the last calls gets, even if the others have used up the time.
LEAST_S = 0.5
# After a second stop: time to give back the running jobs. A claim on its way gets the first half of it.
GIVE_BACK_S = 0.5
SHOWN_JOBS = 10


async def wind_down(engine: Assembly, drain_s: float) -> None:
    if not engine.started:
        return
    until = time.monotonic() + drain_s
    await _finish_jobs(engine, until)
    leave_by = max(until, time.monotonic() + LAST_WRITES_S)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(leave_by - time.monotonic()):
            await engine.settler.flushed()
            await engine.hooks.finish()
    # Before resigning, because a task that still runs would stand for election again.
    await end(engine.tasks, _left(leave_by))
    await _say_goodbye(engine, leave_by)


async def _finish_jobs(engine: Assembly, until: float) -> None:
    _stop_starting(engine)
    await _claim_arrived(engine, LAST_WRITES_S)
    _release_waiting(engine)
    await _claim_arrived(engine, until - time.monotonic())
    if not await _idle_within(engine, until - time.monotonic()):
        await _interrupt_all(engine)


def _stop_starting(engine: Assembly) -> None:
    engine.claims.stop()
    engine.slots.inbox.set_aside()


async def _claim_arrived(engine: Assembly, seconds: float) -> None:
    """A claim is never cancelled; the claim loop gives its jobs back. A job that was given back before it arrived could
    come with it.
    """
    await asyncio.wait({engine.claiming}, timeout=max(seconds, 0))


def _release_waiting(engine: Assembly) -> None:
    engine.slots.release(engine.slots.inbox.take_aside(), "the worker stopped")


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


async def _say_goodbye(engine: Assembly, leave_by: float) -> None:
    engine.unsubscribe()
    engine.threads.close()
    # A handler that swallows its cancel must not keep the worker from stopping.
    await asyncio.wait(engine.slots.close(), timeout=0.1)
    await engine.processes.close()
    await _try("close what handlers share", engine.resources.close(), leave_by)
    await engine.keeper.stop(_left(leave_by))
    await _try("close the lease", engine.store.close_lease(engine.slots.lease.id), leave_by)
    if engine.maintenance:
        await _try("resign as the leader", engine.maintenance.resign(), leave_by)


async def _try(to_do: str, doing: Awaitable[object], leave_by: float) -> None:
    """Leases and terms of office run out by themselves, so an error here does no harm."""
    try:
        async with asyncio.timeout(_left(leave_by)):
            await doing
    except TimeoutError:
        log.warning("could not %s: the store did not answer in time", to_do)
    except Exception as error:
        log.warning("could not %s: %s", to_do, error)


def _left(leave_by: float) -> float:
    return max(leave_by - time.monotonic(), LEAST_S)


async def leave_now(engine: Assembly) -> None:
    """Give back every job and leave. Jobs that can't be written in time are reclaimed when the lease expires."""
    if not engine.started:
        return
    leave_by = time.monotonic() + GIVE_BACK_S
    _stop_starting(engine)
    await _claim_arrived(engine, GIVE_BACK_S / 2)
    _give_back_all(engine)
    try:
        async with asyncio.timeout(leave_by - time.monotonic()):
            await asyncio.wait({engine.claiming})
            await engine.settler.flushed()
            await engine.store.close_lease(engine.slots.lease.id)
    except Exception as error:  # there is no time for a retry
        log.warning("not all jobs could be given back; their lease runs out: %r", error)
    abandon(engine)


def _give_back_all(engine: Assembly) -> None:
    slots, left = engine.slots, list(engine.slots.running())
    engine.processes.abandon()
    _release_waiting(engine)
    for attempt in left:
        attempt.stop(Cause.SHUTDOWN, "the worker stopped")
        slots.abandon(attempt)
    if left:
        shown = ", ".join(f"{attempt.job.topic} {attempt.job.id}" for attempt in left[:SHOWN_JOBS])
        more = f" and {len(left) - SHOWN_JOBS} more" if len(left) > SHOWN_JOBS else ""
        what = "1 job behind and gave it" if len(left) == 1 else f"{len(left)} jobs behind and gave them"
        log.warning("left %s back: %s%s", what, shown, more)


def abandon(engine: Assembly) -> None:
    """Stop everything without waiting."""
    engine.unsubscribe()
    engine.keeper.abandon()
    engine.processes.abandon()
    engine.resources.abandon()
    engine.threads.close()
    engine.slots.close()
    if engine.maintenance:
        engine.maintenance.abandon()
    for task in engine.tasks:
        task.cancel()
