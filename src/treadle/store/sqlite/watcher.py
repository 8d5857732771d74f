"""Waiting for file changes without polling.

Linux reports changes through inotify. Python has no module for it, so its three functions are called through ctypes. On
other systems `FileWatcher` never fires, and its users poll.
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
# The watch, the event, and two fields that don't matter; no name follows, because the watches are on files.
EVENT = struct.Struct("iIII")


class FileWatcher:
    """Fires when any process writes to one of the files."""

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
        """Wait for a write or the timeout; returns the file that was written to last."""
        ready = [fd for fd, _ in self._poll.poll(seconds * 1000)]
        if self._inotify not in ready:
            return None
        *_, (watch, *_) = EVENT.iter_unpack(os.read(self._inotify, BUFFER))
        return self._paths.get(watch)

    def stop(self) -> None:
        """Wake all waiters, now and in the future."""
        os.write(self._stop, b"x")

    def close(self) -> None:
        for fd in (self._inotify, self._stopped, self._stop):
            if fd is not None:
                os.close(fd)


def _watching(paths: Sequence[str]) -> tuple[int | None, dict[int, str]]:
    """A descriptor that becomes readable when one of the files is written to, and the files by watch number. None if
    the system has no inotify."""
    if sys.platform != "linux":
        return None, {}
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, AttributeError):
        return None, {}
    if fd < 0:  # the system-wide limit on watches is reached
        return None, {}
    watches = {libc.inotify_add_watch(fd, os.fsencode(path), IN_MODIFY): path for path in paths}
    if min(watches) < 0:
        os.close(fd)
        return None, {}
    return fd, watches
