"""User story 9: who may use the API. On each store, through the whole application."""

from collections.abc import AsyncIterator

import pytest

from tests.http.api import Api, opened

CALLERS = (None, "ann", "root")


@pytest.fixture
async def api(url: str) -> AsyncIterator[Api]:
    async with opened(url) as api:
        yield api


async def enqueued(api: Api) -> list[int]:
    return [(await api.post("/api/jobs/enqueue", {"topic": "a"}, as_=who)).status_code for who in CALLERS]


async def listed(api: Api) -> list[int]:
    return [(await api.get("/api/jobs", as_=who)).status_code for who in CALLERS]


async def test_1_an_empty_rule_is_for_superusers_only(api: Api) -> None:
    await api.rules(enqueue_rule="", manage_rule="")
    assert await enqueued(api) == [401, 403, 200]
    assert await listed(api) == [401, 403, 200]


async def test_2_the_rule_true_is_for_everybody(api: Api) -> None:
    await api.rules(enqueue_rule="true", manage_rule="true")
    assert await enqueued(api) == [200, 200, 200]
    assert await listed(api) == [200, 200, 200]


async def test_3_a_rule_about_the_caller_is_for_signed_in_users(api: Api) -> None:
    await api.rules(enqueue_rule="@request.auth.id != ''", manage_rule="@request.auth.id != ''")
    assert await enqueued(api) == [401, 200, 200]
    assert await listed(api) == [401, 200, 200]


async def test_4_enqueue_and_manage_have_rules_of_their_own(api: Api) -> None:
    await api.rules(enqueue_rule="true", manage_rule="@request.auth.team = 'blue'")
    assert await enqueued(api) == [200, 200, 200]
    assert await listed(api) == [401, 403, 200]


async def test_the_api_is_on_by_default_and_can_be_switched_off(api: Api) -> None:
    assert (await api.get("/api/settings")).json()["jobs"]["http_enabled"] is True
    await api.rules(enqueue_rule="true", manage_rule="true", http_enabled=False)
    assert await enqueued(api) == [403, 403, 403]
    assert await listed(api) == [403, 403, 403]


async def test_only_allowed_topics_can_be_enqueued(api: Api) -> None:
    await api.rules(enqueue_rule="true", allowed_topics=["b"])
    assert await enqueued(api) == [403, 403, 200]
