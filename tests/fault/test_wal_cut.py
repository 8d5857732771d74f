"""Fault 31: power loss. The WAL ends at any frame, or in the middle of one; every acknowledged change is there.

What is on the disk after a power loss is a prefix of the WAL that holds at least every frame of a commit that was
answered (`synchronous=FULL` waits for the disk before it answers). So for every prefix, opening it must give exactly
the state after its last whole commit, no less and no more.
"""

import hashlib
import random
import shutil
import sqlite3
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.fault.scale import scaled, stride
from treadle import Queue
from treadle.policy.lifecycle import Completed, Failed, Outcome, decide
from treadle.queue import steering
from treadle.store.values import Claimed, Settlement, Wants

COMMITS = scaled(200, 2_000)
COMMITS_A_PIECE = 40
"""Between two checkpoints, as in life: what has been checkpointed can't be cut off any more."""
EVERY = stride(4, 1)
"""The short form cuts after every commit and at some of the frames between."""
HEADER, FRAME_HEADER = 32, 24


async def test_every_acknowledged_change_survives_a_cut_at_any_frame(sqlite_url: str, tmp_path: Path) -> None:
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    cuts = 0
    async with Queue(sqlite_url) as queue:
        life = Life(queue, random.Random(31))
        await life.begin()
        for _ in range(COMMITS // COMMITS_A_PIECE):
            base = _checkpointed(path)
            acknowledged = [(HEADER, _content(path))]
            for _ in range(COMMITS_A_PIECE):
                await life.one_commit()
                acknowledged.append((_wal(path).stat().st_size, _content(path)))
            cuts += _check_every_cut(base, _wal(path).read_bytes(), acknowledged, path.parent / "after")
    print(f"\n{COMMITS} commits, {cuts} cuts, all as acknowledged")


def _check_every_cut(base: bytes, wal: bytes, acknowledged: list[tuple[int, str]], folder: Path) -> int:
    """Copy the database with every prefix of the WAL, open it, and compare it with what was acknowledged by then."""
    page = struct.unpack(">I", wal[8:12])[0]
    frame = FRAME_HEADER + page
    commits = [at + frame for at in range(HEADER, len(wal), frame) if struct.unpack(">I", wal[at + 4 : at + 8])[0]]
    assert commits == [size for size, _ in acknowledged[1:]], "one commit for each acknowledged change"
    cuts = sorted({*commits, *range(HEADER, len(wal) + 1, frame * EVERY)})
    torn = [cut + (cut * 7919) % frame for cut in cuts[:-1:5]]
    for cut in [*cuts, *torn]:
        expected = [content for size, content in acknowledged if size <= cut][-1]
        assert _recovered(base, wal[:cut], folder) == expected, f"cut at byte {cut}"
    return len(cuts) + len(torn)


def _recovered(base: bytes, wal: bytes, folder: Path) -> str:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path = folder / "jobs.db"
    path.write_bytes(base)
    _wal(path).write_bytes(wal)
    return _content(path, check=True)


def _content(path: Path, check: bool = False) -> str:
    """Everything in every table, as a short text to compare."""
    digest = hashlib.sha256()
    connection = sqlite3.connect(path)
    if check:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall():
        digest.update(repr((name, connection.execute(f"SELECT * FROM {name}").fetchall())).encode())
    connection.close()
    return digest.hexdigest()


def _checkpointed(path: Path) -> bytes:
    """The database file with nothing left in its WAL."""
    connection = sqlite3.connect(path)
    busy, left, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    connection.close()
    assert (busy, left) == (0, 0)
    return path.read_bytes()


def _wal(path: Path) -> Path:
    return Path(f"{path}-wal")


class Life:
    """Everything that happens to jobs, one commit at a time."""

    def __init__(self, queue: Queue, chance: random.Random) -> None:
        self._store: Any = queue.store
        self._queue = queue
        self._chance = chance
        self._lease = 0
        self._mine: list[Claimed] = []
        self._ended: list[str] = []

    async def begin(self) -> None:
        await self._store.engine.write(lambda db: db.execute("PRAGMA wal_autocheckpoint = 0").fetchall())
        await self._queue.enqueue_many("quick", [{}] * 10)
        self._lease = await self._store.open_lease("life", 3_600_000)

    async def one_commit(self) -> None:
        can: list[Callable[[], Awaitable[Any]]] = [self._enqueue, self._enqueue, self._enqueue_with_key]
        can += [self._settle, self._settle] if self._mine else [self._claim]
        can += [self._requeue] if len(self._ended) > 5 else []
        await self._chance.choice(can)()

    async def _enqueue(self) -> None:
        payloads = [{"text": "x" * self._chance.choice((10, 100, 6_000))} for _ in range(self._chance.randrange(1, 4))]
        await self._queue.enqueue_many("quick", payloads)

    async def _enqueue_with_key(self) -> None:
        key = f"key-{self._chance.randrange(10**9)}"
        await self._queue.enqueue("quick", {}, idempotency_key=key, expires="1h")

    async def _claim(self) -> None:
        self._mine = (await self._store.claim(self._lease, Wants(["quick"], [], 5, 5))).jobs

    async def _settle(self) -> None:
        job = self._mine.pop()
        endings: list[Outcome] = [Completed('"done"'), Failed("broken", "Broken", None)]
        outcome = self._chance.choice(endings)
        assert not await self._store.settle([Settlement(job, decide(job, outcome), 5)])
        self._ended.append(job.id)

    async def _requeue(self) -> None:
        id_ = self._ended.pop(self._chance.randrange(len(self._ended)))
        await steering.requeue(self._store, [id_], force=True)


async def test_the_writer_waits_for_the_disk_before_it_answers(sqlite_url: str) -> None:
    """What the test above takes for granted."""
    async with Queue(sqlite_url) as queue:
        store: Any = queue.store
        (level,) = (await store.engine.write(lambda db: db.execute("PRAGMA synchronous").fetchall()))[0]
    assert level == 2, "FULL"
