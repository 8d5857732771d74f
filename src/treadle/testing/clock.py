"""A clock that tests move by hand."""

from __future__ import annotations

from types import TracebackType

from treadle.model.durations import Duration, duration_ms
from treadle.model.errors import InvalidInput
from treadle.store import clock, wakeups


class Clock:
    """Moves the clock of every SQLite queue opened inside `with Clock() as clock:`.

    Delays, retries, leases, deadlines and schedules follow it. Handler timeouts still use real time.
    """

    def __init__(self) -> None:
        self._clock = clock.MovableClock()

    def advance(self, duration: Duration) -> None:
        """Move the clock forward by this much. It is refused with a PostgreSQL queue: its clock can't be moved."""
        if self._clock.unmoved:
            raise InvalidInput(
                f"the clock of {self._clock.unmoved} can't be moved, only that of SQLite; "
                "enqueue with run_at in the past, or test this on SQLite"
            )
        self._clock.offset_ms += duration_ms(duration)
        wakeups.Wakeups.tell_all(wakeups.ALL)

    def __enter__(self) -> Clock:
        clock.use(self._clock)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        clock.use(None)
