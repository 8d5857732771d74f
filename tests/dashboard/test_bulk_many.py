"""A hundred thousand jobs in one action, with a dry run first and progress after."""

import pytest

from tests.dashboard.test_actions import audited, finished
from tests.dashboard.visitor import Visitor

JOBS, BATCH = 100_000, 10_000


async def change_all(visitor: Visitor, action: str, status: str) -> str:
    """Ask about all that match, type the number and wait for the end of the operation; what its page says then."""
    path = f"/_/bulk?action={action}&all=1&topic=mail&status={status}"
    assert f"{JOBS:,} jobs?" in await visitor.text(path)
    answer = await visitor.confirm(path, typed=str(JOBS))
    assert answer.status_code == 303, answer.text[-500:]
    address = answer.headers["location"]
    assert "/operations/" in address
    await finished(visitor, address, seconds=250)
    return await visitor.text(address)


@pytest.mark.timeout(600)
async def test_a_hundred_thousand_jobs_are_requeued_in_one_action(sqlite_visitor: Visitor) -> None:
    visitor = sqlite_visitor  # 20 s here, 80 s on PostgreSQL, where test_actions changes 1,200
    for _ in range(JOBS // BATCH):
        await visitor.queue.enqueue_many("mail", [{}] * BATCH, delay="1h")
    await change_all(visitor, "cancel", "pending")
    assert (await visitor.queue.stats()).cancelled == JOBS
    told = await change_all(visitor, "requeue", "cancelled")
    assert f"{JOBS:,}" in told
    stats = await visitor.queue.stats()
    assert (stats.pending, stats.cancelled) == (JOBS, 0)
    assert f"Requeued {JOBS:,} jobs: topic:mail status:cancelled" in await audited(visitor)
