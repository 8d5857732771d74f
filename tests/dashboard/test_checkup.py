"""The doctor is asked in the background, and a page does not wait for a long examination."""

import asyncio

from tests.waiting import give_way
from treadle.dashboard import checkup
from treadle.dashboard.checkup import Checkup
from treadle.store.views import Finding

FINE = [Finding("schema", "ok", "as it should be")]


async def test_a_quick_examination_is_on_the_first_page() -> None:
    async def examine() -> list[Finding]:
        return FINE

    found = Checkup(examine)
    await found.look()
    assert found.findings == FINE
    assert found.at is not None


async def test_a_long_one_keeps_no_page_waiting_and_is_asked_once() -> None:
    asked, let_go = 0, asyncio.Event()

    async def examine() -> list[Finding]:
        nonlocal asked
        asked += 1
        await let_go.wait()
        return FINE

    found = Checkup(examine)
    await asyncio.gather(*(found.look() for _ in range(5)))
    assert (found.findings, asked) == (None, 1)
    let_go.set()
    await found.look(anew=True)
    assert (found.findings, asked) == (FINE, 1)
    await found.look()
    assert asked == 1, "it is kept for a while"
    await found.look(anew=True)
    assert asked == 2


async def test_an_old_answer_is_shown_while_the_next_is_made() -> None:
    asked = 0

    async def examine() -> list[Finding]:
        nonlocal asked
        asked += 1
        if asked > 1:
            await asyncio.Event().wait()
        return FINE

    found = Checkup(examine)
    await found.look()
    found._ended -= checkup.KEPT_S + 1
    await found.look()
    await give_way()
    assert (found.findings, asked) == (FINE, 2)
    await found.close()
