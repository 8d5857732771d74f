"""Several queues and loops in one process, forks that outlive their parents, processes stopped inside a write."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.fault.audit import audit
from tests.fault.crew import Crew, Hand
from tests.fault.handlers import make_queue
from tests.fault.journal import Pen
from tests.fault.scale import scaled
from tests.fault.zygote import Zygote
from tests.waiting import nothing_live, until
from treadle import StoreUnavailable
from treadle.store.sqlite import lock


def acknowledged(crew: Crew) -> set[str]:
    return {entry.job_id for entry in crew.journal.entries("enqueued")}


async def test_several_queues_and_loops_in_one_process(crew: Crew) -> None:
    async with make_queue(crew.url, Pen(crew.journal.path, "client")) as queue:
        crew.hire(lease="20s")
        scripts = [crew.hire("scripts", clients=2, keys=scaled(5, 200)) for _ in range(2)]
        for hand in scripts:
            assert await hand.gone(scaled(60, 1_200)) == 0, hand.tail()
        await until(lambda: nothing_live(queue), 60, crew.tails)
        await crew.dismiss()
        expected = acknowledged(crew)
        assert len(expected) >= 2 * 4 * scaled(5, 200)
        ledger = await audit(queue, crew.journal, expected=expected)
        assert {row.attempt for row in ledger.jobs.values()} == {1}


@contextlib.contextmanager
def orphans_killed(crew: Crew) -> Iterator[None]:
    try:
        yield
    finally:
        for entry in crew.journal.entries("forked"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(entry.job_id), signal.SIGKILL)


def ended(hand: Hand) -> bool:
    return hand.code is not None


def told(crew: Crew, phase: str, times: int) -> bool:
    return len(crew.journal.entries(phase)) == times


async def test_a_fork_that_outlives_its_killed_parent_keeps_nothing_of_it(crew: Crew) -> None:
    async with make_queue(crew.url, Pen(crew.journal.path, "client")) as queue:
        with orphans_killed(crew):
            for number in range(1, scaled(3, 50) + 1):
                hand = crew.hire("fork")
                await until(partial(told, crew, "forked", number), 60, crew.tails)
                hand.kill()
                await until(partial(ended, hand))
                async with asyncio.timeout(60):
                    await queue.enqueue("quick")
            crew.hire(lease="20s")
            await until(lambda: nothing_live(queue), 60, crew.tails)
            await crew.dismiss()
            ledger = await audit(queue, crew.journal)
            assert acknowledged(crew) <= set(ledger.jobs)


async def test_a_process_stopped_inside_a_write_costs_the_others_an_error_in_time(
    sqlite_url: str, tmp_path: Path, zygote: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "LIMIT_SECONDS", 0.5)
    crew = Crew(sqlite_url, tmp_path, zygote)
    try:
        async with make_queue(crew.url, Pen(crew.journal.path, "client")) as queue:
            crew.hire(lease="20s")
            expected = {(await queue.enqueue("quick")).id}
            for number in range(1, scaled(2, 50) + 1):
                go_on = tmp_path / f"go-on-{number}"
                holder = crew.hire("hold", key=go_on)
                await until(partial(told, crew, "holding", number), 60, crew.tails)
                await holder.freeze()
                for _ in range(3):
                    async with asyncio.timeout(60):
                        with pytest.raises(StoreUnavailable, match="write lock"):
                            await queue.enqueue("quick")
                go_on.touch()
                holder.thaw()
                assert await holder.gone() == 0, holder.tail()
                expected.add((await queue.enqueue("quick")).id)
            await until(lambda: nothing_live(queue), 60, crew.tails)
            await crew.dismiss()
            await audit(queue, crew.journal, expected=expected)
    finally:
        crew.kill_all()
