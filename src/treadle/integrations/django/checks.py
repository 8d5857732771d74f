"""What `manage.py check` says about a backend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist

from treadle.integrations.django.databases import url_of

if TYPE_CHECKING:
    from treadle.integrations.django.backend import TreadleBackend

OPTIONS = frozenset(("database", "include"))
APP = "treadle.integrations.django"


def check_backend(backend: TreadleBackend) -> Iterator[CheckMessage]:
    if unknown := sorted(set(backend.options) - OPTIONS):
        yield _error(
            backend, "E001", f"OPTIONS has no {', '.join(unknown)}", f"There are {', '.join(sorted(OPTIONS))}."
        )
    yield from _database(backend)
    if not apps.is_installed(APP):
        hint = f"Add it, so that manage.py migrate makes the tables and manage.py treadle exists: {APP!r}."
        yield _error(backend, "E004", f"{APP} is not in INSTALLED_APPS", hint)
    for name in sorted(backend.queues):
        if not (1 <= len(name) <= 100 and name.isprintable() and name == name.strip()):
            yield _error(backend, "E005", f"QUEUES: {name!r} can't be used", "Use 1 to 100 printable characters.")


def _database(backend: TreadleBackend) -> Iterator[CheckMessage]:
    try:
        connections[backend.database]
    except ConnectionDoesNotExist:
        hint = f"There are {', '.join(sorted(connections))}."
        yield _error(backend, "E002", f"OPTIONS: DATABASES has no {backend.database!r}", hint)
        return
    try:
        url_of(backend.database)
    except ImproperlyConfigured as error:
        yield _error(backend, "E003", str(error), "Name another database in OPTIONS.")
    if (
        connections[backend.database].vendor == "sqlite"
        and "transaction_mode" not in (connections[backend.database].settings_dict["OPTIONS"])
    ):
        message = "a transaction that reads before it writes can fail with 'database is locked' while jobs run"
        hint = 'Set DATABASES[…]["OPTIONS"] = {"transaction_mode": "IMMEDIATE", "timeout": 30}.'
        yield Warning(f"TASKS[{backend.alias!r}]: {message}", hint=hint, id="treadle.W001")


def _error(backend: TreadleBackend, number: str, message: str, hint: str) -> Error:
    return Error(f"TASKS[{backend.alias!r}]: {message}", hint=hint, id=f"treadle.{number}")
