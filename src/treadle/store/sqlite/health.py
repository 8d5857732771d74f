"""SQLite's part of `doctor`."""

from __future__ import annotations

import os
import shlex
import sqlite3
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.store.sql import check
from treadle.store.views import Finding

if TYPE_CHECKING:
    from treadle.store.sqlite.store import SqliteStore

WAL_RESET_FIXED = (3, 51, 3)
LARGE_WAL = 256 * 1024 * 1024
NETWORK_FILE_SYSTEMS = frozenset(
    "nfs nfs4 cifs smb3 smbfs 9p afs ceph glusterfs fuse.sshfs fuse.glusterfs lustre".split()
)


async def examine(store: SqliteStore) -> list[Finding]:
    return [
        Finding("connection", "ok", f"{store.path} opens"),
        _version(),
        await _journal(store),
        _wal(store.path),
        _permissions(store.path),
        _file_system(store.path),
        await _clock(store),
        await _integrity(store),
        *await check.examine(store),
    ]


def _version() -> Finding:
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info >= WAL_RESET_FIXED:
        return Finding("sqlite version", "ok", version)
    return Finding(
        "sqlite version",
        "warn",
        f"SQLite {version} has the WAL-reset bug (fixed in 3.51.3)",
        "Treadle's own processes stay out of its window; let no other program write to or checkpoint this file, "
        "or use a Python built with a newer SQLite",
    )


async def _journal(store: SqliteStore) -> Finding:
    mode = (await store.read("PRAGMA journal_mode", []))[0][0]
    if mode == "wal":
        return Finding("journal", "ok", f"WAL, synchronous={store.engine.synchronous}")
    return Finding("journal", "fail", f"journal mode is {mode}", "the file system must support WAL")


def _wal(path: Path) -> Finding:
    wal = Path(f"{path}-wal")
    size = wal.stat().st_size if wal.exists() else 0
    if size < LARGE_WAL:
        return Finding("wal size", "ok", f"{size / 1e6:.1f} MB")
    return Finding(
        "wal size",
        "warn",
        f"{size / 1e6:.0f} MB",
        "a reader has had a transaction open for a long time, so the WAL can't be checkpointed; end it",
    )


def _permissions(path: Path) -> Finding:
    """The file contains the key that signs tokens, so read access is enough to sign in as any user."""
    files = [one for one in (Path(f"{path}{suffix}") for suffix in ("", "-wal", "-shm", ".lock")) if one.exists()]
    modes = {one: stat.S_IMODE(one.stat().st_mode) for one in files}
    open_to = [f"{one.name} ({mode:04o})" for one, mode in modes.items() if mode & 0o077]
    if not open_to:
        return Finding("permissions", "ok", "only the owner can read it")
    everybody = any(mode & 0o007 for mode in modes.values())
    return Finding(
        "permissions",
        "warn",
        f"open to {'everybody' if everybody else 'a group'} on this machine: {', '.join(open_to)}",
        f"chmod 600 {' '.join(shlex.quote(str(one)) for one, mode in modes.items() if mode & 0o077)}",
    )


def _file_system(path: Path) -> Finding:
    kind = _mounted_as(path)
    if kind in NETWORK_FILE_SYSTEMS:
        return Finding(
            "file system",
            "fail",
            f"{kind} is a network file system",
            "SQLite's locks don't work there; move the file to a local disk or use PostgreSQL",
        )
    return Finding("file system", "ok", kind or "unknown")


def _mounted_as(path: Path) -> str:
    best, kind = "", ""
    try:
        lines = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        _, where, type_, *_ = line.split(" ")
        if len(where) > len(best) and os.path.commonpath([where, str(path.resolve())]) == where:
            best, kind = where, type_
    return kind


async def _clock(store: SqliteStore) -> Finding:
    skew = abs(await store.now() - time.time() * 1000)
    return Finding("clock", "ok" if skew < 1000 else "warn", f"{skew:.0f} ms from this process's")


async def _integrity(store: SqliteStore) -> Finding:
    answer = (await store.read("PRAGMA quick_check(1)", []))[0][0]
    if answer == "ok":
        return Finding("integrity", "ok", "quick_check passed")
    return Finding("integrity", "fail", answer, "restore the file from a backup, or dump and reload it")
