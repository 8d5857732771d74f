"""Tests wait for something to happen; the few that pass time say why."""

import asyncio
import re
import threading
from pathlib import Path

import pytest

from tests.waiting import certainly, stays, until, until_blocking
from treadle import StoreUnavailable

TESTS = Path(__file__).parent.parent
SLEEP = re.compile(r"\b(?:asyncio|time)\.sleep\(")


async def test_it_waits_for_a_function_and_for_a_coroutine_and_gives_their_answer() -> None:
    answers = iter(["", "", "here"])

    async def look() -> str:
        return next(answers)

    assert await until(look, every=0) == "here"
    assert await until(lambda: 7) == 7


async def test_what_never_happens_is_told() -> None:
    with pytest.raises(AssertionError, match=r"still not so after 0\.01 s\n *the log"):
        await until(lambda: False, 0.01, lambda: "the log")
    with pytest.raises(AssertionError, match=r"still not so after 0\.01 s\n *the log"):
        until_blocking(lambda: False, 0.01, lambda: "the log")


def test_threads_wait_too() -> None:
    there = threading.Event()
    threading.Timer(0.01, there.set).start()
    assert until_blocking(there.is_set)


async def test_what_should_stay_is_looked_at_all_the_time() -> None:
    changed = asyncio.Event()
    asyncio.get_running_loop().call_later(0.02, changed.set)
    with pytest.raises(AssertionError):
        await stays(lambda: not changed.is_set(), 60)


async def test_a_careful_client_asks_again_while_the_store_is_away() -> None:
    left = 2

    async def ask(what: str) -> str:
        nonlocal left
        if left:
            left -= 1
            raise StoreUnavailable("away")
        return what

    assert await certainly(ask, "done") == "done"


def test_every_sleep_in_a_test_says_why() -> None:
    bare = [
        f"{path.relative_to(TESTS)}:{number}: {line.strip()}"
        for path in sorted(TESTS.rglob("*.py"))
        if path.name != "waiting.py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (found := SLEEP.search(line)) and "  # " not in line and '"' not in line[: found.start()]
    ]
    assert bare == [], "wait with tests.waiting.until, or say on the line what the pause is for"
