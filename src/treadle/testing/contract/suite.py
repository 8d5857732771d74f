"""The frame that every part of the contract stands in."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from treadle.testing.workbench import Database, Workbench


@pytest.mark.asyncio
class ContractPart:
    """Needs a fixture `database`. After every test the database is looked over for what can't be true."""

    @pytest_asyncio.fixture
    async def bench(self, database: Database) -> AsyncIterator[Workbench]:
        bench = Workbench(database)
        await bench.open()
        try:
            yield bench
        finally:
            await bench.close()
        problems = await database.problems()
        assert not problems, "the test left the database broken:\n" + "\n".join(problems)
