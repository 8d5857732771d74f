"""Enqueues that wait at the same time share one transaction."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.errors import Refused
from treadle.store.base import Inserted, NewJob, Store
from treadle.together import Together

MOST = 500


class Intake:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._together: Together[NewJob, Inserted | Refused] = Together(self._insert, MOST)

    async def add(self, job: NewJob) -> Inserted:
        answer = await self._together(job)
        if isinstance(answer, Refused):
            raise answer
        return answer

    async def _insert(self, jobs: Sequence[NewJob]) -> Sequence[Inserted | Refused]:
        return await self._store.insert(jobs, atomic=False)
