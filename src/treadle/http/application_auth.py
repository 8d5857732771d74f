"""The host application says who calls: `queue.asgi(auth=…)`."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request

from treadle.accounts import Caller
from treadle.http.errors import ApiError
from treadle.model.caller import Caller as ApplicationUser

log = logging.getLogger("treadle.http")

Auth = Callable[[Request], Awaitable[ApplicationUser | None]]


async def application_caller(auth: Auth, request: Request) -> Caller | None:
    """The application's user behind this request, or None if Treadle's own accounts decide.

    An error of the function is the application's, so it goes to the log and not to the client; an HTTPException is its
    answer to the client.
    """
    try:
        answer = auth(request)
        user = await answer if inspect.isawaitable(answer) else answer
        if user is None:
            return None
        if not isinstance(user, ApplicationUser):
            raise TypeError(f"auth= returned {type(user).__name__}; return treadle.Caller(id=…) or None")
        return Caller.of_application(user)
    except HTTPException as refused:
        codes = {401: "unauthorized", 403: "forbidden"}
        code = codes.get(refused.status_code, "auth_failed")
        raise ApiError(refused.status_code, code, str(refused.detail)[:300], headers=refused.headers) from None
    except ApiError:
        raise
    except Exception:
        log.exception("the function given to queue.asgi(auth=…) failed")
        message = "The application could not say who calls; its log says why."
        raise ApiError(500, "auth_failed", message) from None
