"""PocketBase's own client works with this server."""

import time
from typing import Any

import pytest

from tests.http.served import PASSWORD, ROOT, Served
from tests.sdk.conftest import Client
from treadle import Queue
from treadle.accounts import Accounts

SIGN_IN = 'await pb.collection("users").authWithPassword("ann@example.com", given.password);\n'
SUPER_SIGN_IN = 'await pb.collection("_superusers").authWithPassword("root@example.com", given.password);\n'
TELL_SESSION = """
const { token, isValid, isSuperuser, record } = pb.authStore;
return { token, isValid, isSuperuser, record };
"""
# A session that another script had.
RESUME = "pb.authStore.save(given.session.token, given.session.record);\n"
ENQUEUE = 'const job = await pb.send("/api/jobs/enqueue", { method: "POST", body: given.body });\n'


def session(client: Client, sign_in: str = SIGN_IN) -> dict[str, Any]:
    found: dict[str, Any] = client.run(sign_in + TELL_SESSION)
    return found


# -- signing in --------------------------------------------------------------------------------


def test_a_user_signs_in(client: Client) -> None:
    found = session(client)
    assert (found["isValid"], found["isSuperuser"]) == (True, False)
    record = found["record"]
    assert (record["email"], record["collectionName"], record["team"]) == ("ann@example.com", "users", "red")
    assert {"id", "collectionId", "verified", "created", "updated"} < set(record)
    assert not {"password", "tokenKey", "hash"} & set(record)


def test_a_superuser_signs_in(client: Client) -> None:
    found = session(client, SUPER_SIGN_IN)
    assert (found["isValid"], found["isSuperuser"]) == (True, True)
    assert (found["record"]["email"], found["record"]["collectionName"]) == (ROOT, "_superusers")


def test_a_session_is_refreshed(client: Client) -> None:
    found = client.run(SIGN_IN + 'await pb.collection("users").authRefresh();\n' + TELL_SESSION)
    assert found["isValid"]
    assert found["record"]["email"] == "ann@example.com"
    again = client.run(RESUME + 'return (await pb.send("/api/jobs", {})).page', session=found)
    assert again == 1


def test_a_superuser_refreshes_too(client: Client) -> None:
    found = client.run(SUPER_SIGN_IN + 'await pb.collection("_superusers").authRefresh();\n' + TELL_SESSION)
    assert (found["isValid"], found["isSuperuser"]) == (True, True)


@pytest.mark.parametrize("identity", ["ann@example.com", "nobody@example.com"])
def test_a_wrong_password_is_a_client_error(client: Client, identity: str) -> None:
    script = 'await pb.collection("users").authWithPassword(given.identity, "wrong horse")'
    thrown = client.throws(script, identity=identity)
    assert (thrown.status, thrown.message) == (400, "Failed to authenticate.")
    assert thrown.response["data"] == {}
    assert thrown.path == "/api/collections/users/auth-with-password"


def test_blank_credentials_name_their_fields(client: Client) -> None:
    thrown = client.throws('await pb.collection("users").authWithPassword("", "")')
    assert thrown.status == 400
    assert set(thrown.response["data"]) == {"identity", "password"}
    assert all({"code", "message"} <= set(field) for field in thrown.response["data"].values())


def test_a_users_token_refreshes_no_superuser(client: Client) -> None:
    thrown = client.throws(SIGN_IN + 'await pb.collection("_superusers").authRefresh()')
    assert thrown.status == 403


def test_an_anonymous_client_has_nothing_to_refresh(client: Client) -> None:
    assert client.throws('await pb.collection("users").authRefresh()').status == 401


def test_a_cleared_store_signs_out(client: Client) -> None:
    thrown = client.throws(SIGN_IN + 'pb.authStore.clear();\nawait pb.send("/api/settings", {})')
    assert thrown.status == 401


# -- the end of a session ----------------------------------------------------------------------


