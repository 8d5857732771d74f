"""The claim loop: asks the store for jobs, one claim at a time, and knows when asking is worth while.

Two questions decide: is there room (Appetite), and may there be work? There may be work after a
claim that came back full, a hint from the store, the time of a delayed job, or a poll, which
finds what a hint missed. Otherwise the loop sleeps.

A claim is never cancelled while it is under way, and its error says nothing about whether it
happened. So after an error everything under the lease that isn't known here is given back first,
and again now and then: a claim that was given up here may still be waiting in the server.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence

from treadle.errors import LeaseLost, StoreUnavailable
from treadle.store.base import Claim, Claimed, Store
from treadle.worker.appetite import Appetite
from treadle.worker.backoff import Backoff, jittered
from treadle.worker.executor import Executor
from treadle.worker.lease import Lease
from treadle.worker.metrics import Metrics
from treadle.worker.settler import Settler

log = logging.getLogger("treadle.worker")


class ClaimLoop:
    def __init__(
        self,
        store: Store,
        executor: Executor,
        settler: Settler,
        metrics: Metrics,
        *,
        topics: Sequence[str],
        capabilities: Sequence[str],
        poll_s: float,
        recount_s: float,
        on_lease_lost: Callable[[Lease], None],
    ) -> None:
        self._store = store
        self._executor = executor
        self._settler = settler
        self._metrics = metrics
        self._topics = topics
        self._capabilities = capabilities
        self._poll_s = poll_s
        self._recount_s = recount_s
        self._on_lease_lost = on_lease_lost
        self._appetite = Appetite(executor)
        self._backoff = Backoff()
        self._wake = asyncio.Event()
        self._may_have_work = bool(topics)
        self._left_last_attempts = False
        self._promote_at = 0.0
        """When the next delayed job is due, or to look whether there is one."""
        self._poll_at = 0.0 if topics else math.inf
        self._claimable_at = math.inf
        """When a rate limit lets the next job through."""
        self._recount_at = time.monotonic() + recount_s
        self._stopping = False

    # -- signals, from anywhere on the loop ------------------------------------------------------

    def hint(self, what: str) -> None:
        if what == "later":
            self._promote_at = 0.0
        if what in ("ready", "later"):
            self.look_again()

    def room(self) -> None:
        """A slot is free or the inbox runs low. Called often: does nothing unless it changes something."""
        if self._left_last_attempts and self._appetite.free():
            self._left_last_attempts = False
            self._may_have_work = True
        if self._may_have_work:
            self._wake.set()

    def retry_due_in(self, delay_ms: int) -> None:
        """A job of ours was put back until then; no need to wait for somebody to say so."""
        when = time.monotonic() + delay_ms / 1000
        if when < self._promote_at:
            self._promote_at = when
            self._wake.set()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()

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
            except Exception as error:
                log.exception("claiming failed; it goes on")
                await self._store_failed(error)

    async def _step(self) -> None:
        now = time.monotonic()
        if now >= self._recount_at:
            await self._recount()
        if now >= self._promote_at:
            await self._promote()
        if now >= self._poll_at or now >= self._claimable_at:
            self._may_have_work = True
        limit = self._appetite.limit(len(self._settler)) if self._may_have_work else 0
        if limit and not self._executor.lease.lost:
            await self._claim(limit, self._appetite.free())
        else:
            await self._sleep()

    async def _recount(self) -> None:
        """A claim that committed after it was given up would be nobody's for as long as the lease is kept."""
        self._recount_at = time.monotonic() + self._recount_s
        lease = self._executor.lease
        if not lease.lost:
            await self._store.release_unknown(lease.id, self._known_tokens())

    async def _promote(self) -> None:
        # Before asking, as with a claim: a hint that comes meanwhile sets an earlier time, and that one stays.
        self._promote_at = math.inf
        try:
            moved, next_ms = await self._store.promote()
        except BaseException:
            self._promote_at = 0.0
            raise
        # Less often than the poll: that a delayed job is there, its hint tells; that it is due, this timer.
        wait_s = jittered(5 * self._poll_s)
        due = time.monotonic() + (wait_s if next_ms is None else min(wait_s, next_ms / 1000))
        self._promote_at = min(self._promote_at, due)
        if moved:
            self.look_again()

    async def _claim(self, limit: int, free: int) -> None:
        # Before asking: a hint that comes while the claim is under way must not be lost.
        self._may_have_work = self._left_last_attempts = False
        self._poll_at = time.monotonic() + jittered(self._poll_s)
        self._claimable_at = math.inf
        claim = await self._ask(limit, free)
        if claim is None:
            return
        self._deliver(claim.jobs)
        came = len(claim.jobs)
        if came == limit:
            self._may_have_work = True
        elif came >= free:
            # Jobs on their last attempt are only claimed into free slots; more of them may be there.
            self._left_last_attempts = True
            self.room()  # a slot may have become free while the claim was under way
        if claim.overdue:
            await self._store.expire_overdue()
            self._may_have_work = True
        if claim.next_at_ms is not None:
            self._claimable_at = time.monotonic() + claim.next_at_ms / 1000

    async def _ask(self, limit: int, free: int) -> Claim | None:
        lease, asked = self._executor.lease, time.monotonic()
        try:
            claim = await self._store.claim(lease.id, self._topics, self._capabilities, limit, free)
        except LeaseLost:
            self._may_have_work = True
            self._on_lease_lost(lease)
            return None
        except Exception as error:  # it may have happened or not, whatever the error says
            await self._give_back_unknown(lease, error)
            return None
        self._backoff.reset()
        self._measure(claim, asked, time.monotonic())
        return claim

    def _measure(self, claim: Claim, asked: float, answered: float) -> None:
        self._metrics.claims.observe(answered - asked)
        if claim.at is not None:
            # When within the call the database looked at its clock, nobody knows: half of it is the least error.
            self._metrics.clock_gap_s = (asked + answered) / 2 - claim.at / 1000

    def _deliver(self, jobs: list[Claimed]) -> None:
        if not jobs:
            return
        self._metrics.claimed += len(jobs)
        if self._executor.lease.id != jobs[0].lease or self._executor.lease.lost:
            log.warning("%d jobs came with a lease that is lost by now", len(jobs))
        elif self._stopping:
            self._executor.release(jobs, "the worker stopped")
        else:
            self._executor.feed(jobs)

    # -- when the store fails --------------------------------------------------------------------

    async def _give_back_unknown(self, lease: Lease, error: Exception) -> None:
        """The answer to a claim was lost, perhaps after its commit."""
        self._may_have_work = True
        await self._store_failed(error)
        while not lease.lost and not self._stopping:
            try:
                await self._store.release_unknown(lease.id, self._known_tokens())
            except Exception as again:  # until it is known, nothing may be claimed
                await self._store_failed(again)
            else:
                return self._backoff.reset()

    def _known_tokens(self) -> list[int]:
        known = {job.token for job in self._executor.inbox.jobs}
        known.update(run.job.token for _, run in self._executor.running())
        known.update(settlement.job.token for settlement in self._settler.unwritten())
        return sorted(known)

    async def _store_failed(self, error: Exception) -> None:
        self._metrics.store_errors += 1
        log.warning("claiming has to wait: %s", error)
        await asyncio.sleep(self._backoff.delay_s())

    # -- waiting ---------------------------------------------------------------------------------

    async def _sleep(self) -> None:
        """Until a signal; if there may be no work, at most until the next thing that time alone brings."""
        timer = None
        if not self._may_have_work:
            nap_s = min(self._promote_at, self._poll_at, self._claimable_at) - time.monotonic()
            timer = asyncio.get_running_loop().call_later(max(nap_s, 0), self._wake.set)
        try:
            await self._wake.wait()
        finally:
            if timer:
                timer.cancel()
