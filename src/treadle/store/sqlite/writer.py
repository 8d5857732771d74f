"""One SQLite file: a writer thread with group commit, reader threads, and a watch for other processes.

Every write goes through one thread, in request order. All requests that arrive before the commit share one transaction,
so a hundred callers pay for one fsync. If one request of a group fails, the group is rolled back and each request runs
in a separate transaction, so one caller's error never affects another.

Writers of different processes take turns with a file lock (`lock.py`), because SQLite's busy handler sleeps and polls:
the lock would be idle while every waiting process sleeps. The lock also covers the checkpoint that a commit may
trigger. This avoids the WAL-reset bug of SQLite before 3.51.3 (a writer and a checkpoint at the same instant).
SQLite's own lock, which other programs may hold, is asked for with a short limit, and the file lock is released between
two tries. A fork waits until no transaction is open (`fork_gate.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import queue
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from treadle.model.errors import InvalidInput, StoreUnavailable
from treadle.store import clock
from treadle.store.sqlite.fork_gate import transaction_lock
from treadle.store.sqlite.lock import WriteLock
from treadle.store.sqlite.searches import Searches
from treadle.store.sqlite.thread_connections import ThreadConnections
from treadle.store.sqlite.watcher import FileWatcher

MIN_VERSION = (3, 35, 0)
BUSY_SECONDS = 30.0
CLOSE_SECONDS = 5.0
# How long the writer waits for SQLite's own lock before it lets other processes have their turn.
LOCK_MS = 20
GROUP = 256
# How often to look for other processes' commits: often after one, then more and more rarely.
WATCH_MIN = 0.0015
# Where the system reports writes, polling only catches what it might have missed.
BELL_MAX, BELL_GROWTH = 1.0, 1.5
POLL_MAX, POLL_GROWTH = 0.010, 1.002

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], Any]


class OnChange(Protocol):
    def __call__(self, *, new: bool) -> bool: ...


class _Request(NamedTuple):
    work: Work
    look: Work | None
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


# The answer of `write_here` while another thread or process writes.
BUSY = object()


class _NotBegun(Exception):
    """The write lock was not available in time."""

    def __init__(self, cause: sqlite3.Error) -> None:
        super().__init__(str(cause))
        self.cause = cause

    @property
    def locked(self) -> bool:
        return "locked" in str(self.cause)


class Writer:
    """Connections and threads of one open database."""

    def __init__(self, path: Path, synchronous: str = "FULL") -> None:
        self.path = path
        self.synchronous = synchronous
        self._clock = clock.current()
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._readers = ThreadPoolExecutor(2, "treadle-read")
        self._read_connections = ThreadConnections(self.connect)
        self._small_reads: sqlite3.Connection | None = None
        self._log = f"{path}-wal"
        self._in_use = threading.Lock()
        """Held while the writer's connection is in use."""
        self._transacting = transaction_lock()
        self._writer: threading.Thread | None = None
        self._watch: threading.Thread | None = None
        self._bell: FileWatcher | None = None
        self._stopping = threading.Event()
        self._closing = False
        """The writer has seen that nothing more comes."""
        self._pid = os.getpid()

    # -- opening and closing -------------------------------------------------------------------

    def open(self) -> None:
        if sqlite3.sqlite_version_info < MIN_VERSION:
            raise InvalidInput(
                f"SQLite {sqlite3.sqlite_version} is too old: treadle needs {'.'.join(map(str, MIN_VERSION))}"
            )
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        _create_private(self.path)
        self._connection = self.connect()
        self._connection.execute(f"PRAGMA busy_timeout = {LOCK_MS}")
        self._lock = WriteLock(self.path)
        self._writer = threading.Thread(
            target=self._write, args=(self._connection, self._lock), name="treadle-write", daemon=True
        )
        self._writer.start()

    def watch(self, on_change: OnChange) -> None:
        """Start reporting other connections' commits; once is enough. As long as `on_change` returns False, it is
        called again a moment later with `new=False`."""
        if self._watch is None:
            self._bell = FileWatcher([self._log, f"{self.path}.lock"])
            self._watch = threading.Thread(
                target=self._look, args=(self._connection, on_change), name="treadle-watch", daemon=True
            )
            self._watch.start()

    def connect(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(
                self.path,
                timeout=BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=512,
            )
            _turn_to_wal(connection)
            if self._clock:
                self._clock.install(connection)
            connection.execute(f"PRAGMA synchronous = {self.synchronous}")
            connection.execute("PRAGMA cache_size = -65536")
            connection.execute("PRAGMA temp_store = MEMORY")
            connection.execute("PRAGMA wal_autocheckpoint = 4000")
            # The header is read only now, so this is where a file that is no database fails.
            connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
        except sqlite3.OperationalError as error:
            raise StoreUnavailable(f"can't open {self.path}: {error}") from None
        except sqlite3.DatabaseError as error:
            raise InvalidInput(f"{self.path} is not a SQLite database: {error}") from None
        return connection

    async def close(self) -> None:
        if self._writer is None:
            return
        self._stopping.set()
        if self._bell:
            self._bell.stop()
        await asyncio.to_thread(self._join)

    def _join(self) -> None:
        for connection in self._read_connections.all:
            connection.interrupt()
        self._readers.shutdown(wait=True)
        for connection in self._read_connections.all:
            # A new statement clears the interrupt, which would also stop the last connection's checkpoint.
            connection.execute("SELECT 1").fetchone()
            connection.close()
        # The writer's connection closes last and alone: of two that close at the same moment each can find the other
        # still open, and then neither of them ends the log.
        self._requests.put(None)
        # A writer waiting for another process's lock ends when it gets it; leaving earlier loses nothing.
        until = time.monotonic() + CLOSE_SECONDS
        threads = [thread for thread in (self._watch, self._writer) if thread]
        for thread in threads:
            thread.join(max(until - time.monotonic(), 0))
        self._writer = None
        if self._bell and not any(thread.is_alive() for thread in threads):
            self._bell.close()
            self._bell = None

    # -- writing -------------------------------------------------------------------------------

    def write(self, work: Work, look: Work | None = None) -> asyncio.Future[Any]:
        """Run `work` on the writer's connection; its transaction has committed when the answer is there.

        Its place in the order of all writes is fixed when this returns. If no earlier write is waiting, `look` runs
        first, outside any transaction; if it returns an answer, that is the result.
        """
        self._check_process()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._requests.put(_Request(work, look, future, loop))
        return future

    def write_here(self, work: Work) -> Any:
        """Like `write`, in the caller's thread; `BUSY` while others write: joining their commit is cheaper."""
        self._check_process()
        if not self._requests.empty() or not self._in_use.acquire(blocking=False):
            return BUSY
        try:
            self._check_process()
            if not self._lock.try_take():
                return BUSY
            try:
                alone = _Request(work, None, *cast(Any, (None, None)))  # no loop waits for the answer
                [answer] = self._transaction_in_turn(self._connection, self._lock, [alone], grows=False)
            finally:
                self._lock.release()
        except _NotBegun as error:
            if error.locked:
                return BUSY  # the writer's thread can wait for it
            raise _explained(error.cause, self.path) from None
        except sqlite3.Error as error:
            raise _explained(error, self.path) from None
        finally:
            self._in_use.release()
        return answer

    def _check_process(self) -> None:
        if self._writer is None or self._stopping.is_set():
            raise StoreUnavailable(f"{self.path} is not open; open the queue first")
        if os.getpid() != self._pid:
            raise InvalidInput("this queue was opened before a fork; open a new one in the child process")

    def _write(self, connection: sqlite3.Connection, lock: WriteLock) -> None:
        while request := self._requests.get():
            group = [request]
            self._join_waiting(group)
            with self._in_use:
                while group and self._looked(connection, group[0]):
                    group.pop(0)
                if group:
                    self._commit(connection, lock, group)
            if self._closing:
                break
        with self._in_use:
            if not lock.try_take():
                lock.wait(lambda _: None)
            with self._transacting:
                connection.close()
            lock.close()

    def _join_waiting(self, group: list[_Request]) -> None:
        """Add the requests that have arrived by now."""
        while len(group) < GROUP and not self._closing and not self._requests.empty():
            following = self._requests.get()
            if following is None:
                self._closing = True
            else:
                group.append(following)

    def _looked(self, connection: sqlite3.Connection, request: _Request) -> bool:
        """True if a look was enough."""
        if request.look is None:
            return False
        try:
            answer = request.look(connection)
        except Exception:
            return False  # the transaction will report it, or work
        if answer is not None:
            _deliver([request], [answer])
        return answer is not None

    def _commit(
        self,
        connection: sqlite3.Connection,
        lock: WriteLock,
        group: list[_Request],
        behind: list[_Request] | None = None,
    ) -> None:
        """Run all in one transaction, including requests that arrive before the commit, unless others wait `behind`."""
        try:
            answers = self._transaction(connection, lock, group, behind)
        except _NotBegun as error:
            # No request caused this, and waiting again for each of them would not help.
            _refuse([group, behind or []], functools.partial(_explained, error.cause, self.path))
        except Exception as error:
            if len(group) == 1:
                _deliver(group, [_explained(error, self.path)])
            else:
                while group:
                    self._commit(connection, lock, [group.pop(0)], behind=group)
        else:
            _deliver(group, answers)

    def _transaction(
        self, connection: sqlite3.Connection, lock: WriteLock, group: list[_Request], behind: list[_Request] | None
    ) -> list[Any]:
        until = time.monotonic() + BUSY_SECONDS
        while True:
            if not lock.try_take():
                lock.wait(lambda seconds: self._give_up([group, behind or []], seconds))
            try:
                # Empty by now if it took too long.
                return self._transaction_in_turn(connection, lock, group, grows=behind is None) if group else []
            except _NotBegun as error:
                if not error.locked or time.monotonic() > until:
                    raise
            finally:
                lock.release()
            # Another program has SQLite's own lock. Other processes may know more about it, so let them try.
            time.sleep(LOCK_MS / 1000 * random.uniform(1, 3))

    def _transaction_in_turn(
        self, connection: sqlite3.Connection, lock: WriteLock, group: list[_Request], grows: bool
    ) -> list[Any]:
        with self._transacting:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                raise _NotBegun(error) from None
            try:
                answers: list[Any] = []
                while len(answers) < len(group):
                    answers.append(group[len(answers)].work(connection))
                    if grows and len(answers) == len(group):
                        self._join_waiting(group)
                connection.execute("COMMIT")
                lock.ring()
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        return answers

    def _give_up(self, groups: Sequence[list[_Request]], seconds: float) -> None:
        """The writer has waited too long for the lock. Nothing of this group has been written yet."""
        late: list[_Request] = []
        while not self._requests.empty():
            request = self._requests.get()
            if request is None:
                self._requests.put(None)
                break
            late.append(request)
        reason = f"{self.path} can't be used just now: others have kept its write lock for {seconds:.0f} s"
        _refuse([*groups, late], functools.partial(StoreUnavailable, reason))

    # -- reading -------------------------------------------------------------------------------

    async def read(self, sql: str, values: Sequence[Any]) -> list[Any]:
        self._check_process()
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, sql, values)

    async def read_small(self, sql: str, values: Sequence[Any]) -> list[Any]:
        """Read a few cached rows on the event loop: a thread takes ten times as long to answer."""
        self._check_process()
        try:
            if self._small_reads is None:
                self._small_reads = self.connect()
                self._small_reads.execute("PRAGMA busy_timeout = 0")
                self._read_connections.all.append(self._small_reads)
            return self._small_reads.execute(sql, values).fetchall()
        except sqlite3.Error:
            return await self.read(sql, values)  # busy, or worse: a thread can wait, and report it

    async def read_snapshot(self, work: Work) -> Any:
        """Run `work` on a reader's connection, on one snapshot."""
        self._check_process()
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read_snapshot, work)

    def _read_snapshot(self, work: Work) -> Any:
        try:
            with self._read_connections.transacting() as connection:
                connection.execute("BEGIN")
                try:
                    return work(connection)
                finally:
                    connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise _explained(error, self.path) from None

    def _read(self, sql: str, values: Sequence[Any]) -> list[Any]:
        try:
            with self._read_connections.transacting() as connection:
                rows: list[Any] = connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            self._check_process()  # closing interrupts it
            raise _explained(error, self.path) from None
        return rows

    async def search(self, searches: Searches, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on a search thread."""
        self._check_process()
        try:
            return await searches.run(work)
        except sqlite3.Error as error:
            raise _explained(error, self.path) from None

    # -- watching ------------------------------------------------------------------------------

    def _look(self, connection: sqlite3.Connection, on_change: OnChange) -> None:
        """Report commits of other connections; `data_version` on the writer's connection ignores its own commits.

        Reading it is a look at shared memory, not I/O. The log is written a moment before the commit becomes visible;
        Treadle's own processes signal again when it is.
        """
        assert self._bell
        most, growth = (BELL_MAX, BELL_GROWTH) if self._bell.works else (POLL_MAX, POLL_GROWTH)
        seen, pause, told = None, 0.0, True
        while not self._stopping.is_set():
            rang = self._bell.wait(pause)
            if not rang:
                pause = min(max(pause, WATCH_MIN) * growth, most)
            else:
                pause = WATCH_MIN if rang == self._log else most
                if self._in_use.locked():
                    time.sleep(WATCH_MIN)  # most likely this process's own commit, which causes many events
            try:
                with self._in_use:
                    version = connection.execute("PRAGMA data_version").fetchone()
            except sqlite3.Error:
                continue  # busy, or the file is gone for a moment: polling finds what a hint missed
            if version != seen:
                if seen is not None:
                    told = on_change(new=True)
                    time.sleep(WATCH_MIN)  # a woken subscriber looks at everything, so not every commit needs a hint
                seen, pause = version, WATCH_MIN
            elif not told:
                told, pause = on_change(new=False), WATCH_MIN


def _deliver(group: Sequence[_Request], answers: Sequence[Any]) -> None:
    """Hand the answers to the waiting loops, with one call per loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for request, answer in zip(group, answers, strict=True):
        by_loop.setdefault(request.loop, []).append((request.future, answer))
    for loop, pairs in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no caller waits any more
            loop.call_soon_threadsafe(_resolve, pairs)


def _refuse(groups: Sequence[list[_Request]], error: Callable[[], Exception]) -> None:
    """Fail all of them, so that no caller is left waiting."""
    for group in groups:
        _deliver(group, [error() for _ in group])
        group.clear()


def _resolve(pairs: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, answer in pairs:
        if future.done():
            continue
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        else:
            future.set_result(answer)


def _create_private(path: Path) -> None:
    """Create the file for its owner only, because it contains the key that signs tokens. SQLite gives its other files
    the same mode. An existing file must not be opened here: closing it would release SQLite's locks on it."""
    with contextlib.suppress(OSError):  # it exists, or SQLite will say what is wrong
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))


def _turn_to_wal(connection: sqlite3.Connection) -> None:
    """If two processes convert a new file to WAL, SQLite immediately reports a lock to one of them: both could wait
    forever."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.005)


# Temporary errors: the same call may work a moment later.
_PASSING = ("locked", "busy", "full", "i/o error", "unable to open", "readonly")


def _explained(error: Exception, path: Path) -> Exception:
    if isinstance(error, sqlite3.OperationalError) and any(word in str(error).lower() for word in _PASSING):
        return StoreUnavailable(f"{path} can't be used just now: {error}")
    if isinstance(error, sqlite3.DatabaseError) and "malformed" in str(error):
        return StoreUnavailable(f"{path} is damaged: {error}; run treadle doctor")
    return error
