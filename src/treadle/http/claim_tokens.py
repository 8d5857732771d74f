"""What external workers send to prove a claim: 128 bits that nobody can guess, different for every claim.

The store's token is a small number. Outside it is an HMAC of the job's id and that number under the key of this
installation. So nothing has to be stored, a claim costs no further write, and every server of the installation
recognises the claims of the others, also after a restart.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Iterable

from treadle.accounts import Accounts
from treadle.queue.external import Proof

BYTES = 16


class ClaimTokens:
    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts

    async def texts(self, claims: Iterable[tuple[str, int]]) -> list[str]:
        """The tokens to hand out for these claims: ids of jobs and numbers."""
        claims = list(claims)
        key = await self._accounts.keys.current() if claims else ""
        return [_text(key, job_id, number) for job_id, number in claims]

    async def proof(self, job_id: str, text: str) -> Proof:
        keys = await self._accounts.accepted_keys()

        def proves(number: int) -> bool:
            given = text.encode(errors="replace")
            return any(hmac.compare_digest(_text(key, job_id, number).encode(), given) for key in keys)

        return proves


def _text(key: str, job_id: str, number: int) -> str:
    made = hmac.digest(key.encode(), f"claim {job_id.lower()} {number}".encode(), "sha256")
    return urlsafe_b64encode(made[:BYTES]).decode().rstrip("=")
