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
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from pydantic_core import to_json

from treadle.model.errors import StoreUnavailable, TreadleError
from treadle.model.events import PROGRESS, STALE
from treadle.model.job import Job, from_ms, rfc3339
from treadle.model.status import ENDED, Status
from treadle.model.told_job import MOST_DOCUMENT_BYTES, is_large, without_documents
from treadle.policy.lifecycle import retries
from treadle.store.protocol import Store
from treadle.store.views import Change, Listing

log = logging.getLogger("treadle.events.feed")

RESYNC = "resync"
RING_EVENTS = 10_000
RING_BYTES = 64 * 2**20
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
# Between two `job:progress` of one job.
PROGRESS_PAUSE_S = 0.25

Match = Callable[[Mapping[str, Any]], bool]


class FeedEvent(NamedTuple):
    """One event, as sent to every listener."""

    id: int
    """Increasing; never the same in two processes."""
    event: str
    payload: Mapping[str, Any]
    """{event, at, job}; {event, at, deletedJobId} for a deleted job; {event, at} for `resync`. A job with a large
    payload or result comes without them, and it and its event are `truncated`."""
    facts: Mapping[str, Any]
    """What a listener's `match` checks: the whole job, or what is still known about a deleted one."""
    data: bytes
    """The payload as JSON, serialized once for all listeners."""


class FeedStopped(TreadleError):
    """The feed was stopped while it had listeners: the server or the queue is closing."""

    code = "feed_stopped"


class OpenQueue(Protocol):
    """A queue that is open on the running event loop."""

    @property
    def store(self) -> Store: ...


