"""A wait that got no answer in time fails its job's attempt; an answer that comes later is for the next attempt."""

from pathlib import Path

import pytest

from tests.waiting import after_failures, event_types, in_status
from tests.worker.conftest import Start
from tests.worker.test_waits import ASKS, states
from treadle import Queue, Retry, Status, StepEnded


@pytest.mark.parametrize("kind", [*ASKS, "flow"])
async def test_an_answer_after_a_timeout_is_kept_for_the_next_attempt(
    queue: Queue, start: Start, tmp_path: Path, kind: str
) -> None:
    """The first one counts, as always."""
    once_more = Retry(2, backoff="fixed", delay="1h")
    if kind == "flow":
        flow = queue.flow("asks", retry=once_more)
        flow.external("approve", timeout="50ms")
    else:
        function, options = ASKS[kind]
        queue.register("asks", function, retry=once_more, **options)
    job = await queue.enqueue("asks", {"path": str(tmp_path / "noted"), "timeout": "50ms"})
    await start(queue)
    assert states(await after_failures(queue, job, 1)) == {"approve": "failed"}
    await queue.signal(job.id, "approve", "late, but yes")
    with pytest.raises(StepEnded):
        await queue.signal(job.id, "approve", "no")
    await queue.reschedule(job.id, run_at=job.created_at)
    assert await job.result("30s") == "late, but yes"
    assert (await event_types(queue, job)).count("job:waiting") == 1


async def test_an_error_as_an_answer_is_the_answer_until_the_next_attempt_waits(queue: Queue, start: Start) -> None:
    flow = queue.flow("asks", retry=Retry(2, backoff="fixed", delay="1h"))
    flow.external("approve", timeout="1h")
    job = await flow.enqueue({})
    await start(queue)
    await in_status(queue, job, Status.WAITING)
    await queue.signal(job.id, "approve", error="not like this")
    assert states(await after_failures(queue, job, 1)) == {"approve": "failed"}
    with pytest.raises(StepEnded):
        await queue.signal(job.id, "approve", "yes")
