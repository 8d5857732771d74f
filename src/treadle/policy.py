"""Durations, priorities and retry policies: pure values, no clock, no I/O."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from treadle.errors import InvalidInput

Duration = str | int | float | timedelta
Priority = str | int

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
MAX_DURATION_MS = 100 * 365 * _UNITS_MS["d"]

PRIORITIES: Mapping[str, int] = {"critical": 100, "high": 75, "normal": 50, "low": 25, "background": 0}
INT32 = 2**31 - 1
MAX_COUNT = 1_000_000


def duration_ms(value: Duration, field: str = "duration") -> int:
    """Milliseconds of "30s", "5m", "2h", "1000ms", "1d", of seconds as a number, or of a timedelta."""
    if isinstance(value, timedelta):
        ms = value / timedelta(milliseconds=1)
    elif isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if not match:
            raise InvalidInput(
                f'{field}: {value[:40]!r} is not a duration; write it like "30s", "5m", "2h" or "1000ms"',
                field=field,
            )
        ms = float(match[1]) * _UNITS_MS[match[2]]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        ms = value * 1000
    else:
        raise InvalidInput(f"{field}: {type(value).__name__} is not a duration", field=field)
    if not 0 <= ms <= MAX_DURATION_MS:
        raise InvalidInput(f"{field}: {_shown(value)} is out of range (0 to 100 years)", field=field)
    return round(ms)


def _shown(value: object) -> str:
    """A value in a message: short, and no ValueError from an integer of thousands of digits."""
    try:
        return str(value)[:40]
    except ValueError:
        return "a number of thousands of digits"


def format_ms(ms: int) -> str:
    """The shortest spelling that `duration_ms` reads back."""
    for unit in ("d", "h", "m", "s"):
        if ms and ms % _UNITS_MS[unit] == 0:
            return f"{ms // _UNITS_MS[unit]}{unit}"
    return f"{ms}ms"


def priority_value(value: Priority) -> int:
    """The integer behind "critical", "high", "normal", "low", "background", or any 32-bit integer itself."""
    if isinstance(value, str):
        if value not in PRIORITIES:
            names = ", ".join(PRIORITIES)
            raise InvalidInput(f"priority: {value[:40]!r} is not one of {names}, or an integer", field="priority")
        return PRIORITIES[value]
    if isinstance(value, bool) or not isinstance(value, int) or not -INT32 - 1 <= value <= INT32:
        raise InvalidInput(f"priority: {_shown(value)} is not a name or a 32-bit integer", field="priority")
    return value


def checked_count(value: int, field: str, most: int = MAX_COUNT) -> int:
    """A number of attempts, of jobs at once, of starts in a window."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidInput(f"{field}: {_shown(value)} is not between 1 and {most:,}", field=field)
    return value


Backoff = Literal["quadrupling", "fixed", "linear", "exponential"]

# First delay and what the n-th failure makes of it.
_BACKOFFS: Mapping[str, tuple[int, Callable[[int, int], int]]] = {
    "quadrupling": (60_000, lambda base, n: base * 4 ** min(n - 1, 30)),
    "fixed": (1_000, lambda base, n: base),
    "linear": (1_000, lambda base, n: base * n),
    "exponential": (1_000, lambda base, n: base * 2 ** min(n - 1, 50)),
}


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a job is tried, and how long it waits between two tries.

    `Retry()` is the default: three attempts, 1 minute after the first failure, 4 after the second.
    `backoff` may also be a list of delays; the last one repeats. `on` maps exception types to a
    delay, to another `Retry` (its backoff counts) or to False (fail at once); the nearest class in
    the exception's MRO wins.
    """

    max_attempts: int = 3
    backoff: Backoff | Sequence[Duration] = "quadrupling"
    delay: Duration | None = None
    max_delay: Duration | None = None
    jitter: float = 0.0
    on: Mapping[type[BaseException], Duration | Retry | Literal[False]] | None = None

    def __post_init__(self) -> None:
        checked_count(self.max_attempts, "max_attempts")
        self._check_backoff()
        if not isinstance(self.jitter, int | float) or not 0.0 <= self.jitter <= 1.0:
            raise InvalidInput(f"jitter: {_shown(self.jitter)} is not between 0 and 1", field="jitter")
        for name in ("delay", "max_delay"):
            value = getattr(self, name)
            if value is not None:
                duration_ms(value, name)
        for choice in (self.on or {}).values():
            if choice is not False and not isinstance(choice, Retry):
                duration_ms(choice, "on")

    def _check_backoff(self) -> None:
        if isinstance(self.backoff, str) and self.backoff in _BACKOFFS:
            return
        if isinstance(self.backoff, str) or not isinstance(self.backoff, Sequence):
            names = ", ".join(_BACKOFFS)
            raise InvalidInput(
                f"backoff: {_shown(self.backoff)!r} is not one of {names}, or a list of delays", field="backoff"
            )
        if not self.backoff:
            raise InvalidInput("backoff: the list of delays is empty", field="backoff")
        for one in self.backoff:
            duration_ms(one, "backoff")

    def delay_ms(self, failures: int) -> int:
        """The wait after the n-th failure (from 1)."""
        if isinstance(self.backoff, str):
            first, grow = _BACKOFFS[self.backoff]
            base = first if self.delay is None else duration_ms(self.delay)
            ms = grow(base, failures)
        else:
            ms = duration_ms(self.backoff[min(failures, len(self.backoff)) - 1])
        cap = MAX_DURATION_MS if self.max_delay is None else duration_ms(self.max_delay)
        ms = min(ms, cap)
        if self.jitter:
            ms = round(ms * random.uniform(1 - self.jitter, 1 + self.jitter))
        return min(ms, cap)

    def decide(self, error: BaseException, failures: int) -> int | None:
        """The wait before the next try in ms, or None when this error ends the job."""
        for kind in type(error).__mro__:
            if self.on and kind in self.on:
                choice = self.on[kind]
                if choice is False:
                    return None
                return choice.delay_ms(failures) if isinstance(choice, Retry) else duration_ms(choice)
        return self.delay_ms(failures)

    def as_json(self) -> dict[str, Any]:
        """`retryPolicy` of a template: the delays spelled out, so that every reader understands them."""
        count = min(self.max_attempts - 1, 20)
        plain = Retry(self.max_attempts, self.backoff, self.delay, self.max_delay)
        return {
            "maxAttempts": self.max_attempts,
            "backoffSeconds": [plain.delay_ms(n) / 1000 for n in range(1, count + 1)],
        }
