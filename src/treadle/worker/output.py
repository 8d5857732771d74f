"""Stores what handlers emit: values gather for a moment, and the values of all running jobs share a write.

Every value gets its number here, so a write whose answer was lost can be repeated. What is not stored yet when an
attempt ends is part of its settlement, so output never outlives the job's end, and costs no extra write there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from treadle.model.errors import InvalidInput, LeaseLost, StoreUnavailable
from treadle.model.output import check_channels, check_room
from treadle.policy.output import EMPTY, ChannelState, Chunk, numbered, state_after
from treadle.queue.backoff import StoreRetry
from treadle.queue.handlers.context import CHECKPOINT
from treadle.store.protocol import Store
from treadle.store.values import OutputWrite

if TYPE_CHECKING:
    from treadle.worker.attempt import Attempt

log = logging.getLogger("treadle.worker")

# The first value after a pause is written at once; those that follow gather for this long, or until there are so many.
FLUSH_S = 0.1
FLUSH_BYTES = 4096
# A handler with so much that is not stored yet waits until it is.
MOST_WAITING_BYTES = 1024 * 1024
# A handler that waits looks this often whether it should stop.
CHECK_S = 0.5


class JobOutput:
    """What one attempt has emitted and the store does not have yet. Handlers add to it from any thread."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.waiting_bytes = 0
        self.states: dict[str, ChannelState] | None = None
        """The channels with all chunks below; None: not read yet."""
        self._open: dict[str, list[str]] = {}
        self._open_bytes: dict[str, int] = {}
        self._chunks: list[Chunk] = []
        self._lock = threading.Lock()
        self._closed = False

    def add(self, channel: str, text: str) -> None:
        size = len(text) if text.isascii() else len(text.encode())
        with self._lock:
            if self._closed:
                raise InvalidInput(f"job {self.attempt.job.id} has ended: it can't emit any more")
            self._check(channel, size)
            self._open.setdefault(channel, []).append(text)
            self._open_bytes[channel] = self._open_bytes.get(channel, 0) + size
            self.waiting_bytes += size

    def _check(self, channel: str, size: int) -> None:
        states = self.states or {}
        known = states.keys() | self._open.keys()
        if channel not in known:
            check_channels(channel, len(known))
        check_room(channel, states.get(channel, EMPTY).bytes + self._open_bytes.get(channel, 0), size)

    def chunks(self) -> tuple[Chunk, ...]:
        """Everything that is not stored yet, in order."""
        with self._lock:
            self._seal()
            return tuple(self._chunks)

    def close(self) -> tuple[Chunk, ...]:
        """The same, for the settlement; the handler can add nothing more."""
        with self._lock:
            self._seal()
            self._closed = True
            return tuple(self._chunks)

    def _seal(self) -> None:
        for channel, texts in self._open.items():
            chunk = Chunk(channel, f"[{','.join(texts)}]", len(texts), self.attempt.job.attempt)
            if self.states is not None:
                before = self.states.get(channel, EMPTY)
                chunk = numbered(chunk, before)
                self.states[channel] = state_after(chunk, before)
            self._chunks.append(chunk)
        self._open, self._open_bytes = {}, {}

    def stored(self, chunks: Sequence[Chunk]) -> None:
        with self._lock:
            done = set(map(id, chunks))
            self._chunks = [one for one in self._chunks if id(one) not in done]
            self.waiting_bytes = sum(one.size for one in self._chunks) + sum(self._open_bytes.values())

    @property
    def closed(self) -> bool:
        return self._closed


