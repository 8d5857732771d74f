"""When each superuser last opened a page of the dashboard, to the minute."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime

from pydantic_core import from_json, to_json

from treadle.accounts.background_writes import BackgroundWrites
from treadle.model.errors import TreadleError
from treadle.model.job import from_ms
from treadle.store.protocol import Store
from treadle.store.values import RecordWrite

log = logging.getLogger("treadle.http")

KIND = "last_seen"
NOTED_EVERY_MS = 60_000


class LastSeen:
    """One record for each account, so that noting it changes neither the account nor its version."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._noted: dict[str, int] = {}
        self._writes = BackgroundWrites()

    async def all(self) -> Mapping[str, datetime]:
        """By the id of the account."""
        records = await self._store.find_records(KIND)
        return {one.id: at for one in records if (at := from_ms(from_json(one.body)["at"]))}

    async def note(self, account_id: str) -> None:
        """At most once a minute."""
        if (now := self._due(account_id)) is not None:
            await self._write(account_id, now)

    def note_soon(self, account_id: str) -> None:
        """The same in the background: a page must not wait for a database that is busy writing."""
        if (now := self._due(account_id)) is not None:
            self._writes.start(self._write(account_id, now), "treadle-last-seen")

    def _due(self, account_id: str) -> int | None:
        """The time to note; None if less than a minute has passed since the last one."""
        now = int(self._clock() * 1000)
        if now - self._noted.get(account_id, 0) < NOTED_EVERY_MS:
            return None
        self._noted[account_id] = now
        return now

    async def close(self) -> None:
        await self._writes.close()

    async def _write(self, account_id: str, now: int) -> None:
        try:
            (record,) = await self._store.get_records([(KIND, account_id)])
            version = None if record is None else record.version
            body = to_json({"at": now}).decode()
            # By its version: if another server has noted it in the meantime, that is as good.
            await self._store.write_records([RecordWrite(KIND, account_id, account_id, body, version=version)])
        except TreadleError as error:
            log.warning("could not note that account %s was seen: %s", account_id, error)
