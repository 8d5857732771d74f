"""Opening and closing a queue: its database, and a session on each event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from treadle.model.errors import InvalidInput, SchemaMismatch
from treadle.model.handler import Handler
from treadle.model.settings import Settings
from treadle.queue import own_settings
from treadle.queue.enqueueing.known_templates import KnownTemplates
from treadle.queue.listeners import Listeners
from treadle.queue.runtime_settings import RuntimeSettings
from treadle.queue.schedules.options import CodeSchedule
from treadle.queue.session import Session, Sessions
from treadle.queue.webhook_urls import UrlRules, save_queue_url
from treadle.store.connect import key_file, make_store, plain_url, shown
from treadle.store.protocol import Store


class OpenedQueue:
    """The part of `Queue` that the others stand on."""

    listeners: Listeners

    def __init__(self, url: str | None = None, *, migrate: bool = True, **options: Any) -> None:
        self.settings: Settings = own_settings.load().override({**options, "db": url})
        self.url = plain_url(self.settings.db)
        self.handlers: dict[str, Handler] = {}
        self._migrate = migrate
        self._sessions = Sessions(self._open_session)
        self._code_schedules: dict[str, list[CodeSchedule]] = {}
        self._urls = UrlRules(self.settings)
        self._known = KnownTemplates(self.handlers, self._code_schedules, self._urls)
        make_store(self.url, stale_after_ms=self.settings.stale_after_ms)  # raises if the URL is invalid

    async def open(self) -> Self:
        """Connect and bring the schema up to date; calling it again does nothing."""
        await self._session()
        return self

    async def close(self) -> None:
        """Close everything that is open on this event loop; otherwise that happens when the loop ends."""
        await self._sessions.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def store(self) -> Store:
        """The open store of the running event loop."""
        return self._sessions.current().store

    @property
    def site(self) -> RuntimeSettings:
        """The settings that operators have saved in this database."""
        return self._sessions.current().site

    @property
    def key_file(self) -> Path | None:
        """Where a server keeps the key that signs tokens; None: in the database."""
        return key_file(self.url)

    def new_store(self) -> Store:
        """A new, unopened store on the same database."""
        return make_store(self.url, stale_after_ms=self.settings.stale_after_ms)

    def use(self, url: str | None = None, *, migrate: bool = True) -> None:
        """Switch to another database (the command line's --db), or don't migrate. Call it before opening the queue."""
        if self._sessions:
            raise InvalidInput("the queue is open already")
        self._migrate = self._migrate and migrate
        if url is not None:
            self.settings = self.settings.override({"db": url})
            self.url = plain_url(url)
            self.new_store()

    async def migrate(self) -> list[str]:
        """Bring the schema up to date; returns the names of the applied migrations."""
        store = self.new_store()
        waiting: list[str] = []
        try:
            await store.open(migrate=False)
        except SchemaMismatch as mismatch:
            waiting = mismatch.data.get("missing", [])
            if not waiting:
                raise
            store = self.new_store()
            await store.open(migrate=True)
        await store.close()
        return waiting

    async def _session(self, *, joined: bool = False) -> Session:
        """This loop's session, with the templates saved.

        `joined` is for a call inside the caller's transaction. It writes nothing elsewhere: that transaction may hold
        SQLite's only write lock, and the call would wait for itself.
        """
        session = await self._sessions.opened()
        if self.listeners.waiting:
            await self.listeners.begin(session)
        if joined:
            await self._known.read(session)
        elif not session.saved:
            if session.saving is None or session.saving.done():
                session.saving = asyncio.create_task(self._save(session))
            await asyncio.shield(session.saving)
        return session

    async def _save(self, session: Session) -> None:
        await save_queue_url(session.store, self.settings.webhook_url)
        await self._known.save(session)

    async def _open_session(self) -> Session:
        store = self.new_store()
        await store.open(self._migrate)
        site = RuntimeSettings(store, self.settings)
        try:
            await site.read()  # servers and workers read it again regularly, a plain queue does not
        except BaseException:
            await store.close()
            raise
        return Session(store, site)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {shown(self.url)}>"
