"""The changes since the last look, made by any process: the source of every event stream.

Almost nothing is written for it; it is read from data that is stored anyway:

* new jobs: the rows of `jobs`, by number;
* moves and endings: the rows of `events`, by number. Completions have no line for each job; they leave
  one for each batch (a row of job 0 with their numbers), and so do deletions;
* starts and progress: the rows of `running`, compared with the last look. A start that came and went between two
  looks is derived from the line or the outcome that ended its attempt; progress is only sampled.
  A cancel may be stored before the start of the attempt that it stops, so it waits a moment for that start.

All of it is read on one snapshot of the database, so a job is never seen to move before it was made. Two moves of
one job have rising numbers, because the second waits for the first one's commit; so the order within a job is right.

PostgreSQL hands numbers out long before the commit, and a transaction may keep a low one while higher ones become
visible. Each number that is skipped is therefore watched. Every statement that takes a number has its transaction id
before (`reserve_numbers`, `insert_alike`; lines of `events` always follow a write), so a transaction that can still
fill a gap had its id before the higher number was committed, and before the gap was seen. The look that sees a gap
then takes an id itself (`next_transaction`): it is above the id of every transaction that can fill the gap. Once all
transactions below it have ended, the gap stays empty and is forgotten. The snapshot's own upper end (`xmax`) would not
do: it is one above the last transaction that has *ended*, and a running one may have a higher id.
In SQLite there is one writer, and the numbers are those of commits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from pydantic_core import from_json, to_json

from treadle.model import events
from treadle.model.job import Job, to_ms
from treadle.model.status import Status
from treadle.policy.lifecycle import GIVE_ATTEMPT_BACK
from treadle.policy.retention import Rules
from treadle.store.sql import lists
from treadle.store.sql.queries import Query
from treadle.store.sql.rows import NOBODY
from treadle.store.views import Change, Changes, Listing

T = TypeVar("T")
Reading = Generator[tuple[str, Sequence[Any]], list[Any], T]
"""Yields (statement, values), is sent the rows, and returns its answer: all of it on one snapshot."""

# Transactions that were open at the first look may hold numbers this far back.
LOOK_BACK = 10_000
# Watching more gaps than this costs too much: the listener is told to read everything again.
MOST_GAPS = 10_000

# What ends an attempt, if there was one.
ENDS_ATTEMPT = frozenset(
    f"job:{name}" for name in "completed failed cancelled expired retrying snoozed released reclaimed waiting".split()
)
# A worker writes the start of a job that goes on running within a quarter of a second.
START_WITHIN_MS = 2_000


class Snapshot(NamedTuple):
    now: int
    oldest: int
    """Every transaction below this has ended, as this snapshot sees it."""


class Gap(NamedTuple):
    """Numbers that were skipped and may still appear, until all transactions below `until` have ended."""

    first: int
    last: int
    until: int


class Mark(NamedTuple):
    """How far a numbered table has been read."""

    last: int
    gaps: tuple[Gap, ...] = ()

    def skips(self, new: Sequence[int]) -> bool:
        """Whether `new`, which follow `last`, leave numbers out."""
        return bool(new) and new[-1] - self.last > len(new)

    def advance(
        self, late: Iterable[int], new: Sequence[int], oldest: int, until: int, late_left: bool = False
    ) -> Mark:
        """The mark after `late` were found in the gaps and `new` after `last`.

        All transactions below `oldest` have ended; any that can fill a new gap are below `until`.
        """
        gaps = [gap for gap in _without(self.gaps, late) if late_left or gap.until > oldest]
        if until > oldest:
            gaps += [Gap(a + 1, b - 1, until) for a, b in pairwise((self.last, *new)) if b - a > 1]
        return Mark(new[-1] if new else self.last, tuple(gaps))

    @property
    def too_many(self) -> bool:
        return len(self.gaps) > MOST_GAPS


def _without(gaps: Sequence[Gap], found: Iterable[int]) -> list[Gap]:
    left = list(gaps)
    for number in sorted(found, reverse=True):
        at = next(i for i, gap in enumerate(left) if gap.first <= number <= gap.last)
        first, last, until = left[at]
        parts = [Gap(first, number - 1, until), Gap(number + 1, last, until)]
        left[at : at + 1] = [gap for gap in parts if gap.first <= gap.last]
    return left


class StartedAttempt(NamedTuple):
    """A started attempt, as it was last reported."""

    token: int | None
    attempt: int
    started_at: int
    progress: int | None = None
    message: str | None = None


class _Line(NamedTuple):
    """Something that happened to job `n`, before the job itself is read."""

    event: str
    at: int
    n: int
    to: Status | None = None
    attempt: int | None = None
    """How many are spent after it, where that is known."""
    ran: int | None = None
    """The attempt that it ends."""
    started_at: int | None = None
    """When that was started, where it was and is known."""
    gone: Mapping[str, Any] | None = None
    worker: str | None = None
    """Whose attempt it ends."""
    keyed: bool = False

    def change(self, job: Job) -> Change:
        return Change(self.event, self.at, job, self.to, self.attempt, worker=self.worker, keyed=self.keyed)


class EarlyCancel(NamedTuple):
    """A cancel of an attempt of which no start has been told."""

    line: _Line | None
    """Still to be told; None: it was told, so a start that comes now is too late to be told."""


class Cursor(NamedTuple):
    jobs: Mark
    events: Mark
    running: Mapping[int, StartedAttempt]
    early_cancels: Mapping[int, EarlyCancel]


class Reader:
    """How one store reads: its statements, and how it makes a job of a row."""

    def __init__(self, dialect: str, queries: dict[str, Query], retention: Rules, as_job: Callable[[Any], Job]) -> None:
        self._dialect = dialect
        self._queries = queries
        self._retention = retention
        self._as_job = as_job

    def read(self, cursor: Cursor | None, limit: int, wanted: Listing | Sequence[str] | None) -> Reading[Changes]:
        snapshot = Snapshot(*(yield from self._ask("snapshot"))[0])
        if cursor is None:
            changes = Changes([], (yield from self._start(snapshot)), snapshot.now)
        else:
            changes = yield from self._since(cursor, limit, snapshot)
        if wanted is None or changes.more:
            return changes
        return changes._replace(jobs=(yield from self._jobs(wanted)))

    def _ask(self, name: str, rows: Sequence[Mapping[str, Any]] | None = None) -> Reading[list[Any]]:
        return (yield self._queries[name].sql, [] if rows is None else [to_json(rows).decode()])

    # -- from now on -----------------------------------------------------------------------------

    def _start(self, snapshot: Snapshot) -> Reading[Cursor]:
        [(job, event)] = yield from self._ask("last_numbers")
        return Cursor(
            (yield from self._first_mark("jobs_after", job or 0, snapshot)),
            (yield from self._first_mark("events_after", event or 0, snapshot)),
            (yield from self._running()),
            {n: EarlyCancel(None) for (n,) in (yield from self._ask("cancelled_before_start"))},
        )

    def _first_mark(self, query: str, last: int, snapshot: Snapshot) -> Reading[Mark]:
        if not last or snapshot.oldest == (yield from self._next_transaction()):
            return Mark(last)
        before = Mark(max(last - LOOK_BACK, 0))
        rows = yield from self._ask(query, [{"last": before.last, "top": LOOK_BACK}])
        return (yield from self._advance(before, [], rows, snapshot))

    def _advance(
        self, mark: Mark, late: Sequence[Any], new: Sequence[Any], snapshot: Snapshot, late_left: bool = False
    ) -> Reading[Mark]:
        """The mark after these rows were read; their numbers come first."""
        numbers = [row[0] for row in new]
        # Only if there is a gap, because each call uses up an id.
        until = (yield from self._next_transaction()) if mark.skips(numbers) else snapshot.oldest
        return mark.advance([row[0] for row in late], numbers, snapshot.oldest, until, late_left)

    def _next_transaction(self) -> Reading[int]:
        [(number,)] = yield from self._ask("next_transaction")
        return int(number)

    # -- since last time -------------------------------------------------------------------------

    def _since(self, cursor: Cursor, limit: int, snapshot: Snapshot) -> Reading[Changes]:
        made, jobs, more = yield from self._made(cursor.jobs, limit, snapshot)
        lines, mark, current = made, cursor.events, None
        if not more:
            # Only now, so that a job's creation is reported before anything else about it.
            moved, mark, more = yield from self._moved(cursor.events, limit, snapshot)
            lines = [*made, *moved]
        if not more:
            current = yield from self._running()
        story = _Starts(cursor, current)
        found = yield from self._by_number({line.n for line in lines if line.gone is None} | story.concerned)
        told = story.tell(lines, found, snapshot.now)
        lost = jobs.too_many or mark.too_many
        if lost:
            jobs, mark = Mark(jobs.last), Mark(mark.last)
        after = Cursor(jobs, mark, story.known, story.early_cancels)
        return Changes(told, after, snapshot.now, more, lost, busy=bool(story.known or story.early_cancels))

    def _made(self, mark: Mark, limit: int, snapshot: Snapshot) -> Reading[tuple[list[_Line], Mark, bool]]:
        late = yield from self._late("late_jobs", mark, limit)
        new = yield from self._ask("jobs_after", [{"last": mark.last, "top": limit}])
        lines = [_Line(events.ENQUEUED, at, n, Status.PENDING, 0) for n, at in (*late, *new)]
        late_left = len(late) == limit
        after = yield from self._advance(mark, late, new, snapshot, late_left)
        return lines, after, late_left or len(new) == limit

    def _moved(self, mark: Mark, limit: int, snapshot: Snapshot) -> Reading[tuple[list[_Line], Mark, bool]]:
        late = yield from self._late("late_events", mark, limit)
        new = yield from self._ask("events_after", [{"last": mark.last, "top": limit}])
        lines = [line for row in late for line in _lines(row)]
        taken = []
        for row in new:
            if len(lines) >= limit:
                break
            lines += _lines(row)
            taken.append(row)
        late_left = len(late) == limit
        after = yield from self._advance(mark, late, taken, snapshot, late_left)
        return lines, after, late_left or len(new) == limit or len(taken) < len(new)

    def _late(self, query: str, mark: Mark, limit: int) -> Reading[list[Any]]:
        if not mark.gaps:
            return []
        gaps = [{"first": gap.first, "last": gap.last, "top": limit} for gap in mark.gaps]
        return (yield from self._ask(query, gaps))

    def _running(self) -> Reading[dict[int, StartedAttempt]]:
        return {n: StartedAttempt(*row) for n, *row in (yield from self._ask("started_attempts"))}

    # -- jobs ------------------------------------------------------------------------------------

    def _by_number(self, numbers: Iterable[int]) -> Reading[dict[int, Job]]:
        wanted = [{"n": n} for n in sorted(numbers)]
        if not wanted:
            return {}
        sql = f"WITH page AS ({self._queries['page_by_number'].sql}) {self._queries['view'].sql}"
        rows = yield sql, [to_json(wanted).decode()]
        return {row[1]: self._as_job(row) for row in rows}

    def _jobs(self, wanted: Listing | Sequence[str]) -> Reading[list[Job]]:
        values: Sequence[Any]
        if isinstance(wanted, Listing):
            sql, values = lists.page(self._queries, self._dialect, wanted, self._retention)
        else:
            sql, values = lists.by_id(self._queries), [to_json([{"id": id} for id in wanted]).decode()]
        return [self._as_job(row) for row in (yield sql, values)]


def _lines(row: Any) -> list[_Line]:
    """The changes in one row of `events`: one change of one job, or the same change of many."""
    _, n, event, to, metadata, at = row
    told = from_json(metadata)
    status = Status(to) if to else None
    if n != NOBODY:
        line = _Line(event, at, n, status, _spent(event, told), told.get("attempt"), told.get("startedAt"))
        return [line._replace(worker=told.get("worker"), keyed=bool(told.get("key")))]
    if event == events.DELETED:
        return [_Line(event, at, NOBODY, gone=one) for one in told]
    if event == events.STALE:
        return [_Line(event, stale_at, one) for one, stale_at in told]
    return [_Line(event, at, one, status) for one in told]


def _spent(event: str, metadata: Mapping[str, Any]) -> int | None:
    if event == events.REQUEUED:
        return 0
    attempt: int | None = metadata.get("attempt")
    return attempt - 1 if attempt and event in GIVE_ATTEMPT_BACK else attempt


class _Starts:
    """Puts starts where they belong: before everything else in their attempts."""

    def __init__(self, before: Cursor, current: Mapping[int, StartedAttempt] | None) -> None:
        self.known = dict(before.running)
        """The attempts with a reported start, as they were last reported."""
        self.early_cancels = dict(before.early_cancels)
        self._current = current
        """What runs now; None while there are unread lines, because they may end those attempts."""
        self._changed = {n for n, seen in (current or {}).items() if before.running.get(n) != seen}
        self.concerned = self._changed | self.early_cancels.keys()
        self._told: list[Change] = []

    def tell(self, lines: Sequence[_Line], jobs: Mapping[int, Job], now: int) -> list[Change]:
        for line, started_at in zip(lines, self._starts(lines, jobs), strict=True):
            job = jobs.get(line.n)
            if job is not None:
                self._tell_line(line, job, started_at)
            elif line.gone is not None:
                self._told.append(Change(line.event, line.at, None, gone=line.gone))
            # Otherwise it was deleted since, which is reported later.
        if self._current is not None:
            self._tell_those_that_run(jobs, now, self._current)
            self._tell_cancels_without_a_start(jobs, now)
            self.known = dict(self._current)
        return self._told

    def _tell_line(self, line: _Line, job: Job, started_at: int | None) -> None:
        n = line.n
        if started_at is not None and n not in self.known and self._may_start(n):
            self._told.append(Change(events.STARTED, started_at, job, Status.PROCESSING, line.ran))
            self.known[n] = StartedAttempt(None, line.ran or 0, started_at)
        if line.event == events.CANCELLING and n not in self.known:
            self.early_cancels[n] = EarlyCancel(line)
            return
        self._tell_early_cancel(n, job)
        if line.event in ENDS_ATTEMPT:
            self.known.pop(n, None)
            self.early_cancels.pop(n, None)
        self._told.append(line.change(job))

    def _may_start(self, n: int) -> bool:
        early = self.early_cancels.get(n)
        return early is None or early.line is not None

    def _tell_early_cancel(self, n: int, job: Job) -> None:
        """Its start has been told, or is not waited for any longer."""
        early = self.early_cancels.get(n)
        if early and early.line:
            self._told.append(early.line.change(job))
            self.early_cancels[n] = EarlyCancel(None)

    def _tell_cancels_without_a_start(self, jobs: Mapping[int, Job], now: int) -> None:
        for n, early in list(self.early_cancels.items()):
            if n not in jobs:
                del self.early_cancels[n]
            elif early.line and early.line.at + START_WITHIN_MS <= now:
                self._tell_early_cancel(n, jobs[n])

    def _starts(self, lines: Sequence[_Line], jobs: Mapping[int, Job]) -> list[int | None]:
        """For each line, the start time of its attempt."""
        following = {n: seen.started_at for n, seen in (self._current or {}).items()}
        found: list[int | None] = []
        for line in reversed(lines):
            if line.event in ENDS_ATTEMPT:
                started_at = line.started_at if line.started_at is not None else _start_of_outcome(line, jobs)
                following.pop(line.n, None)
                if started_at is not None:
                    following[line.n] = started_at
            found.append(following.get(line.n) if _of_an_attempt(line) else None)
        return found[::-1]

    def _tell_those_that_run(self, jobs: Mapping[int, Job], now: int, current: Mapping[int, StartedAttempt]) -> None:
        for n in sorted(self._changed & jobs.keys()):
            seen, known = current[n], self.known.get(n)
            if known is None or known.token not in (None, seen.token):
                if self._may_start(n):
                    start = Change(events.STARTED, seen.started_at, jobs[n], Status.PROCESSING, seen.attempt)
                    self._told.append(start)
                known = None
            self._tell_early_cancel(n, jobs[n])
            self.early_cancels.pop(n, None)
            news = (seen.progress, seen.message)
            if news != ((known.progress, known.message) if known else (None, None)):
                self._told.append(Change(events.PROGRESS, now, jobs[n], None, seen.attempt, *news))


def _of_an_attempt(line: _Line) -> bool:
    """Whether it happened while an attempt was under way. An answer that ends a step, and a wait, does not."""
    if line.event == events.STEP_COMPLETED:
        return line.to is None
    return line.event in ENDS_ATTEMPT or line.event == events.CANCELLING


def _start_of_outcome(line: _Line, jobs: Mapping[int, Job]) -> int | None:
    """A completed job's own timestamps tell; if it was requeued since, it must at least have been started."""
    job = jobs.get(line.n)
    if line.event != events.COMPLETED or job is None:
        return None
    if job.completed_at is None or to_ms(job.completed_at) != line.at:
        return line.at
    return None if job.started_at is None else to_ms(job.started_at)
