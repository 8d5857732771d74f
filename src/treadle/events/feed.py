"""A live feed of job events from every process on this database.

One reader serves all listeners in this process. It asks the store for changes since its last read (`Store.changes`),
woken by hints and at least every second, and appends them to a ring of recent events. Each listener has a position in
the ring, so a slow listener costs no memory, and a returning one finds the events that it missed. If its position has
left the ring, it gets `resync` and must read everything again (`Listener.snapshot` does that without gaps or
duplicates).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Protocol

from pydantic_core import to_json

from treadle.events.job_after import job_after
from treadle.events.pace import Pace
from treadle.events.ring import FeedEvent, Ring
from treadle.model.errors import StoreUnavailable, TreadleError
from treadle.model.job import Job, from_ms, rfc3339
from treadle.model.told_job import without_step_results
from treadle.store.protocol import Store
from treadle.store.views import Change, Listing

log = logging.getLogger("treadle.events.feed")

RESYNC = "resync"
PAGE = 1000
# Between two reads. On PostgreSQL, plain endings in other processes give no hint, so read more often while jobs run.
LEAST_PAUSE_S = 0.05
BUSY_PAUSE_S = 0.25
IDLE_PAUSE_S = 1.0
# Recent events are usually followed by more: keep the faster pace for this long.
ACTIVE_S = 5.0
ERROR_PAUSE_S = 1.0
# A reader further behind than this starts over, and its listeners have to resync.
BEHIND_S = 60.0
# The reader keeps running this long after the last listener has left, in case it returns with its last event id.
LINGER_S = 30.0
# A listener yields to others after this many events.
TURN = 200

Match = Callable[[Mapping[str, Any]], bool]


class FeedStopped(TreadleError):
    """The feed was stopped while it had listeners: the server or the queue is closing."""

    code = "feed_stopped"


class OpenQueue(Protocol):
    """A queue that is open on the running event loop."""

    @property
    def store(self) -> Store: ...


class Feed:
    """Reads while it has listeners. Belongs to the event loop on which the queue is open."""

    def __init__(self, queue: OpenQueue) -> None:
        self._store = queue.store
        self._ring = Ring()
        self._pace = Pace()
        self._cursor: Any = None
        self._busy = False
        self._active_at = float("-inf")
        self._listeners = 0
        self._lasting = 0
        self._left_at = time.monotonic()
        self._fresh_at = time.monotonic()
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()
        self._follower: asyncio.Task[None] | None = None
        self._hint = asyncio.Event()
        self._news = asyncio.Event()
        self._stops = 0

    # -- listening -------------------------------------------------------------------------------

    async def listener(
        self, after: int | None = None, match: Match | None = None, *, event: str | None = None, lasting: bool = False
    ) -> Listener:
        """A listener positioned after the event with the id `after`, or at the end. The caller must close it.

        `event`: only this one. `lasting`: `stop` does not end it.
        """
        await self.start()
        self._lasting += lasting
        place = self._ring.next if after is None else self._ring.after(after)
        return Listener(self, place, match, event, lasting=lasting)

    async def listen(self, after: int | None = None, match: Match | None = None) -> AsyncGenerator[FeedEvent]:
        """Every matching event until the feed is stopped; `resync` where events are missing."""
        listener = await self.listener(after, match)
        try:
            while told := await listener.next():
                yield told
        except FeedStopped:
            return
        finally:
            await listener.close()

    async def start(self) -> None:
        """Start reading unless already started. Pair each start with one `stop` or `Listener.close`."""
        self._listeners += 1
        try:
            async with self._reading:
                if self._follower is None:
                    await self._begin()
                    self._follower = asyncio.create_task(self._follow(), name="treadle-feed")
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        self._listeners -= 1
        self._left_at = time.monotonic()

    async def stop(self) -> None:
        """Stop reading now; listeners get `FeedStopped`. A new listener starts it again.

        Lasting listeners go on: a server that stops ends its streams, while its worker still finishes jobs.
        """
        self._stops += 1
        if self._lasting:
            self._wake()
            return
        follower, self._follower = self._follower, None
        if follower:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)
        self._forget()

    # -- reading ---------------------------------------------------------------------------------

    async def _follow(self) -> None:
        unsubscribe = self._store.subscribe(lambda _: self._hint.set())
        failing = False
        caller = self._store.outage.caller("events")
        try:
            while self._listeners or time.monotonic() - self._left_at < LINGER_S:
                await self._pause(failing)
                try:
                    async with self._reading:
                        await self._catch_up()
                    failing = False
                    caller.worked()
                except StoreUnavailable as error:
                    caller.failed(error)
                    failing = True
                except Exception:
                    log.exception("could not read events; trying again")
                    failing = True
        finally:
            unsubscribe()
        self._follower = None
        self._ring.forget()
        self._pace.forget()

    async def _pause(self, failing: bool) -> None:
        now = time.monotonic()
        if failing:
            await asyncio.sleep(ERROR_PAUSE_S)
        else:
            busy = self._busy or now - self._active_at < ACTIVE_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BUSY_PAUSE_S if busy else IDLE_PAUSE_S):
                    await self._hint.wait()
        # A burst of hints causes one read.
        await asyncio.sleep(self._read_at + LEAST_PAUSE_S - time.monotonic())
        self._hint.clear()

    async def _begin(self) -> None:
        self._cursor = (await self._store.changes()).cursor
        self._fresh_at = time.monotonic()

    async def _catch_up(self, wanted: Listing | Sequence[str] | None = None) -> Sequence[Job]:
        """Read until no change is left, then return the wanted jobs from the same moment."""
        while True:
            if time.monotonic() - self._fresh_at > BEHIND_S:
                log.warning("events are more than %d s behind; starting over", BEHIND_S)
                await self._begin()
                self._forget()
            changes = await self._store.changes(self._cursor, PAGE, wanted)
            self._cursor = changes.cursor
            self._read_at = time.monotonic()
            if changes.lost:
                self._forget()
            told = [change for change in changes.events if self._pace.admit(change, self._read_at)]
            told += self._pace.due(self._read_at) if wanted is None else self._pace.all(self._read_at)
            for change in told:
                self._tell(change)
            if changes.events:
                self._active_at = self._read_at
            if told:
                self._wake()
            if not changes.more:
                self._fresh_at = self._read_at
                self._busy = changes.busy
                return changes.jobs or ()
            await asyncio.sleep(0)

    def _tell(self, change: Change) -> None:
        head = {"event": change.event, "at": rfc3339(from_ms(change.at))}
        if change.job is not None:
            job = job_after(change)
            self._ring.add(change.event, {**head, "job": without_step_results(job)}, job)
        elif change.gone is not None:
            self._ring.add(change.event, {**head, "deletedJobId": change.gone["id"]}, change.gone)

    def _forget(self) -> None:
        """Make every listener resync."""
        self._ring.forget()
        self._pace.forget()
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


class Listener:
    """A position in the feed. `next` returns the next matching event."""

    def __init__(self, feed: Feed, place: int | None, match: Match | None, event: str | None, *, lasting: bool) -> None:
        self._feed = feed
        self._ring = feed._ring
        self._place = -1 if place is None else place
        self._match = match
        self._event = event
        self._lasting = lasting
        self._stops = feed._stops
        self._closed = False

    async def next(self, timeout: float | None = None) -> FeedEvent | None:
        """The next event; None if there was none within this many seconds."""
        until = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while True:
            news = self._feed._news
            told = await self._look()
            if told:
                return told
            try:
                async with asyncio.timeout_at(until):
                    await news.wait()
            except TimeoutError:
                return None

    async def at_once(self) -> FeedEvent | None:
        """The next event, if there is one already."""
        return await self._look()

    async def _look(self) -> FeedEvent | None:
        ring = self._ring
        while True:
            self._check()
            if self._place < ring.first:
                return self._missed()
            last = min(ring.next, self._place + TURN)
            while self._place < last:
                told = ring.get(self._place)
                self._place += 1
                if self._event in (None, told.event) and (self._match is None or self._match(told.facts)):
                    return told
            if last == ring.next:
                return None
            await asyncio.sleep(0)

    def _missed(self) -> FeedEvent:
        self._place = self._ring.next
        payload = {"event": RESYNC, "at": rfc3339(from_ms(int(time.time() * 1000)))}
        return FeedEvent(self._ring.last_id, RESYNC, payload, {}, to_json(payload))

    @property
    def missed(self) -> bool:
        """Whether the next event is `resync`."""
        return self._place < self._ring.first

    @property
    def behind(self) -> int:
        """The id of the last event before this position, to resume from."""
        return self._ring.id_of((self._ring.next if self.missed else self._place) - 1)

    def waiting(self) -> bool:
        """Whether a matching event is already in the ring."""
        places = range(self._place, self._ring.next)
        return self.missed or any(self._match is None or self._match(self._ring.get(i).facts) for i in places)

    async def catch_up(self, wanted: Listing | Sequence[str]) -> Sequence[Job]:
        """Current jobs: a listing, or the jobs with these ids. All events that led to this state are in the ring."""
        self._check()
        async with self._feed._reading:
            return await self._feed._catch_up(wanted)

    async def snapshot(self, wanted: Listing | Sequence[str]) -> tuple[int, Sequence[Job]]:
        """The same, with the id to resume from; `next` then returns only events after this state."""
        self._check()
        async with self._feed._reading:
            jobs = await self._feed._catch_up(wanted)
            self._place = self._ring.next
            return self.behind, jobs

    def _check(self) -> None:
        if self._feed._stops != self._stops and not self._lasting:
            raise FeedStopped("the feed was stopped")

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._feed._lasting -= self._lasting
            self._feed._leave()
