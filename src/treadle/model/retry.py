"""Retry policies: pure values, no clock, no I/O."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from treadle.model.durations import MAX_DURATION_MS, Duration, checked_count, duration_ms, seconds, shown
from treadle.model.errors import InvalidInput

Backoff = Literal["quadrupling", "fixed", "linear", "exponential"]

# The first delay, and how it grows with the n-th failure.
_BACKOFFS: Mapping[str, tuple[int, Callable[[int, int], int]]] = {
    "quadrupling": (60_000, lambda base, n: base * 4 ** min(n - 1, 30)),
    "fixed": (1_000, lambda base, n: base),
    "linear": (1_000, lambda base, n: base * n),
    "exponential": (1_000, lambda base, n: base * 2 ** min(n - 1, 50)),
}


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a job is tried, and how long it waits between tries.

    `Retry()` is the default: three attempts, 1 minute after the first failure, 4 after the second. `backoff` may also
    be a list of delays; the last one repeats. `on` maps exception types to a delay, to another `Retry` (for its
    backoff) or to False (fail immediately); the nearest class in the exception's MRO wins.
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
            raise InvalidInput(f"jitter: {shown(self.jitter)} is not between 0 and 1", field="jitter")
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
                f"backoff: {shown(self.backoff)!r} is not one of {names}, or a list of delays", field="backoff"
            )
        if not self.backoff:
            raise InvalidInput("backoff: the list of delays is empty", field="backoff")
        for one in self.backoff:
            duration_ms(one, "backoff")

    def delay_ms(self, failures: int) -> int:
        """The delay after the n-th failure (from 1)."""
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

    def decide(self, families: Sequence[str], failures: int) -> int | None:
        """The delay before the next try in ms, or None if this error ends the job.

        `families` are the names of the error's classes (`families_of`), because the error itself may be in another
        process.
        """
        choices = {full_name(kind): choice for kind, choice in (self.on or {}).items()}
        for name in families:
            if name in choices:
                choice = choices[name]
                if choice is False:
                    return None
                return choice.delay_ms(failures) if isinstance(choice, Retry) else duration_ms(choice)
        return self.delay_ms(failures)

    def as_json(self) -> dict[str, Any]:
        """`retryPolicy` of a template: explicit delays, so that every reader understands them."""
        # A list is shown as its author wrote it, even if the attempts don't use all of it.
        count = max(min(self.max_attempts - 1, 20), 0 if isinstance(self.backoff, str) else len(self.backoff))
        plain = Retry(self.max_attempts, self.backoff, self.delay, self.max_delay)
        return {
            "maxAttempts": self.max_attempts,
            "backoffSeconds": [seconds(plain.delay_ms(n) / 1000) for n in range(1, count + 1)],
        }


def families_of(error: BaseException) -> tuple[str, ...]:
    """Qualified names of an error's classes, nearest first."""
    return tuple(full_name(kind) for kind in type(error).__mro__)


def full_name(kind: type) -> str:
    # A child process has the program's main module under another name.
    return f"{kind.__module__}.{kind.__qualname__}".replace("__mp_main__", "__main__")
