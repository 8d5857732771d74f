"""The settings that a form was opened with, so that two operators do not overwrite each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json, to_json

from treadle.dashboard.page import Page
from treadle.model.durations import format_ms
from treadle.queue.runtime_settings import StoredSettings


def _text(value: Any) -> str:
    return str(value) if value else "empty"


def _switch(value: Any) -> str:
    return "on" if value else "off"


def _topics(value: Any) -> str:
    return " ".join(value) if value else "all"


def _exceptions(value: Any) -> str:
    """Ages come as they are, or as lists from a form."""
    found = [f"{name} {_age(ages[0])}, then {_age(ages[1])}" for name, ages in value.items()]
    return "; ".join(found) or "none"


def _age(ms: Any) -> str:
    return "as others" if ms is None else format_ms(ms)


LABELS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "stale_after_ms": ("Stale after", format_ms),
    "delete_after_ms": ("Deleted, after that", format_ms),
    "by_status": ("Exceptions for statuses", _exceptions),
    "by_topic": ("Exceptions for topics", _exceptions),
    "output_after_ms": ("Output deleted after", format_ms),
    "enqueue_rule": ("Who may enqueue", _text),
    "manage_rule": ("Who may see and manage", _text),
    "http_enabled": ("Over HTTP", _switch),
    "allowed_topics": ("Topics that may be enqueued", _topics),
}


@dataclass(frozen=True, slots=True)
class SeenSettings:
    """What a form carries: the version that its page showed, and the values of that version as JSON."""

    version: str
    values: str

    @property
    def number(self) -> int | None:
        return (
            int(self.version) if self.version.isascii() and self.version.isdigit() and len(self.version) < 10 else None
        )

    def changes(self, settings: StoredSettings) -> list[str]:
        """One line for each setting that has another value now."""
        before, now = self._known(), _values(settings)
        return [
            f"{label}: {_shown(show, before[name])} → {show(now[name])}"
            for name, (label, show) in LABELS.items()
            if name in before and before[name] != now[name]
        ]

    def _known(self) -> dict[str, Any]:
        try:
            found = from_json(self.values)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


def _shown(show: Callable[[Any], str], value: Any) -> str:
    """A value from a form may be anything."""
    try:
        return show(value)
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError):
        return "?"


def _values(settings: StoredSettings) -> dict[str, Any]:
    return {name: _plain(getattr(settings, name)) for name in LABELS}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: list(ages) for name, ages in value.items()}
    return list(value) if isinstance(value, tuple | list) else value


def seen_now(settings: StoredSettings) -> SeenSettings:
    return SeenSettings(str(settings.version), to_json(_values(settings)).decode())


async def seen_by(page: Page) -> SeenSettings:
    """What the form that was sent had seen."""
    return SeenSettings(await page.field("version"), await page.field("seen"))
