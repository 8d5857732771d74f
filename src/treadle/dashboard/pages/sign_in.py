"""Sign-in, sign-out and creating the first superuser."""

from __future__ import annotations

from starlette.responses import Response

from treadle.accounts import SUPERUSERS, Account, SetupRefused, SignInFailed, TooManyAttempts
from treadle.dashboard.page import Page
from treadle.http.routes.accounts import COOKIE_S
from treadle.model.errors import InvalidInput


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
    token = await page.state.server.accounts.token(account)
    page.state.server.front.set_cookie(page.request, response, token, COOKIE_S[SUPERUSERS])
    return response


async def sign_out(page: Page) -> Response:
    response = page.redirect(page.url("/login"))
    page.state.server.front.drop_cookie(page.request, response)
    return response


async def setup(page: Page) -> Response:
    return await _setup(page)


async def _setup(
    page: Page,
    problem: str = "",
    problems: dict[str, str] | None = None,
    email: str = "",
    token: str = "",
    status: int = 200,
) -> Response:
    done = await page.state.server.accounts.superuser_exists()
    return await page.render(
        "setup",
        status,
        title="Set up",
        done=done,
        problem=problem,
        problems=problems or {},
        email=email,
        token=token,
    )


async def set_up(page: Page) -> Response:
    email, token = await page.field("email"), await page.field("token")
    form = await page.form()
    password, again = ((form.get(name) or [""])[0] for name in ("password", "passwordConfirm"))
    if password != again:
        return await _setup(
            page, problems={"again": "The two are not the same. Type both again."}, email=email, token=token, status=400
        )
    try:
        account = await page.state.server.accounts.redeem_setup(token, email, password)
    except SetupRefused:
        message = "This link was used already, or is no longer valid. Start the server again for a new one."
        return await _setup(page, message, email=email, status=403)
    except InvalidInput as error:
        field = str(error.data.get("field"))
        return await _setup(
            page, problems={field: error.message.partition(": ")[2]}, email=email, token=token, status=400
        )
    return await _welcome(page, account, page.url("/"))
