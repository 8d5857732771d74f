"""Logs an outage of the store: one line when it begins, one a minute, one when it ends.

A dozen parts of a process notice an outage, and each of them retries every few seconds. They report here, to one log
per database, which writes one line for all of them. The outage is over when every part that failed has succeeded again.
"""

from __future__ import annotations

import logging
import threading
import time

log = logging.getLogger("treadle.store")

REPEAT_S = 60.0
# Every part retries within seconds, so one that has not failed for this long has given up or is gone.
SILENT_S = 90.0


class OutageLog:
    """The outage log of one database; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failing: dict[OutageReporter, float] = {}
        """When each part last failed."""
        self._began = 0.0
        self._told = 0.0
        self._failures = 0

    @staticmethod
    def of(database: str) -> OutageLog:
        with _logs_lock:
            return _logs.setdefault(database, OutageLog())

    def caller(self, doing: str) -> OutageReporter:
        return OutageReporter(self, doing)

    def failed(self, caller: OutageReporter, error: Exception) -> None:
        now, reason = time.monotonic(), str(error) or "the store does not answer"
        with self._lock:
            self._forget_silent(now)
            if not self._failing:
                self._began = self._told = now
                self._failures = 0
                log.warning("%s; %s has to wait", reason, caller.doing)
            self._failing[caller] = now
            self._failures += 1
            if now - self._told >= REPEAT_S:
                self._told = now
                waiting = ", ".join(sorted({one.doing for one in self._failing}))
                log.warning("%s, for %.0f s now; waiting: %s", reason, now - self._began, waiting)

    def worked(self, caller: OutageReporter) -> None:
        now = time.monotonic()
        with self._lock:
            if self._failing.pop(caller, None) is None:
                return
            self._forget_silent(now)
            if not self._failing:
                took = now - self._began
                log.warning("the store is back after %.1f s; %d calls failed", took, self._failures)

    def _forget_silent(self, now: float) -> None:
        self._failing = {one: at for one, at in self._failing.items() if now - at < SILENT_S}


class OutageReporter:
    """One part of the process that calls the store repeatedly."""

    def __init__(self, outages: OutageLog, doing: str) -> None:
        self.doing = doing
        self._outages = outages
        self._failing = False

    def failed(self, error: Exception) -> None:
        self._failing = True
        self._outages.failed(self, error)

    def worked(self) -> None:
        """Called after every successful call, so it does nothing unless the last call failed."""
        if self._failing:
            self._failing = False
            self._outages.worked(self)


_logs: dict[str, OutageLog] = {}
_logs_lock = threading.Lock()
