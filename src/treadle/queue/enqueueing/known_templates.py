"""The templates that new jobs get in this process: from its own handlers, unless an operator decided otherwise."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from treadle.model.errors import InvalidInput
from treadle.model.handler import Handler
from treadle.model.job import checked_topic
from treadle.model.template import Template
from treadle.queue import templates
from treadle.queue.enqueueing.new_jobs import EnqueueOptions, JobMaker, ReadyMaker, checked_options
from treadle.queue.schedules.from_code import save_code
from treadle.queue.schedules.options import CodeSchedule
from treadle.queue.session import Session
from treadle.queue.webhook_urls import UrlRules

# How often to read the saved templates, at most: an operator's switch holds in every process after this time.
MAX_AGE_SECONDS = 1.0


class KnownTemplates:
    def __init__(
        self, handlers: Mapping[str, Handler], code_schedules: Mapping[str, Sequence[CodeSchedule]], urls: UrlRules
    ) -> None:
        self.handlers = handlers
        self._urls = urls
        self._code_schedules = code_schedules
        self.versions: dict[str, int] = {}
        """The number that each template of this process's code was saved as."""

    async def save(self, session: Session) -> None:
        """Save the templates and schedules of this process's code, so that every process knows them."""
        if self.handlers:
            self.versions.update(await templates.save(session.store, self.handlers))
            templates.forget(session)
            await save_code(session.store, self.handlers, self._code_schedules)
        session.saved = True

    async def maker(self, session: Session, topic: str, options: EnqueueOptions, *, joined: bool = False) -> JobMaker:
        """The job maker of this topic, cached for enqueues without options, which are the most common."""
        if time.monotonic() - session.templates_at > MAX_AGE_SECONDS:
            await self.read(session)
        checked_topic(topic)
        handler, own_version = self.handlers.get(topic), self.versions.get(topic)
        if own_version is None and handler is not None and handler.template.secret:
            await self._save_secrets(session, topic, joined)
            own_version = self.versions.get(topic)
        if options:
            if (url := options.get("webhook_url")) is not None:
                self._urls.check(url, "webhook_url")
            return JobMaker(*self.chosen(session, topic), **checked_options(options))
        known = session.makers.get(topic)
        if known is None or known.handler is not handler or known.own_version != own_version:
            maker = JobMaker(*self.chosen(session, topic))
            known = session.makers[topic] = ReadyMaker(maker, handler, own_version)
        return known.maker

    def chosen(self, session: Session, topic: str) -> templates.ChosenTemplate:
        return templates.choose(topic, self.handlers.get(topic), self.versions.get(topic), session.templates.get(topic))

    async def _save_secrets(self, session: Session, topic: str, joined: bool) -> None:
        """Readers learn from the saved template what is secret, so it has to be there before the first job."""
        if joined:
            raise InvalidInput(
                f"{topic}: its handler was registered after the queue was opened, and its secret fields are not saved "
                "yet; await queue.save_templates() before the transaction"
            )
        await self.save(session)

    async def read(self, session: Session) -> None:
        """Refresh the templates if they are old. All callers wait for the read, because they need its policies."""
        if not self.are_old(session):
            return
        if session.reading_templates is None or session.reading_templates.done():
            session.reading_templates = asyncio.create_task(templates.refresh(session))
        await asyncio.shield(session.reading_templates)

    @staticmethod
    def are_old(session: Session) -> bool:
        return time.monotonic() - session.templates_at > MAX_AGE_SECONDS

    async def topics_where(self, session: Session, holds: Callable[[Template], bool]) -> Sequence[str]:
        known = await self.all(session)
        return [topic for topic, template in known.items() if holds(template)]

    async def all(self, session: Session) -> dict[str, Template]:
        """By topic: of this process's handlers and of all saved templates."""
        await self.read(session)
        topics = session.templates.keys() | self.handlers.keys()
        return {topic: self.chosen(session, topic).template for topic in topics}
