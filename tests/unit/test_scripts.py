"""Scripts of a store in which jobs move between two statements, simulated by the answers they get.

Against real databases this is shown by chance (tests/contract/test_races.py); here it happens every time.
"""

from collections.abc import Iterable
from typing import Any

import pytest

from treadle.model.errors import JobNotFound, StoreUnavailable
from treadle.policy.admission import Owner, Request, UniqueKey
from treadle.policy.lifecycle import CancelRequested
from treadle.policy.retention import Rules
from treadle.store.sql.scripts.admitting import _take_keys
from treadle.store.sql.scripts.common import LOOKS, JobFacts, Script
from treadle.store.sql.scripts.limits import wake
from treadle.store.sql.scripts.steer import steer
from treadle.store.values import Refusal, SteeredJob

Answer = tuple[str, list[Any]]
NOBODY: list[Any] = []


def play(script: Script[Any], answers: Iterable[Answer]) -> Any:
    """What the script returns if it runs exactly these statements and gets these answers."""
    left = list(answers)
    try:
        name, _ = next(script)
        while True:
            expected, rows = left.pop(0)
            assert name == expected
            name, _ = script.send(rows)
    except StopIteration as stop:
        assert not left, "it did not ask for all of that"
        return stop.value


def test_when_all_held_jobs_are_locked_a_later_look_is_planned() -> None:
    lanes = ("held_lanes", [("g", 1, 1)])
    assert play(wake({"g": 0}), [lanes, ("next_held", NOBODY), ("add_wakes", NOBODY)]) is True
    assert play(wake({"g": 1}), [lanes, ("next_held", NOBODY)]) is False, "there is no room anyway"


def test_in_each_lane_as_many_are_woken_as_there_is_room() -> None:
    lanes = ("held_lanes", [("g", 1, 2), ("g", 2, 2)])
    held = ("next_held", [("g", 1, 7), ("g", 1, 8), ("g", 2, 9)])
    taken = ("take_held", [(7, 0), (9, 0)])
    assert play(wake({"g": 1}), [lanes, held, taken, ("place_ready", NOBODY)]) is False


KEY = UniqueKey("dedupe", "d")
NEITHER = [("take_keys", NOBODY), ("find_keys", NOBODY)]


def claim_keys() -> Script[Any]:
    return _take_keys([Request("1", "mail", (KEY,))], [1], [KEY])


def test_a_key_is_asked_for_again_if_its_owner_ends_in_between() -> None:
    assert play(claim_keys(), [*NEITHER, ("take_keys", [("dedupe", "d", 1)])]) == ({KEY: 1}, {})
    assert play(claim_keys(), [*NEITHER, ("take_keys", NOBODY), ("find_keys", [("dedupe", "d", None, "id")])]) == (
        {},
        {KEY: Owner("id")},
    )


def test_a_key_that_changes_hands_all_the_time_is_left_alone() -> None:
    with pytest.raises(StoreUnavailable, match="try again"):
        play(claim_keys(), NEITHER * LOOKS)


NOWHERE: list[Answer] = [
    ("clock", [(0,)]),
    *((f"lock_{place}", NOBODY) for place in ("ready", "later", "held", "running", "parked")),
    ("find_outcomes", NOBODY),
]


def test_a_job_that_moves_is_looked_for_again_but_not_for_ever() -> None:
    found = ("find_jobs", [JobFacts(7, "id", "mail", 1, 0, 3, 0, None, None, 0, "")])
    running = [*NOWHERE[:-3], ("lock_running", [(7, 1, None)]), ("mark_cancel", NOBODY), ("add_events", NOBODY)]
    assert play(steer(["id"], stop, Rules()), [found, *NOWHERE, *running]).answers == {"id": None}
    answer = play(steer(["id"], stop, Rules()), [found, *NOWHERE * LOOKS]).answers["id"]
    assert isinstance(answer, Refusal)
    assert isinstance(answer.error, JobNotFound)


def stop(_: SteeredJob) -> CancelRequested:
    return CancelRequested()
