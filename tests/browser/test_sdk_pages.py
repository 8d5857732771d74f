"""The JavaScript SDK in Chromium: the example page, and components in React."""

import functools
import http.server
import json
import re
import shutil
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.http.served import PASSWORD, Served, served
from tests.sdk.sdk_build import ROOT, built
from tests.servers import needed

USER = "ann@example.com"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture(scope="module")
def pages() -> Iterator[str]:
    """The address of the repository's files, the SDK compiled."""
    needed(built)
    handler = functools.partial(Quiet, directory=str(ROOT))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("sdk")
    shutil.copy(ROOT / "tests" / "sdk" / "sdk_jobs.py", folder)
    with served(folder, f"sqlite:///{folder}/jobs.db", "sdk_jobs:queue", TREADLE_POLL_INTERVAL="200ms") as server:
        rules = {"enqueue_rule": "@request.auth.id != ''", "manage_rule": "createdBy = @request.auth.id"}
        server.call("PATCH", "/api/settings", server.superuser(), json={"jobs": rules})
        server.treadle("user", "create", USER, PASSWORD).done()
        yield server


def sign_in(page: Page, pages: str, api: Served, password: str = PASSWORD) -> None:
    page.goto(f"{pages}/examples/browser/")
    page.get_by_label("Server").fill(api.url)
    page.get_by_label("E-mail").fill(USER)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()


def start(page: Page, topic: str, payload: dict[str, object]) -> None:
    page.get_by_label("Topic").fill(topic)
    page.get_by_label("Payload").fill(json.dumps(payload))
    page.get_by_role("button", name="Start").click()


def test_the_example_page_starts_a_job_and_shows_its_progress(page: Page, pages: str, api: Served) -> None:
    sign_in(page, pages, api)
    expect(page.locator("#who")).to_have_text(USER)
    start(page, "export_users", {"format": "csv", "rows": 30})
    expect(page.locator("#message")).to_have_text(re.compile(r"row \d+"))
    expect(page.locator("#status")).to_have_text("completed")
    assert page.get_by_role("progressbar").evaluate("bar => bar.value") == 100
    expect(page.get_by_role("button", name="Cancel")).to_be_disabled()


def test_the_example_page_cancels(page: Page, pages: str, api: Served) -> None:
    sign_in(page, pages, api)
    start(page, "endless", {})
    expect(page.locator("#message")).to_have_text(re.compile(r"lap \d+"))
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#status")).to_have_text("cancelled")


def test_the_example_page_tells_what_went_wrong(page: Page, pages: str, api: Served) -> None:
    sign_in(page, pages, api, "wrong horse")
    expect(page.get_by_role("alert")).to_have_text("Failed to authenticate.")
    sign_in(page, pages, api)
    start(page, "breaks", {})
    expect(page.locator("#status")).to_have_text("failed")
    expect(page.locator("#message")).to_contain_text("SMTP is down")


def test_a_reloaded_page_is_still_signed_in(page: Page, pages: str, api: Served) -> None:
    sign_in(page, pages, api)
    expect(page.locator("#who")).to_have_text(USER)
    page.reload()
    told = page.evaluate(
        """async (url) => {
            const { Treadle } = await import("treadle");
            const client = new Treadle(url);
            return [client.auth.record.email, (await client.jobs.list()).page];
        }""",
        api.url,
    )
    assert told == [USER, 1]


def test_components_in_react(page: Page, pages: str, api: Served) -> None:
    root = api.superuser()
    jobs = [
        api.call("POST", "/api/jobs/enqueue", root, json={"topic": "held", "delay": "1h"}).json()["id"]
        for _ in range(3)
    ]
    page.goto(f"{pages}/sdk/js/test/pages/react.html")
    page.evaluate("([url, token, ids]) => begin(url, token, ids)", [api.url, root, jobs])
    expect(page.locator(".one")).to_have_text(["nothing"] * 3)
    assert page.evaluate("streams()") == 0, "nothing is followed until it is enabled"

    page.get_by_role("button", name="follow").click()
    expect(page.locator(".one")).to_have_text(["pending 0"] * 3)
    expect(page.locator("#all")).to_have_text("pending,pending,pending")
    connections = page.evaluate("streams()")
    for _ in range(3):
        page.get_by_role("button", name="render").click()
    expect(page.locator("#renders")).to_have_text("3")
    api.call("POST", f"/api/jobs/{jobs[1]}/cancel", root)
    expect(page.locator("#all")).to_have_text("pending,cancelled,pending")
    expect(page.locator(".one").nth(1)).to_have_text("cancelled 0")
    assert page.evaluate("streams()") == connections == 1, "one connection, and a render does not take another"

    page.get_by_role("button", name="stop").click()
    expect(page.locator(".one")).to_have_text(["nothing"] * 3)
    page.get_by_role("button", name="follow").click()
    expect(page.locator("#all")).to_have_text("pending,cancelled,pending")
    assert page.evaluate("streams()") == 2


def test_a_job_that_is_not_there_is_an_error_in_react(page: Page, pages: str, api: Served) -> None:
    page.goto(f"{pages}/sdk/js/test/pages/react.html")
    ids = ["01890000-0000-7000-8000-000000000000"]
    page.evaluate("([url, token, ids]) => begin(url, token, ids)", [api.url, api.superuser(), ids])
    page.get_by_role("button", name="follow").click()
    expect(page.locator(".one")).to_have_text("error 404")


def test_the_output_of_a_job_in_react(page: Page, pages: str, api: Served) -> None:
    root = api.superuser()
    body = {"topic": "speak", "payload": {"words": 12, "fails": 1}}
    job = api.call("POST", "/api/jobs/enqueue", root, json=body).json()["id"]
    page.goto(f"{pages}/sdk/js/test/pages/react.html")
    page.evaluate("([url, token, id]) => beginTokens(url, token, id)", [api.url, root, job])
    expect(page.locator("#tokens")).to_have_text(" ".join(map(str, range(12))) + " end")


def test_the_example_page_shows_output(page: Page, pages: str, api: Served) -> None:
    sign_in(page, pages, api)
    start(page, "speak", {"words": 5})
    expect(page.locator("#output")).to_contain_text('"word":4')
    expect(page.locator("#status")).to_have_text("completed")
