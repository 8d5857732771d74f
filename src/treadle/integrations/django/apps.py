"""The installed app: `manage.py migrate` makes Treadle's tables too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.apps import AppConfig
from django.db import connections
from django.db.models.signals import post_migrate
from django.tasks import task_backends

if TYPE_CHECKING:
    from treadle.integrations.django.backend import TreadleBackend


class TreadleConfig(AppConfig):
    name = "treadle.integrations.django"
    label = "treadle"
    verbose_name = "Treadle"

    def ready(self) -> None:
        post_migrate.connect(_migrate, sender=self)


def _migrate(sender: AppConfig, using: str, **_: Any) -> None:
    """Before anything is enqueued: a transaction that is open later may hold the lock that a migration needs."""
    from treadle.integrations.django.backend import TreadleBackend
    from treadle.integrations.django.databases import is_in_memory

    for backend in task_backends.all():
        if isinstance(backend, TreadleBackend) and backend.database == using and not is_in_memory(using):
            backend.queue.sync.migrate()
            _close_before_a_test_database_goes(backend)


def _close_before_a_test_database_goes(backend: TreadleBackend) -> None:
    """PostgreSQL drops no database that somebody is connected to, and Django has no signal for it."""
    creation = connections[backend.database].creation
    destroy = creation.destroy_test_db

    def destroy_test_db(*args: Any, **options: Any) -> None:
        backend.queue.sync.close()
        destroy(*args, **options)

    creation.destroy_test_db = destroy_test_db
