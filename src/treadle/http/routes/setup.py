"""The first superuser: whoever has the link that the server printed."""

from __future__ import annotations

import base64
import hashlib
from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from treadle.accounts import SetupRefused
from treadle.http import documents as doc
from treadle.http.bodies import body_of
from treadle.http.errors import ApiError
from treadle.http.openapi import spec
from treadle.http.routes.accounts import signed_in
from treadle.http.server import Here

router = APIRouter(tags=["accounts"])

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 24rem; margin: 12vh auto; padding: 0 1rem }
label { display: block; margin: 1rem 0 .25rem }
input { width: 100%; box-sizing: border-box; font: inherit; padding: .5rem }
button { margin-top: 1.5rem; font: inherit; padding: .5rem 1rem }
"""
_SCRIPT = """
document.querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const told = document.querySelector("[role=status]");
  const form = new FormData(event.target);
  const token = new URLSearchParams(location.search).get("token") || "";
  const body = JSON.stringify({ token, email: form.get("email"), password: form.get("password") });
  const answer = await fetch("../api/setup", { method: "POST", headers: { "Content-Type": "application/json" }, body });
  const found = await answer.json();
  const done = () => "Done: you are the superuser " + found.record.email + ", and signed in.";
  told.textContent = answer.ok ? done() : found.message;
  if (answer.ok) event.target.hidden = true;
});
"""
_PAGE = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Set up Treadle</title><style>{_STYLE}</style></head><body>
<h1>Set up Treadle</h1>
<p>Choose how you sign in. This link works once.</p>
<form><label for="email">E-mail address</label>
<input id="email" name="email" type="email" autocomplete="username" required autofocus>
<label for="password">Password, 8 characters or more</label>
<input id="password" name="password" type="password" autocomplete="new-password" minlength="8" required>
<button>Become the superuser</button></form>
<p role="status"></p><script>{_SCRIPT}</script></body></html>
"""


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_POLICY = (
    f"default-src 'none'; style-src {_hash(_STYLE)}; script-src {_hash(_SCRIPT)}; connect-src 'self'; "
    "frame-ancestors 'none'; form-action 'none'; base-uri 'none'"
)


@router.get("/_/setup", include_in_schema=False)
async def setup_page() -> Response:
    return HTMLResponse(_PAGE, headers={"Content-Security-Policy": _POLICY, "Referrer-Policy": "no-referrer"})


@router.post("/api/setup", **spec(doc.SignedIn, body=doc.SetupBody, open_to_all=True))
async def setup(
    request: Request, here: Here, body: Annotated[doc.SetupBody, Depends(body_of(doc.SetupBody))]
) -> Response:
    """Become the first superuser with the link's token; signs in as well."""
    try:
        account = await here.accounts.redeem_setup(body.token, body.email, body.password)
    except SetupRefused:
        message = "This link was used already, or is not valid; start the server again for a new one."
        raise ApiError(403, "setup_refused", message) from None
    return await signed_in(request, here, account, cookie=True)
