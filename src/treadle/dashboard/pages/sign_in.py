"""Sign-in, sign-out, creating the first superuser, and accepting an invitation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

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
        account = await accounts.sign_in(SUPERUSERS, identity, password, page.state.server.front.client(page.request))
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
    page.state.server.front.set_cookie(page.request, response, token, COOKIE_S[SUPERUSERS])
    return response


async def sign_out(page: Page) -> Response:
    response = page.redirect(page.url("/login"))
    page.state.server.front.drop_cookie(page.request, response)
    return response


async def setup(page: Page) -> Response:
    return await _setup(page)


async def set_up(page: Page) -> Response:
    if refused := await _two_passwords(page, _setup):
        return refused
    token, email, password = await _given(page)
    try:
        account = await page.state.server.accounts.redeem_setup(token, email, password)
    except SetupRefused:
        message = "This link was used already, or is no longer valid. Start the server again for a new one."
        return await _setup(page, message, email=email, status=403)
    except InvalidInput as error:
        return await _setup(page, problems=_problem(error), email=email, token=token, status=400)
    return await _welcome(page, account, page.url("/"))


async def invitation(page: Page) -> Response:
    return await _invitation(page)


async def accept(page: Page) -> Response:
    """Create the invited superuser, and sign in."""
    if page.read_only:
        raise read_only_error()
    if refused := await _two_passwords(page, _invitation):
        return refused
    token, email, password = await _given(page)
    try:
        account = await page.state.server.accounts.redeem_invitation(token, email, password)
    except SetupRefused:
        message = "This link was used already, or is no longer valid. Ask for a new one."
        return await _invitation(page, message, email=email, status=403)
    except (InvalidInput, AccountExists) as error:
        return await _invitation(page, problems=_problem(error), email=email, token=token, status=400)
    await page.state.audit.add(Actor(account.email), "accept_invitation")
    return await _welcome(page, account, page.url("/"))


# -- the form of both ------------------------------------------------------------------------------


async def _setup(page: Page, problem: str = "", **given: Any) -> Response:
    done = await page.state.server.accounts.superuser_exists()
    return await _new_superuser(page, problem, invited=False, title="Set up", done=done, **given)


async def _invitation(page: Page, problem: str = "", **given: Any) -> Response:
    return await _new_superuser(page, problem, invited=True, title="Invitation", done=False, **given)


async def _new_superuser(
    page: Page,
    problem: str,
    *,
    problems: dict[str, str] | None = None,
    email: str = "",
    token: str = "",
    status: int = 200,
    **context: Any,
) -> Response:
    return await page.render(
        "setup", status, problem=problem, problems=problems or {}, email=email, token=token, **context
    )


async def _given(page: Page) -> tuple[str, str, str]:
    return await page.field("token"), await page.field("email"), ((await page.form()).get("password") or [""])[0]


async def _two_passwords(page: Page, show: Callable[..., Awaitable[Response]]) -> Response | None:
    """The form again if the password was typed in two ways."""
    token, email, password = await _given(page)
    if password == ((await page.form()).get("passwordConfirm") or [""])[0]:
        return None
    problems = {"again": "The two are not the same. Type both again."}
    return await show(page, problems=problems, email=email, token=token, status=400)


def _problem(error: InvalidInput | AccountExists) -> dict[str, str]:
    text = error.message.partition(": ")[2] if isinstance(error, InvalidInput) else f"{error.message}."
    return {str(error.data.get("field")): text}
