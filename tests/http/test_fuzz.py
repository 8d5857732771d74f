"""For everything a client sends, the answer is one that the OpenAPI document describes."""

import asyncio
from pathlib import Path

import pytest

from tests.fault.scale import ASKED, scaled
from tests.http.api import Api, failure
from tests.http.fuzzing import FLOW, STEP, TEMPLATE, WORKER, Guide, fuzz
from tests.http.served import ROOT, Served, served
from treadle import Queue

SEED = 20_260_101
# Requests in short and in full, on each of two stores.
CALLERS = {"superuser": (70, 15_000), "user": (35, 7_500), "nobody": (35, 2_500)}


def token_of(caller: str, server: Served) -> str | None:
    match caller:
        case "superuser":
            return server.sign_in("_superusers", ROOT)
        case "user":
            return server.sign_in("users", "ann@example.com")
    return None


async def prepare(url: str) -> None:
    """What requests can't create: a template, a flow, a worker."""
    queue = Queue(url)
    queue.register(TEMPLATE, lambda payload: None)
    queue.flow(FLOW).external(STEP)
    async with queue:
        await queue.save_templates()
        await queue.store.open_lease(WORKER, 3_600_000, {"topics": [], "capabilities": [], "slots": 1})


@pytest.mark.timeout(scaled(300, 5400))
@pytest.mark.parametrize("caller", CALLERS)
def test_no_request_breaks_the_server_or_the_document(url: str, caller: str, tmp_path: Path) -> None:
    # Every case that the document implies is many; in short they are tried once.
    exhaustive = ASKED != "short" or (caller == "superuser" and url.startswith("sqlite"))
    asyncio.run(prepare(url))
    with served(tmp_path, url) as server:
        guide = Guide(server.url, server.sign_in("_superusers", ROOT), token_of(caller, server))
        report = fuzz(guide, requests=scaled(*CALLERS[caller]), seed=SEED, exhaustive=exhaustive)
        assert not report.wrong, f"{report}\n{server.log.read_text()[-5000:]}"
        assert "Traceback" not in server.log.read_text(), server.log.read_text()
    print(report)
    if caller == "superuser" and exhaustive:
        assert report.operations - report.reached == {"POST /api/setup"}, "not reached: there is a superuser already"


# -- what it found -----------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"{", b"null", b'{"jobs": "\\u0000"}', b"\xff", b'{"x": NaN}'])
async def test_a_bad_body_that_a_rule_read_first(sqlite_api: Api, body: bytes) -> None:
    rule = "@request.auth.id != '' && @request.body.x != 1"
    await sqlite_api.rules(enqueue_rule=rule, manage_rule=f"{rule} && createdBy != ''")
    job = await sqlite_api.enqueue(as_="ann")
    for path in ("/api/jobs/enqueue-many", f"/api/jobs/{job['id']}/cancel"):
        headers = {"Content-Type": "application/json"}
        answer = await sqlite_api.post(path, as_="ann", content=body, headers=headers)
        assert failure(answer)[0] == 400


async def test_a_priority_out_of_range_is_refused_once_not_for_each_job(sqlite_api: Api) -> None:
    await sqlite_api.enqueue()
    for action in ("patch", "cancel"):
        body = {"action": action, "filter": "topic = 'mail'", "priority": 2**31}
        answer = await sqlite_api.post("/api/jobs/bulk", body)
        assert failure(answer)[0] == 400
        assert set(answer.json()["data"]) == {"priority"}
