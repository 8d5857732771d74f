"""Creating the first superuser with the link that the server printed."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from treadle.accounts import SetupRefused
from treadle.http import documents as doc
from treadle.http import request_models as req
from treadle.http.bodies import ANYBODY, body_of
from treadle.http.errors import ApiError
from treadle.http.openapi import spec
from treadle.http.routes.accounts import signed_in
from treadle.http.server import KNOWN_QUERY, ServerDep

router = APIRouter(tags=["accounts"])


@router.post("/api/setup", **spec(doc.SignedIn, body=req.SetupBody, open_to_all=True), dependencies=[KNOWN_QUERY])
async def setup(
    request: Request, here: ServerDep, body: Annotated[req.SetupBody, Depends(body_of(req.SetupBody, ANYBODY))]
) -> Response:
    """Create the first superuser with the token from the link, and sign in."""
    try:
        account = await here.accounts.redeem_setup(body.token, body.email, body.password)
    except SetupRefused:
        message = "This link is invalid or has been used already; restart the server for a new one."
        raise ApiError(403, "setup_refused", message) from None
    return await signed_in(request, here, account, cookie=True)
