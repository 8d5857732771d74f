"""Users' programs, killed or stopped inside their own transactions, or killed while their batches grow."""

import asyncio
import json
import random
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tests.fault.audit import audit, query
from tests.fault.crew import Crew
from tests.fault.customers import make_orders, read_orders
from tests.fault.handlers import make_queue
from tests.fault.journal import Pen
from tests.fault.scale import scaled
from tests.fault.zygote import Zygote
from tests.waiting import nothing_live, until
from treadle import Queue, StoreUnavailable
from treadle.store import waiting_room

CUSTOMERS = 3
LARGEST_BATCH = scaled(128, 16_384)


async def test_a_job_is_there_if_and_only_if_its_users_transaction_was_committed(crew: Crew) -> None:
    """Killed at any moment, also in the middle of a transaction: no job without its order, no order without its job."""
    chance = random.Random(0)
    async with make_queue(crew.url, Pen(crew.journal.path, "client")) as queue:
        make_orders(crew.url)
        crew.hire(lease="20s")
        for turn in range(scaled(2, 100)):
            customers = [crew.hire("transactions", seed=10 * turn + number) for number in range(CUSTOMERS)]
            names = {hand.name for hand in customers}
            await until(partial(_are_busy, crew, names), 60, crew.tails)
            await asyncio.sleep(chance.uniform(0, 0.1))  # the moment of the kill
            for hand in customers:
                hand.kill()
            for hand in customers:
                await hand.gone()
        await until(lambda: nothing_live(queue), 60, crew.tails)
        await crew.dismiss()
        orders = read_orders(crew.url)
        assert orders
        await audit(queue, crew.journal, expected=orders)


def _are_busy(crew: Crew, names: set[str]) -> bool:
    """They have ended a few transactions."""
    turns = Counter(entry.worker for entry in crew.journal.entries("transaction"))
    return all(turns[name] >= 3 for name in names)


async def test_a_program_stopped_inside_its_transaction_holds_up_its_own_keys_only(
    postgres_url: str, tmp_path: Path, zygote: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL; SQLite has one writer, which `test_shared_processes` stops."""
    monkeypatch.setattr(waiting_room, "WAIT_SECONDS", 0.5)
    crew = Crew(postgres_url, tmp_path, zygote)
    try:
        async with make_queue(crew.url, Pen(crew.journal.path, "client")) as queue:
            crew.hire(lease="20s")
            expected = {id for turn in range(scaled(2, 50)) for id in await _stopped_once(crew, queue, tmp_path, turn)}
            await until(lambda: nothing_live(queue), 60, crew.tails)
            await crew.dismiss()
            await audit(queue, crew.journal, expected=expected)
    finally:
        crew.kill_all()


async def _stopped_once(crew: Crew, queue: Queue, folder: Path, turn: int) -> list[str]:
    """The jobs that were made."""
    go_on = folder / f"commit-{turn}"
    customer = crew.hire("stay_open", key=go_on)
    await until(lambda: len(crew.journal.entries("open")) == turn + 1, 60, crew.tails)
    await customer.freeze()
    with pytest.raises(StoreUnavailable):
        await queue.enqueue("quick", idempotency_key=go_on.name)
    others = [await queue.enqueue("quick", idempotency_key=f"{go_on.name}-{number}") for number in range(3)]
    for job in others:
        await job.result(timeout="30s")  # the worker goes on
    go_on.touch()
    customer.thaw()
    assert await customer.gone() == 0, customer.tail()
    theirs = crew.journal.entries("open")[-1].job_id
    assert (await queue.enqueue("quick", idempotency_key=go_on.name)).id == theirs
    return [theirs, *(job.id for job in others)]


async def test_batches_of_any_size_are_there_as_a_whole_or_not_at_all(crew: Crew) -> None:
    """From programs that were killed while their batches grew, and from one that was not."""
    chance = random.Random(0)
    async with make_queue(crew.url, Pen(crew.journal.path, "client")) as queue:
        for _ in range(scaled(2, 40)):
            hand = crew.hire("growing", limit=LARGEST_BATCH)
            wanted = 2 ** chance.randint(0, LARGEST_BATCH.bit_length() - 2)
            await until(partial(_has_acknowledged, crew, f"{hand.name}-{wanted}"), 60, crew.tails)
            hand.kill()
            await hand.gone()
        left_alone = crew.hire("growing", limit=LARGEST_BATCH)
        assert await left_alone.gone(scaled(60, 600)) == 0, left_alone.tail()
        there = await _batches(queue)
        assert {mark: count for mark, count in there.items() if count != int(mark.rpartition("-")[2])} == {}
        assert _acknowledged(crew) <= set(there)
        crew.hire(lease="20s", slots=20)
        await until(lambda: nothing_live(queue), scaled(60, 1_200), crew.tails)
        await crew.dismiss()
        await audit(queue, crew.journal)


def _has_acknowledged(crew: Crew, mark: str) -> bool:
    return mark in _acknowledged(crew)


def _acknowledged(crew: Crew) -> set[str]:
    return {entry.job_id for entry in crew.journal.entries("batch")}


async def _batches(queue: Queue) -> Counter[str]:
    """How many jobs of each batch are stored."""
    rows = await query(queue, "SELECT CAST(j.payload AS text) FROM {jobs} j")
    return Counter(json.loads(row[0])["batch"] for row in rows)
