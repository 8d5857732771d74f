"""`treadle jobs show`, `signal` and `requeue` of jobs with steps."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.command import Command
from treadle import Context, Queue
from treadle.queue.sync import SyncQueue


@pytest.fixture
def queue(treadle: Command) -> Iterator[SyncQueue]:
    made = Queue(treadle.database)
    flow = made.flow("approval", max_attempts=1)

    @flow.step(title="Prepare it")
    async def prepare(ctx: Context, payload: dict[str, Any]) -> int:
        return 1

    flow.external("approve", answer=int)

    @flow.step
    async def publish(ctx: Context, payload: dict[str, Any]) -> None:
        raise ValueError("no")

    with made.sync as queue:
        yield queue


def test_an_approval(treadle: Command, queue: SyncQueue) -> None:
    job = queue.enqueue("approval")
    queue.run_until_empty()
    shown = treadle("jobs", "show", job.id).done().out
    assert "├─ Prepare it  completed" in shown
    assert "├─ approve  waiting" in shown
    assert "└─ publish  pending" in shown
    assert "no step nothing" in treadle("jobs", "signal", job.id, "nothing", "1").refused(1)
    assert "result" in treadle("jobs", "signal", job.id, "approve", '"text"').refused(2)
    assert "is answered" in treadle("jobs", "signal", job.id, "approve", "7").done().out
    queue.run_until_empty()
    planned = treadle("jobs", "requeue", job.id, "--mode", "from", "--step", "approve", "--dry-run").done().out
    assert planned == f"{job.id} would run approve, publish\n"
    treadle("jobs", "requeue", job.id, "--mode", "all").done()
    assert {step["status"] for step in queue.get(job.id).steps} == {"pending"}
