"""What follows from a move of a job, as data: the one door for everything that a move changes.

`lifecycle.decide` says where a job goes. `after` says what that changes besides: what is kept of it and counted, where
the job waits, what is told, which keys and limits are free, what becomes of its steps. A store takes the job out of its
place, calls `after`, and writes each part of the answer with one statement for the whole batch. It decides nothing, so
a consequence that is added here reaches every path on which a job moves, in every store.

A move is *plain* if nothing follows but an ending and its tally. Most moves are, and stores have faster statements for
them. `extent` says so before the move is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

from treadle.model.events import COMPLETED
from treadle.model.status import ENDED, Status
from treadle.model.webhooks import WEBHOOK_EVENTS
from treadle.policy.admission import dedupe_key_becomes, started_in_time
from treadle.policy.children import ChildEnd, cancels_children, child_ended
from treadle.policy.flow import Interrupted, interrupted, restarts_clock
from treadle.policy.history import (
    EndedAttempt,
    EndedJob,
    Ending,
    Note,
    counted_as,
    ending,
    has_run,
    metadata,
    note,
    ran_ms,
    requeue_metadata,
)
from treadle.policy.lifecycle import Transition

# -- what is known ---------------------------------------------------------------------------------


class Traits(NamedTuple):
    """The extras of a job. Only a job that has one pays for what follows from it."""

    deduped: bool = False
    """It holds a dedupe key while it is live."""
    repeatable: bool = True
    """It may be made again after it completed."""
    limited: bool = False
    """It counts against a concurrency limit."""
    expires: bool = False
    """It has a deadline that still counts."""
    steps: bool = False
    """Something is known of its steps."""
    hooked: bool = False
    """A webhook may want its events."""
    parent: bool = False
    """A step of its parent waits for it."""


PLAIN_JOB = Traits()


class Move(NamedTuple):
    """A job that was taken out of its place, and where it goes."""

    source: Status
    transition: Transition
    attempt: EndedAttempt | None = None
    """The attempt that ends with it."""
    worker: str | None = None
    """Who had it then."""
    was_ready: bool = False
    """It could have been claimed."""
    ended: EndedJob | None = None
    """The ending that is taken back."""
    stale_at: int | None = None
    """Since when it was stale."""
    old_payload: Any = None
    """The payload that a new one replaces."""


# -- what follows ----------------------------------------------------------------------------------


class Tally(NamedTuple):
    """What the statistics count."""

    at: int
    status: str
    change: int
    """-1: it is taken back."""
    run_ms: int


class Place(Enum):
    READY = "ready"
    LATER = "later"
    PARKED = "parked"


READY, LATER, PARKED = Place


class Waits(NamedTuple):
    """Where a job that goes on waits for its next attempt."""

    place: Place
    attempt: int
    at: int | None = None
    """When it is due, or when a parked job goes on without an answer. None: at its old place, or never."""


class Told(NamedTuple):
    """A line of its history."""

    type: str
    source: Status
    to: Status
    message: str
    metadata: Mapping[str, Any]


class Frees(NamedTuple):
    """What the job does not hold any more."""

    dedupe_key: bool = False
    """Others may take it."""
    deadline: bool = False
    """It is not watched any more."""
    expiry: bool = False
    """It started in time, so no deadline counts for it again."""
    limit: bool = False
    """It is no live job of its concurrency key."""


class Reopens(NamedTuple):
    """What a job that had ended takes up again. Its ending and its notes go."""

    once_key: bool = False
    """The key goes that kept others from being made after it completed."""
    deadline: bool = False
    """Its deadline is in the past and goes."""
    limit: bool = False
    """It is a live job of its concurrency key."""


class Wakes(Enum):
    """Who may go on because of it, under the job's concurrency key."""

    HELD = "held"
    """Jobs that were held until a running one leaves."""
    BEHIND = "behind"
    """Jobs that were held although this one, which was let in, has not run."""


HELD, BEHIND = Wakes
NOTHING_FREED = Frees()