def test_a_changed_password_ends_the_session(client: Client, server: Served) -> None:
    server.treadle("user", "create", "eve@example.com", PASSWORD).done()
    found = session(client, SIGN_IN.replace("ann@", "eve@"))
    server.treadle("user", "update", "eve@example.com", "--password", "another horse").done()
    for call in ('pb.send("/api/jobs", {})', 'pb.collection("users").authRefresh()'):
        thrown = client.throws(f"{RESUME} await {call}", session=found)
        assert (thrown.status, thrown.response["code"]) == (401, "invalid_token")
    assert client.run(SIGN_IN.replace("ann@", "eve@") + "return pb.authStore.isValid", password="another horse")


async def test_an_expired_session_is_not_valid_on_either_side(client: Client, server: Served) -> None:
    assert server.treadle.database
    async with Queue(server.treadle.database) as queue:
        accounts = Accounts(queue.store, clock=lambda: time.time() - 30 * 86_400)
        ann = next(one for one in await accounts.list("users") if one.email == "ann@example.com")
        old = {"token": await accounts.token(ann), "record": ann.as_json()}
    assert client.run(RESUME + "return pb.authStore.isValid", session=old) is False
    assert client.throws(RESUME + 'await pb.send("/api/jobs", {})', session=old).status == 401


def test_a_tampered_token_is_refused(client: Client) -> None:
    found = session(client)
    head, claims, signature = found["token"].split(".")
    found["token"] = f"{head}.{claims}.{signature[::-1]}"
    assert client.throws(RESUME + 'await pb.send("/api/jobs", {})', session=found).status == 401


# -- jobs --------------------------------------------------------------------------------------


def test_a_job_is_enqueued_and_read(client: Client) -> None:
    body = {"topic": "mail", "payload": {"userId": "ü123", "n": [1, 2.5, None, True]}, "priority": "high"}
    found = client.run(SIGN_IN + ENQUEUE + "return [job, await pb.send(`/api/jobs/${job.id}`, {})]", body=body)
    made, read = found
    assert (made["status"], made["payload"], made["priority"]) == ("pending", body["payload"], 75)
    assert made.pop("deduplicated") is False
    assert made == read


def test_a_job_is_steered(client: Client) -> None:
    script = """
    const cancelled = await pb.send(`/api/jobs/${job.id}/cancel`, { method: "POST", body: { reason: "no need" } });
    const back = await pb.send(`/api/jobs/${job.id}/requeue`, { method: "POST" });
    const events = await pb.send(`/api/jobs/${job.id}/events`, {});
    const gone = await pb.send(`/api/jobs/${job.id}`, { method: "DELETE" });
    return [cancelled.status, cancelled.cancelReason, back.status, events.items.map((event) => event.type), gone];
    """
    cancelled, reason, back, events, gone = client.run(SIGN_IN + ENQUEUE + script, body={"topic": "mail"})
    assert (cancelled, reason, back) == ("cancelled", "no need", "pending")
    assert {"job:enqueued", "job:cancelled", "job:requeued"} <= set(events)
    assert gone in ("", None, {})


def test_a_list_is_a_page_as_the_client_knows_them(client: Client) -> None:
    script = """
    for (const n of [1, 2, 3])
      await pb.send("/api/jobs/enqueue", { method: "POST", body: { topic: "page", payload: { n } } });
    return await pb.send("/api/jobs", { query: { topic: "page", page: 2, perPage: 2 } });
    """
    page = client.run(SIGN_IN + script)
    shape = {name: page[name] for name in ("page", "perPage", "totalItems", "totalPages")}
    assert shape == {"page": 2, "perPage": 2, "totalItems": 3, "totalPages": 2}
    assert [job["payload"] for job in page["items"]] == [{"n": 1}]


def test_a_page_has_at_most_a_thousand_and_says_so(client: Client) -> None:
    page = client.run(SIGN_IN + 'return await pb.send("/api/jobs", { query: { perPage: 5000 } })')
    assert (page["page"], page["perPage"]) == (1, 1000)