class OutputWriter:
    def __init__(self, store: Store, on_lost: Callable[[Attempt], None]) -> None:
        self._store = store
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._waiting: dict[int, JobOutput] = {}
        """By the attempt's identity."""
        self._wake = asyncio.Event()
        self._full = asyncio.Event()
        self._stored = asyncio.Event()
        self._wrote_at = float("-inf")
        self._retry = StoreRetry(store.outage, "writing output")

    # -- what handlers say -------------------------------------------------------------------------

    def emit(self, attempt: Attempt, channel: str, text: str) -> Awaitable[None]:
        """On the loop. Awaiting it waits only if much is not stored yet."""
        output = self._add(attempt, channel, text)
        self._hear(output)
        return self._room(output) if output.waiting_bytes > MOST_WAITING_BYTES else CHECKPOINT

    def emit_from_thread(self, attempt: Attempt, channel: str, text: str) -> Awaitable[None] | None:
        """In the handler's thread. What it returns has to be awaited on the loop."""
        output = self._add(attempt, channel, text)
        if not self._wake.is_set() or output.waiting_bytes >= FLUSH_BYTES:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the worker left without this thread
                self._loop.call_soon_threadsafe(self._hear, output)
        return self._room(output) if output.waiting_bytes > MOST_WAITING_BYTES else None

    def _add(self, attempt: Attempt, channel: str, text: str) -> JobOutput:
        if attempt.lost:
            raise LeaseLost(attempt.lost_interrupt().reason)
        output = attempt.output
        if output is None:
            with self._lock:  # several threads of one handler may begin
                output = attempt.output = attempt.output or JobOutput(attempt)
        output.add(channel, text)
        return output

    def _hear(self, output: JobOutput) -> None:
        self._waiting[id(output)] = output
        self._wake.set()
        if output.waiting_bytes >= FLUSH_BYTES:
            self._full.set()

    async def _room(self, output: JobOutput) -> None:
        while output.waiting_bytes > MOST_WAITING_BYTES:
            attempt = output.attempt
            if attempt.interrupt is not None or attempt.lost:
                for call in attempt.calls:
                    call.check()
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):
                    await self._stored.wait()

    # -- writing -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """One round."""
        await self._wake.wait()
        pause = self._wrote_at + FLUSH_S - time.monotonic()
        if pause > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._full.wait()
        self._wake.clear()
        self._full.clear()
        outputs = [one for one in self._waiting.values() if not one.closed]
        self._waiting = {}
        self._wrote_at = time.monotonic()
        try:
            await self._write(outputs)
            self._retry.worked()
        except StoreUnavailable as error:
            self._retry.failed(error)
            self._again(outputs)
            await self._retry.pause()
        except Exception:  # drivers have many errors for "this value can't be stored"
            log.exception("could not write the output of %d jobs; trying again", len(outputs))
            self._again(outputs)
            await self._retry.pause()
        finally:
            stored, self._stored = self._stored, asyncio.Event()
            stored.set()

    def _again(self, outputs: Sequence[JobOutput]) -> None:
        for one in outputs:
            if not one.closed and not one.attempt.lost:
                self._hear(one)

    async def _write(self, outputs: Sequence[JobOutput]) -> None:
        await self._read_states([one for one in outputs if one.states is None])
        for lease in {one.attempt.lease.id for one in outputs}:
            mine = [one for one in outputs if one.attempt.lease.id == lease and not one.closed and not one.attempt.lost]
            writes = {one: write for one in mine if (write := _write_of(one)).chunks}
            if not writes:
                continue
            lost = set(await self._store.write_output(lease, list(writes.values())))
            for output, write in writes.items():
                output.stored(write.chunks)
                # A job that has ended since is not lost: its settlement had the same chunks.
                if (write.n, write.token) in lost and not output.closed:
                    self._on_lost(output.attempt)

    async def _read_states(self, new: Sequence[JobOutput]) -> None:
        """Where earlier attempts have stopped: once for each attempt that emits."""
        if new:
            found = await self._store.output_states([one.attempt.job.id for one in new])
            for one in new:
                if not one.closed:
                    state = found.get(one.attempt.job.id)
                    one.states = dict(state.channels) if state else {}


def _write_of(output: JobOutput) -> OutputWrite:
    attempt = output.attempt
    chunks = output.chunks()
    return OutputWrite(attempt.job.n, attempt.job.token, attempt.ran_ms(time.monotonic()), chunks)