class Consequences(NamedTuple):
    ending: Ending | None = None
    tally: Tally | None = None
    told: Sequence[Told] = ()
    """In this order. Without a line, an ending is told with those of others: its own data say everything."""
    frees: Frees = NOTHING_FREED
    keeps_key: bool = False
    """Its dedupe key stays taken: it has completed, and may be made only once."""
    waits: Waits | None = None
    note: Note | None = None
    steps: Sequence[Interrupted] = ()
    restarts_clock: bool = False
    """Its next attempt has all of its flow's time."""
    wakes: Wakes | None = None
    offers: str | None = None
    """The event that webhooks may want to be told of; `policy.delivery` says which of them are."""
    topic_paused_until: int | None = None
    asks_to_stop: str | None = None
    """The job stays with its worker, who is asked to stop it for this reason."""
    reopens: Reopens | None = None
    parents: ChildEnd | None = None
    """What the step of its parent hears that waits for it."""
    cancels_children: str | None = None
    """The children that it waited for are cancelled, for this reason."""
    erases: bool = False
    """The job goes with all that is known of it."""


NOTHING = Consequences()


def after(move: Move, traits: Traits, now: int) -> Consequences:
    transition = move.transition
    if transition.deletes:
        return _erased(move, traits)
    if transition.then is not None:
        last = after(move._replace(source=transition.to, transition=transition.then), traits, now)
        return last._replace(told=(*_told(move), *last.told))
    if transition.to in ENDED:
        return _ended(move, traits, now)
    if transition.to is Status.PENDING:
        return _reopened(move, traits, now) if move.ended else _put_back(move, traits, now)
    if transition.to is Status.WAITING:
        return _parked(move, traits, now)
    return Consequences(told=_told(move), asks_to_stop=transition.message) if transition.event else NOTHING


def leaves_place(transition: Transition) -> bool:
    """Whether the job is taken out of its place: a worker that is asked to stop keeps its job."""
    return transition.to is not Status.CANCELLING or transition.then is not None


def uncounted(ended_at: int, status: str, started_at: int | None) -> Tally:
    """The ending of a deleted job is taken back from the statistics, in the minute in which it was counted."""
    return Tally(ended_at, status, -1, -ran_ms(started_at, ended_at))


def changes_nothing(source: Status, transition: Transition) -> bool:
    """Also a second cancel of a running job."""
    moves = transition.to is not source or transition.event is not None
    return not (moves or transition.deletes or transition.patch)


def rescheduled(move: Move, attempt: int, run_at: int, traits: Traits, now: int) -> Consequences:
    """Of a pending job with new values, once its time is known."""
    if run_at <= now:
        return Consequences(waits=Waits(READY, attempt))
    return Consequences(waits=Waits(LATER, attempt), wakes=_wakes(move, traits))


# -- how much follows ------------------------------------------------------------------------------


class Extent(Enum):
    """How much follows from the end of an attempt."""

    PLAIN = "an ending and its tally"
    STEPS = "an ending, its tally, and what becomes of the job's steps"
    MORE = "more"


PLAIN, STEPS, MORE = Extent


def extent(to: Status, event: str | None, traits: Traits) -> Extent:
    """How much follows if the owner of a job reports this. Stores remember it: there are few kinds."""
    transition = Transition(to, _SOME_ATTEMPT.attempt, event=event)
    what = after(Move(Status.PROCESSING, transition, _SOME_ATTEMPT), traits, 0)
    rest = what._replace(ending=None, tally=None)
    if what.ending is None:
        return MORE
    if rest == NOTHING:
        return PLAIN
    return STEPS if rest._replace(steps=()) == NOTHING else MORE


class _Attempt(NamedTuple):
    attempt: int = 1
    claimed_at: int | None = 0
    started_at: int | None = 0
    cancel_at: int | None = None
    cancel_reason: str | None = None
    progress: int | None = None
    message: str | None = None


_SOME_ATTEMPT = _Attempt()


# -- kinds of moves --------------------------------------------------------------------------------


