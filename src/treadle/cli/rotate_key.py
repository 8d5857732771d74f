"""`treadle rotate-key`: ends all tokens that were signed until now."""

from __future__ import annotations

import asyncio

from treadle.cli import options
from treadle.cli.database import named_database, writable
from treadle.cli.output import print_json, say


def rotate_key(db: options.Db = None, as_json: options.AsJson = False) -> None:
    """Replace the key that signs the tokens of accounts.

    Everybody has to sign in again, and jobs that external workers hold run again after their leases. API keys stay
    valid. With TREADLE_SECRET_KEY, the keys before it are deleted; change it to replace it.
    """
    from treadle.accounts.signing_keys import SigningKeys

    async def rotate() -> str:
        async with writable(db) as queue:
            await SigningKeys(queue.store, queue.key_file, queue.settings.secret_key).rotate()
            return named_database(queue, db)

    where = asyncio.run(rotate())
    if as_json:
        print_json({"rotated": True})
    else:
        say(f"the signing key was replaced; everybody has to sign in again{where}")
