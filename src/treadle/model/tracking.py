"""Track tokens: whoever has one may follow one job, without an account."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

PREFIX = "trk_"
_FORM = re.compile(r"trk_[A-Za-z0-9_-]{32}")


def new_token() -> str:
    """192 random bits, so the token can't be guessed and its hash needs no salt."""
    return PREFIX + secrets.token_urlsafe(24)


def is_token(text: str) -> bool:
    return _FORM.fullmatch(text) is not None


def hash_of(token: str) -> str:
    """What is stored."""
    return hashlib.sha256(token.encode()).hexdigest()


def opens(token: str, stored: str | None) -> bool:
    return stored is not None and hmac.compare_digest(hash_of(token), stored)
