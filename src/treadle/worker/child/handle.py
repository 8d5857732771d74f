"""A child process and the socket to it, as seen by its worker."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import multiprocessing
import multiprocessing.util  # before our exit hook: hooks run last in, first out, and this one waits for children
import os
import signal
import socket
import weakref
from multiprocessing.context import SpawnProcess

from treadle.worker.child import main, wire

# A handler may have forked. Then the socket stays open when the child is gone, so the child has to be checked.
ALIVE_CHECK_S = 1.0
START_S = 60.0
LEAVE_S = 2.0

_spawn = multiprocessing.get_context("spawn")
_alive: weakref.WeakSet[Child] = weakref.WeakSet()


class ProcessDied(Exception):
    """The process that ran the handler ended without a result."""


class Child:
    def __init__(self, process: SpawnProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._pid = process.pid or 0
        self._signalled = False
        _alive.add(self)

    @classmethod
    async def start(cls) -> Child:
        ours, theirs = socket.socketpair()
        level = logging.getLogger("treadle.jobs").getEffectiveLevel()
        process = _spawn.Process(target=main.main, args=(theirs, os.getpid(), level), name="treadle-child")
        try:
            await asyncio.to_thread(process.start)
        except OSError as error:
            ours.close()
            raise ProcessDied(f"the process could not be started: {error}") from error
        finally:
            theirs.close()
        started = cls(process, *await asyncio.open_unix_connection(sock=ours))
        try:
            async with asyncio.timeout(START_S):
                await started.next()
        except TimeoutError:
            started.signal(signal.SIGKILL)
            await started.dismiss()
            raise ProcessDied(f"the process did not start within {START_S:.0f} s") from None
        return started

    @property
    def reusable(self) -> bool:
        """False after a signal: the child may have answered first and be dying now."""
        return not self._signalled and not self._has_exited()

    def send(self, message: wire.Message) -> None:
        self._writer.write(wire.encode(message))

    async def next(self) -> wire.Message:
        """The next message; ProcessDied if none will come."""
        reading = asyncio.ensure_future(wire.read(self._reader))
        try:
            while not (await asyncio.wait({reading}, timeout=ALIVE_CHECK_S))[0]:
                if self._has_exited():
                    raise ProcessDied(await self._how_it_ended())
            return reading.result()
        except (asyncio.IncompleteReadError, ConnectionError):
            raise ProcessDied(await self._how_it_ended()) from None
        finally:
            reading.cancel()

    def signal(self, number: signal.Signals) -> None:
        """To the child and every process that its handler started."""
        self._signalled = True
        try:
            os.killpg(self._pid, number)
        except (ProcessLookupError, PermissionError):
            # It has not become the leader of its group yet, or is gone.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    async def dismiss(self) -> None:
        """Close the socket: an idle child exits, a busy one kills itself."""
        _alive.discard(self)
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
        await asyncio.to_thread(self._process.join, LEAVE_S)
        if self._process.exitcode is None:
            self.signal(signal.SIGKILL)
            await asyncio.to_thread(self._process.join, LEAVE_S)

    def _has_exited(self) -> bool:
        """Checked without reaping it: a zombie's pid can't be reused by another process."""
        try:
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self._pid, flags) is not None
        except ChildProcessError:
            return True

    async def _how_it_ended(self) -> str:
        self.signal(signal.SIGKILL)
        await self.dismiss()
        code = self._process.exitcode
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            hint = " (out of memory?)" if name == "SIGKILL" else ""
            return f"the process was killed by {name}{hint}"
        return f"the process exited with code {code}"


@atexit.register
def _kill_those_left() -> None:
    """At exit the standard library waits for all children, and these would wait for work forever."""
    for one in list(_alive):
        one.signal(signal.SIGKILL)
