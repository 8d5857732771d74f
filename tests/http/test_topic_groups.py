"""A pause of a group of topics: over HTTP, on the dashboard, in Python and on the command line's terms."""

import pytest

from tests.dashboard.visitor import visiting
from tests.http.api import Api, failure
from treadle import InvalidInput


@pytest.mark.every_store
async def test_a_group_is_paused_and_resumed_over_http(api: Api) -> None:
    await api.enqueue("mail.digest")
    answer = await api.post("/api/topics/mail.*/pause")
    assert answer.json() == {"topic": "mail.*", "paused": True, "pausedUntil": None, "pending": 0, "processing": 0}
    later = await api.enqueue("mail.welcome")
    why = (await api.get(f"/api/jobs/{later['id']}/why")).json()
    assert "topic mail.welcome is paused" in str(why)
    listed = {one["topic"]: one["paused"] for one in (await api.get("/api/topics")).json()["items"]}
    assert listed == {"mail.*": True, "mail.digest": True, "mail.welcome": True}
    resumed = await api.post("/api/topics/mail.*/resume")
    assert resumed.json()["paused"] is False
    listed = {one["topic"]: one["paused"] for one in (await api.get("/api/topics")).json()["items"]}
    assert listed == {"mail.digest": False, "mail.welcome": False}


@pytest.mark.parametrize("name", ["Mail", "a b*", "mail.[a]", "x" * 256, "a?*"])
async def test_what_is_no_group_is_refused(sqlite_api: Api, name: str) -> None:
    assert failure(await sqlite_api.post(f"/api/topics/{name}/pause"))[0] in (400, 404)
    with pytest.raises(InvalidInput):
        await sqlite_api.queue.pause(name)


async def test_a_group_is_for_pauses_only(sqlite_api: Api) -> None:
    assert failure(await sqlite_api.post("/api/jobs/enqueue", {"topic": "mail.*"})) == (400, "invalid_input")
    assert failure(await sqlite_api.get("/api/jobs", params={"topic": "mail.*"})) == (400, "invalid_input")


async def test_the_dashboard_shows_a_paused_group_and_resumes_it(sqlite_url: str) -> None:
    async with visiting(sqlite_url) as visitor:
        await visitor.queue.enqueue("mail.digest")
        await visitor.queue.pause("mail.*")
        page = await visitor.client.get("/_/topics")
        assert page.status_code == 200
        assert "mail.*" in page.text
        assert (await visitor.client.get("/_/")).status_code == 200
        done = await visitor.client.post("/_/topics/mail.*/resume", headers={"Origin": str(visitor.client.base_url)})
        assert done.status_code == 303
        assert [topic.paused_until for topic in await visitor.queue.topics()] == [None]
