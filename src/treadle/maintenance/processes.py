"""Tells whether the process that opened a lease is still there, where that can be proven.

A process is known by its home, its pid and its start time. The home is what has to be equal for a pid to mean the same
process: this boot of the machine, its pid namespace, the time namespace (start times are relative to it), and the host
name, which tells copies of a virtual machine apart. Where /proc does not say all of that, nothing is proven.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import NamedTuple

from treadle.store.views import ProcessId

_PROC = Path("/proc")
_EXITED = "ZX"


class _Stat(NamedTuple):
    state: str
    threads: int
    started: int
    """In clock ticks since the machine booted."""


def this_process() -> ProcessId | None:
    """None: this system can't tell processes apart for certain."""
    stat = _read_stat(os.getpid())
    try:
        if stat is None or str((_PROC / "self").readlink()) != str(os.getpid()):  # the /proc of another namespace
            return None
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        home = [boot, str((_PROC / "self/ns/pid").readlink()), _time_namespace(), socket.gethostname()]
    except OSError:
        return None
    return ProcessId(" ".join(home), os.getpid(), stat.started)


def is_dead(process: ProcessId) -> bool:
    """Whether a process of this home has ended for certain: gone, a zombie, or its pid belongs to a later process."""
    if process.pid <= 0:
        return False
    try:
        os.kill(process.pid, 0)  # /proc may hide the processes of other users
    except ProcessLookupError:
        return True
    except OSError:
        pass
    stat = _read_stat(process.pid)
    if stat is None:
        return False
    # A zombie with more than one thread has only lost its main thread.
    return stat.started != process.started or (stat.state in _EXITED and stat.threads <= 1)


def _read_stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
        fields = text[text.rindex(")") + 1 :].split()  # the name in parentheses may contain anything
        return _Stat(fields[0], int(fields[17]), int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None


def _time_namespace() -> str:
    try:
        return str((_PROC / "self/ns/time").readlink())
    except OSError:  # a kernel without time namespaces
        return "-"
