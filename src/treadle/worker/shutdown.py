"""How a worker leaves: give back what has not begun, let the rest finish, then take it away, then say goodbye."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from treadle.telemetry.context import facts_of
from treadle.worker.background import end
from treadle.worker.engine import Engine
from treadle.worker.run import Interrupt

log = logging.getLogger("treadle.worker")

# After the drain: for handlers to clean up after their cancel, and for the last endings to be written.
CLEAN_UP_S = 2.0
LAST_WRITES_S = 5.0


async def wind_down(engine: Engine, drain_s: float) -> None:
    if not engine.started:
        return
    until = time.monotonic() + drain_s
    await _finish_jobs(engine, until)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(LAST_WRITES_S, until - time.monotonic())):
            await engine.settler.flushed()
    # Before resigning: a task still running would stand for election again.
    await end(engine.tasks)
    await _say_goodbye(engine)


async def _finish_jobs(engine: Engine, until: float) -> None:
    executor = engine.executor
    engine.claims.stop()
    executor.release(executor.inbox.take_all(), "the worker stopped")
    # A claim under way is never cancelled: what it brings is given back by the claim loop.
    await asyncio.wait({engine.claiming}, timeout=max(LAST_WRITES_S, until - time.monotonic()))
    if not await _idle_within(engine, until - time.monotonic()):
        await _interrupt_all(engine)


async def _idle_within(engine: Engine, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(seconds, 0)):
            await engine.executor.idle.wait()
    return engine.executor.idle.is_set()


async def _interrupt_all(engine: Engine) -> None:
    for slot, _ in list(engine.executor.running()):
        slot.interrupt(Interrupt.SHUTDOWN, "the worker stopped")
    await _idle_within(engine, CLEAN_UP_S)
    for _, run in list(engine.executor.running()):
        log.warning("job %s (%s) did not stop and is given back", run.job.id, run.job.topic, extra=facts_of(run.job))
        engine.executor.abandon(run)


async def _say_goodbye(engine: Engine) -> None:
    engine.unsubscribe()
    engine.threads.close()
    # A handler that swallows its cancel must not keep the worker from leaving.
    await asyncio.wait(engine.executor.close(), timeout=0.1)
    await engine.processes.close()
    await engine.keeper.stop()
    try:
        await engine.store.close_lease(engine.executor.lease.id)
    except Exception as error:  # it runs out by itself
        log.warning("the lease could not be closed: %s", error)
    if engine.maintenance:
        await engine.maintenance.resign()


def abandon(engine: Engine) -> None:
    """Out at once: nothing is written, the lease runs out, and the reaper finds what was left."""
    engine.unsubscribe()
    engine.keeper.abandon()
    engine.processes.abandon()
    engine.threads.close()
    engine.executor.close()
    for task in engine.tasks:
        task.cancel()
