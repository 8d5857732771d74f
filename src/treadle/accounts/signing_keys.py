"""The keys that sign tokens.

New tokens are signed with `TREADLE_SECRET_KEY` if it is set. Otherwise a random key is made at its first use: beside a
SQLite database, in a file that only its owner may read, or in a PostgreSQL database. A copy of a SQLite file therefore
signs nobody in. Tokens of the keys before are accepted until `rotate`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

from pydantic_core import from_json, to_json

from treadle.model.errors import StoreUnavailable
from treadle.model.settings import LEAST_KEY_CHARACTERS
from treadle.store.protocol import Store
from treadle.store.values import Record, RecordWrite

INSTALL = "install"
SIGNING = "signing"
NAME = (INSTALL, SIGNING)
PRIVATE = 0o600


ReadRecords = Callable[[Sequence[tuple[str, str]]], Awaitable[Sequence[Record | None]]]


class SigningKeys:
    def __init__(
        self, store: Store, file: Path | None = None, secret: str = "", records: ReadRecords | None = None
    ) -> None:
        """`file`: where the key is kept instead of in the database. `secret`: the key that the operator has chosen."""
        self._store = store
        self._secret = secret
        self._file = file
        self._records = records or store.get_records
        self._known = ("", (0, 0))

    async def current(self) -> str:
        """The key for new tokens."""
        if self._secret:
            return self._secret
        if self._file is not None:
            return self._in_file() or await self._made_file(self._file)
        (record,) = await self._records([NAME])
        if record is None:
            (record,) = await self._store.write_records([RecordWrite(*NAME, SIGNING, _body(_new()))])
        if record is None:
            (record,) = await self._store.get_records([NAME])
        assert record is not None, "another process has made it"
        return _of(record)

    def accepted(self, record: Record | None) -> tuple[str, ...]:
        """All keys that tokens may be signed with. `record`: the one in the database, if there is one."""
        keys = (self._secret, self._in_file(), _of(record) if record is not None else "")
        return tuple(dict.fromkeys(filter(None, keys)))

    async def rotate(self) -> None:
        """End all tokens of the keys until now; without `TREADLE_SECRET_KEY`, make a new key."""
        if self._file is not None and not self._secret:
            _replace(self._file, _new())
        elif self._file is not None:
            self._file.unlink(missing_ok=True)
        (record,) = await self._store.get_records([NAME])
        if record is not None and (self._secret or self._file is not None):
            await self._store.delete_records([NAME])
        elif record is not None:
            await self._store.write_records([RecordWrite(*NAME, SIGNING, _body(_new()), version=record.version)])

    def _in_file(self) -> str:
        """The key in the file; empty if there is no file."""
        if self._file is None:
            return ""
        try:
            stat = self._file.stat()
            stamp = (stat.st_ino, stat.st_mtime_ns)
            if stamp != self._known[1]:
                self._known = (self._file.read_text().strip(), stamp)
        except FileNotFoundError:
            return ""
        except (OSError, ValueError) as error:
            raise StoreUnavailable(f"the signing key can't be read: {error}") from None
        if len(self._known[0]) < LEAST_KEY_CHARACTERS:
            raise StoreUnavailable(f"{self._file} holds no signing key; delete it, then a new one is made")
        return self._known[0]

    async def _made_file(self, file: Path) -> str:
        """Move the key out of the database, or make one. Of processes that do so at the same time, one wins."""
        (record,) = await self._store.get_records([NAME])
        try:
            _create(file, _of(record) if record is not None else _new())
        except OSError as error:
            raise StoreUnavailable(f"the signing key can't be written: {error}; set TREADLE_SECRET_KEY") from None
        if record is not None:
            await self._store.delete_records([NAME])
        return self._in_file()


def _create(file: Path, key: str) -> None:
    """Whole or not at all, and never in place of one that exists."""
    with _written(file, key) as temporary, contextlib.suppress(FileExistsError):
        os.link(temporary, file)


def _replace(file: Path, key: str) -> None:
    with _written(file, key) as temporary:
        temporary.replace(file)


@contextlib.contextmanager
def _written(file: Path, key: str) -> Iterator[Path]:
    temporary = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    try:
        with os.fdopen(descriptor, "w") as opened:
            opened.write(f"{key}\n")
            opened.flush()
            os.fsync(opened.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _new() -> str:
    return secrets.token_urlsafe(48)


def _body(key: str) -> str:
    return to_json({"secret": key}).decode()


def _of(record: Record) -> str:
    return str(from_json(record.body)["secret"])
