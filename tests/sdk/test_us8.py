"""US8 and its preview: PocketBase's own client after `withJobs(pb)`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.served import Served
from tests.sdk.conftest import Client, client_of

SIGN_IN = 'await pb.authWithPassword("ann@example.com", given.password);\n'


@pytest.fixture(scope="module")
def client(node: Path, package: Path, sdk: Path, server: Served) -> Iterator[Client]:
    """`pb` is a client after `withJobs(pb)`."""
    with client_of(node, package, server, sdk / "dist" / "pocketbase.js") as found:
        yield found


def failed_job(server: Served, client: Client) -> str:
    """A job of the user's that has failed for good."""
    script = SIGN_IN + "return (await pb.jobs.enqueue('mail_digest', { userId: '7' }, { maxRetries: 1 })).id"
    id: str = client.run(script)
    root = server.superuser()
    body = {"workerId": "w", "topics": ["mail_digest"], "limit": 100}
    for job in server.call("POST", "/api/workers/claim", root, json=body).json()["items"]:
        body = {"token": job["token"], "error": "SMTP is down", "fatal": True}
        assert server.call("POST", f"/api/workers/jobs/{job['id']}/fail", root, json=body).status_code == 200
    return id


def test_1_enqueue_returns_the_id(client: Client) -> None:
    job = client.run(SIGN_IN + "return await pb.jobs.enqueue('mail_digest', { userId: '123' })")
    assert job["id"]
    assert (job["topic"], job["payload"]) == ("mail_digest", {"userId": "123"})


def test_2_get_returns_the_job(client: Client) -> None:
    script = """
    const { id } = await pb.jobs.enqueue('mail_digest', { userId: '123' });
    return [id, await pb.jobs.get(id)];
    """
    id, job = client.run(SIGN_IN + script)
    assert (job["id"], job["status"], job["retries"]) == (id, "pending", 0)
    assert job["runAt"]


def test_3_list_returns_the_jobs_that_match(client: Client) -> None:
    script = """
    const { id } = await pb.jobs.enqueue('listed', { userId: '123' });
    await pb.jobs.enqueue('other', {});
    return [id, (await pb.jobs.list({ topic: 'listed', status: 'pending' })).items.map((job) => job.id)];
    """
    id, found = client.run(SIGN_IN + script)
    assert found == [id]


def test_4_requeue_puts_a_failed_job_back(client: Client, server: Served) -> None:
    id = failed_job(server, client)
    script = "return [(await pb.jobs.get(given.id)).status, (await pb.jobs.requeue(given.id)).status]"
    assert client.run(SIGN_IN + script, id=id) == ["failed", "pending"]


def test_5_a_delayed_job_has_its_time(client: Client) -> None:
    script = """
    const runAt = new Date(Date.now() + 15 * 60 * 1000);
    const job = await pb.jobs.enqueue('check_payment', { orderId: '456' }, { runAt });
    return [runAt.toISOString(), job.runAt, (await pb.jobs.get(job.id)).runAt, job.status];
    """
    asked, enqueued, stored, status = client.run(SIGN_IN + script)
    assert (enqueued, stored, status) == (asked, asked, "pending")


def test_every_line_of_the_preview(client: Client, server: Served) -> None:
    """As it stands in the seed, each part with its own `job`; `pb` is new, and the address and password are ours."""
    parts = """
    await pb.authWithPassword('ann@example.com', given.password);
    {
      const job = await pb.jobs.enqueue('mail_digest', { userId: '123' });
      console.error(job.id);
    }
    {
      const job = await pb.jobs.enqueue('check_payment', { orderId: '456' }, {
          runAt: new Date(Date.now() + 15 * 60 * 1000)
      });
    }
    {
      const job = await pb.jobs.get(given.id);
      told.status = job.status;
    }
    {
      const jobs = await pb.jobs.list({
          topic: 'mail_digest',
          status: 'failed',
          limit: 20,
          offset: 0
      });
      told.listed = [...jobs].map((job) => job.id);
    }
    await pb.jobs.requeue(given.id);
    await pb.jobs.delete(given.id);
    const stats = await pb.jobs.stats();
    told.stats = stats;
    """
    id = failed_job(server, client)
    told: dict[str, Any] = client.run("const told = {};\n" + parts + "return told", id=id)
    assert (told["status"], id in told["listed"]) == ("failed", True)
    assert {"pending", "processing", "completed", "failed", "successRate", "avgExecutionTime"} <= set(told["stats"])


def test_two_alike_calls_at_once_both_resolve(client: Client) -> None:
    script = """
    pb.autoCancellation(true);
    const call = () => pb.jobs.enqueue('mail_digest', { userId: '123' });
    const [one, two] = await Promise.all([call(), call()]);
    return [one.id !== two.id, (await Promise.all([pb.jobs.list(), pb.jobs.list()])).length];
    """
    assert client.run(SIGN_IN + script) == [True, 2]


def test_a_signal_of_the_callers_is_kept(client: Client) -> None:
    script = """
    const abort = new AbortController();
    abort.abort();
    try {
      await pb.jobs.list({}, { signal: abort.signal });
    } catch (error) {
      return error.isAbort;
    }
    """
    assert client.run(SIGN_IN + script) is True


def test_errors_are_those_of_the_client(client: Client) -> None:
    thrown = client.throws(SIGN_IN + "await pb.jobs.get('01890000-0000-7000-8000-000000000000')")
    assert (thrown.status, thrown.response["code"]) == (404, "not_found")
    thrown = client.throws("await pb.jobs.enqueue('mail_digest', {})")
    assert (thrown.status, thrown.response["code"]) == (401, "unauthorized")


def test_streams_use_the_clients_session_and_errors(client: Client) -> None:
    script = """
    const job = await pb.jobs.enqueue('mail_digest', { userId: '123' });
    const tracker = pb.jobs.track(job.id);
    await pb.jobs.cancel(job.id, { reason: 'no need' });
    const ended = await tracker.result().catch((error) => error);
    return [ended.name, ended.job.cancelReason, tracker.state];
    """
    assert client.run(SIGN_IN + script) == ["JobEndedError", "no need", "ended"]
    bad = "pb.authStore.save('e30.' + btoa('{\"exp\": 4102444800}') + '.bad', null);\n"
    thrown = client.throws(bad + "for await (const event of pb.jobs.stream({ topic: 'mail_digest' })) break")
    assert thrown.status == 401


def test_a_proxys_page_is_an_error(client: Client) -> None:
    script = """
    const real = globalThis.fetch;
    globalThis.fetch = async () => new Response('<html>', { headers: { 'Content-Type': 'text/html' } });
    try {
      await pb.jobs.get('1');
    } catch (error) {
      return [error.name, error.originalError?.code];
    } finally {
      globalThis.fetch = real;
    }
    """
    name, code = client.run(SIGN_IN + script)
    assert name.startswith("ClientResponseError")
    assert code == "not_json"


def test_extending_a_client_again_changes_nothing(client: Client) -> None:
    assert client.run("return withJobs(pb).jobs === pb.jobs && withJobs(pb) === pb") is True
