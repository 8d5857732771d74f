"""Topics with names of an integration's own form work in every place that takes a topic."""

import pytest

from tests.http.api import Api, failure
from treadle import InvalidInput, Queue

TOPIC = "django:shop.tasks.SendMail"


@pytest.mark.every_store
async def test_a_topic_named_by_an_integration(api: Api) -> None:
    job = await api.enqueue(TOPIC, {"args": [], "kwargs": {}})
    listed = (await api.get("/api/jobs", params={"topic": TOPIC})).json()["items"]
    assert [one["id"] for one in listed] == [job["id"]]
    assert (await api.post(f"/api/topics/{TOPIC}/pause")).status_code == 200
    assert [topic["topic"] for topic in (await api.get("/api/topics")).json()["items"]] == [TOPIC]
    dispatched = await api.post(f"/api/jobs/{TOPIC}/dispatch", {"args": {"args": [1]}})
    assert dispatched.status_code == 200, dispatched.text
    assert (await api.get("/api/jobs", params={"q": f"topic:{TOPIC}"})).json()["totalItems"] == 2
    await api.rules(enqueue_rule=f"topic = '{TOPIC}'")
    assert (await api.post("/api/jobs/enqueue", {"topic": TOPIC}, as_="ann")).status_code == 200


@pytest.mark.parametrize(
    "topic",
    ["Mail", "django:", ":x", "django:a..b", "Django:x", "a:b:c", "django:a b", "django:" + "x" * 255, "x" * 101],
)
async def test_other_names_are_refused_everywhere(sqlite_api: Api, topic: str) -> None:
    assert failure(await sqlite_api.post("/api/jobs/enqueue", {"topic": topic})) == (400, "invalid_input")
    with pytest.raises(InvalidInput):
        Queue("sqlite:///nowhere.db").register(topic, lambda: None)
