"""Asks for confirmation before a change: in a dialog, or as a page without JavaScript."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime

from starlette.responses import Response

from treadle.dashboard.page import Page


@dataclass(frozen=True, slots=True)
class Choice:
    name: str
    value: str
    text: str
    note: str = ""
    checked: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    label: str
    value: str = ""
    hint: str = ""
    placeholder: str = ""
    type: str = "text"
    optional: bool = False
    pattern: str = ""
    options: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class DryLine:
    count: int
    text: str
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class DryRun:
    at: datetime
    lines: Sequence[DryLine]


@dataclass(frozen=True, slots=True)
class Question:
    heading: str
    action: str
    """The form's target."""
    go: str
    """The confirm button; without it, the page only informs."""
    back: str
    keep: str = "Keep as it is"
    danger: bool = False
    lines: Sequence[str] = ()
    filter_words: str = ""
    hidden: Sequence[tuple[str, str]] = ()
    choices: Sequence[Choice] = ()
    dry: DryRun | None = None
    fields: Sequence[Field] = ()
    after: str = ""
    problem: str = ""
    problems: Mapping[str, str] = field(default_factory=dict)


async def ask(page: Page, question: Question, *, section: str = "Jobs", status: int = 200) -> Response:
    context = asdict(question)
    return await page.render("ask", status, section=section, title=question.heading, fragment=page.in_dialog, **context)
