"""Scripts of a store whose jobs move between two of their statements, told by answers that say so.

Against real databases this is shown by chance (tests/contract/test_races.py); here it happens every time.
"""

from collections.abc import Iterable
from typing import Any

import pytest

from treadle.errors import JobNotFound, StoreUnavailable
from treadle.store.base import Refusal
from treadle.store.scripts.common import LOOKS, Facts, Script
from treadle.store.scripts.gates import open_gates
from treadle.store.scripts.inserting import _claim_keys, _Key
from treadle.store.scripts.moving import take_pending_wherever
from treadle.store.scripts.requests import cancel
from treadle.testing.workbench import new_job

Answer = tuple[str, list[Any]]
NOBODY: list[Any] = []


def play(script: Script[Any], answers: Iterable[Answer]) -> Any:
    """What the script returns when its statements, which must be these, are answered so."""
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


ROOM: Answer = ("relock_gates", [("g", 0, 1)])
GONE: list[Answer] = [ROOM, ("next_held", [("g", 7)]), ("take_held", NOBODY)]


def test_when_the_first_who_waits_at_a_gate_is_gone_the_next_one_is_let_in() -> None:
    taken: list[Answer] = [("next_held", [("g", 8)]), ("take_held", [(8, 0)])]
    let_in = [ROOM, *taken, ("place_ready", NOBODY), ("change_gates", NOBODY)]
    assert play(open_gates(["g"]), [*GONE, *let_in]) is None


def test_when_the_last_who_waits_at_a_gate_is_gone_nobody_is_let_in() -> None:
    assert play(open_gates(["g"]), [*GONE, ROOM, ("next_held", NOBODY)]) is None


KEY = _Key("dedupe", "d")
NEITHER = [("take_keys", NOBODY), ("find_keys", NOBODY)]


def claim_keys() -> Script[Any]:
    return _claim_keys([new_job(dedupe_key="d")], [1], {KEY: 0})


def test_a_key_whose_owner_ended_in_this_very_moment_is_asked_for_again() -> None:
    assert play(claim_keys(), [*NEITHER, ("take_keys", [("dedupe", "d", 1)])]) == {}
    assert play(claim_keys(), [*NEITHER, ("take_keys", NOBODY), ("find_keys", [("dedupe", "d", None, "id")])]) == {
        KEY: (None, "id")
    }


def test_a_key_that_changes_hands_all_the_time_is_left_alone() -> None:
    with pytest.raises(StoreUnavailable, match="try again"):
        play(claim_keys(), NEITHER * LOOKS)


PENDING_NOWHERE = [("take_ready", NOBODY), ("take_later", NOBODY), ("take_held", NOBODY)]
NOWHERE = [*PENDING_NOWHERE, ("find_running", NOBODY), ("find_outcomes", NOBODY)]


def test_a_job_that_moved_from_one_place_to_another_is_looked_for_again() -> None:
    assert play(take_pending_wherever([7]), [*NOWHERE, ("take_ready", [(7, 0)])]) == ([(7, 0, True)], set())
    assert play(take_pending_wherever([7]), NOWHERE * LOOKS) == ([], {7}), "but not for ever"


def test_a_job_that_is_cancelled_while_it_moves_is_looked_for_again_but_not_for_ever() -> None:
    found = ("find_jobs", [Facts(7, "id", "mail", 1, 0, 3, 0, None, None, 0, "")])
    look = [("clock", [(0,)]), *PENDING_NOWHERE, ("mark_cancel", NOBODY), *NOWHERE[-2:]]
    running = [*look[:-3], ("mark_cancel", [(7, 1)]), ("add_events", NOBODY), ("find_running", [(7,)])]
    assert play(cancel(["id"], "", []), [found, *look, *running]) == {"id": None}
    answer = play(cancel(["id"], "", []), [found, *look * LOOKS])["id"]
    assert isinstance(answer, Refusal)
    assert isinstance(answer.error, JobNotFound)
