"""Signs webhooks in two ways, so that receivers can use a library for either.

Standard Webhooks (standardwebhooks.com) signs `id.timestamp.body` with the bytes that `whsec_…` encodes, so a message
can't be sent again later or under another id. `X-JobQueue-Signature` signs the body alone, with the secret as text.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Sequence

from treadle.model.errors import InvalidInput

PREFIX = "whsec_"
LEAST_BYTES, MOST_BYTES = 24, 64


def signed_headers(webhook_id: str, timestamp: int, body: bytes, secrets: Sequence[str]) -> dict[str, str]:
    """`timestamp` is in seconds. `secrets`, the newest first, may be none: then nothing is signed."""
    headers = {"webhook-id": webhook_id, "webhook-timestamp": str(timestamp)}
    if secrets:
        signed = f"{webhook_id}.{timestamp}.".encode() + body
        headers["webhook-signature"] = " ".join(f"v1,{_standard(secret, signed)}" for secret in secrets)
        # It has no room for a second signature, so during a rotation it is the new secret's.
        headers["X-JobQueue-Signature"] = f"sha256={hmac.digest(secrets[0].encode(), body, 'sha256').hex()}"
    return headers


def _standard(secret: str, signed: bytes) -> str:
    return b64encode(hmac.digest(signing_key(secret), signed, "sha256")).decode()


def signing_key(secret: str) -> bytes:
    """The bytes behind `whsec_…`; any other secret is used as text."""
    if not secret.startswith(PREFIX):
        return secret.encode()
    text = secret.removeprefix(PREFIX).rstrip("=")  # some tools leave the padding out
    return b64decode(text + "=" * (-len(text) % 4), validate=True)


def secret_of(key: bytes) -> str:
    return PREFIX + b64encode(key).decode()


def checked_secret(secret: str, field: str = "secret") -> str:
    """A secret that a user chose. The message never contains it."""
    if not secret or not secret.isascii() or not secret.isprintable():
        raise InvalidInput(f"{field}: a secret is printable ASCII", field=field)
    if not secret.startswith(PREFIX):
        return secret
    try:
        length = len(signing_key(secret))
    except (Error, ValueError):
        raise InvalidInput(f"{field}: what follows {PREFIX} is not base64", field=field) from None
    if not LEAST_BYTES <= length <= MOST_BYTES:
        message = f"{field}: {PREFIX} is followed by {LEAST_BYTES} to {MOST_BYTES} bytes in base64, not by {length}"
        raise InvalidInput(message, field=field)
    return secret
