"""Sign-in, sign-out, creating the first superuser, and accepting an invitation."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.responses import Response

from treadle.accounts import SUPERUSERS, Account, AccountExists, SetupRefused, SignInFailed, TooManyAttempts
from treadle.dashboard.page import Page, read_only_error
from treadle.http.routes.accounts import COOKIE_S
from treadle.model.errors import InvalidInput
from treadle.queue.audit import Actor


async def login(page: Page) -> Response:
    return await _login(page, page.query("next"))


async def _login(page: Page, next: str, problem: str = "", identity: str = "", status: int = 200) -> Response:
    exists = await page.state.server.accounts.superuser_exists()
    return await page.render(
        "login", status, title="Sign in", next=next, problem=problem, identity=identity, no_superuser=not exists
    )


async def sign_in(page: Page) -> Response:
    identity, next = await page.field("identity"), await page.field("next")
    password = ((await page.form()).get("password") or [""])[0]
    accounts = page.state.server.accounts
    try:
        account = await accounts.sign_in(SUPERUSERS, identity, password, page.state.server.origin.client(page.request))
    except SignInFailed:
        return await _login(page, next, "Email or password is wrong.", identity, 400)
    except TooManyAttempts as error:
        seconds = max(int(error.retry_after + 0.999), 1)
        problem = f"Too many wrong tries. Wait {seconds} s and try again."
        response = await _login(page, next, problem, identity, 429)
        response.headers["Retry-After"] = str(seconds)
        return response
    return await _welcome(page, account, page.local(next, page.url("/")))


async def _welcome(page: Page, account: Account, address: str) -> Response:
    response = page.redirect(address)
    await page.state.server.accounts.last_seen.note(account.id)
    token = await page.state.server.accounts.token(account)
    page.state.server.origin.set_cookie(page.request, response, token, COOKIE_S[SUPERUSERS])
    return response


async def sign_out(page: Page) -> Response:
    """End the session on the server too: a copy of the cookie is worth nothing afterwards."""
    server = page.state.server
    if token := server.origin.token(page.request):
        await server.accounts.sign_out(token)
    response = page.redirect(page.url("/login"))
    page.state.server.origin.drop_cookie(page.request, response)
    return response


async def setup(page: Page) -> Response:
    return await _show(page, SETUP)


async def set_up(page: Page) -> Response:
    return await _redeem(page, SETUP)


async def invitation(page: Page) -> Response:
    return await _show(page, INVITATION)


async def accept(page: Page) -> Response:
    if page.read_only:
        raise read_only_error()
    return await _redeem(page, INVITATION)


# -- links that make a superuser -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Link:
    title: str
    invited: bool
    refused: str


SETUP = _Link(
    "Set up", False, "This link was used already, or is no longer valid. Start the server again for a new one."
)
INVITATION = _Link("Invitation", True, "This link was used already, or is no longer valid. Ask for a new one.")


async def _redeem(page: Page, link: _Link) -> Response:
    """Create the superuser, and sign in."""
    accounts = page.state.server.accounts
    token, email = await page.field("token"), await page.field("email")
    password, again = [((await page.form()).get(name) or [""])[0] for name in ("password", "passwordConfirm")]
    if password != again:
        problems = {"again": "The two are not the same. Type both again."}
        return await _show(page, link, problems=problems, email=email, token=token, status=400)
    redeem = accounts.redeem_invitation if link.invited else accounts.redeem_setup
    try:
        account = await redeem(token, email, password)
    except SetupRefused:
        return await _show(page, link, link.refused, email=email, status=403)
    except (InvalidInput, AccountExists) as error:
        return await _show(page, link, problems=_problem(error), email=email, token=token, status=400)
    if link.invited:
        await page.state.audit.add(Actor(account.email), "accept_invitation")
    return await _welcome(page, account, page.url("/"))


async def _show(
    page: Page,
    link: _Link,
    problem: str = "",
    *,
    problems: dict[str, str] | None = None,
    email: str = "",
    token: str = "",
    status: int = 200,
) -> Response:
    return await page.render(
        "setup",
        status,
        title=link.title,
        invited=link.invited,
        done=not link.invited and await page.state.server.accounts.superuser_exists(),
        problem=problem,
        problems=problems or {},
        email=email,
        token=token,
    )


def _problem(error: InvalidInput | AccountExists) -> dict[str, str]:
    text = error.message.partition(": ")[2] if isinstance(error, InvalidInput) else f"{error.message}."
    return {str(error.data.get("field")): text}
