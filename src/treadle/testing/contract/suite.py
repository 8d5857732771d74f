"""The base class of every contract part."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from treadle.testing.workbench import Database, Workbench


@pytest.mark.asyncio
class ContractPart:
    """Needs a fixture `database`. After each test, the database is checked for inconsistent data."""

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
