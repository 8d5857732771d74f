"""Several worker processes under one: starts them, starts again those that die, ends them together."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from types import FrameType

from treadle.worker.backoff import Backoff

log = logging.getLogger("treadle.supervisor")

LOOK_EVERY_S = 0.1
# A worker that lived this long was all right: if it dies, it is started again without waiting.
HEALTHY_AFTER_S = 30.0
BAD_USAGE = 2


def supervise(argv: Sequence[str], processes: int) -> int:
    """Run `processes` of this command until SIGTERM or SIGINT; the exit code for the command line."""
    return Supervisor(argv, processes).run()


class Supervisor:
    """Only in the main thread: it handles the signals of its process."""

    def __init__(self, argv: Sequence[str], processes: int) -> None:
        self._members = [Member(argv) for _ in range(processes)]
        self._signals = 0
        self._failed = 0
        self._wake = threading.Event()

    def run(self) -> int:
        before = {number: signal.signal(number, self._hear) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            while self._look():
                self._wake.wait(LOOK_EVERY_S)
                self._wake.clear()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._failed

    def _hear(self, number: int, frame: FrameType | None) -> None:
        """The first signal is passed on as SIGTERM, the second as SIGKILL."""
        self._signals += 1
        for member in self._members:
            member.send(signal.SIGTERM if self._signals == 1 else signal.SIGKILL)
        self._wake.set()

    def _look(self) -> bool:
        """Start what should run; False when all are gone and should be."""
        for member in self._members:
            code = member.ended()
            if code == BAD_USAGE and not self._signals:
                self._failed = BAD_USAGE
                self._hear(signal.SIGTERM, None)  # the others would not fare better
            elif code and self._signals:
                self._failed = self._failed or 1
            if not self._signals:
                member.start_when_due()
        return not self._signals or any(member.alive for member in self._members)


class Member:
    """One worker process and its successors."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = list(argv)
        self._process: subprocess.Popen[bytes] | None = None
        self._backoff = Backoff(first_s=0.1, most_s=30.0)
        self._started_at = 0.0
        self._start_at = 0.0

    @property
    def alive(self) -> bool:
        return self._process is not None

    def start_when_due(self) -> None:
        if self._process is None and time.monotonic() >= self._start_at:
            self._started_at = time.monotonic()
            # A group of its own: Ctrl-C reaches it through us, once, and not a second time from the terminal.
            self._process = subprocess.Popen(
                self._argv,
                process_group=0,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - a supervisor has no threads
            )

    def ended(self) -> int | None:
        """The exit code of a process that is gone, once."""
        code = self._process.poll() if self._process else None
        if code is None:
            return None
        if time.monotonic() - self._started_at > HEALTHY_AFTER_S:
            self._backoff.reset()
        delay = self._backoff.delay_s()
        log.warning("worker process %d ended with code %d", self._process.pid if self._process else 0, code)
        self._start_at = time.monotonic() + delay
        self._process = None
        return code

    def send(self, number: signal.Signals) -> None:
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


def _end_with_parent() -> None:
    """On Linux: SIGTERM when the supervisor is killed, so that its successor does not come on top."""
    set_parent_death_signal = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
