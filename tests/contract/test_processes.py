"""Several OS processes on one database."""

import asyncio
import os

import pytest

from tests.contract.crew import crew
from tests.contract.relational import RelationalDatabase
from treadle.model.errors import InvalidInput
from treadle.model.status import Status
from treadle.store.views import Listing
from treadle.testing.contract import ContractPart
from treadle.testing.contract.racing import FULL
from treadle.testing.workbench import Workbench, new_job


@pytest.mark.fault
class TestProcesses(ContractPart):
    async def test_sixteen_processes_start_on_an_empty_database(self, url: str) -> None:
        ids = await crew(url, "start", [f"p{i}" for i in range(16)])
        assert len(set(ids)) == 16

    async def test_a_hundred_clients_in_ten_processes_one_key_one_job(
        self, bench: Workbench, database: RelationalDatabase
    ) -> None:
        got = await crew(database.url, "same_key", [10] * 10)
        ids = {id for answers in got for id in answers}
        assert sum(map(len, got)) == 100
        assert len(ids) == 1
        assert [job.id for job in await bench.store.list(Listing())] == list(ids)

    async def test_several_processes_drain_one_queue(self, bench: Workbench, database: RelationalDatabase) -> None:
        ids = await bench.enqueue(5000 if FULL else 400)
        done = [id for answer in await crew(database.url, "drain", ["a", "b", "c", "d"]) for id in answer]
        assert len(set(done)) == len(done), "a job was done twice"
        # Who found nothing to claim may have left while another held the last rows.
        rest = [job.id for job in await bench.claim(10)]
        assert sorted(done + rest) == sorted(ids)

    async def test_several_processes_enqueue_concurrently(self, bench: Workbench, database: RelationalDatabase) -> None:
        made = [id for answer in await crew(database.url, "produce", [25] * 6) for id in answer]
        assert await bench.statuses(made) == [Status.PENDING] * 150
        assert sorted(await bench.claimable()) == sorted(made)

    @pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
    async def test_a_fork_does_not_talk_on_its_parents_connections(self, bench: Workbench) -> None:
        await bench.enqueue(1)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover - in the child
            answer = b"no error"
            try:
                asyncio.events._set_running_loop(None)
                asyncio.run(bench.store.insert([new_job()]))
            except InvalidInput as error:
                answer = str(error).encode()
            finally:
                os.write(writing, answer)
                os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        with os.fdopen(reading, "rb") as pipe:
            assert b"before a fork" in pipe.read()
        await bench.enqueue(1)
        assert await bench.store.count(Listing()) == 2
