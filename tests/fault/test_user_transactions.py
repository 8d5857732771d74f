"""Jobs enqueued in the users' own transactions, which overlap, stay open and roll back."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.fault.scale import scaled
from tests.waiting import until
from treadle import Queue
from treadle.events import feed
from treadle.events.feed import Listener

# Few, so that the newest transaction is often still open when an older one ends.
PRODUCERS = scaled(3, 6)
TURNS = scaled(40, 1_500)


class Undo(Exception):
    """Rolls a transaction back."""


class Heard:
    """Every job that a stream told of, and how often."""

    def __init__(self, queue: Queue) -> None:
        self.enqueued: Counter[str] = Counter()
        self.resyncs = 0
        self._queue = queue

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        listener = await self._queue.feed.listener()
        task = asyncio.create_task(self._listen(listener))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await listener.close()

    async def _listen(self, listener: Listener) -> None:
        while told := await listener.next():
            self.resyncs += told.event == "resync"
            if told.event == "job:enqueued":
                self.enqueued[told.payload["job"]["id"]] += 1


async def produce(queue: Queue, url: str, chance: random.Random) -> list[str]:
    """Transactions that get their ids and take their numbers at different times; the jobs that were committed."""
    made: list[str] = []
    connection = await asyncpg.connect(url)
    for _ in range(TURNS):
        with contextlib.suppress(Undo):
            async with connection.transaction():
                jobs = []
                if chance.random() < 0.5:
                    await connection.execute("SELECT pg_current_xact_id()")  # as any write of the user's would
                for _ in range(chance.randint(1, 3)):
                    await asyncio.sleep(chance.uniform(0, 0.02))  # what users do in a transaction
                    jobs.append(await queue.enqueue("mail", connection=connection))
                await asyncio.sleep(chance.uniform(0, 0.02))  # and before its end
                if chance.random() < 0.2:
                    raise Undo
            made += [job.id for job in jobs]
        if chance.random() < 0.1:
            made.append((await queue.enqueue("mail")).id)
    await connection.close()
    return made


async def test_a_stream_tells_every_job_once_however_transactions_overlap(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "LEAST_PAUSE_S", 0.0)
    monkeypatch.setattr(feed, "BUSY_PAUSE_S", 0.002)
    heard = Heard(queue := Queue(postgres_url))
    async with queue, heard.listening():
        chances = [random.Random(number) for number in range(PRODUCERS)]
        made = await asyncio.gather(*(produce(queue, postgres_url, chance) for chance in chances))
        expected = Counter(id for some in made for id in some)
        await until(lambda: heard.enqueued.total() >= expected.total(), 30)
        assert heard.enqueued == expected
        assert heard.resyncs == 0
