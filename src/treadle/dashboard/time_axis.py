"""A common time axis for the steps of a job.

Time in which no worker had the job is drawn short: a wait of three days would leave a minute of work no room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from treadle.dashboard import words

Span = tuple[datetime, datetime]

# All breaks together take at most this share of the time in which the job ran.
BREAKS_SHARE = 0.4
MOST_TICKS = 5
# Labels closer than this, in percent of the width, would run into each other.
LABEL_ROOM = 16.0
_STEPS_MS = [
    *(lead * 10**power for power in range(4) for lead in (1, 2, 5)),
    *(1000 * seconds for seconds in (10, 20, 30, 60, 120, 300, 600, 1200, 1800)),
    *(3_600_000 * hours for hours in (1, 2, 6, 12, 24, 48, 168, 720, 8760)),
]


@dataclass(frozen=True, slots=True)
class Label:
    x: str
    anchor: str
    text: str
    css: str = ""


@dataclass(frozen=True, slots=True)
class _Piece:
    start: datetime
    end: datetime
    left: float
    width: float
    """Both in percent."""
    short: bool
    """It lasted longer than it looks."""

    def x(self, at: datetime) -> float:
        length = self.end - self.start
        return self.left + (self.width * ((at - self.start) / length) if length else 0)


class TimeAxis:
    def __init__(self, start: datetime, end: datetime, active: Sequence[Span]) -> None:
        self.start = start
        self.end = max(end, start + timedelta(milliseconds=1))
        self._pieces = _pieces(self.start, self.end, active)

    def x(self, at: datetime) -> float:
        """Where an instant is, in percent of the width."""
        at = min(max(at, self.start), self.end)
        return next(piece for piece in self._pieces if at <= piece.end).x(at)

    @property
    def rules(self) -> list[str]:
        return [percent(x) for x, _ in self._ticks()]

    def labels(self, now: datetime | None, waits: bool) -> list[Label]:
        """Round times, the breaks that are long enough to name, and `now` for a job that goes on."""
        wanted = [(x, text, "") for x, text in self._ticks()]
        wanted = [*self._break_labels(waits), *wanted]
        if now is not None and self.x(now) < 100 - LABEL_ROOM:
            wanted.insert(0, (self.x(now), f"now {words.span(self.start, now)}", "now-label"))
        marks: list[tuple[float, str, str]] = []
        for x, text, css in wanted:
            if all(abs(x - other) >= LABEL_ROOM for other, _, _ in marks):
                marks.append((x, text, css))
        return [Label(percent(x), _anchor(x), text, css) for x, text, css in sorted(marks)]

    def _break_labels(self, waits: bool) -> list[tuple[float, str, str]]:
        found = []
        for piece in self._pieces:
            if piece.short and piece.width >= LABEL_ROOM:
                last = piece.end == self.end
                text = f"{'waits' if waits and last else 'parked'} {words.span(piece.start, piece.end)}"
                found.append((100.0 if last else piece.left + piece.width / 2, text, "wait-label"))
        return found

    def _ticks(self) -> list[tuple[float, str]]:
        """Round times up to the first break: after it the scale has another zero."""
        first_break = next((piece.start for piece in self._pieces if piece.short), self.end)
        ms = timedelta(milliseconds=1)
        shown = (first_break - self.start) / ms
        if shown < 1:
            return [(0.0, "0")]
        room = max(round(MOST_TICKS * self.x(first_break) / 100), 1)
        step = next((one for one in _STEPS_MS if shown / one <= room), _STEPS_MS[-1])
        count = min(int(shown // step), 2 * MOST_TICKS)
        return [(self.x(self.start + i * step * ms), _short(i * step)) for i in range(count + 1)]


def _pieces(start: datetime, end: datetime, active: Sequence[Span]) -> list[_Piece]:
    """The whole time in order, each break as long as the rest lets it."""
    spans: list[tuple[datetime, datetime, bool]] = []
    at = start
    for began, stopped in sorted(active):
        begin, stop = max(began, at), min(stopped, end)
        if at < begin < end:
            spans.append((at, begin, False))
        if stop > begin:
            spans.append((begin, stop, True))
            at = stop
    if at < end:
        spans.append((at, end, False))
    ran = sum(((stop - begin) for begin, stop, busy in spans if busy), timedelta())
    breaks = sum(not busy for _, _, busy in spans)
    most = ran * BREAKS_SHARE / breaks if breaks and ran else end - start
    lengths = [stop - begin if busy else min(stop - begin, most) for begin, stop, busy in spans]
    total = sum(lengths, timedelta())
    pieces, left = [], 0.0
    for (begin, stop, busy), length in zip(spans, lengths, strict=True):
        width = length / total * 100
        pieces.append(_Piece(begin, stop, left, width, not busy and length < stop - begin))
        left += width
    return pieces


def percent(x: float) -> str:
    return f"{x:.2f}%"


def _anchor(x: float) -> str:
    return "start" if x < 4 else "end" if x > 93 else "middle"


def _short(ms: int) -> str:
    for size, name in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")):
        if ms >= size:
            return f"{ms / size:g}{name}"
    return f"{ms} ms" if ms else "0"
