"""Ids as people type them: whole, their first characters, or their last ones as the dashboard shows them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from treadle.model.errors import InvalidInput, JobNotFound
from treadle.model.job import is_job_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from treadle.queue import Queue

_PART = re.compile(r"[0-9a-f-]{4,35}")
SHOWN = 3


async def whole_id(queue: Queue, text: str) -> str:
    """The id that begins or ends like this, if there is one only."""
    part = text.strip("…").lower()
    if is_job_id(text) or not _PART.fullmatch(part):
        return text
    for pattern, word in ((f"{part}%", "begin"), (f"%{part}", "end")):
        found = await queue.list(filter=f'id ~ "{pattern}"', limit=SHOWN + 1)
        if len(found) > 1:
            ids = ", ".join(job.id for job in found[:SHOWN]) + (", …" if len(found) > SHOWN else "")
            raise InvalidInput(f"several jobs {word} with {part}: {ids}; write more of the id")
        if found:
            return found[0].id
    raise JobNotFound(f"no job has an id that begins or ends with {part}", id=text)


async def whole_ids(queue: Queue, texts: Sequence[str]) -> list[str]:
    return [await whole_id(queue, text) for text in dict.fromkeys(texts)]
