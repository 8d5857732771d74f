"""Where a queue lives, as `DATABASES` says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

IN_MEMORY = (
    "a SQLite database in memory belongs to one connection, and the queue has its own; name a file: in tests, "
    'DATABASES["{alias}"]["TEST"] = {{"NAME": BASE_DIR / "test.sqlite3"}}'
)


def url_of(alias: str) -> str:
    """The URL of the database behind an alias."""
    settings = connections[alias].settings_dict
    match connections[alias].vendor:
        case "sqlite" if is_in_memory(alias):
            raise ImproperlyConfigured(IN_MEMORY.format(alias=alias))
        case "sqlite":
            return f"sqlite:///{quote(str(Path(settings['NAME']).absolute()))}"
        case "postgresql":
            return _postgres_url(settings)
        case other:
            raise ImproperlyConfigured(f"Treadle lives in SQLite or PostgreSQL, and {alias!r} is {other}")


def is_in_memory(alias: str) -> bool:
    name = str(connections[alias].settings_dict["NAME"])
    return connections[alias].vendor == "sqlite" and (name == ":memory:" or "mode=memory" in name)


def _postgres_url(settings: dict[str, Any]) -> str:
    user, password = quote(settings["USER"], safe=""), quote(settings["PASSWORD"], safe="")
    who = f"{user}{f':{password}' if password else ''}@" if user else ""
    host, port = str(settings["HOST"]), str(settings["PORT"])
    query = {name: str(value) for name, value in settings["OPTIONS"].items() if name.startswith("ssl")}
    if host.startswith("/"):  # a socket's folder
        query |= {"host": host} | ({"port": port} if port else {})
        host = port = ""
    place = f"{host}{f':{port}' if port else ''}"
    return f"postgresql://{who}{place}/{quote(str(settings['NAME']), safe='')}" + (
        f"?{urlencode(query)}" if query else ""
    )


def joined(alias: str) -> Any | None:
    """The connection whose transaction an enqueue joins: one to the queue's database, with a transaction open.

    An `atomic()` on other databases alone can't be joined, and a job that is stored although that transaction is
    rolled back would surprise, so it is refused.
    """
    in_transaction = [one for one in connections.all(initialized_only=True) if _is_in_transaction(one)]
    for connection in in_transaction:
        if connection.alias == alias or _same_database(connection, connections[alias]):
            return connection
    if in_transaction:
        raise ImproperlyConfigured(
            f"the queue lives in the database {alias!r} and can't join the transaction that is open on "
            f"{in_transaction[0].alias!r}; open transaction.atomic(using={alias!r}) inside it, or enqueue in "
            f"transaction.on_commit(…, using={in_transaction[0].alias!r})"
        )
    return None


def _is_in_transaction(connection: Any) -> bool:
    """Without connecting: asking for `get_autocommit` would."""
    return bool(connection.in_atomic_block or (connection.connection is not None and not connection.autocommit))


def _same_database(one: Any, other: Any) -> bool:
    """Two aliases may lead to one database, for example with other options."""
    names = ("ENGINE", "NAME", "HOST", "PORT")
    return all(str(one.settings_dict[name]) == str(other.settings_dict[name]) for name in names)
