"""Jobs that a user's program enqueues in its own transaction."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import closing
from typing import Any, NamedTuple

from tests.model.model import Model
from tests.model.stores import Side
from treadle.model.errors import Refused
from treadle.store.protocol import Store
from treadle.store.values import Inserted, NewJob


class Call(NamedTuple):
    """One enqueue of one or more jobs: as the model sees them, and as the stores do."""

    mine: list[NewJob]
    theirs: list[NewJob]
    atomic: bool
    expected: list[str]


def answer_of(model: Model, batch: Sequence[tuple[NewJob, NewJob]], atomic: bool, joined: bool) -> Call:
    mine, theirs = [one for one, _ in batch], [other for _, other in batch]
    return Call(mine, theirs, atomic, model.insert(mine, atomic, joined))


async def enqueued(store: Store, call: Call, connection: Any = None) -> list[str]:
    try:
        answers = await store.insert(call.theirs, atomic=call.atomic, connection=connection)
    except Refused as refusal:
        # Of several refusals an atomic batch raises any one.
        name = type(refusal).__name__
        return call.expected if call.atomic and name in call.expected else [name]
    return [
        answer.existing_id or "made" if isinstance(answer, Inserted) else type(answer).__name__ for answer in answers
    ]


class UserTransaction:
    """Jobs enqueued in it are invisible until it commits."""

    def __init__(self, model: Model) -> None:
        self.after = copy.deepcopy(model)
        """The model as it will be after a commit, if nothing else changes what it depends on."""
        self.calls: list[Call] = []
        self._connection: Any = None

    def add(self, batch: Sequence[tuple[NewJob, NewJob]], atomic: bool) -> None:
        self.calls.append(answer_of(self.after, batch, atomic, joined=True))

    @property
    def made(self) -> list[NewJob]:
        """The jobs it would leave behind."""
        return [one for call in self.calls for one in call.mine if one.id in self.after.jobs]

    @property
    def expected(self) -> list[list[str]]:
        return [call.expected for call in self.calls]

    async def run(self, side: Side, *, commit: bool) -> list[list[str]]:
        with closing(side.user_connection()) as connection:
            answers = [await enqueued(side.store, call, connection) for call in self.calls]
            await self._look_inside(side, connection)
            connection.execute("COMMIT" if commit else "ROLLBACK")
        return answers

    async def begin(self, side: Side) -> list[list[str]]:
        """Do everything but end it."""
        self._connection = side.user_connection()
        answers = [await enqueued(side.store, call, self._connection) for call in self.calls]
        await self._look_inside(side, self._connection)
        return answers

    def end(self, *, commit: bool) -> None:
        if self._connection is not None:
            self._connection.execute("COMMIT" if commit else "ROLLBACK")
            self._connection.close()

    def replay(self, model: Model) -> None:
        """Do it to the model."""
        for call in self.calls:
            assert model.insert(call.mine, call.atomic, joined=True) == call.expected, "it depended on something else"

    async def _look_inside(self, side: Side, connection: Any) -> None:
        """Its own connection sees all of its jobs."""
        ids = [one.id for one in self.made]
        seen = await side.store.get(ids, connection=connection) if ids else []
        for id, job in zip(ids, seen, strict=True):
            assert job is not None, f"{side.dialect}: its own transaction does not see job {id}"
            assert job.status.value == self.after.jobs[id].status
