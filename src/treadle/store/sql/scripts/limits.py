"""Concurrency limits: how many jobs of a key are running, and which are held until one of them leaves.

A claim counts the jobs it starts, with the count's row locked, and moves jobs over the limit to `held`. A script that
takes a job out of `running` locks the same row, so it sees every job that was held before, and puts the first ones back
into `ready`: in each lane as many as the key has room for, because the other lanes may have no worker. They are not
counted there; the next claim decides again.

A job that leaves `ready` without having run may have been one of them. Then its key is added to `wakes`, which needs no
lock: this may happen in a transaction that a user keeps open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from treadle.policy.admission import room
from treadle.store.sql.scripts.common import Script, numbers

T = TypeVar("T")


def leave_running(keys: Iterable[str]) -> Script[None]:
    """Jobs of these keys, one per occurrence, have stopped running; wake the jobs held under them."""
    left = Counter(keys)
    if left:
        yield "lock_limits", key_rows(left)
        changes = [{"key": key, "change": -count} for key, count in sorted(left.items())]
        running = dict((yield "count_running", changes))
        yield from wake({key: running.get(key, 0) for key in left})


def leave_ready(keys: Iterable[str]) -> Script[None]:
    if rows := key_rows(keys):
        yield "add_wakes", rows


def then_wake(script: Script[T]) -> Script[T]:
    """In the same transaction, let in jobs that waited behind the ones the script took out of the queue."""
    answer = yield from script
    yield from take_wakes()
    return answer


def take_wakes() -> Script[bool]:
    """Wake the jobs held under the keys in `wakes`; returns whether some keys need another look later."""
    keys = {row[0] for row in (yield "take_wakes", [])}
    if not keys:
        return False
    rows = key_rows(keys)
    yield "make_limits", rows
    running = dict((yield "lock_free_limits", rows))
    stuck = yield from wake(running)
    if locked := keys - running.keys():
        yield "add_wakes", key_rows(locked)
    return stuck or bool(locked)


def wake(running: Mapping[str, int]) -> Script[bool]:
    """Put the first jobs held under these keys, which are locked, back into `ready`.

    Returns whether other transactions have all of them locked; then they have to be woken again later.
    """
    lanes = (yield "held_lanes", key_rows(running)) if running else []
    if not lanes:
        return False
    places = {(key, lane): room(most, running[key]) for key, lane, most in lanes}
    rows = [
        {"key": key, "lane": lane, "running": running[key], "room": most}
        for (key, lane), most in sorted(places.items())
    ]
    first = _first((yield "next_held", rows), places)
    taken = (yield "take_held", numbers(first)) if first else []
    if taken:
        yield "place_ready", [{"n": n, "attempt": attempt} for n, attempt in sorted(taken)]
    woken = set(first.values())
    stuck = {key for key, _, most in lanes if most > running[key]} - woken
    if stuck:
        yield "add_wakes", key_rows(stuck)
    return bool(stuck)


def _first(held: Sequence[Any], places: Mapping[tuple[str, int], int]) -> dict[int, str]:
    """Of the rows (key, lane, n) as many as each lane has room for: n and its key."""
    left = dict(places)
    first: dict[int, str] = {}
    for key, lane, n in held:
        if left[key, lane] > 0:
            left[key, lane] -= 1
            first[n] = key
    return first


def recount() -> Script[None]:
    """Housekeeping: recount the running jobs of all keys with held jobs, and look at each key."""
    keys = [row[0] for row in (yield "held_keys", [])]
    if keys:
        yield "make_limits", key_rows(keys)
        free = dict((yield "lock_free_limits", key_rows(keys)))
        running = dict((yield "set_limits", key_rows(free))) if free else {}
        yield from wake(running)
    yield "drop_idle_limits", []
    yield "drop_idle_limit_keys", []


def key_rows(keys: Iterable[str]) -> list[dict[str, str]]:
    return [{"key": key} for key in sorted(set(keys))]
