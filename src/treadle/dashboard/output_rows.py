"""What a job emits, as its page shows it: the newest values of each channel. A script adds those that come later."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from treadle.insights.insights import Insights
from treadle.model.job import Job

# Of a channel that has more, the newest are shown.
VALUES_SHOWN = 500


@dataclass(frozen=True, slots=True)
class OutputPart:
    channel: str
    values: int
    bytes: int
    text: str
    shown_to: int
    """The number of the last value in the text: a script goes on after it."""
    cut: bool
    """There are older values."""


async def output_parts(insights: Insights, job: Job, *, with_text: bool) -> list[OutputPart]:
    """Live updates come without the texts, which the page has and keeps up to date itself."""
    return [part async for part in _parts(insights, job, with_text)]


async def _parts(insights: Insights, job: Job, with_text: bool) -> AsyncIterator[OutputPart]:
    for channel, state in sorted((await insights.channels(job.id)).items()):
        text, shown_to, cut = "", 0, False
        if with_text:
            after = max(state.last - VALUES_SHOWN, 0)
            page = await insights.output(job.id, channel, after)
            for piece in page.pieces if page else ():
                text = "" if piece.resets else text
                text += "".join(map(shown, piece.values))
                shown_to = piece.first + len(piece.values) - 1
            cut = after > 0
        yield OutputPart(channel, state.last, state.bytes, text, shown_to, cut)


def shown(value: Any) -> str:
    """A text as it is, any other value as a line of JSON."""
    return value if isinstance(value, str) else to_json(value).decode() + "\n"
