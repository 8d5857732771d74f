"""Seed 000, user story 3: jobs for later, such as "check the payment in 15 minutes"."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.acceptance.conftest import Start, Travel
from tests.waiting import in_status
from treadle import Queue, Status

IN_15_MINUTES: dict[str, Callable[[], dict[str, Any]]] = {
    "delay": lambda: {"delay": "15m"},
    "run_at": lambda: {"run_at": datetime.now(UTC) + timedelta(minutes=15)},
}


@pytest.mark.parametrize("how", IN_15_MINUTES)
async def test_1_before_its_time_the_job_is_not_run(queue: Queue, start: Start, travel: Travel, how: str) -> None:
    ran: list[str] = []
    queue.register("check_payment", lambda payload: ran.append(payload["name"]))
    await start(queue, lease="10h")
    job = await queue.enqueue("check_payment", {"name": "later"}, **IN_15_MINUTES[how]())
    await travel(14 * 60)
    sentinel = await queue.enqueue("check_payment", {"name": "now"}, delay="100ms")
    await in_status(queue, sentinel, "completed")
    assert ran == ["now"]
    assert (await queue.get(job.id)).status is Status.PENDING


@pytest.mark.parametrize("how", IN_15_MINUTES)
async def test_2_when_its_time_has_come_a_worker_runs_it(queue: Queue, start: Start, travel: Travel, how: str) -> None:
    queue.register("check_payment", lambda: "checked")
    await start(queue, lease="10h")
    job = await queue.enqueue("check_payment", {}, **IN_15_MINUTES[how]())
    await travel(15 * 60)
    await in_status(queue, job, "completed")


async def test_3_the_expected_time_is_seen_on_the_job(queue: Queue) -> None:
    when = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=15)
    job = await queue.enqueue("check_payment", {"orderId": "456"}, run_at=when)
    seen = await queue.get(job.id)
    assert seen.run_at == when
    assert seen.as_json()["runAt"] == when.strftime("%Y-%m-%dT%H:%M:%S.000Z")
    assert any("it is due at" in reason for reason in await queue.why(job.id))
