"""The steps of a job as rows of a waterfall."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from treadle.dashboard import words
from treadle.dashboard.time_axis import Label, Span, TimeAxis, percent
from treadle.insights.error_text import read_error
from treadle.model.events import Event
from treadle.model.job import Job, from_ms
from treadle.model.status import Status
from treadle.model.steps import DONE, StepSpec, StepState

MIN_WIDTH = 0.4
ENDS_ATTEMPT = frozenset(
    f"job:{name}" for name in "completed failed retrying snoozed released reclaimed waiting cancelled expired".split()
)
# How many runs of a step with keys are shown below it; the others are on its page.
RUNS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Bar:
    kind: str
    x: str
    width: str


@dataclass(frozen=True, slots=True)
class StepRow:
    id: str
    key: str
    title: str
    status: str
    note: str
    bad: bool
    """The note is an error."""
    until: datetime | None
    """When its wait gives up."""
    bars: Sequence[Bar]
    took: str
    since: datetime | None
    """It goes on since then."""
    result: Any
    has_result: bool
    result_size: str
    large: bool
    """Too large to be shown among the others."""
    runs: Sequence[StepRow] = ()
    more: int = 0
    """Runs that are not shown."""

    @property
    def later(self) -> bool:
        return not self.bars and self.status == StepState.PENDING


@dataclass(frozen=True, slots=True)
class Waterfall:
    rows: Sequence[StepRow]
    done: int
    version: int | None
    rules: Sequence[str]
    labels: Sequence[Label]
    now: str
    moved: Sequence[str]
    """Where another claim took the job over."""

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """What the legend explains."""
        names = {"lost": "given back, run again", "guess": "estimate"}
        seen = dict.fromkeys(bar.kind for row in self.rows for line in (row, *row.runs) for bar in line.bars)
        return [(kind, names.get(kind, kind)) for kind in seen]


def active_spans(events: Sequence[Event], now: datetime) -> list[Span]:
    """When workers had the job."""
    spans: list[Span] = []
    started: datetime | None = None
    for event in events:
        at = from_ms(event.created_at)
        assert at is not None
        if event.type == "job:started":
            started = at
        elif event.type in ENDS_ATTEMPT and started is not None:
            spans.append((started, max(at, started)))
            started = None
    if started is not None:
        spans.append((started, max(now, started)))
    return spans


def waterfall(
    job: Job,
    events: Sequence[Event],
    specs: Sequence[StepSpec],
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
    now: datetime,
) -> Waterfall:
    drawing = _Drawing(job, active_spans(events, now), {spec.name: spec for spec in specs}, now)
    rows = [drawing.row(step, runs.get(step["id"], ())) for step in job.steps]
    axis = drawing.axis
    live = not job.ended
    return Waterfall(
        rows,
        sum(step["status"] in DONE for step in job.steps),
        job.template_version,
        axis.rules if axis else (),
        axis.labels(now if job.status in _RUNS else None, job.status is Status.WAITING) if axis else (),
        percent(axis.x(now)) if axis and live and job.status in _RUNS else "",
        [percent(axis.x(begin)) for begin, _ in drawing.active[1:] if begin > axis.start] if axis else (),
    )


_RUNS = (Status.PROCESSING, Status.CANCELLING)


class _Drawing:
    def __init__(self, job: Job, active: Sequence[Span], specs: Mapping[str, StepSpec], now: datetime) -> None:
        self.job, self.active, self.specs, self.now = job, active, specs, now
        self.axis = self._axis()

    def _axis(self) -> TimeAxis | None:
        starts = [at for step in self.job.steps if (at := _time(step["startedAt"]))]
        if not starts:
            return None
        end = self.job.ended_at or (self.now if self.job.status is not Status.PENDING else None)
        ends = [at for step in self.job.steps if (at := _time(step["completedAt"]))]
        ends += [stop for _, stop in self.active]
        guesses = [self.now + left for step in self.job.steps if (left := self._left(step))]
        last = max([end, *guesses] if end else [*ends, *starts])
        busy = [*self.active, (self.now, last)] if guesses else list(self.active)
        if busy and min(starts) < busy[0][0]:  # as clocks have it
            busy.insert(0, (min(starts), busy[0][0]))
        return TimeAxis(min(starts), last, busy)

    def row(self, step: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> StepRow:
        return self._line(step, [self._line(run) for run in runs] if step["items"] else ())

    def _line(self, step: Mapping[str, Any], runs: Sequence[StepRow] = ()) -> StepRow:
        started, ended = _time(step["startedAt"]), self._end(step)
        goes_on = step["status"] in (StepState.PROCESSING, StepState.WAITING) and not self.job.ended
        size = step["resultSize"]
        note, bad = self._note(step)
        items = step["items"]
        return StepRow(
            step["id"],
            step["key"] or "",
            step["name"],
            step["status"],
            note,
            bad,
            self._until(step),
            self._bars(step, started, ended),
            words.span(started, ended) if started and ended and step["status"] != StepState.SKIPPED else "",
            started if goes_on else None,
            step["result"],
            size is not None and step["result"] is not None,
            "" if size is None else words.size(size),
            size is not None and step["result"] is None and size > len("null"),
            runs,
            max(items["total"] - len(runs), 0) if items else 0,
        )

    def _end(self, step: Mapping[str, Any]) -> datetime | None:
        started, ended = _time(step["startedAt"]), _time(step["completedAt"])
        if ended or started is None:
            return ended
        if step["status"] in (StepState.PROCESSING, StepState.WAITING) and not self.job.ended:
            return self.now
        stop = next((stop for begin, stop in self.active if stop >= started), None)
        return stop or self.job.ended_at

    def _left(self, step: Mapping[str, Any]) -> timedelta | None:
        """How long a running step still takes at its pace; nothing if it is too early to tell."""
        started = _time(step["startedAt"])
        if step["status"] != StepState.PROCESSING or self.job.ended or not started or not 5 <= step["progress"] < 100:
            return None
        done: int = step["progress"]
        return (self.now - started) * (100 - done) / done

    def _bars(self, step: Mapping[str, Any], started: datetime | None, ended: datetime | None) -> list[Bar]:
        if self.axis is None or started is None or ended is None or step["status"] == StepState.SKIPPED:
            return []
        kind = "lost" if step["status"] == StepState.PENDING else step["status"]
        bars = [_bar(self.axis, kind, started, ended)]
        if left := self._left(step):
            bars.append(_bar(self.axis, "guess", ended, ended + left))
        return bars

    def _until(self, step: Mapping[str, Any]) -> datetime | None:
        waits = step["status"] == StepState.WAITING and not step["items"]
        return _time(step.get("waitsUntil")) or self.job.waits_until if waits else None

    def _note(self, step: Mapping[str, Any]) -> tuple[str, bool]:
        error = read_error(step["error"])
        if error and step["status"] in (StepState.FAILED, StepState.PENDING, StepState.PROCESSING):
            again = f" (attempt {step['attempt']})" if step["attempt"] > 1 else ""
            counts = f"{self._items(step['items'])}: " if step["items"] else ""
            return counts + error.line + again, step["status"] == StepState.FAILED
        parts = [self._items(step["items"]), step["message"] or "", self._state_words(step), *self._declared(step)]
        if step["name"] != step["id"]:
            parts.insert(0, step["name"])
        return ", ".join(filter(None, parts)), False

    def _items(self, items: Mapping[str, int] | None) -> str:
        if not items:
            return ""
        failed = f", {items['failed']:,} failed" if items["failed"] else ""
        return f"{items['done']:,} of {items['total']:,}{failed}"

    def _state_words(self, step: Mapping[str, Any]) -> str:
        match step["status"]:
            case StepState.SKIPPED:
                return "its condition was not met"
            case StepState.WAITING:
                if step["items"]:
                    return "waits for its children"
                return "waits for an answer" if self.job.status is Status.WAITING else "sleeps"
            case StepState.PROCESSING if 0 < step["progress"] < 100 and not step["items"]:
                return f"{step['progress']} %"
            case _:
                return ""

    def _declared(self, step: Mapping[str, Any]) -> list[str]:
        """What the template says of a step that is still to come."""
        spec = self.specs.get(step["id"])
        if spec is None or step["status"] != StepState.PENDING:
            return []
        limit = f", within {words.duration(spec.timeout_ms)}" if spec.timeout_ms is not None else ""
        return [f"will wait for an answer{limit}" if spec.external else "", "" if spec.cancelable else "not cancelable"]


def _bar(axis: TimeAxis, kind: str, start: datetime, end: datetime) -> Bar:
    left, right = axis.x(start), axis.x(end)
    left = min(left, 100 - MIN_WIDTH)
    return Bar(kind, percent(left), percent(max(right - left, MIN_WIDTH)))


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
