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
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
MAX_DURATION_MS = 100 * 365 * _UNITS_MS["d"]

PRIORITIES: Mapping[str, int] = {"critical": 100, "high": 75, "normal": 50, "low": 25, "background": 0}
INT32 = 2**31 - 1


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
        ms = value * 1000.0
    else:
        raise InvalidInput(f"{field}: {type(value).__name__} is not a duration", field=field)
    if not 0 <= ms <= MAX_DURATION_MS:
        raise InvalidInput(f"{field}: {value} is out of range (0 to 100 years)", field=field)
    return round(ms)


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
    if isinstance(value, bool) or not isinstance(value, int) or not -INT32 <= value <= INT32:
        raise InvalidInput(f"priority: {value!r} is not a name or a 32-bit integer", field="priority")
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
        if isinstance(self.max_attempts, bool) or not 1 <= self.max_attempts <= 1_000_000:
            raise InvalidInput(
                f"max_attempts: {self.max_attempts} is not between 1 and 1,000,000", field="max_attempts"
            )
        if isinstance(self.backoff, str):
            if self.backoff not in _BACKOFFS:
                names = ", ".join(_BACKOFFS)
                raise InvalidInput(
                    f"backoff: {self.backoff[:40]!r} is not one of {names}, or a list of delays",
                    field="backoff",
                )
        elif not self.backoff:
            raise InvalidInput("backoff: the list of delays is empty", field="backoff")
        else:
            for one in self.backoff:
                duration_ms(one, "backoff")
        if not 0.0 <= self.jitter <= 1.0:
            raise InvalidInput(f"jitter: {self.jitter} is not between 0 and 1", field="jitter")
        for name in ("delay", "max_delay"):
            value = getattr(self, name)
            if value is not None:
                duration_ms(value, name)

    def delay_ms(self, failures: int) -> int:
        """The wait after the n-th failure (from 1)."""
        if isinstance(self.backoff, str):
            first, grow = _BACKOFFS[self.backoff]
            base = first if self.delay is None else duration_ms(self.delay)
            ms = grow(base, failures)
        else:
            ms = duration_ms(self.backoff[min(failures, len(self.backoff)) - 1])
        if self.max_delay is not None:
            ms = min(ms, duration_ms(self.max_delay))
        ms = min(ms, MAX_DURATION_MS)
        if self.jitter:
            ms = round(ms * random.uniform(1 - self.jitter, 1 + self.jitter))
        return ms

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
