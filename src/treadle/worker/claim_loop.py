"""The claim loop: asks the store for jobs, one claim at a time, and only when it is worthwhile.

Two questions decide: is there room (ClaimBudget), and may there be work? There may be work after a claim that came back
full, a hint from the store, the due time of a delayed job, or a poll, which finds what a hint missed. Otherwise the
loop sleeps.

A claim is never cancelled in progress, and an error does not tell whether it took effect. So after an error, every
unknown job under the lease is given back first, and again at intervals, because a claim that was given up here may
still be waiting in the server.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence

from treadle.model.errors import LeaseLost, StoreUnavailable
from treadle.queue.backoff import StoreRetry, jittered
from treadle.store.protocol import Store
from treadle.store.values import HAS_STEPS, Claim, Claimed, ClaimedSteps, Wants
from treadle.worker.claim_budget import ClaimBudget
from treadle.worker.hook_runner import HookRunner
from treadle.worker.lease_keeper import Lease
from treadle.worker.metrics import Metrics
from treadle.worker.settler import Settler
from treadle.worker.slots import Slots

log = logging.getLogger("treadle.worker")

DRAINS = "the worker drains"


class ClaimLoop:
    def __init__(
        self,
        store: Store,
        slots: Slots,
        settler: Settler,
        hooks: HookRunner,
        metrics: Metrics,
        *,
        topics: Sequence[str],
        capabilities: Sequence[str],
        poll_s: float,
        lease_ms: int,
        prefetch: int | None,
        on_lease_lost: Callable[[Lease], None],
    ) -> None:
        self._store = store
        self._slots = slots
        self._settler = settler
        self._hooks = hooks
        self._metrics = metrics
        self._topics = topics
        self._capabilities = capabilities
        self._poll_s = poll_s
        self._lease_ms = lease_ms
        self._on_lease_lost = on_lease_lost
        self._budget = ClaimBudget(slots, prefetch)
        self._retry = StoreRetry(store.outage, "claiming")
        self._wake = asyncio.Event()
        self._may_have_work = bool(topics)
        self._left_last_attempts = False
        self._promote_at = 0.0
        """When the next delayed job is due, or when to check whether there is one."""
        self._poll_at = 0.0 if topics else math.inf
        self._claimable_at = math.inf
        """When another claim may succeed: a rate limit or a locked key lets it through, or the last claim was cut
        short.
        """
        self._recount_at = time.monotonic() + lease_ms / 1000
        self._stopping = False
        self._held = False
        self.watch_for_the_end = False
        """Whether to set `nothing_due` when no job is left that could start now."""
        self.nothing_due = asyncio.Event()
        self._last_look_after = -1
        """How many jobs had ended when the last claim began."""

    # -- signals, from anywhere on the loop ------------------------------------------------------

    def promote_again(self) -> None:
        """There may be a new delayed job."""
        self._promote_at = 0.0
        self.look_again()

    def room(self) -> None:
        """A slot is free or the inbox runs low. Called often, so it does nothing unless something changes."""
        if self._left_last_attempts and self._slots.free:
            self._left_last_attempts = False
            self._may_have_work = True
        if self._may_have_work or self.watch_for_the_end:
            self._wake.set()

    def retry_due_in(self, delay_ms: int) -> None:
        """One of our jobs was put back until then; no hint is needed."""
        when = time.monotonic() + delay_ms / 1000
        if when < self._promote_at:
            self._promote_at = when
            self._wake.set()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()

    def hold(self) -> None:
        """Claim nothing until `resume`, and give back what has not started."""
        self._held = True
        self._slots.inbox.set_aside()
        self._wake.set()

    def resume(self) -> None:
        self._held = False
        self.promote_again()

    def look_again(self) -> None:
        self._may_have_work = bool(self._topics)
        self._wake.set()

    # -- the loop --------------------------------------------------------------------------------

    async def run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            try:
                await self._step()
            except StoreUnavailable as error:
                await self._store_failed(error)
            except Exception:
                log.exception("claiming failed; it goes on")
                await self._back_off()

    async def _step(self) -> None:
        now = time.monotonic()
        if now >= self._recount_at:
            await self._recount()
        if self._held and not self._stopping:
            await self._rest()
            return
        if now >= self._promote_at and not self._stopping:
            await self._promote()
        if self._stopping or self._held:
            return
        if now >= self._poll_at or now >= self._claimable_at:
            self._may_have_work = True
        limit = self._budget.limit(len(self._settler) + len(self._hooks)) if self._may_have_work else 0
        if limit and not self._slots.lease.lost:
            await self._claim(limit, self._slots.free)
        else:
            if self.watch_for_the_end and self._is_at_the_end():
                self.nothing_due.set()
            await self._sleep()

    def _is_at_the_end(self) -> bool:
        """Nothing runs, and a claim after the last ending found nothing. Endings may free a key or enqueue jobs."""
        slots = self._slots
        busy = slots.inbox.jobs or not slots.idle.is_set() or len(self._settler) or len(self._hooks)
        if busy or self._may_have_work or self._claimable_at < math.inf:
            return False
        if self._last_look_after == slots.finished:
            return True
        self._last_look_after = slots.finished
        self.promote_again()
        return not self._topics

    async def _recount(self) -> None:
        """A claim that committed after it was given up would leave its jobs stuck for as long as the lease lives."""
        self._recount_at = time.monotonic() + self._lease_ms / 1000
        lease = self._slots.lease
        if not lease.lost:
            await self._store.release_unknown(lease.id, self._known_tokens())

    async def _promote(self) -> None:
        # Before the call, as with a claim: a hint during the call sets an earlier time, which must stay.
        self._promote_at = math.inf
        try:
            advanced = await self._store.advance()
        except BaseException:
            self._promote_at = 0.0
            raise
        # Less often than the poll: a hint announces a new delayed job, and this timer announces that it is due.
        wait_s = jittered(5 * self._poll_s)
        self._metrics.count_moved(advanced.moved)
        next_ms = advanced.next_in_ms
        due = time.monotonic() + (wait_s if next_ms is None else min(wait_s, next_ms / 1000))
        self._promote_at = min(self._promote_at, due)
        if advanced.promoted:
            self.look_again()

    async def _claim(self, limit: int, free: int) -> None:
        # Before the claim: a hint that arrives during it must not be lost.
        self._may_have_work = self._left_last_attempts = False
        self._poll_at = time.monotonic() + jittered(self._poll_s)
        self._claimable_at = math.inf
        asked = time.monotonic()
        claim = await self._ask(limit, free)
        if claim is None:
            return
        jobs = claim.jobs
        if any(job.flags & HAS_STEPS for job in jobs):
            jobs = await self._with_steps(jobs)
        self._deliver(jobs, asked)
        came = len(claim.jobs)
        if came == limit:
            self._may_have_work = True
        elif came >= free:
            # Jobs on their last attempt are only claimed into free slots; more of them may be left.
            self._left_last_attempts = True
            self.room()  # a slot may have become free during the claim
        if claim.again_in_ms is not None:
            self._claimable_at = time.monotonic() + claim.again_in_ms / 1000

    async def _with_steps(self, jobs: list[Claimed]) -> list[Claimed]:
        """What their steps have done before, in one read for all of them."""
        lease = self._slots.lease
        while not lease.lost:
            try:
                found = await self._store.claimed_steps([job.n for job in jobs if job.flags & HAS_STEPS])
            except StoreUnavailable as error:
                await self._store_failed(error)
            else:
                nothing = ClaimedSteps()
                return [job._replace(steps=found.get(job.n, nothing)) if job.flags & HAS_STEPS else job for job in jobs]
        return jobs

    async def _ask(self, limit: int, free: int) -> Claim | None:
        lease, asked = self._slots.lease, time.monotonic()
        try:
            claim = await self._store.claim(lease.id, Wants(self._topics, self._capabilities, limit, free))
        except LeaseLost:
            self._may_have_work = True
            # It has expired, but its jobs stay ours until another process reclaims them.
            if await self._store.renew(lease.id, self._lease_ms) is None:
                self._on_lease_lost(lease)
            return None
        except Exception as error:  # the error does not tell whether the claim took effect
            await self._give_back_unknown(lease, error)
            return None
        answered = time.monotonic()
        self._retry.worked()
        self._metrics.claims.observe(answered - asked)
        if claim.at is not None:
            # The database read its clock at some point during the call; assuming the middle gives the smallest error.
            self._slots.clock_gap_s = self._metrics.clock_gap_s = (asked + answered) / 2 - claim.at / 1000
        return claim

    def _deliver(self, jobs: list[Claimed], asked: float) -> None:
        if not jobs:
            return
        self._metrics.claimed += len(jobs)
        if self._slots.lease.id != jobs[0].lease or self._slots.lease.lost:
            log.warning("%d jobs came with a lease that is lost by now", len(jobs))
        elif self._stopping or self._held:
            self._slots.release(jobs, "the worker stopped" if self._stopping else DRAINS)
        else:
            self._slots.feed(jobs, asked)

    # -- when the store fails --------------------------------------------------------------------

    async def _give_back_unknown(self, lease: Lease, error: Exception) -> None:
        """The answer to a claim was lost, perhaps after its commit."""
        self._may_have_work = True
        await self._store_failed(error)
        while not lease.lost and not self._stopping:
            try:
                await self._store.release_unknown(lease.id, self._known_tokens())
            except Exception as again:  # until this is resolved, nothing may be claimed
                await self._store_failed(again)
            else:
                return self._retry.worked()

    def _known_tokens(self) -> list[int]:
        inbox = self._slots.inbox
        known = {job.token for job in (*inbox.jobs, *inbox.aside)}
        known.update(attempt.job.token for attempt in self._slots.running())
        known.update(settlement.job.token for settlement in self._settler.unwritten())
        return sorted(known)

    async def _store_failed(self, error: Exception) -> None:
        self._retry.failed(error)
        await self._back_off()

    async def _back_off(self) -> None:
        self._metrics.store_errors += 1
        await self._retry.pause()

    # -- waiting ---------------------------------------------------------------------------------

    async def _sleep(self, until: float | None = None) -> None:
        """Sleep until a signal or this time; by default, if there may be no work, until the next timer."""
        if until is None:
            until = math.inf if self._may_have_work else min(self._promote_at, self._poll_at, self._claimable_at)
        timer = None
        if until < math.inf:
            timer = asyncio.get_running_loop().call_later(max(until - time.monotonic(), 0), self._wake.set)
        try:
            await self._wake.wait()
        finally:
            if timer:
                timer.cancel()

    async def _rest(self) -> None:
        """Jobs are given back only here, when no claim is on its way: it could bring them again."""
        self._slots.release(self._slots.inbox.take_aside(), DRAINS)
        await self._sleep(self._recount_at)
