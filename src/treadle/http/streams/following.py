"""What one reader follows: the events of the jobs that it may see. How they are sent is for others (SSE, WebSocket)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic_core import to_json
from starlette.requests import Request

from treadle.events.feed import RESYNC, FeedStopped, Listener
from treadle.events.frames import SNAPSHOT, snapshot_of
from treadle.events.ring import FeedEvent
from treadle.http.errors import ApiError
from treadle.http.server import Server
from treadle.http.streams.wanted import Wanted
from treadle.http.tracking import reading
from treadle.model.errors import QueryTooSlow, StoreUnavailable
from treadle.model.job import Job
from treadle.policy import rules
from treadle.policy.rules import Condition

# How often a stream checks again what its reader may see.
CHECK_S = 3.0
# What is sent at a time: one write for many small events, but little that is held for a slow reader.
MOST_TOGETHER = 128 * 1024
MOST_MESSAGES = 100
ENDINGS = frozenset(f"job:{name}" for name in "completed failed cancelled expired deleted".split())


class Message(NamedTuple):
    event: str
    data: bytes
    """A JSON object."""
    id: int | None = None


class JobStream:
    """The stream of one reader."""

    def __init__(
        self, request: Request, here: Server, allowed: Condition, wanted: Wanted, job_id: str | None = None
    ) -> None:
        """A stream with a `job_id` ends with that job."""
        self._request = request
        self._here = here
        self._allowed = allowed
        self._wanted = wanted
        self._job_id = job_id
        self._listener: Listener | None = None
        self._caller: str | None = None
        """Who has the place of this stream; None: it has none."""
        self._ready: list[Message] = []
        self._over = False
        self._check_at = time.monotonic() + CHECK_S
        self.first_id = 0
        """To resume from before the first message."""
        self.refused = False
        """Its reader has lost access."""

    async def open(self, after: int | None, snapshot: bool) -> bool:
        """Join the feed before the response starts, so that no later event is missed.

        False if the stream is for one job that has ended and the reader has received all its events.
        """
        caller = await self._here.access.who(self._request)
        self._here.streams.take(caller)
        self._caller = caller
        try:
            self._listener = listener = await self._here.feed.listener(after, self._sees)
            self.first_id = listener.behind
            if listener.missed:
                await self._resync()
            elif after is None and (snapshot or self._job_id):
                message = await self._snapshot()
                self._ready += [message] if snapshot else []
            elif after is not None and self._job_id:
                ended = _have_ended(await listener.catch_up([self._job_id]))
                return listener.waiting() or not ended
        except BaseException:
            await self.close()
            raise
        return True

    async def close(self) -> None:
        if self._caller is not None:
            self._here.streams.give_back(self._caller)
            self._caller = None
        if self._listener:
            await self._listener.close()

    def _sees(self, job: Mapping[str, Any]) -> bool:
        if not self._wanted.includes(job):
            return False
        return self._allowed is True or rules.matches(self._allowed, job)

    async def messages(self) -> AsyncIterator[Sequence[Message]]:
        """As many as there are at a time. Ends when the stream's job has ended, the reader loses access, or the feed
        stops."""
        assert self._listener
        try:
            while True:
                if ready := self._ready:
                    self._ready = []
                    yield ready
                if self._over or not await self._may_go_on():
                    return
                await self._next(self._listener)
        except (FeedStopped, StoreUnavailable, QueryTooSlow):
            return  # a client that reconnects gets the error for a slow snapshot

    async def _next(self, listener: Listener) -> None:
        told = await listener.next(self._check_at - time.monotonic())
        size = 0
        while told is not None:
            if told.event == RESYNC:
                await self._resync(told)
                return
            data = self._wanted.data(told)
            self._ready.append(Message(told.event, data, told.id))
            self._over = self._job_id is not None and told.event in ENDINGS
            size += len(data)
            if self._over or size > MOST_TOGETHER or len(self._ready) == MOST_MESSAGES:
                return
            told = await listener.at_once()

    async def _resync(self, told: FeedEvent | None = None) -> None:
        """Some events were lost: tell the reader and send the current state."""
        assert self._listener
        told = told or await self._listener.next()
        assert told
        self._ready += [Message(told.event, told.data), await self._snapshot()]

    async def _snapshot(self) -> Message:
        assert self._listener
        condition = None if self._allowed is True else self._allowed
        async with self._here.searching(self._request, "snapshot"):
            last, found = await self._listener.snapshot(self._wanted.listing(condition))
        self._over = self._job_id is not None and _have_ended(found)
        # A truncated job is one that the listing's condition let through.
        seen = (document for job in found if self._sees(document := job.as_json()) or job.truncated)
        jobs = (self._wanted.narrowed(document) for document in seen)
        return Message(SNAPSHOT, to_json(snapshot_of(jobs)), last)

    async def _may_go_on(self) -> bool:
        """Repeats the access check at intervals: passwords change, keys are revoked, rules are edited."""
        if time.monotonic() < self._check_at:
            return True
        self._check_at = time.monotonic() + CHECK_S
        try:
            self._allowed = await reading(self._request, self._here, *self._wanted.ids or (), anew=True)
        except ApiError:
            self.refused = True
            return False
        except StoreUnavailable:
            pass  # without the store there are no events either
        return True


def _have_ended(jobs: Sequence[Job]) -> bool:
    """Ended, or deleted since."""
    return all(job.ended for job in jobs)


def resume_from(text: str | None) -> int | None:
    """None starts from now. Anything that is not one of our ids becomes -1, which is never in the ring."""
    if not text:
        return None
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
