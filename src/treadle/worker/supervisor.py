"""Runs several worker processes: starts them, restarts the ones that die, stops them together."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import signal
import subprocess
import time
from collections.abc import Sequence
from types import FrameType

from treadle.queue.backoff import Backoff

log = logging.getLogger("treadle.supervisor")

LOOK_EVERY_S = 0.1
# A worker that lived this long was healthy: if it dies, it is restarted immediately.
HEALTHY_AFTER_S = 30.0
BAD_USAGE = 2
# The exit code of a worker that reached a limit and wants to be replaced.
REPLACE_ME = 75
# The exit code of a worker that an operator drained, which is not replaced.
DRAINED = 76
CLEAN = (0, REPLACE_ME, DRAINED)


def supervise(argv: Sequence[str], processes: int, *, until_done: bool = False) -> int:
    """Run `processes` of this command until SIGTERM or SIGINT; returns the exit code for the command line.

    A process that ends is replaced, unless an operator drained it. With `until_done`, one that ended successfully is
    not, and this returns when all have.
    """
    return Supervisor(argv, processes, until_done).run()


class Supervisor:
    """Works only in the main thread, because it handles the signals of its process."""

    def __init__(self, argv: Sequence[str], processes: int, until_done: bool = False) -> None:
        self._until_done = until_done
        self._members = [Member(argv) for _ in range(processes)]
        self._signals = 0
        self._failed = 0

    def run(self) -> int:
        before = {number: signal.signal(number, self._hear) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            while self._look():
                time.sleep(LOOK_EVERY_S)  # no event: setting one in a signal handler can lock up the thread that waits
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._failed

    def _hear(self, number: int, frame: FrameType | None) -> None:
        """Workers drain at the first signal and give their jobs back at the second. The third kills.

        The second one is forwarded as SIGINT: of two equal signals at the same moment a process hears only one.
        """
        self._signals += 1
        forwarded = {1: signal.SIGTERM, 2: signal.SIGINT}.get(self._signals, signal.SIGKILL)
        for member in self._members:
            member.send(forwarded)

    def _look(self) -> bool:
        """Start what should run; False when all are gone and none should run."""
        for member in self._members:
            code = member.ended()
            if code == BAD_USAGE and not self._signals:
                self._failed = BAD_USAGE
                self._hear(signal.SIGTERM, None)  # the others would fail as well
            elif code not in (None, *CLEAN) and self._signals and not member.ended_as_asked(code):
                self._failed = self._failed or 1
            elif code == DRAINED or (code == 0 and self._until_done):
                member.done = True
            if not self._signals:
                member.start_when_due()
        if self._signals:
            return any(member.alive for member in self._members)
        return not all(member.done for member in self._members)


class Member:
    """One worker process and its successors."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = list(argv)
        self._process: subprocess.Popen[bytes] | None = None
        self._backoff = Backoff(first_s=0.1, most_s=30.0)
        self._started_at = 0.0
        self._start_at = 0.0
        self._asked_to_stop = False
        self._missed: signal.Signals | None = None
        """A signal that arrived while the process was being started."""
        self.done = False
        """Not to be started again."""

    @property
    def alive(self) -> bool:
        return self._process is not None

    def start_when_due(self) -> None:
        if self._process is None and not self.done and time.monotonic() >= self._start_at:
            self._started_at = time.monotonic()
            # In a separate group, so that Ctrl-C reaches it once, through us, and not also from the terminal.
            self._process = subprocess.Popen(
                self._argv,
                process_group=0,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - a supervisor has no threads
            )
            if self._missed is not None:
                self._process.send_signal(self._missed)

    def ended(self) -> int | None:
        """The exit code of a process that has ended, reported once."""
        code = self._process.poll() if self._process else None
        if code is None:
            return None
        if time.monotonic() - self._started_at > HEALTHY_AFTER_S:
            self._backoff.reset()
        delay = 0.0 if code == REPLACE_ME else self._backoff.delay_s()
        level = logging.INFO if code in CLEAN or self.ended_as_asked(code) else logging.WARNING
        log.log(level, "worker process %d ended with code %d", self._process.pid if self._process else 0, code)
        self._start_at = time.monotonic() + delay
        self._process = None
        return code

    def ended_as_asked(self, code: int) -> bool:
        """Whether SIGTERM ended it while it was still starting. Later, a worker handles the signal and ends with 0."""
        return self._asked_to_stop and code == -signal.SIGTERM

    def send(self, number: signal.Signals) -> None:
        self._asked_to_stop = True
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
        else:
            self._missed = number


def _end_with_parent() -> None:
    """On Linux: SIGTERM when the supervisor is killed, so that its successor does not run extra workers."""
    set_parent_death_signal = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
