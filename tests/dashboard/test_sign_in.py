"""Signing in and out, the first superuser, and which origins may send forms."""

import asyncio
import re
from pathlib import Path

import pytest

from tests.dashboard.visitor import OURS, ROOT, SITE, Visitor, visiting
from tests.http.api import PASSWORD

PAGES = ["/_/", "/_/jobs", "/_/errors", "/_/topics", "/_/workers", "/_/system", "/_/jobs/new"]


@pytest.mark.parametrize("path", PAGES)
async def test_a_stranger_is_sent_to_sign_in(stranger: Visitor, path: str) -> None:
    answer = await stranger.get(path)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/_/login")


async def test_signing_in_leads_back_to_the_page_that_was_asked_for(stranger: Visitor) -> None:
    asked = await stranger.get("/_/jobs?status=failed")
    form = await stranger.get(asked.headers["location"])
    next_ = re.search(r'name="next" value="([^"]*)"', form.text)
    assert next_
    answer = await stranger.post("/_/login", identity=ROOT, password=PASSWORD, next=next_[1])
    assert (answer.status_code, answer.headers["location"]) == (303, "/_/jobs?status=failed")
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert "SameSite=lax" in answer.headers["set-cookie"]
    assert (await stranger.get("/_/jobs")).status_code == 200


@pytest.mark.parametrize("next_", ["https://evil.example", "//evil.example", "/\\evil.example", "/_/\\evil", "/other"])
async def test_no_link_leads_elsewhere_after_signing_in(stranger: Visitor, next_: str) -> None:
    answer = await stranger.post("/_/login", identity=ROOT, password=PASSWORD, next=next_)
    assert answer.headers["location"] == "/_/"


async def test_a_wrong_password_says_nothing_about_the_account(stranger: Visitor) -> None:
    for identity in (ROOT, "nobody@example.com"):
        answer = await stranger.post("/_/login", identity=identity, password="wrong password")
        assert answer.status_code == 400
        assert "Email or password is wrong." in answer.text


async def test_a_user_of_the_api_is_no_superuser(stranger: Visitor) -> None:
    answer = await stranger.post("/_/login", identity="ann@example.com", password=PASSWORD)
    assert answer.status_code == 400


async def test_too_many_wrong_tries_have_to_wait(stranger: Visitor) -> None:
    for _ in range(5):
        await stranger.post("/_/login", identity=ROOT, password="wrong password")
    answer = await stranger.post("/_/login", identity=ROOT, password=PASSWORD)
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) > 0


async def test_signing_out_ends_the_session_in_this_browser(sqlite_visitor: Visitor) -> None:
    await sqlite_visitor.post("/_/logout")
    assert (await sqlite_visitor.get("/_/jobs")).status_code == 303


async def test_signing_out_everywhere_ends_every_session(sqlite_visitor: Visitor) -> None:
    root = (await sqlite_visitor.accounts.list("_superusers"))[0]
    answer = await sqlite_visitor.confirm(f"/_/system/superusers/{root.id}/revoke")
    assert answer.status_code == 303
    assert (await sqlite_visitor.get("/_/jobs")).status_code == 303


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://queue.test"},
        {"Origin": "http://queue.test:81"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://queue.test"},
    ],
)
async def test_forms_of_other_origins_are_refused(sqlite_visitor: Visitor, headers: dict[str, str]) -> None:
    job = await sqlite_visitor.queue.enqueue("mail")
    for path in (f"/_/jobs/{job.id}/cancel", "/_/login", "/_/logout", "/_/topics/mail/pause"):
        assert (await sqlite_visitor.post(path, headers)).status_code == 403, path
    assert (await sqlite_visitor.queue.get(job.id)).status == "pending"