def test_the_clients_filters_are_understood(client: Client) -> None:
    script = """
    for (const who of ["o'hara", "quinn"])
      await pb.send("/api/jobs/enqueue", { method: "POST", body: { topic: "filter", payload: { who } } });
    const filter = pb.filter("topic = {:topic} && payload.who = {:who} && createdAt <= {:now}",
      { topic: "filter", who: "o'hara", now: new Date(Date.now() + 60_000) });
    return await pb.send("/api/jobs", { query: { filter, sort: "-createdAt" } });
    """
    assert [job["payload"]["who"] for job in client.run(SIGN_IN + script)["items"]] == ["o'hara"]


def test_the_server_is_healthy(client: Client) -> None:
    assert client.run("return await pb.health.check()") == {"code": 200, "message": "API is healthy.", "data": {}}


# -- refusals ----------------------------------------------------------------------------------


def refusal(client: Client, script: str, **given: Any) -> tuple[int, str]:
    """Status and code of what is thrown, after a look at its shape."""
    thrown = client.throws(script, **given)
    assert set(thrown.response) == {"status", "code", "message", "data"}
    assert (thrown.response["status"], thrown.response["message"]) == (thrown.status, thrown.message)
    return thrown.status, thrown.response["code"]


def test_bad_input_names_the_field(client: Client) -> None:
    thrown = client.throws(SIGN_IN + ENQUEUE, body={"topic": "mail", "maxRetries": 0})
    assert thrown.status == 400
    assert "maxRetries" in thrown.message
    assert set(thrown.response["data"]) == {"maxRetries"}
    assert thrown.response["data"]["maxRetries"]["message"]


def test_a_bad_filter_is_bad_input(client: Client) -> None:
    script = SIGN_IN + 'await pb.send("/api/jobs", { query: { filter: "topic = \'" } })'
    assert refusal(client, script) == (400, "invalid_filter")


def test_who_is_not_signed_in(client: Client) -> None:
    assert refusal(client, ENQUEUE, body={"topic": "mail"}) == (401, "unauthorized")


def test_who_may_not(client: Client) -> None:
    script = SIGN_IN + 'await pb.send("/api/settings", { method: "PATCH", body: { jobs: { manage_rule: "true" } } })'
    assert refusal(client, script) == (403, "forbidden")


def test_what_is_not_there_and_what_is_not_yours_look_alike(client: Client, server: Served) -> None:
    job = server.call("POST", "/api/jobs/enqueue", server.superuser(), json={"topic": "mail"}).json()
    look = SIGN_IN + "await pb.send(`/api/jobs/${given.id}`, {})"
    theirs = client.throws(look, id=job["id"])
    nothing = client.throws(look, id="01890000-0000-7000-8000-000000000000")
    assert theirs.response == nothing.response
    assert (theirs.status, theirs.message) == (404, "The requested resource wasn't found.")


def test_a_path_that_is_not_there(client: Client) -> None:
    assert refusal(client, SIGN_IN + 'await pb.send("/api/nothing", {})') == (404, "not_found")


def test_a_wrong_state_is_a_conflict(client: Client) -> None:
    script = "await pb.send(`/api/jobs/${job.id}/requeue`, { method: 'POST' })"
    assert refusal(client, SIGN_IN + ENQUEUE + script, body={"topic": "mail"}) == (409, "wrong_state")


# -- realtime ----------------------------------------------------------------------------------

HEARD = """
const heard = [];
const keep = (event) => heard.push([event.action, event.record.id, event.record.status]);
"""


def test_every_job_is_followed(client: Client) -> None:
    script = """
    await pb.realtime.subscribe("jobs/*", keep);
    const job = await pb.send("/api/jobs/enqueue", { method: "POST", body: { topic: "mail" } });
    await pb.send(`/api/jobs/${job.id}/cancel`, { method: "POST" });
    await until(() => heard.length === 2);
    await pb.send(`/api/jobs/${job.id}`, { method: "DELETE" });
    await until(() => heard.length === 3);
    return [job.id, heard];
    """
    id, heard = client.run(SIGN_IN + HEARD + script)
    assert heard == [["create", id, "pending"], ["update", id, "cancelled"], ["delete", id, None]]


