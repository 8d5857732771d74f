"""Turn a URL into a store. This is the only place that names a concrete one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from treadle.model.errors import InvalidInput
from treadle.store import clock
from treadle.store.protocol import Store
from treadle.store.values import UserDatabase

_SCHEMES = "sqlite:///jobs.db or postgresql://user@host/database"


def make_store(url: str, *, stale_after_ms: int) -> Store:
    """An unopened store for `url`."""
    try:
        scheme = urlsplit(url).scheme
    except ValueError as error:
        raise InvalidInput(f"{shown(url)!r} is not a database URL: {error}", field="url") from None
    if scheme == "sqlite":
        return _sqlite(url, stale_after_ms)
    if scheme in ("postgresql", "postgres"):
        return _postgres(url, stale_after_ms)
    raise InvalidInput(f"{shown(url)!r} is not a database URL; write one like {_SCHEMES}", field="url")


def _sqlite(url: str, stale_after_ms: int) -> Store:
    from treadle.store.sqlite.store import SqliteStore

    path, synchronous = _sqlite_file(url)
    return SqliteStore(path, synchronous=synchronous, stale_after_ms=stale_after_ms)


def plain_url(url: str) -> str:
    """The URL without SQLAlchemy's name of a driver: `postgresql+asyncpg://…` is the same database."""
    return _DRIVER.sub(r"\1:", url)


def key_file(url: str) -> Path | None:
    """Where the signing key of the installation is kept; None: in the database."""
    if not url.startswith("sqlite:"):
        return None
    path, _ = _sqlite_file(url)
    file = path.resolve()  # the same under every name
    return file.with_name(f"{file.name}.key")


def _sqlite_file(url: str) -> tuple[Path, str]:
    """The file, and its `synchronous` setting."""
    parts = urlsplit(url)
    if parts.netloc or not parts.path.startswith("/") or len(parts.path) < 2:
        raise InvalidInput(
            f"{shown(url)!r}: write sqlite:///jobs.db for a file here, sqlite:////var/lib/jobs.db for an absolute path",
            field="url",
        )
    options = dict(parse_qsl(parts.query))
    synchronous = options.pop("synchronous", "FULL").upper()
    if options or synchronous not in ("FULL", "NORMAL"):
        raise InvalidInput(f"{shown(url)!r}: the only option is synchronous=full|normal", field="url")
    path = Path(unquote(parts.path[1:]))
    if path.name == ":memory:":
        raise InvalidInput(
            f"{shown(url)!r}: a database in memory belongs to one connection, and a queue has several; "
            "use a file in a temporary folder, or the fixture treadle_queue in tests",
            field="url",
        )
    if path.is_dir():
        raise InvalidInput(f"{path} is a directory, not a database file", field="url")
    return path, synchronous


def _postgres(url: str, stale_after_ms: int) -> Store:
    try:
        from treadle.store.postgres.store import PostgresStore
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise InvalidInput("PostgreSQL needs asyncpg: pip install 'treadle[postgres]'", field="url") from None
    if (moved := clock.current()) is not None:
        moved.unmoved = shown(url)
    return PostgresStore(url, stale_after_ms=stale_after_ms)


def user_connection(database: UserDatabase, size: int) -> Any:
    """A new sqlite3 connection, or asyncpg's pool of at most `size` connections on the running loop."""
    if not database.url.startswith("sqlite:"):
        from treadle.store.postgres.user_pool import make_pool

        return make_pool(database.url, size, pooled=database.pooled)
    from treadle.store.sqlite.user_connection import connect

    return connect(*_sqlite_file(database.url))


def is_pool(database: UserDatabase) -> bool:
    """Whether all handlers share what `user_connection` returns."""
    return not database.url.startswith("sqlite:")


_DRIVER = re.compile(r"^(sqlite|postgresql|postgres)\+[a-z0-9_]+:")
_PASSWORD = re.compile(r"(?i)(password=)[^&]*")


def shown(url: str) -> str:
    """The URL without its password, for logs and messages."""
    head, at, host = url.rpartition("@")
    if at:
        start = head.find("//") + 2 if "//" in head else 0
        user, colon, _ = head[start:].partition(":")
        head = head[:start] + user + (":…" if colon else "")
    return _PASSWORD.sub(r"\1…", head + at + host)[:200]


def database_exists(url: str) -> bool:
    """False for a SQLite file that does not exist yet."""
    parts = urlsplit(url)
    return parts.scheme != "sqlite" or Path(unquote(parts.path[1:])).exists()
