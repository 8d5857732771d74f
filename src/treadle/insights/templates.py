"""Reads the saved templates of all topics."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.policy.saved_template import KIND, VERSION_KIND, Definition, SavedTemplate, from_body, version_id
from treadle.store.protocol import Store
from treadle.store.values import Record

MOST_TEMPLATES = 100_000


async def saved_templates(store: Store) -> dict[str, SavedTemplate]:
    return {record.id: template_from(record) for record in await store.find_records(KIND, limit=MOST_TEMPLATES)}


def template_from(record: Record) -> SavedTemplate:
    return from_body(record.id, record.body, record.created_at, record.updated_at)


async def definitions(store: Store, templates: Mapping[str, SavedTemplate]) -> dict[str, dict[int, Definition]]:
    """Every definition that was saved for these topics, by topic and number."""
    from pydantic_core import from_json

    wanted = [(topic, one.version) for topic, saved in templates.items() for one in saved.versions]
    records = await store.get_records([(VERSION_KIND, version_id(*one)) for one in wanted])
    found: dict[str, dict[int, Definition]] = {topic: {} for topic in templates}
    for (topic, number), record in zip(wanted, records, strict=True):
        if record is not None:
            found[topic][number] = from_json(record.body)
    return found
