"""`treadle jobs show`, `signal` and `requeue` of jobs with steps."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.command import Command
from treadle import Context, Queue
from treadle.cli.jobs import _step_tree
from treadle.model.steps import pending_step
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


@pytest.mark.every_store
def test_an_approval(treadle: Command, queue: SyncQueue) -> None:
    job = queue.enqueue("approval")
    queue.run_until_empty()
    shown = treadle("jobs", "show", job.id).done().out
    assert re.search(r"├─ Prepare it  completed  \d+ms\n", shown), "with how long it took"
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


def test_steps_in_steps_and_runs_of_one_step() -> None:
    ids = ("read", "read/page", "read/sum", "write", "write/page")
    steps = [pending_step(id, id) for id in ids]
    steps[1] |= {"status": "failed", "items": {"total": 5, "done": 3, "failed": 1}}
    steps[0] |= {"startedAt": "2026-01-01T00:00:00.000Z", "completedAt": "2026-01-01T00:02:00.000Z"}
    assert _step_tree(steps) == [
        "├─ read  pending  2m",
        "   ├─ page  failed 3/5 (1 failed)",
        "   └─ sum  pending",
        "└─ write  pending",
        "   └─ page  pending",
    ]
