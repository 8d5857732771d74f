"""`@task(…)` with Treadle's options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.tasks import Task
from django.tasks.exceptions import InvalidTask

from treadle import CancelPolicy, Concurrency, Rate, Retry, TreadleError

if TYPE_CHECKING:
    from datetime import timedelta

    Duration = str | float | timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class TreadleTask(Task):
    """A task with further options, all of `@queue.job`'s that make sense here."""

    title: str | None = None
    description: str | None = None
    timeout: Duration | None = None
    expires: Duration | None = None
    retry: Retry | None = None
    max_attempts: int | None = None
    process: bool = False
    cancel: CancelPolicy | None = None
    concurrency: Concurrency | None = None
    rate: Rate | tuple[int, Duration] | None = None
    idempotency_key: str | None = None
    idempotent: bool = False
    dedupe_keys: Sequence[str] = ()
    repeatable: bool = True
    secret: Sequence[str] = ()
    schedule: Any = None
    timezone: str | None = None

    def __post_init__(self) -> None:
        Task.__post_init__(self)
        backend = self.get_backend()
        try:
            backend.tasks.add(self)
        except TreadleError as error:
            raise InvalidTask(str(error)) from error

    def job_options(self) -> dict[str, Any]:
        """The options that were given, as `queue.register` takes them."""
        return {name: value for name in _DEFAULTS if (value := getattr(self, name)) != _DEFAULTS[name]}

    @property
    def handler(self) -> Any:
        """For a process that runs this task: it has found it by name, and asks for the handler."""
        return self.get_backend().queue.handlers[f"django:{self.module_path}"]


_DEFAULTS: Mapping[str, Any] = {
    name: field.default
    for name, field in TreadleTask.__dataclass_fields__.items()
    if name in TreadleTask.__annotations__
}
