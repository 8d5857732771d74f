"""What the doctor says, examined in the background, because over a million jobs it takes seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

from treadle.store.views import Finding

KEPT_S = 60.0
# How long a page waits for the first answer.
PATIENCE_S = 0.05


class Checkup:
    def __init__(self, examine: Callable[[], Awaitable[Sequence[Finding]]]) -> None:
        self._examine = examine
        self._examining: asyncio.Task[None] | None = None
        self._ended = float("-inf")
        self.findings: Sequence[Finding] | None = None
        """None until the first check has ended."""
        self.at: datetime | None = None

    async def look(self, *, anew: bool = False) -> None:
        """Start a check if the last one is old; wait only for the first one, briefly, or with `anew` for its end."""
        if anew or time.monotonic() - self._ended > KEPT_S:
            if self._examining is None or self._examining.done():
                self._examining = asyncio.create_task(self._run(), name="treadle-checkup")
            if anew:
                await asyncio.shield(self._examining)
            elif self.findings is None:
                await asyncio.wait({self._examining}, timeout=PATIENCE_S)

    async def close(self) -> None:
        if self._examining is not None:
            self._examining.cancel()
            await asyncio.gather(self._examining, return_exceptions=True)

    async def _run(self) -> None:
        found = await self._examine()
        self.findings, self.at, self._ended = found, datetime.now(UTC), time.monotonic()
