"""`treadle worker --reload`: start the worker anew when a Python file of the project changes. For development."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

log = logging.getLogger("treadle.reload")

LOOK_EVERY_S = 0.5
# A worker that is being replaced gives its jobs back after this; its handlers may be the ones that hang.
PATIENCE_S = 2.0
SKIPPED = frozenset(("__pycache__", "node_modules"))


class Reloader:
    """Works only in the main thread, because it handles the signals of its process."""

    def __init__(self, argv: Sequence[str], folder: Path) -> None:
        self._argv = list(argv)
        self._folder = folder
        self._worker: subprocess.Popen[bytes] | None = None
        self._asked_to_stop = 0

    def run(self) -> int:
        before = {number: signal.signal(number, self._hear) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            return self._run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _run(self) -> int:
        seen = snapshot(self._folder)
        worker = self._start()
        while True:
            code = worker.poll()
            if self._asked_to_stop and code is not None:
                return 0 if code in (0, -signal.SIGTERM) else 1
            time.sleep(LOOK_EVERY_S)  # no event: setting one in a signal handler can lock up the thread that waits
            now = seen if self._asked_to_stop else snapshot(self._folder)
            if now != seen:
                log.info("%s changed; the worker starts again", _changed(seen, now))
                seen = now
                _end(worker)
                worker = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        # In a separate group, so that Ctrl-C reaches it once, through us, and not also from the terminal.
        self._worker = subprocess.Popen(self._argv, process_group=0)
        return self._worker

    def _hear(self, number: int, frame: FrameType | None) -> None:
        """The worker drains at the first signal and gives its jobs back at the second."""
        self._asked_to_stop += 1
        if self._worker is not None and self._worker.poll() is None:
            self._worker.send_signal(signal.SIGTERM if self._asked_to_stop == 1 else signal.SIGINT)


def _end(worker: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
        if worker.poll() is None:
            worker.send_signal(number)
            try:
                worker.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                continue
    worker.wait()


def snapshot(folder: Path) -> dict[str, int]:
    """When each Python file below was changed. Virtual environments and hidden folders are left out."""
    return dict(_times(str(folder)))


def _times(folder: str) -> Iterator[tuple[str, int]]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if _is_ours(place, name)]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(place, name)  # noqa: PTH118 - thousands of them, twice a second
                try:
                    yield path, os.stat(path).st_mtime_ns  # noqa: PTH116
                except OSError:
                    continue  # it has just gone


def _is_ours(place: str, name: str) -> bool:
    hidden = name.startswith(".") or name in SKIPPED
    return not hidden and not Path(place, name, "pyvenv.cfg").exists()


def _changed(before: dict[str, int], now: dict[str, int]) -> str:
    paths = sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{Path(paths[0]).name}{more}"
