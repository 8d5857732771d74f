"""Wake-ups inside one process."""

import asyncio

from treadle.store.wakeups import Wakeups


async def test_a_loop_that_is_closed_is_passed_over() -> None:
    hub, heard = Wakeups(), asyncio.Event()
    gone: list[str] = []

    async def subscribe_and_leave() -> None:
        hub.subscribe(gone.append)

    await asyncio.to_thread(asyncio.run, subscribe_and_leave())
    hub.subscribe(lambda _: heard.set())
    hub.publish(["ready"])
    await asyncio.wait_for(heard.wait(), 60)
    assert gone == []
