"""Errors about accounts, keys and sign-in."""

from __future__ import annotations

from typing import Any

from treadle.model.errors import TreadleError, WrongState


class SignInFailed(TreadleError):
    """Wrong password or unknown account. Both have the same text, so the caller can't tell which."""

    code = "sign_in_failed"

    def __init__(self) -> None:
        super().__init__("Failed to authenticate.")


class TooManyAttempts(TreadleError):
    """Too many failed sign-ins; `retry_after` is the number of seconds to wait."""

    code = "too_many_attempts"

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"Too many attempts to sign in; try again in {retry_after} s.", retryAfter=retry_after)
        self.retry_after = retry_after


class AccountNotFound(TreadleError, LookupError):
    """No account has this id or e-mail address."""

    code = "account_not_found"


class AccountExists(TreadleError):
    """The e-mail address belongs to another account."""

    code = "account_exists"


class LastSuperuser(WrongState):
    """The last superuser can't be deleted."""

    code = "last_superuser"


class ApiKeyNotFound(TreadleError, LookupError):
    """No API key has this id."""

    code = "api_key_not_found"


class SetupRefused(TreadleError):
    """The set-up link is invalid, used up or expired, or a superuser already exists."""

    code = "setup_refused"

    def __init__(self, message: str = "", **data: Any) -> None:
        super().__init__(
            message
            or "this set-up link is not valid or has been used already; restart the server for a new one, or run "
            "treadle superuser upsert",
            **data,
        )
