"""Assembles a running worker and handles the loss of its lease."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from treadle.maintenance import Maintenance
from treadle.maintenance.processes import this_process
from treadle.model.handler import Handler
from treadle.policy.judgement import Cause
from treadle.queue.background import forever, insist
from treadle.queue.backoff import StoreRetry, jittered
from treadle.queue.handlers.flows import FlowHandler
from treadle.queue.handlers.hooks import Middleware, fitting
from treadle.store import wakeups
from treadle.store.values import Renewed, Settlement
from treadle.worker.attempt import Attempt
from treadle.worker.call import Function, HandlerCaller
from treadle.worker.callers.loop import LoopCaller
from treadle.worker.callers.process import ProcessCaller, check_findable
from treadle.worker.callers.thread import ThreadCaller
from treadle.worker.checkpoints import ProgressWriter
from treadle.worker.claim_loop import ClaimLoop
from treadle.worker.hook_runner import HookRunner, TopicHooks
from treadle.worker.interrupts import Interrupts
from treadle.worker.job_log import JobLog
from treadle.worker.lease_keeper import Lease, LeaseKeeper
from treadle.worker.metrics import Metrics
from treadle.worker.options import Options
from treadle.worker.output import OutputWriter
from treadle.worker.recipe import Recipe, SingleCall
from treadle.worker.services import LoopServices, ThreadServices
from treadle.worker.settler import Settler
from treadle.worker.slots import Slots
from treadle.worker.spans import traced
from treadle.worker.steps.children import ParentServices
from treadle.worker.steps.declared import FlowRunner
from treadle.worker.steps.graph import attempts_of
from treadle.worker.steps.made import StepServices
from treadle.worker.steps.mapped import MapServices, mapped_function
from treadle.worker.steps.writer import WRITES_AT_A_TIME, StepWriter
from treadle.worker.threads import Threads

if TYPE_CHECKING:
    from treadle.queue import Queue

log = logging.getLogger("treadle.worker")

FOLLOW_SETTINGS_S = 30.0
FOLLOW_DRAINS_S = 10.0
# Of the pool behind `ctx.db`.
MOST_CONNECTIONS = 10


class Assembly:
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
        self.on_drain: Callable[[bool], None] = lambda draining: None
        """Called with what each renewal of the lease says: whether an operator wants this worker to drain."""
        self.draining = False

    # -- starting ----------------------------------------------------------------------------------

    async def start(self, on_settled: Callable[[Sequence[Settlement]], None] | None = None) -> None:
        for topic in self._topics():
            for handler in _functions_of(self.queue.handlers[topic]):
                check_findable(handler, fitting(handler, self.queue.hooks.middleware))
        await self.queue.open()
        outage = self.queue.store.outage
        await insist("saving the templates", self.queue.save_templates, outage)
        lease = await insist("opening the lease", self._open_lease, outage)
        await insist("starting to renew the lease", self._start_keeper, outage)
        self._build(lease)
        self.settler.on_settled = on_settled
        self.claims.watch_for_the_end = self.options.burst
        self.keeper.keep(lease)
        self.slots.start({topic: self._recipe(topic) for topic in self._topics()})
        self.unsubscribe = self.store.subscribe(self._hear, claims=True)
        self.claiming = self._task(self.claims.run())
        for name, step in self._duties():
            self._task(forever(name, step, self.queue.store.outage))
        self.started = True

    async def _start_keeper(self) -> None:
        self.keeper = LeaseKeeper(self.queue.new_store, self.options.lease_ms, self.lease_lost, self._heartbeat)
        try:
            await self.keeper.start()
        except BaseException:
            self.keeper.abandon()
            raise

    def _duties(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        return [
            ("settling", self.settler.run),
            *[("writing steps", self.step_writer.run)] * WRITES_AT_A_TIME,
            ("writing output", self.output.run),
            ("watching the slots", self.interrupts.watch_time),
            ("writing progress", self.progress.tick),
            ("telling steps", self.progress.tell_begun_steps),
            ("looking for cancels", self.interrupts.follow_cancels),
            ("following the settings", self._follow_settings),
            ("looking for a drain", self._follow_drains),
            *(self.maintenance.duties() if self.maintenance else []),
        ]

    def _build(self, lease: Lease) -> None:
        options, store = self.options, self.queue.store
        self.store = store
        self.site = self.queue.site
        self.progress = ProgressWriter(store, self.job_lost)
        self.step_writer = StepWriter(store, self.metrics, self.job_lost)
        self.progress.post_steps = self.step_writer.post
        self.step_services = StepServices(store, self.step_writer)
        self.map_services = MapServices(store, self.step_writer, self.step_services, self.keeper)
        connections = min(options.slots, MOST_CONNECTIONS)
        self.threads = Threads()
        self.output = OutputWriter(store, self.job_lost)
        parents = ParentServices(self.queue, store, self.step_services, self.step_writer, self.job_lost)
        services = LoopServices(
            self.queue,
            self.keeper,
            self.progress,
            self.step_services,
            self.map_services,
            self.output,
            parents,
            connections,
            self.threads,
        )
        self.services = services
        self.resources = services.resources
        self.thread_services = thread_services = ThreadServices(services)
        self.loop_caller = LoopCaller(services)
        self.thread_caller = ThreadCaller(thread_services, self.threads)
        self.processes = ProcessCaller(services)
        services.call_in_process = self.processes.call_step
        self.hooks = HookRunner(self.queue.hooks, services, thread_services, self.threads)
        job_log = JobLog()
        self.settler = Settler(
            store,
            self.metrics,
            self.progress.write_last,
            self._put_back,
            self.hooks,
            job_log,
            immediate=options.immediate,
        )
        self.slots = self.progress.slots = Slots(options.slots, lease, self.settler, job_log)
        self.metrics.slots, self.metrics.free_slots = options.slots, self._free_slots
        self.interrupts = Interrupts(store, self.slots, self.metrics, options.lease_ms)
        self.interrupts.on_renewed = self._hear_renewed
        self.claims = ClaimLoop(
            store,
            self.slots,
            self.settler,
            self.hooks,
            self.metrics,
            topics=self._topics(),
            capabilities=options.capabilities,
            poll_s=options.poll_ms / 1000,
            lease_ms=options.lease_ms,
            prefetch=options.prefetch,
            on_lease_lost=self.lease_lost,
        )
        self.settler.on_pause_written = self.slots.pause_written
        self.slots.on_room = self.settler.on_written = self.hooks.on_done = self.claims.room
        if options.maintenance:
            self.maintenance = Maintenance(self.queue, self.name, options.reap_ms, self.metrics.count_moved)

    def _topics(self) -> list[str]:
        return sorted(self.options.topics if self.options.topics is not None else self.queue.handlers)

    def _recipe(self, topic: str) -> Recipe:
        handler: Handler = self.queue.handlers[topic]
        callers: dict[str, HandlerCaller] = {
            "async": self.loop_caller,
            "thread": self.thread_caller,
            "process": self.processes,
        }
        hooks = self.hooks.of(topic)
        if isinstance(handler, FlowHandler):
            run = self._flow_runner(handler, callers, hooks).run
            return Recipe(traced(run), self.metrics.times(topic), handler.template.retry)
        function = Function(handler, self._middleware(topic), keeps_errors=hooks is not None and hooks.wants_errors)
        single = SingleCall(function, callers[handler.kind].begin, hooks)
        return Recipe(traced(single.run), self.metrics.times(topic), handler.template.retry)

    def _flow_runner(
        self, handler: FlowHandler, callers: Mapping[str, HandlerCaller], hooks: TopicHooks | None
    ) -> FlowRunner:
        keeps_errors = hooks is not None and hooks.wants_errors
        functions = {
            step.name: Function(step.handler, fitting(step.handler, self.queue.hooks.middleware), keeps_errors)
            for step in handler.steps
            if step.handler is not None
        }
        begin = {kind: caller.begin for kind, caller in callers.items()}
        for step in handler.steps:
            if step.mapped is not None:
                functions[step.name] = mapped_function(step, functions[step.name], begin, self.thread_services)
        runner = FlowRunner(
            handler,
            functions,
            begin,
            self.store,
            self.step_writer,
            self.step_services,
            hooks,
            lambda: self.queue.saved_version(handler.topic),
            self.threads,
        )
        runner.attempts = attempts_of(runner.planned)
        runner.read_items = self.map_services.read_items_of
        return runner

    def _middleware(self, topic: str) -> list[Middleware]:
        return fitting(self.queue.handlers[topic], self.queue.hooks.middleware)

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self.tasks.append(task)
        return task

    def _free_slots(self) -> int:
        return self.slots.parked

    def still_running(self) -> int:
        return sum(1 for _ in self.slots.running()) if self.started else 0

    # -- signals between the parts -----------------------------------------------------------------

    def _hear(self, hint: str) -> None:
        if hint == wakeups.READY:
            self.claims.look_again()
        elif hint == wakeups.LATER:
            self.claims.promote_again()
        elif hint == wakeups.CANCEL:
            self.interrupts.look()

    def _heartbeat(self, renewed: Renewed) -> None:
        self._hear_renewed(renewed)
        self.progress.renew_all()

    def _hear_renewed(self, renewed: Renewed) -> None:
        self.interrupts.apply(renewed.cancels)
        self.on_drain(renewed.draining)

    def hold(self) -> None:
        """Start nothing more."""
        self.draining = True
        self.claims.hold()

    def go_on(self) -> None:
        self.draining = False
        self.claims.resume()

    async def ask_again(self) -> None:
        """Renew the lease, which says whether to drain."""
        lease = self.slots.lease
        renewed = await self.store.renew(lease.id, lease.renewal_ms(self.options.lease_ms))
        if renewed:
            self._hear_renewed(renewed)

    async def _follow_settings(self) -> None:
        await asyncio.sleep(jittered(FOLLOW_SETTINGS_S))
        await self.site.read()

    async def _follow_drains(self) -> None:
        """An idle worker's next heartbeat, which says whether to drain, may be minutes away."""
        await asyncio.sleep(jittered(FOLLOW_DRAINS_S))
        lease = self.slots.lease
        if not self.slots.active.is_set() and not lease.lost and await self._is_draining():
            await self.keeper.renew_now(lease)

    async def _is_draining(self) -> bool:
        return any(worker.draining for worker in await self.store.workers(self.name))

    def _put_back(self, delay_ms: int) -> None:
        self.claims.retry_due_in(delay_ms)

    # -- the lease ---------------------------------------------------------------------------------

    async def _open_lease(self) -> Lease:
        serves: dict[str, Any] = {
            "topics": self._topics(),
            "capabilities": list(self.options.capabilities),
            "slots": self.options.slots,
            "host": socket.gethostname(),
            "version": version("treadle"),
            "draining": self.draining,  # a new lease in place of a lost one must not forget it
        }
        if process := this_process():
            serves |= process._asdict()  # whether it was killed can be seen from here
        asked = time.monotonic()
        number = await self.queue.store.open_lease(self.name, self.options.lease_ms, serves)
        return Lease(number, asked + self.options.lease_ms / 1000)

    def lease_lost(self, lease: Lease) -> None:
        """Another worker may have everything claimed under it by now: stop the handlers, report nothing."""
        if lease is not self.slots.lease or lease is self._lost_lease:
            return
        self._lost_lease = lease
        lease.lost = True
        waiting = [*self.slots.inbox.take_aside(), *self.slots.inbox.take_all()]
        running = list(self.slots.running())
        self.metrics.lease_losses += len(waiting)
        log.warning("the lease is lost, and %d jobs with it", len(waiting) + len(running))
        for attempt in running:
            self.job_lost(attempt)
        self._task(self._renew_lease())

    def job_lost(self, attempt: Attempt) -> None:
        if attempt.stop(Cause.LOST, "the lease is lost"):
            self.metrics.lease_losses += 1

    async def _renew_lease(self) -> None:
        retry = StoreRetry(self.queue.store.outage, "a new lease")
        while True:
            try:
                lease = await self._open_lease()
                break
            except Exception as error:  # without a lease there is nothing else to do
                retry.failed(error)
                await retry.pause()
        retry.worked()
        self.slots.lease = lease
        self.keeper.keep(lease)
        self.claims.look_again()


def _functions_of(handler: Handler) -> list[Handler]:
    """The handler's function, or the functions of a flow's steps."""
    if isinstance(handler, FlowHandler):
        return [step.handler for step in handler.steps if step.handler is not None]
    return [handler]
