"""Sign-in, compatible with PocketBase's clients."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path
from starlette.requests import Request
from starlette.responses import Response

from treadle.accounts import SUPERUSERS, USERS, Account, SignInFailed, TooManyAttempts
from treadle.http import documents as doc
from treadle.http import request_models as req
from treadle.http.access import refusal
from treadle.http.bodies import ANYBODY, read_body
from treadle.http.errors import REQUIRED, ApiError
from treadle.http.openapi import spec
from treadle.http.server import Server, ServerDep, answer

router = APIRouter(tags=["accounts"])
CollectionName = Annotated[str, Path(json_schema_extra={"enum": [USERS, SUPERUSERS]})]
DAY_S = 86_400
COOKIE_S = {USERS: 5 * DAY_S, SUPERUSERS: DAY_S}


async def _credentials(request: Request) -> req.SignInBody:
    """The body; errors in it have PocketBase's messages."""
    _check_collection(request.path_params["collection"])
    try:
        return await read_body(request, req.SignInBody, ANYBODY)
    except ApiError as error:
        if error.status != 400:
            raise
        blank = bool(error.data) and all(field["code"] == REQUIRED for field in error.data.values())
        data = {name: {"code": REQUIRED, "message": "Cannot be blank."} for name in error.data} if blank else error.data
        message = f"An error occurred while {'validating' if blank else 'loading'} the submitted data."
        raise ApiError(400, error.code, message, data) from None


@router.post(
    "/api/collections/{collection}/auth-with-password",
    **spec(doc.SignedIn, body=req.SignInBody, errors=(404, 429), open_to_all=True),
)
async def auth_with_password(
    request: Request,
    here: ServerDep,
    collection: CollectionName,
    body: Annotated[req.SignInBody, Depends(_credentials)],
    cookie: bool = False,
) -> Response:
    """A token for an e-mail address and its password; with `cookie=true` also a session for the browser.

    Any token sent with the request is ignored, because an expired one may be the reason for signing in.
    """
    try:
        account = await here.accounts.sign_in(collection, body.identity, body.password, here.origin.client(request))
    except SignInFailed:
        raise ApiError(400, "sign_in_failed", "Failed to authenticate.") from None
    except TooManyAttempts as error:
        headers = {"Retry-After": str(max(int(error.retry_after + 0.999), 1))}
        raise ApiError(
            429, "too_many_attempts", "Too many attempts to sign in; wait a little.", headers=headers
        ) from None
    return await signed_in(request, here, account, cookie)


@router.post("/api/collections/{collection}/auth-refresh", **spec(doc.SignedIn, errors=(404,)))
async def auth_refresh(request: Request, here: ServerDep, collection: CollectionName) -> Response:
    """Exchange a valid token for a new one."""
    caller = await here.access.caller(request)
    _check_collection(collection)
    if caller.account is None:
        raise refusal(caller)
    if caller.account.collection != collection:
        message = f"The request requires auth record from {caller.account.collection} collection."
        raise ApiError(403, "forbidden", message)
    cookie = here.origin.token(request) is not None
    return await signed_in(request, here, caller.account, cookie, instead_of=here.access.token(request))


def _check_collection(name: str) -> None:
    if name not in COOKIE_S:
        raise ApiError(404, "not_found", "Missing or invalid auth collection context.")


async def signed_in(
    request: Request, here: Server, account: Account, cookie: bool, instead_of: str | None = None
) -> Response:
    token = await here.accounts.token(account, instead_of)
    response = answer({"token": token, "record": account.as_json()})
    response.headers["Cache-Control"] = "no-store"
    if cookie:
        here.origin.set_cookie(request, response, token, COOKIE_S[account.collection])
    return response
