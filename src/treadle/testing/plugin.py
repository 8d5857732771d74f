"""Pytest fixtures, registered by entry point: `treadle_queue` and `treadle_clock`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from treadle.queue import Queue
    from treadle.testing.clock import Clock


@pytest.fixture
def treadle_clock() -> Iterator[Clock]:
    """The clock of every SQLite queue opened in this test: `treadle_clock.advance("15m")`."""
    from treadle.testing.clock import Clock

    with Clock() as clock:
        yield clock


@pytest.fixture
def treadle_queue(tmp_path: Path, treadle_clock: Clock) -> Iterator[Queue]:
    """A new queue on a temporary SQLite file."""
    from treadle.queue import Queue

    queue = Queue(f"sqlite:///{tmp_path}/treadle.db?synchronous=normal")
    yield queue
    queue.sync.close()
