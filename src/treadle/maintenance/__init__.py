"""Periodic maintenance, run by one elected worker on behalf of all."""

from typing import TYPE_CHECKING, Any

from treadle.maintenance.duties import Maintenance
from treadle.maintenance.leader import Leader
from treadle.maintenance.reaper import Reaper
from treadle.maintenance.retention import Retention
from treadle.maintenance.scheduler import Scheduler

if TYPE_CHECKING:
    from treadle.maintenance.dispatcher import WebhookDispatcher

__all__ = ["Leader", "Maintenance", "Reaper", "Retention", "Scheduler", "WebhookDispatcher"]


def __getattr__(name: str) -> Any:
    if name == "WebhookDispatcher":  # imports the HTTP client, 0.1 s that most workers never need
        from treadle.maintenance.dispatcher import WebhookDispatcher

        return WebhookDispatcher
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