def test_as_records_of_a_collection(client: Client) -> None:
    script = """
    const events = [];
    await pb.collection("jobs").subscribe("*", (event) => events.push(event));
    await pb.send("/api/jobs/enqueue", { method: "POST", body: { topic: "mail", payload: { to: "ann" } } });
    await until(() => events.length);
    return events[0];
    """
    event = client.run(SIGN_IN + script)
    assert (event["action"], event["record"]["collectionName"]) == ("create", "jobs")
    assert event["record"]["payload"] == {"to": "ann"}


def test_one_job_and_all_jobs_on_one_connection(client: Client) -> None:
    script = """
    const one = await pb.send("/api/jobs/enqueue", { method: "POST", body: { topic: "mail" } });
    const two = await pb.send("/api/jobs/enqueue", { method: "POST", body: { topic: "mail" } });
    const all = [];
    await pb.realtime.subscribe(`jobs/${one.id}`, keep);
    // A subscription may still tell what happened just before it: here, that the jobs were made.
    await pb.realtime.subscribe("jobs/*", (event) => event.action === "create" || all.push(event.record.id));
    for (const job of [two, one]) await pb.send(`/api/jobs/${job.id}/cancel`, { method: "POST" });
    await until(() => all.length === 2 && heard.length === 1);
    await pb.realtime.unsubscribe(`jobs/${one.id}`);
    await pb.send(`/api/jobs/${one.id}`, { method: "DELETE" });
    await until(() => all.length === 3);
    return [one.id, two.id, heard, all];
    """
    one, two, heard, everything = client.run(SIGN_IN + HEARD + script)
    assert heard == [["update", one, "cancelled"]]
    assert everything == [two, one, one]


def test_a_filter_and_fields(client: Client) -> None:
    script = """
    const records = [];
    const query = { filter: "topic = 'chosen'", fields: "status" };
    await pb.realtime.subscribe("jobs/*", (event) => records.push(event.record), { query });
    for (const topic of ["other", "chosen"]) await pb.send("/api/jobs/enqueue", { method: "POST", body: { topic } });
    await until(() => records.length);
    return records;
    """
    (record,) = client.run(SIGN_IN + script)
    assert set(record) == {"id", "status", "collectionId", "collectionName"}


def test_users_hear_of_their_own_jobs_only(client: Client, server: Served) -> None:
    script = """
    await pb.realtime.subscribe("jobs/*", keep);
    await pb.realtime.subscribe(`jobs/${given.theirs}`, keep);
    const root = new PocketBase(pb.baseURL);
    await root.collection("_superusers").authWithPassword("root@example.com", given.password);
    await root.send(`/api/jobs/${given.theirs}/cancel`, { method: "POST" });
    const job = await pb.send("/api/jobs/enqueue", { method: "POST", body: { topic: "mail" } });
    await until(() => heard.length);
    return [job.id, heard];
    """
    theirs = server.call("POST", "/api/jobs/enqueue", server.superuser(), json={"topic": "mail"}).json()["id"]
    id, heard = client.run(SIGN_IN + HEARD + script, theirs=theirs)
    assert heard == [["create", id, "pending"]]


def test_nobody_subscribes_without_signing_in(client: Client) -> None:
    script = """
    const refused = new Promise((tell) => {
      pb.afterSend = (response, data) => { tell(response.status); return data; };
    });
    pb.realtime.subscribe("jobs/*", () => {}).catch(() => {}); // the client tries again until it may
    return await refused;
    """
    assert client.run(script) == 401


def test_a_client_that_lost_its_connection_subscribes_again(client: Client) -> None:
    script = """
    await pb.realtime.subscribe("jobs/*", keep);
    const before = pb.realtime.clientId;
    pb.realtime.eventSource.dispatchEvent(new Event("error"));
    pb.realtime.eventSource?.onerror?.(new Event("error"));
    await until(() => pb.realtime.isConnected && pb.realtime.clientId !== before);
    const job = await pb.send("/api/jobs/enqueue", { method: "POST", body: { topic: "mail" } });
    await until(() => heard.some(([, id]) => id === job.id));
    return true;
    """
    assert client.run(SIGN_IN + HEARD + script) is True
