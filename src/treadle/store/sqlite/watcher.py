"""Waiting for a change of files without asking all the time.

Linux tells of changes by itself (inotify). Python has no module for it, so its three calls are made
through ctypes. Elsewhere `FileWatcher` never rings, and whoever waits for it looks now and then.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
from collections.abc import Sequence

IN_MODIFY = 0x2
BUFFER = 65_536
# Which watch, what happened, and two that don't matter; no name follows, because the watches are on files.
EVENT = struct.Struct("iIII")


class FileWatcher:
    """Rings when one of the files is written to, by whatever process."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._inotify, self._paths = _watching(paths)
        self._stopped, self._stop = os.pipe()
        self._poll = select.poll()
        self._poll.register(self._stopped, select.POLLIN)
        if self._inotify is not None:
            self._poll.register(self._inotify, select.POLLIN)

    @property
    def works(self) -> bool:
        return self._inotify is not None

    def wait(self, seconds: float) -> str | None:
        """Until it rings or the time is over; the file that was written to last."""
        ready = [fd for fd, _ in self._poll.poll(seconds * 1000)]
        if self._inotify not in ready:
            return None
        *_, (watch, *_) = EVENT.iter_unpack(os.read(self._inotify, BUFFER))
        return self._paths.get(watch)

    def stop(self) -> None:
        """Wake whoever waits, now and from now on."""
        os.write(self._stop, b"x")

    def close(self) -> None:
        for fd in (self._inotify, self._stopped, self._stop):
            if fd is not None:
                os.close(fd)


def _watching(paths: Sequence[str]) -> tuple[int | None, dict[int, str]]:
    """A descriptor that is readable when one of the files was written to, and the files by their number in it; None
    where there is no such thing."""
    if sys.platform != "linux":
        return None, {}
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, AttributeError):
        return None, {}
    if fd < 0:  # too many of them, system-wide
        return None, {}
    watches = {libc.inotify_add_watch(fd, os.fsencode(path), IN_MODIFY): path for path in paths}
    if min(watches) < 0:
        os.close(fd)
        return None, {}
    return fd, watches
