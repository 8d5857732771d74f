"""Live pages: patches don't disturb the reader, and streams leave room for others."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import httpx
from playwright.sync_api import Page, expect

from tests.browser.person import Person
from tests.browser.site import Site
from tests.cli.command import SECONDS, Command
from tests.cli.test_serve import serving, token
from tests.http.api import PASSWORD
from tests.http.served import ROOT


def test_a_row_follows_its_job_without_a_reload(person: Person, served: Site) -> None:
    job = served.enqueue("slow")
    person.open("/jobs")
    person.live()
    served.start("slow")
    expect(person.row(job.id)).to_contain_text("processing")


def test_new_jobs_are_a_pill_and_no_row_moves_by_itself(person: Person, served: Site) -> None:
    served.enqueue("first")
    person.open("/jobs")
    person.live()
    for i in range(3):
        served.enqueue(f"later{i}")
    expect(person.page.locator(".new-pill")).to_contain_text("3 new")
    expect(person.page.locator("tbody[data-job]")).to_have_count(1)
    person.press(".")
    expect(person.page.locator("tbody[data-job]")).to_have_count(4)
    expect(person.page.locator(".new-pill")).to_have_count(0)


def test_a_row_that_stops_matching_stays_dimmed(person: Person, served: Site) -> None:
    job = served.enqueue("slow")
    person.open("/jobs?status=pending")
    person.live()
    served.start("slow")
    expect(person.row(job.id)).to_have_class(re.compile("is-gone"))
    expect(person.row(job.id)).to_contain_text("processing")


def test_counts_follow(person: Person, served: Site) -> None:
    served.enqueue("a")
    person.open("/jobs")
    person.live()
    served.enqueue("b")
    expect(person.page.locator("#tabs")).to_contain_text("All 2")


def test_the_page_of_a_job_shows_its_progress_and_its_end(person: Person, served: Site) -> None:
    job = served.enqueue("slow")
    person.open(f"/jobs/{job.id}")
    person.live()
    claimed = served.start("slow")
    expect(person.page.locator("#job-head")).to_contain_text("processing")
    served.run(served.hands.complete(claimed, {"pages": 10}))
    expect(person.page.locator("#job-head")).to_contain_text("completed")
    expect(person.page.locator("#result")).to_contain_text("pages")


def test_after_a_live_patch_delete_still_asks(person: Person, served: Site) -> None:
    job = served.enqueue("slow")
    person.open("/jobs")
    person.live()
    claimed = served.start("slow")
    served.run(served.hands.fail(claimed, "Boom: no"))
    expect(person.row(job.id)).to_contain_text("failed")
    person.row(job.id).hover()
    person.row(job.id).get_by_role("link", name=re.compile("Delete")).click()
    expect(person.dialog).to_contain_text("Delete this job?")
    assert served.get(job.id).id == job.id


def test_buttons_under_the_pointer_stay_until_it_leaves(person: Person, served: Site) -> None:
    other = served.enqueue("other")
    job = served.enqueue("slow")  # above the other, which gets taller
    person.open("/jobs")
    person.live()
    person.row(job.id).hover()
    person.row(job.id).get_by_role("link", name=re.compile("Delete")).hover()
    claimed, beside = served.start("slow"), served.start("other")
    served.run(served.hands.fail(claimed, "Boom: no"))
    served.run(served.hands.fail(beside, "Boom: no"))
    expect(person.row(other.id)).to_contain_text("failed")
    expect(person.row(job.id)).to_contain_text("pending")
    person.row(other.id).hover()
    expect(person.row(job.id)).to_contain_text("failed")


def test_typing_boxes_and_selected_text_survive_a_hundred_patches(person: Person, served: Site) -> None:
    jobs = [served.enqueue("slow", max_attempts=1) for _ in range(4)]
    person.open("/jobs")
    person.live()
    person.row(jobs[0].id).get_by_role("checkbox").click()
    search = person.page.get_by_label("Search jobs")
    search.fill("half a sen")
    person.page.evaluate(
        """id => getSelection().selectAllChildren(document.querySelector(`#job-${id} .payload`))""", jobs[1].id
    )
    chosen = person.page.evaluate("String(getSelection())")
    assert "userId" in chosen
    person.page.evaluate("window.patches = 0; document.addEventListener('treadle:patched', () => window.patches++)")
    ids = [job.id for job in jobs]
    while person.page.evaluate("window.patches") < 100:
        for claimed in served.run(served.hands.claim("slow")):
            served.run(served.hands.fail(claimed))
        _patched(person)
        served.run(served.queue.requeue_many(ids))
        _patched(person)
    assert person.page.evaluate("String(getSelection())") == chosen
    expect(search).to_have_value("half a sen")
    expect(person.row(jobs[0].id).get_by_role("checkbox")).to_be_checked()
    expect(person.page.locator("#bulk")).to_contain_text("1 selected")


def _patched(person: Person) -> None:
    """Not quicker than the page: above 50 events a second rows are left alone."""
    before = person.page.evaluate("window.seen ?? 0")
    person.page.wait_for_function("before => window.patches > before", arg=before)
    person.page.evaluate("window.seen = window.patches")


def requests(page: Page) -> list[str]:
    found: list[str] = []
    page.on("request", lambda request: found.append(request.url))
    return found


def test_paused_means_paused(person: Person, served: Site) -> None:
    job = served.enqueue("slow")
    person.open("/jobs")
    person.live()
    person.press("l")
    expect(person.page.locator("[data-live-word]")).to_have_text("Paused")
    sent = requests(person.page)
    person.page.evaluate("document.dispatchEvent(new Event('visibilitychange')); dispatchEvent(new Event('focus'))")
    served.start("slow")
    # Another tab sees it, so the event has been told; this one was not.
    other = person.page.context.new_page()
    other.goto(f"{served.url}/_/jobs/{job.id}")
    expect(other.locator("#job-head")).to_contain_text("processing")
    expect(person.row(job.id)).to_contain_text("pending")
    assert [url for url in sent if "/_/" in url] == []


def test_a_hidden_tab_has_no_stream(person: Person, served: Site) -> None:
    served.enqueue("a")
    person.open("/jobs")
    person.live()
    person.page.evaluate(
        """() => {
          Object.defineProperty(document, "visibilityState", { value: "hidden", configurable: true });
          document.dispatchEvent(new Event("visibilitychange"));
        }"""
    )
    expect(person.page.locator("html[data-live]")).to_have_count(0)
    assert person.page.evaluate("localStorage.getItem('treadle.streams')") == "{}"


def test_the_seventh_tab_loads_over_http_1_1(person: Person, served: Site) -> None:
    served.enqueue("a")
    person.open("/jobs")
    for _ in range(7):
        tab = person.page.context.new_page()
        tab.goto(f"{served.url}/_/jobs")
        expect(tab.get_by_role("heading", level=1)).to_have_text("Jobs")


def test_the_server_stops_within_its_grace_with_ten_streams_open(tmp_path: Path) -> None:
    treadle = Command(tmp_path, f"sqlite:///{tmp_path}/jobs.db")
    with serving(treadle, lines=2) as server:
        bearer = {"Authorization": token(treadle, server)}
        with httpx.Client(timeout=SECONDS) as client:
            streams = [client.stream("GET", f"{server.url}/_/live?view=jobs", headers=bearer) for _ in range(10)]
            for stream in streams:
                assert stream.__enter__().status_code == 200
            server.process.send_signal(signal.SIGTERM)
            try:
                assert server.process.wait(30) == 0
            except subprocess.TimeoutExpired:
                raise AssertionError("it goes on") from None


def test_a_stream_that_is_down_says_so_and_then_asks_now_and_then(person: Person, served: Site) -> None:
    job = served.enqueue("slow")
    person.page.clock.install()
    person.page.route(re.compile("/_/live.*(?<!once=1)$"), lambda route: route.abort())
    person.open("/jobs")
    word = person.page.locator("[data-live-word]")
    person.page.clock.run_for(9_000)
    expect(word).to_have_text("Reconnecting")
    person.page.clock.run_for(30_000)
    expect(word).to_have_text("Every 15 s")
    served.start("slow")
    person.page.clock.run_for(16_000)
    expect(person.row(job.id)).to_contain_text("processing")


def end_sessions(served: Site) -> None:
    root = served.run(served.accounts.list("_superusers"))[0]
    served.run(served.accounts.revoke_tokens("_superusers", root.id))


def sign_in_again(person: Person) -> None:
    person.page.get_by_label("Email").fill(ROOT)
    person.page.get_by_label("Password").fill(PASSWORD)
    person.page.get_by_role("button", name="Sign in").click()


def test_a_session_that_ends_says_so_and_leads_back_to_the_page(person: Person, served: Site) -> None:
    job = served.enqueue("mail", delay="1h")
    person.open("/jobs?topic=mail&status=pending")
    person.live()
    end_sessions(served)
    told = person.page.get_by_role("alert")
    expect(told).to_contain_text("Your session has ended.", timeout=30_000)
    expect(person.page.locator("[data-live-word]")).to_have_text("Signed out")
    told.get_by_role("link", name="Sign in again").click()
    sign_in_again(person)
    person.page.wait_for_url(f"{served.url}/_/jobs?topic=mail&status=pending")
    expect(person.row(job.id)).to_be_visible()


def test_a_tab_without_a_stream_notices_the_end_of_the_session_too(person: Person, served: Site) -> None:
    served.enqueue("a")
    person.page.clock.install()
    person.page.add_init_script(
        """const soon = Date.now() + 3600000;
        localStorage.setItem("treadle.streams", JSON.stringify({a: soon, b: soon, c: soon}))"""
    )
    person.open("/jobs")
    expect(person.page.locator("[data-live-word]")).to_have_text("Every 15 s")
    end_sessions(served)
    person.page.clock.run_for(16_000)
    expect(person.page.get_by_role("alert")).to_contain_text("Your session has ended.")


def test_an_action_after_the_session_has_ended_leads_back_to_the_page(person: Person, served: Site) -> None:
    job = served.fail()
    person.open(f"/jobs/{job.id}")
    person.press("l")
    person.press("r")
    expect(person.dialog).to_be_visible()
    end_sessions(served)
    person.press("Control+Enter")
    person.page.wait_for_url("**/_/login?next=*")
    sign_in_again(person)
    person.page.wait_for_url(f"{served.url}/_/jobs/{job.id}")
    assert served.get(job.id).status == "failed"
