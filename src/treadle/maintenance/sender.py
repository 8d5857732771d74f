"""Sends deliveries of webhooks: claims them with a lease, a few at a time for each host, and settles what came of them.

A delivery that was claimed by a process that died is sent again when its lease has run out, with the same `webhook-id`.
So it may arrive twice, but never twice at once: no try begins if its lease could end before it does.

Quick receivers get more deliveries than are sent to them at once, so that they don't wait for a claim in between. As
soon as one is slow, hosts get just what is sent at once, and the last places are for hosts that have none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from treadle.model.raised import one_line
from treadle.model.webhooks import ClaimedDelivery, Delivered, DisableEndpoint, SettledDelivery, Try
from treadle.policy.delivery_tries import after_try
from treadle.queue.background import end
from treadle.queue.backoff import jittered
from treadle.store.protocol import Store
from treadle.store.wakeups import ENDED, LATER, WEBHOOK

log = logging.getLogger("treadle.maintenance")

AT_ONCE = 64
AT_ONCE_PER_HOST = 4
# From here on a host gets one place, so that a few slow ones don't take all.
SCARCE_FROM = 48
# Claimed at a time while all hosts answer quickly.
MOST_CLAIMED = 512
MOST_CLAIMED_PER_HOST = 128
SLOW_S = 0.25
LEASE_MS = 45_000
# After its claim. A try takes at most 15 s.
BEGIN_WITHIN_S = 15.0
# How long a delivery may go unnoticed if hints don't arrive.
LOOK_EVERY_S = 10.0
# The pause after a claim that found nothing: hints come with every job that ends, and few have a webhook.
LEAST_PAUSE_S = 0.05
# The pause after a claim that found only hosts with as much under way as they may have.
BUSY_S = 0.25
# When a sender stops: time for answers that are on their way.
FINISH_S = 2.0
HINTS = (WEBHOOK, ENDED, LATER)


class Dispatcher(Protocol):
    async def send(
        self, url: str, body: str, webhook_id: str, *, secrets: tuple[str, ...] = (), timestamp: float | None = None
    ) -> Try: ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class _Claimed:
    delivery: ClaimedDelivery
    at: float
    """When it was claimed, by `time.monotonic`; `now_ms` is the same moment by the store's clock."""
    now_ms: int
    began: float = 0.0

    def now(self) -> int:
        """By the store's clock."""
        return self.now_ms + round((time.monotonic() - self.at) * 1000)


