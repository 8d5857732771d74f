"""Everything that exists while a worker runs, put together; and what happens when its lease is lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from treadle.handler import Handler
from treadle.maintenance import Maintenance
from treadle.worker.background import forever
from treadle.worker.backoff import Backoff, jittered
from treadle.worker.cancels import CancelWatcher
from treadle.worker.desk import LoopDesk, ThreadDesk
from treadle.worker.executor import Executor, Slot
from treadle.worker.keeper import LeaseKeeper
from treadle.worker.lease import Lease
from treadle.worker.loop import ClaimLoop
from treadle.worker.metrics import Metrics
from treadle.worker.options import Options
from treadle.worker.processes import Processes, check_findable
from treadle.worker.run import Interrupt, Recipe
from treadle.worker.settler import Settler
from treadle.worker.spans import Perform, traced
from treadle.worker.threads import Threads
from treadle.worker.touches import Touches
from treadle.worker.watchdog import Watchdog

if TYPE_CHECKING:
    from treadle.queue import Queue

log = logging.getLogger("treadle.worker")

FOLLOW_SETTINGS_S = 5.0


class Engine:
    def __init__(self, queue: Queue, name: str, options: Options, metrics: Metrics) -> None:
        self.queue = queue
        self.name = name
        self.options = options
        self.metrics = metrics
        self.started = False
        self.maintenance: Maintenance | None = None
        self._lost_lease: Lease | None = None
        self.tasks: list[asyncio.Task[None]] = []
        self.unsubscribe: Callable[[], None] = lambda: None

    # -- starting ----------------------------------------------------------------------------------

    async def start(self) -> None:
        for topic in self._topics():
            check_findable(self.queue.handlers[topic])
        await self.queue.open()
        await self.queue.save_templates()
        self._build(await self._open_lease())
        await self._start_keeper()
        self.executor.start({topic: self._recipe(topic) for topic in self._topics()})
        self.unsubscribe = self.store.subscribe(self._hear, claims=True)
        self.claiming = self._task(self.claims.run())
        for name, step in self._duties():
            self._task(forever(name, step))
        self.started = True

    async def _start_keeper(self) -> None:
        try:
            await self.keeper.start()
        except BaseException:
            self.keeper.abandon()
            raise
        self.keeper.keep(self.executor.lease)

    def _duties(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        return [
            ("settling", self.settler.run),
            ("watching the slots", self.watchdog.tick),
            ("writing progress", self.touches.tick),
            ("looking for cancels", self.cancels.tick),
            ("following the settings", self._follow_settings),
            *(self.maintenance.duties() if self.maintenance else []),
        ]

    def _build(self, lease: Lease) -> None:
        options, store = self.options, self.queue.store
        self.store = store
        self.site = self.queue.site
        self.keeper = LeaseKeeper(self.queue.new_store, options.lease_ms, self.lease_lost, self._renewed)
        self.touches = Touches(store, self.job_lost)
        self.desk = LoopDesk(self.queue, self.keeper, self.touches)
        self.threads = Threads(ThreadDesk(self.desk))
        self.processes = Processes(self.desk)
        self.settler = Settler(
            store, self.metrics, self.touches.write_last, self._put_back, self._room, immediate=options.immediate
        )
        self.executor = Executor(options.slots, lease, self.settler, self.desk, self._room)
        self.touches.executor = self.executor
        self.metrics.slots, self.metrics.free_slots = options.slots, self._free_slots
        self.watchdog = Watchdog(self.executor, self.metrics)
        self.cancels = CancelWatcher(store, self.executor)
        self.claims = ClaimLoop(
            store,
            self.executor,
            self.settler,
            self.metrics,
            topics=self._topics(),
            capabilities=options.capabilities,
            poll_s=options.poll_ms / 1000,
            recount_s=options.lease_ms / 1000,
            on_lease_lost=self.lease_lost,
        )

        if options.maintenance:
            self.maintenance = Maintenance(self.queue, self.name, options.reap_ms, self.metrics.count_moved)

    def _topics(self) -> list[str]:
        return sorted(self.options.topics if self.options.topics is not None else self.queue.handlers)

    def _recipe(self, topic: str) -> Recipe:
        handler: Handler = self.queue.handlers[topic]
        match handler.kind:
            case "async":
                perform: Perform = self.executor.perform
            case "thread":
                perform = self.threads.perform
            case "process":
                perform = self.processes.perform
        return Recipe(handler, traced(perform), self.metrics.times(topic))

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self.tasks.append(task)
        return task

    def _free_slots(self) -> int:
        return self.executor.free

    def still_running(self) -> int:
        return sum(1 for _ in self.executor.running()) if self.started else 0

    # -- signals between the parts -----------------------------------------------------------------

    def _hear(self, hint: str) -> None:
        if hint == "cancel":
            self.cancels.look()
        else:
            self.claims.hint(hint)

    def _room(self) -> None:
        self.claims.room()

    def _renewed(self) -> None:
        self.cancels.look()
        self.touches.renew_all()

    async def _follow_settings(self) -> None:
        await asyncio.sleep(jittered(FOLLOW_SETTINGS_S))
        await self.site.read()

    def _put_back(self, delay_ms: int) -> None:
        self.claims.retry_due_in(delay_ms)

    # -- the lease ---------------------------------------------------------------------------------

    async def _open_lease(self) -> Lease:
        serves = {
            "topics": self._topics(),
            "capabilities": list(self.options.capabilities),
            "slots": self.options.slots,
        }
        asked = time.monotonic()
        number = await self.queue.store.open_lease(self.name, self.options.lease_ms, serves)
        return Lease(number, asked + self.options.lease_ms / 1000)

    def lease_lost(self, lease: Lease) -> None:
        """All that was claimed under it is somebody else's by now: tell the handlers, report nothing."""
        if lease is not self.executor.lease or lease is self._lost_lease:
            return
        self._lost_lease = lease
        lease.lost = True
        waiting = self.executor.inbox.take_all()
        running = list(self.executor.running())
        self.metrics.lease_losses += len(waiting)
        log.warning("the lease is lost, and with it %d jobs", len(waiting) + len(running))
        for slot, _ in running:
            self.job_lost(slot)
        self._task(self._renew_lease())

    def job_lost(self, slot: Slot) -> None:
        if slot.interrupt(Interrupt.LOST, "the lease is lost"):
            self.metrics.lease_losses += 1

    async def _renew_lease(self) -> None:
        backoff = Backoff()
        while True:
            try:
                lease = await self._open_lease()
                break
            except Exception as error:  # without a lease there is nothing else to do
                log.warning("no new lease yet: %s", error)
                await asyncio.sleep(backoff.delay_s())
        self.executor.lease = lease
        self.keeper.keep(lease)
        self.claims.look_again()