async def test_pages_are_never_kept_and_run_only_our_own_scripts(sqlite_visitor: Visitor) -> None:
    for path in (*PAGES, "/_/login", "/_/setup"):
        answer = await sqlite_visitor.get(path)
        assert answer.headers["cache-control"] == "no-store"
        policy = answer.headers["content-security-policy"]
        nonce = re.search(r"script-src 'nonce-([^']+)'", policy)
        assert nonce
        assert policy == (
            f"default-src 'none'; script-src 'nonce-{nonce[1]}'; style-src 'self'; img-src 'self' data:; "
            "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        )
        assert all(f'nonce="{nonce[1]}"' in tag for tag in re.findall(r"<script[^>]*>", answer.text))
        assert not re.search(r"\sstyle=|\son\w+=", answer.text)


async def test_a_public_address_makes_the_cookie_secure(sqlite_url: str) -> None:
    async with visiting(sqlite_url, signed_in=False, public_url="https://jobs.example.com") as visitor:
        answer = await visitor.post(
            "/_/login", {"Origin": "https://jobs.example.com"}, identity=ROOT, password=PASSWORD
        )
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-treadle_auth=")
        assert "Secure" in cookie
        assert "Path=/;" in cookie
        plain = cookie.partition(";")[0].removeprefix("__Host-")
        assert (await visitor.get("/_/", Cookie=plain)).status_code == 303
        assert (await visitor.get("/_/", Cookie=f"__Host-{plain}")).status_code == 200


async def test_wrong_tries_behind_a_proxy_are_counted_by_the_browser_s_own_address(sqlite_url: str) -> None:
    async with visiting(sqlite_url, signed_in=False, trusted_proxies="127.0.0.0/8, 10.0.0.0/8") as visitor:
        for i in range(6):
            bad = {**OURS, "X-Forwarded-For": f"1.2.3.4, 203.0.113.9, 10.0.0.{i}"}
            last = await visitor.post("/_/login", bad, identity=ROOT, password="wrong password")
        assert last.status_code == 429
        good = {**OURS, "X-Forwarded-For": "198.51.100.7"}
        assert (await visitor.post("/_/login", good, identity=ROOT, password=PASSWORD)).status_code == 303


async def test_addresses_of_one_ipv6_network_count_together(sqlite_url: str) -> None:
    async with visiting(sqlite_url, signed_in=False, trusted_proxies="127.0.0.1") as visitor:
        for i in range(6):
            bad = {**OURS, "X-Forwarded-For": f"2001:db8:1:2::{i:x}"}
            last = await visitor.post("/_/login", bad, identity=ROOT, password="wrong password")
        assert last.status_code == 429


async def test_wrong_tries_from_one_ipv6_network_leave_its_neighbours_alone(sqlite_url: str) -> None:
    async with visiting(sqlite_url, signed_in=False, trusted_proxies="127.0.0.1") as visitor:
        for i in range(5):
            bad = {**OURS, "X-Forwarded-For": f"2001:db8:1:2::{i:x}"}
            await visitor.post("/_/login", bad, identity=ROOT, password="wrong password")
        neighbour = {**OURS, "X-Forwarded-For": "2001:db8:1:3::1"}
        assert (await visitor.post("/_/login", neighbour, identity=ROOT, password=PASSWORD)).status_code == 303


async def test_guesses_from_many_addresses_wait_longer_and_the_owner_gets_in(sqlite_url: str) -> None:
    async with visiting(sqlite_url, signed_in=False, trusted_proxies="127.0.0.1") as visitor:
        owner = {**OURS, "X-Forwarded-For": "198.51.100.7"}
        assert (await visitor.post("/_/login", owner, identity=ROOT, password=PASSWORD)).status_code == 303
        answers = [
            await visitor.post(
                "/_/login", {**OURS, "X-Forwarded-For": f"203.0.113.{i}"}, identity=ROOT, password="wrong password"
            )
            for i in range(20)
        ]
        assert [answer.status_code for answer in answers] == [400] * 10 + [429] * 10
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers[10:])
        assert (await visitor.post("/_/login", owner, identity=ROOT, password=PASSWORD)).status_code == 303


async def test_with_a_public_address_forms_of_the_other_scheme_are_refused(sqlite_url: str) -> None:
    async with visiting(sqlite_url, signed_in=False, public_url="https://jobs.example.com") as visitor:
        for origin, status in (("http://jobs.example.com", 403), ("https://jobs.example.com", 303)):
            answer = await visitor.post("/_/login", {"Origin": origin}, identity=ROOT, password=PASSWORD)
            assert answer.status_code == status, origin


async def test_signing_out_takes_the_cookie_back(sqlite_visitor: Visitor) -> None:
    answer = await sqlite_visitor.post("/_/logout")
    assert re.match(r'treadle_auth="?"?;.*Max-Age=0', answer.headers["set-cookie"])
    assert answer.headers["cache-control"] == "no-store"