class Sender:
    def __init__(self, store: Store, holder: str, make_dispatcher: Callable[[], Dispatcher]) -> None:
        """`make_dispatcher` is called when there is something to send, which most processes never have."""
        self._store = store
        self._holder = holder
        self._make_dispatcher = make_dispatcher
        self._dispatcher: Dispatcher | None = None
        self._closing: asyncio.Task[None] | None = None
        self._waiting: dict[str, deque[_Claimed]] = {}
        """By host, without empty ones."""
        self._sending: dict[asyncio.Task[Try], _Claimed] = {}
        self._at_host: Counter[str] = Counter()
        self._tried: list[SettledDelivery] = []
        self._wake = asyncio.Event()
        self._hinted = False
        self._claim_at = 0.0
        self._not_before = 0.0
        """Hints don't count until then."""
        self._unsubscribe: Callable[[], None] | None = None

    @property
    def busy(self) -> bool:
        return bool(self._sending or self._waiting or self._tried)

    async def step(self, *, leads: bool, looked: Callable[[str, int], None] = lambda outcome, wait_ms: None) -> None:
        """Settle what was tried, claim what is due, begin to send it, and wait until there is more to do. Only with
        `leads` is anything claimed. `looked` is told what was done, and how long the wait is."""
        self._listen()
        self._wake.clear()
        settled = await self._settle()
        if leads and self._room() and time.monotonic() >= self._next_claim():
            await self._claim()
        self._begin()
        wait_s = self._next_claim() - time.monotonic() if leads and self._room() else LOOK_EVERY_S
        looked(_in_words(settled), max(round(wait_s * 1000), 0))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._wake.wait()

    async def close(self) -> None:
        """Begin nothing more, and give what is under way a moment. The rest is sent again when its lease ends."""
        self._stop()
        if self._sending:
            await asyncio.wait(self._sending, timeout=FINISH_S)
        await end(list(self._sending))
        await self._settle()
        if self._dispatcher is not None:
            await self._dispatcher.close()

    def abandon(self) -> None:
        """Stop without waiting; the connections are closed as soon as the event loop comes to it."""
        self._stop()
        for task in self._sending:
            task.cancel()
        if self._dispatcher is not None:
            self._closing = asyncio.create_task(self._dispatcher.close())

    def _stop(self) -> None:
        self._waiting.clear()
        if self._unsubscribe is not None:
            self._unsubscribe()

    # -- claiming ----------------------------------------------------------------------------------

    def _listen(self) -> None:
        if self._unsubscribe is None:
            self._unsubscribe = self._store.subscribe(self._hear)

    def _hear(self, hint: str) -> None:
        if hint in HINTS and not self._hinted:  # once for each claim: a drain gives hundreds a second
            self._hinted = True
            self._wake.set()

    def _next_claim(self) -> float:
        return min(self._claim_at, self._not_before) if self._hinted else self._claim_at

    def _is_slow(self) -> bool:
        since = time.monotonic() - SLOW_S
        return any(one.began < since for one in self._sending.values())

    def _room(self) -> int:
        """How many more may be claimed."""
        room = MOST_CLAIMED - len(self._sending) - sum(map(len, self._waiting.values()))
        return min(room, AT_ONCE - len(self._sending)) if self._is_slow() else room

    def _share(self) -> int:
        """How many may be sent to one host at once."""
        return AT_ONCE_PER_HOST if len(self._sending) < SCARCE_FROM else 1

    async def _claim(self) -> None:
        self._hinted = False
        limit, per_host = self._room(), self._share() if self._is_slow() else MOST_CLAIMED_PER_HOST
        asked = time.monotonic()
        claim = await self._store.claim_deliveries(self._holder, LEASE_MS, limit, per_host)
        for one in claim.deliveries:
            self._waiting.setdefault(one.host, deque()).append(_Claimed(one, asked, claim.now_ms))
        now = time.monotonic()
        self._not_before = now if claim.deliveries else now + LEAST_PAUSE_S
        self._claim_at = now if len(claim.deliveries) == limit else now + _pause_s(claim.next_in_ms)

    # -- sending -----------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin to send what may be sent now. The hosts take turns."""
        if self._waiting and self._dispatcher is None:
            self._dispatcher = self._make_dispatcher()
        for host in list(self._waiting):
            queue = self._waiting.pop(host)
            while queue and len(self._sending) < AT_ONCE and self._at_host[host] < self._share():
                self._send(queue.popleft())
            if queue:
                self._waiting[host] = queue

    def _send(self, one: _Claimed) -> None:
        one.began = time.monotonic()
        if one.began > one.at + BEGIN_WITHIN_S:
            log.debug("delivery %d has waited too long and is left to the next claim", one.delivery.id)
            return
        self._at_host[one.delivery.host] += 1
        task = asyncio.create_task(self._try(one))
        self._sending[task] = one
        task.add_done_callback(self._over)

    async def _try(self, one: _Claimed) -> Try:
        delivery = one.delivery
        assert self._dispatcher
        try:
            return await self._dispatcher.send(
                delivery.url,
                delivery.body,
                delivery.webhook_id,
                secrets=delivery.secrets,
                timestamp=one.now() / 1000,
            )
        except Exception as error:  # such as a URL that an older version has stored
            log.exception("delivery %d could not be sent", delivery.id)
            return Try(error=one_line(error))

    def _over(self, task: asyncio.Task[Try]) -> None:
        one = self._sending.pop(task)
        host = one.delivery.host
        self._at_host[host] -= 1
        if not self._at_host[host]:
            del self._at_host[host]
        if not task.cancelled():
            answer = task.result()
            self._tried.append(SettledDelivery(one.delivery, answer, after_try(one.delivery, answer, one.now())))
        self._begin()
        self._wake.set()

    # -- settling ----------------------------------------------------------------------------------

    async def _settle(self) -> list[SettledDelivery]:
        """Returns what was settled. Without an answer of the store it stays, to be settled later."""
        tried, self._tried = self._tried, []
        if not tried:
            return tried
        try:
            lost = await self._store.settle_deliveries(tried)
        except BaseException:
            self._tried = tried + self._tried
            raise
        self._claim_at = 0.0  # its host has room again
        for one in tried:
            if isinstance(one.verdict, DisableEndpoint) and one.delivery.endpoint is not None and one not in lost:
                log.warning("webhook endpoint %s is disabled: %s", one.delivery.endpoint, one.verdict.reason)
        return tried


def _pause_s(next_in_ms: int | None) -> float:
    if next_in_ms is None:
        return jittered(LOOK_EVERY_S, 0.1)
    return min(next_in_ms / 1000, LOOK_EVERY_S) if next_in_ms > 0 else BUSY_S


def _in_words(settled: list[SettledDelivery]) -> str:
    if not settled:
        return "nothing was tried"
    delivered = sum(isinstance(one.verdict, Delivered) for one in settled)
    failed = len(settled) - delivered
    return f"{delivered:,} delivered" + (f", {failed:,} failed" if failed else "")
