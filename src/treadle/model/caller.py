"""A user of the application that the HTTP API is mounted in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from treadle.model.errors import InvalidInput
from treadle.model.job import short_text


@dataclass(frozen=True, slots=True)
class Caller:
    """What the function given to `queue.asgi(auth=…)` returns for one of the application's own users."""

    id: str
    email: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Further fields for the access rules, as `@request.auth.NAME`."""
    superuser: bool = False
    """May do everything, also in the dashboard."""

    def __post_init__(self) -> None:
        if not isinstance(self.id, str):
            raise InvalidInput(f"id: a text, not {type(self.id).__name__}; write Caller(id=str(user.id))", field="id")
        short_text(self.id, "id")
        if not isinstance(self.email, str):
            raise InvalidInput(f"email: a text, not {type(self.email).__name__}", field="email")
        if self.email:
            short_text(self.email, "email")
        if not isinstance(self.superuser, bool):
            raise InvalidInput(f"superuser: true or false, not {type(self.superuser).__name__}", field="superuser")