async def test_answers_around_signing_in_are_never_kept(stranger: Visitor) -> None:
    answers = [
        await stranger.get("/_/jobs"),
        await stranger.get("/_/login"),
        await stranger.post("/_/login", identity=ROOT, password="wrong password"),
        await stranger.post("/_/login", {"Origin": "https://evil.example"}, identity=ROOT, password=PASSWORD),
        await stranger.post("/_/login", identity=ROOT, password=PASSWORD),
        await stranger.get("/_/jobs/none"),
        await stranger.client.post(
            "/api/collections/_superusers/auth-with-password", json={"identity": ROOT, "password": PASSWORD}
        ),
    ]
    assert [answer.status_code for answer in answers] == [303, 200, 400, 403, 303, 404, 200]
    assert {answer.headers.get("cache-control") for answer in answers} == {"no-store"}


async def test_two_people_with_two_links_make_one_superuser(tmp_path: Path) -> None:
    async with visiting(f"sqlite:///{tmp_path}/new.db", signed_in=False) as visitor:
        older, newer = await visitor.accounts.setup_token(), await visitor.accounts.setup_token()
        answers = await asyncio.gather(
            *(
                visitor.post("/_/setup", token=token, email=email, password=PASSWORD, passwordConfirm=PASSWORD)
                for token, email in ((older, "a@example.com"), (newer, "b@example.com"), (newer, "c@example.com"))
            )
        )
        assert sorted(answer.status_code for answer in answers) == [303, 403, 403]
        [made] = await visitor.accounts.list("_superusers")
        assert made.email != "a@example.com", "an older link is dead"


async def test_a_forwarding_header_of_a_stranger_counts_for_nothing(stranger: Visitor) -> None:
    for i in range(6):
        headers = {**OURS, "X-Forwarded-For": f"203.0.113.{i}"}
        last = await stranger.post("/_/login", headers, identity=ROOT, password="wrong password")
    assert last.status_code == 429


async def test_the_first_superuser_is_made_with_the_link(tmp_path: Path) -> None:
    async with visiting(f"sqlite:///{tmp_path}/new.db", signed_in=False) as visitor:
        assert "No superuser exists yet" in (await visitor.get("/_/login")).text
        token = await visitor.accounts.setup_token()
        assert token
        fields = {"token": token, "email": "ada@example.com", "password": PASSWORD, "passwordConfirm": "another one"}
        refused = await visitor.post("/_/setup", **fields)
        assert refused.status_code == 400
        assert "The two are not the same" in refused.text
        short = await visitor.post("/_/setup", **{**fields, "password": "short", "passwordConfirm": "short"})
        assert short.status_code == 400
        made = await visitor.post("/_/setup", **{**fields, "passwordConfirm": PASSWORD})
        assert (made.status_code, made.headers["location"]) == (303, "/_/")
        assert (await visitor.get("/_/")).status_code == 200
        assert "Treadle is set up" in (await visitor.get("/_/setup")).text
        again = await visitor.post("/_/setup", **{**fields, "passwordConfirm": PASSWORD})
        assert again.status_code == 403


async def test_it_is_served_under_a_prefix_too(sqlite_url: str) -> None:
    import httpx
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from treadle import Queue

    async with Queue(sqlite_url) as queue:
        app = Starlette(routes=[Mount("/queue", queue.asgi())])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=SITE) as client:
            assert (await client.get("/queue/_")).headers["location"] == "/queue/_/"
            asked = await client.get("/queue/_/jobs")
            assert asked.headers["location"].startswith("/queue/_/login")
            answer = await client.post("/queue/_/login", data={"identity": ROOT, "password": PASSWORD}, headers=OURS)
            assert answer.headers["location"] == "/queue/_/"
            page = await client.get("/queue/_/")
            links = set(re.findall(r'(?:href|src|action)="(/[^"]*)"', page.text))
            assert links
            assert all(link.startswith("/queue/_") for link in links), links
            style = re.search(r'href="(/queue/_/static/[^"]+\.css)"', page.text)
            assert style
            assert (await client.get(style[1])).headers["cache-control"].startswith("public")
            job = await queue.enqueue("mail", {})
            as_code = (await client.get(f"/queue/_/jobs/{job.id}")).text
            assert "http://queue.test/queue/api/jobs/enqueue" in as_code


async def test_signing_out_ends_the_session_itself(visitor: Visitor) -> None:
    copied = dict(visitor.client.cookies)
    assert (await visitor.post("/_/logout")).status_code == 303
    visitor.client.cookies.update(copied)
    for path in ("/_/", "/_/system", "/_/system/invite"):
        answer = await visitor.get(path)
        assert answer.headers["location"].startswith("/_/login"), path
    assert (await visitor.client.get("/api/jobs")).status_code == 401
