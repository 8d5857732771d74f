"""Fixtures for tests of the queue: an open queue on each store, and `Hands`, which stand in for a worker."""

from collections.abc import AsyncIterator

import pytest

from tests.queue.hands import Hands
from treadle import Queue


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue(url) as queue:
        yield queue


@pytest.fixture
def hands(queue: Queue) -> Hands:
    return Hands(queue)
