"""Users, superusers, API keys, tokens and sign-in."""

from treadle.accounts.account import SCOPES, SUPERUSERS, USERS, Account, ApiKey, Caller, Collection
from treadle.accounts.accounts import Accounts
from treadle.accounts.api_keys import ApiKeys
from treadle.accounts.errors import (
    AccountExists,
    AccountNotFound,
    ApiKeyNotFound,
    LastSuperuser,
    SetupRefused,
    SignInFailed,
    TooManyAttempts,
)
from treadle.accounts.passwords import Passwords
from treadle.accounts.signing_keys import ReadRecords
from treadle.accounts.throttle import SignInThrottle

__all__ = [
    "SCOPES",
    "SUPERUSERS",
    "USERS",
    "Account",
    "AccountExists",
    "AccountNotFound",
    "Accounts",
    "ApiKey",
    "ApiKeyNotFound",
    "ApiKeys",
    "Caller",
    "Collection",
    "LastSuperuser",
    "Passwords",
    "ReadRecords",
    "SetupRefused",
    "SignInFailed",
    "SignInThrottle",
    "TooManyAttempts",
]