class Ring:
    """The most recent events, numbered without gaps. Ids carry a mark of their ring, so ids of other processes are
    unknown.
    """

    MARKS = 4096

    def __init__(self, most: int = RING_EVENTS, most_bytes: int = RING_BYTES) -> None:
        self._mark = secrets.randbelow(self.MARKS)
        self._most = most
        self._most_bytes = most_bytes
        self._events: deque[FeedEvent] = deque()
        self._sizes: deque[int] = deque()
        self._bytes = 0
        # Numbers start from the clock, so that they also increase over restarts.
        self.first = self.next = int(time.time() * 1000)

    def add(self, event: str, payload: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        data = to_json(payload)
        # The facts stay whole, so they count in full.
        size = len(data)
        if size > MOST_DOCUMENT_BYTES and "job" in payload and is_large(payload["job"]):
            payload = {**payload, "job": without_documents(payload["job"]), "truncated": True}
            data = to_json(payload)
        self._events.append(FeedEvent(self.id_of(self.next), event, payload, facts, data))
        self._sizes.append(size)
        self._bytes += size
        self.next += 1
        while len(self._events) > self._most or (self._bytes > self._most_bytes and len(self._events) > 1):
            self._events.popleft()
            self._bytes -= self._sizes.popleft()
            self.first += 1

    def forget(self) -> None:
        """Events were missed: every listener in the ring has to resync."""
        self._events.clear()
        self._sizes.clear()
        self._bytes = 0
        self.next += 1
        self.first = self.next

    def get(self, number: int) -> FeedEvent:
        return self._events[number - self.first]

    def after(self, event_id: int) -> int | None:
        """The position after this event; None if it is not in the ring."""
        number, mark = divmod(event_id, self.MARKS)
        return number + 1 if mark == self._mark and self.first <= number + 1 <= self.next else None

    @property
    def last_id(self) -> int:
        return self.id_of(self.next - 1)

    def id_of(self, number: int) -> int:
        return number * self.MARKS + self._mark


class ProgressPace:
    """Keeps the `job:progress` events of each job apart. The newest one waits for its turn; the others are dropped, and
    so is one that waits when another event tells about its job."""

    def __init__(self) -> None:
        self._told_at: dict[str, float] = {}
        self._held: dict[str, Change] = {}

    def admit(self, change: Change, now: float) -> bool:
        """Whether to tell this change now."""
        id = change.job.id if change.job else (change.gone or {}).get("id", "")
        self._held.pop(id, None)
        if change.event != PROGRESS:
            return True
        if now < self._told_at.get(id, float("-inf")) + PROGRESS_PAUSE_S:
            self._held[id] = change
            return False
        self._told_at[id] = now
        return True

    def due(self, now: float) -> list[Change]:
        """The held changes to tell now."""
        self._told_at = {id: at for id, at in self._told_at.items() if now < at + PROGRESS_PAUSE_S}
        return self._take([id for id in self._held if id not in self._told_at], now)

    def all(self, now: float) -> list[Change]:
        """Every held change: a snapshot must not be followed by an event that it contains."""
        return self._take(list(self._held), now)

    def _take(self, ids: Sequence[str], now: float) -> list[Change]:
        self._told_at |= dict.fromkeys(ids, now)
        return [self._held.pop(id) for id in ids]

    def forget(self) -> None:
        self._held.clear()


class Feed:
    """Reads while it has listeners. Belongs to the event loop on which the queue is open."""

    def __init__(self, queue: OpenQueue) -> None:
        self._store = queue.store
        self._ring = Ring()
        self._pace = ProgressPace()
        self._cursor: Any = None
        self._busy = False
        self._active_at = float("-inf")
        self._listeners = 0
        self._left_at = time.monotonic()
        self._fresh_at = time.monotonic()
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()
        self._follower: asyncio.Task[None] | None = None
        self._hint = asyncio.Event()
        self._news = asyncio.Event()
        self._stops = 0

    # -- listening -------------------------------------------------------------------------------

    async def listener(self, after: int | None = None, match: Match | None = None) -> Listener:
        """A listener positioned after the event with the id `after`, or at the end. The caller must close it."""
        await self.start()
        place = self._ring.next if after is None else self._ring.after(after)
        return Listener(self, place, match)

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
        """Stop reading now; listeners get `FeedStopped`. A new listener starts it again."""
        self._stops += 1
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
            self._ring.add(change.event, {**head, "job": job}, job)
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

    def __init__(self, feed: Feed, place: int | None, match: Match | None) -> None:
        self._feed = feed
        self._ring = feed._ring
        self._place = -1 if place is None else place
        self._match = match
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
                if self._match is None or self._match(told.facts):
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
        if self._feed._stops != self._stops:
            raise FeedStopped("the feed was stopped")

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._feed._leave()


# -- the job of an event ---------------------------------------------------------------------------


_ENDINGS = {Status.COMPLETED: "completedAt", Status.FAILED: "failedAt", Status.CANCELLED: "cancelledAt"}
_OF_AN_END = ("staleAt", "endedAt", "completedAt", "failedAt", "cancelledAt", "result", "errorGroup")
_OF_A_RUN = ("claimedAt", "startedAt", "lastHeartbeatAt", "lockedBy", "lockedUntil", "progressMessage")
_OF_A_CANCEL = ("cancelRequestedAt", "cancelReason")


def job_after(change: Change) -> dict[str, Any]:
    """The job after this change, with later changes undone as far as they are known."""
    assert change.job
    job = change.job.as_json()
    to = change.to or change.job.status
    attempt = job["attempt"] if change.attempt is None else change.attempt
    if change.event == STALE:
        job["staleAt"] = rfc3339(from_ms(change.at))
    if change.event == PROGRESS:
        job["progress"], job["progressMessage"] = change.progress or 0, change.message
    elif to != job["status"] or attempt != job["attempt"]:
        job |= _as_it_was(job, to, attempt, rfc3339(from_ms(change.at)))
    return job


def _as_it_was(job: Mapping[str, Any], to: Status, attempt: int, at: str | None) -> dict[str, Any]:
    was: dict[str, Any] = dict.fromkeys(_OF_AN_END)
    was |= {"status": to, "attempt": attempt, "retries": retries(to, attempt), "updatedAt": at}
    if to in ENDED:
        was |= {"lockedBy": None, "lockedUntil": None, "lastHeartbeatAt": None, "result": job["result"], "endedAt": at}
        if to in _ENDINGS:
            was[_ENDINGS[to]] = at
    if to is Status.COMPLETED:
        was["progress"] = 100
    elif job["progress"] == 100 or to is Status.PENDING:
        was["progress"] = 0
    if to is Status.PENDING:
        was |= dict.fromkeys(_OF_A_RUN)
    if to in (Status.PENDING, Status.PROCESSING):
        was |= dict.fromkeys(_OF_A_CANCEL)
    if attempt == 0:
        was |= {"lastError": None, "errorType": None}
    return was