def _ended(move: Move, traits: Traits, now: int) -> Consequences:
    transition = move.transition
    if traits == PLAIN_JOB:
        return Consequences(ending(transition, move.attempt, now), _tally(move, now), _told(move))
    frees, keeps_key = _freed(transition.to, traits)
    return Consequences(
        ending(transition, move.attempt, now),
        _tally(move, now),
        _told(move),
        frees,
        keeps_key,
        steps=_steps(move, traits),
        wakes=_wakes(move, traits),
        offers=_offers(transition.event or COMPLETED, traits),
        parents=child_ended(transition) if traits.parent else None,
        cancels_children=cancels_children(transition) if traits.steps else None,
    )


def _put_back(move: Move, traits: Traits, now: int) -> Consequences:
    transition, attempt = move.transition, move.attempt
    left, delay_ms = transition.attempt, transition.delay_ms
    # Later attempts show by their number that it started in time.
    in_time = traits.expires and started_in_time(transition.attempt, has_run(attempt))
    return Consequences(
        None,
        _tally(move, now),
        _told(move),
        Frees(deadline=True, expiry=left == 0) if in_time else NOTHING_FREED,
        False,
        Waits(LATER, left, now + delay_ms) if delay_ms else Waits(READY, left),
        note(transition, attempt, traits.steps),
        _steps(move, traits),
        traits.steps and restarts_clock(transition),
        _wakes(move, traits),
        _offers(transition.event, traits),
        now + delay_ms if transition.pauses_topic else None,
    )


def _parked(move: Move, traits: Traits, now: int) -> Consequences:
    transition = move.transition
    return Consequences(
        told=_told(move),
        frees=Frees(deadline=True, expiry=True) if traits.expires else NOTHING_FREED,
        waits=Waits(PARKED, transition.attempt, now + transition.delay_ms if transition.delay_ms else None),
        note=note(transition, move.attempt, traits.steps),
        steps=_steps(move, traits),
        wakes=_wakes(move, traits),
    )


def _reopened(move: Move, traits: Traits, now: int) -> Consequences:
    assert move.ended, "it had ended"
    return Consequences(
        tally=uncounted(move.ended.ended_at, move.ended.status, move.ended.started_at),
        told=_told(move),
        waits=Waits(READY, move.transition.attempt, now),
        restarts_clock=traits.steps,
        reopens=Reopens(not traits.repeatable, traits.expires, traits.limited),
    )


def _erased(move: Move, traits: Traits) -> Consequences:
    ended = move.ended
    return Consequences(
        tally=uncounted(ended.ended_at, ended.status, ended.started_at) if ended else None,
        frees=Frees(limit=traits.limited),
        wakes=_wakes(move, traits),
        parents=child_ended(move.transition) if traits.parent else None,
        erases=True,
    )


# -- parts of them ---------------------------------------------------------------------------------


@cache
def _freed(to: Status, traits: Traits) -> tuple[Frees, bool]:
    """What an ended job lets go of, and whether its dedupe key stays taken."""
    keeps_key = traits.deduped and dedupe_key_becomes(to, traits.repeatable) is not None
    return Frees(traits.deduped and not keeps_key, traits.expires, limit=traits.limited), keeps_key


def _tally(move: Move, now: int) -> Tally | None:
    status = counted_as(move.transition)
    if status is None:
        return None
    return Tally(now, status, 1, ran_ms(move.attempt.started_at if move.attempt else None, now))


def _told(move: Move) -> Sequence[Told]:
    transition = move.transition
    if transition.event is None:
        return ()
    facts = metadata(transition, move.attempt, move.worker)
    if move.ended is not None:
        facts = requeue_metadata(move.ended, move.stale_at, move.old_payload) | facts
    return (Told(transition.event, move.source, transition.to, transition.message, facts),)


def _steps(move: Move, traits: Traits) -> Sequence[Interrupted]:
    return tuple(interrupted(move.transition, move.attempt is not None)) if traits.steps else ()


def _offers(event: str | None, traits: Traits) -> str | None:
    return event if traits.hooked and event in WEBHOOK_EVENTS else None


def _wakes(move: Move, traits: Traits) -> Wakes | None:
    if not traits.limited:
        return None
    if move.attempt is not None:
        return HELD
    return BEHIND if move.was_ready else None
