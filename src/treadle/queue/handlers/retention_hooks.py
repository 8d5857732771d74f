"""User functions that retention calls, and where the database keeps which topics have one.

The names are stored, so that a leader whose program has no such function leaves these jobs to a process that has it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, get_args

from treadle.model.errors import InvalidInput
from treadle.model.job import checked_topic
from treadle.queue.handlers.hooks import AnyHook, Hook
from treadle.store.protocol import Store
from treadle.store.values import RecordWrite

RetentionMoment = Literal["on_stale", "on_delete"]
RETENTION_MOMENTS: tuple[RetentionMoment, ...] = get_args(RetentionMoment)
KIND = "retention_hook"
ANY_TOPIC = "*"


class Registration(NamedTuple):
    """There is such a hook for jobs of this topic, in some process."""

    moment: RetentionMoment
    topic: str
    """`*`: every topic."""

    @property
    def id(self) -> str:
        return f"{self.moment} {self.topic}"

    @property
    def office(self) -> str:
        """What a process is elected for that calls the hook."""
        return f"{KIND} {self.id}"

    def __str__(self) -> str:
        return f"{self.moment} of {'every topic' if self.topic == ANY_TOPIC else self.topic}"


class RetentionHooks:
    """The hooks registered on a queue."""

    def __init__(self) -> None:
        self._hooks: dict[Registration, list[Hook]] = defaultdict(list)

    def decorator(self, moment: RetentionMoment, topic: str | None) -> Callable[[AnyHook], AnyHook]:
        if callable(topic):
            raise InvalidInput(f"{moment}: write @queue.{moment}() or @queue.{moment}(topic)", field=moment)
        registration = Registration(moment, ANY_TOPIC if topic is None else checked_topic(topic))

        def add(hook: AnyHook) -> AnyHook:
            if not callable(hook):
                raise InvalidInput(f"{moment}: {hook!r} is not a function", field=moment)
            self._hooks[registration].append(hook)
            return hook

        return add

    @property
    def registrations(self) -> Sequence[Registration]:
        return sorted(self._hooks)

    def of(self, moment: RetentionMoment, topic: str) -> Sequence[Hook]:
        """First those of every topic, then those of this one."""
        return [hook for one in (ANY_TOPIC, topic) for hook in self._hooks.get(Registration(moment, one), ())]


class Registered:
    """All registrations in the database."""

    def __init__(self, found: Iterable[Registration] = ()) -> None:
        self.all = frozenset(found)

    def of(self, moment: RetentionMoment, topic: str) -> Sequence[Registration]:
        """The ones that are about jobs of this topic."""
        return [one for one in (Registration(moment, ANY_TOPIC), Registration(moment, topic)) if one in self.all]


async def registered(store: Store) -> Registered:
    return Registered(_registration(record.id) for record in await store.find_records(KIND, limit=10_000))


def _registration(id_: str) -> Registration:
    moment, _, topic = id_.partition(" ")
    return Registration("on_stale" if moment == "on_stale" else "on_delete", topic)


async def register(store: Store, registrations: Sequence[Registration]) -> None:
    """Store those that are not stored yet."""
    known = (await registered(store)).all
    new = [RecordWrite(KIND, one.id, one.id, "{}") for one in registrations if one not in known]
    if new:
        await store.write_records(new)


async def forget(store: Store, registration: Registration) -> bool:
    """Let every process mark or delete these jobs again. False: it was not stored."""
    return bool(await store.delete_records([(KIND, registration.id)]))
