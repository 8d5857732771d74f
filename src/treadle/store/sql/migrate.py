"""Numbered SQL files, applied in order; a database that is ahead of this code is refused."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import NamedTuple

from treadle.model.errors import SchemaMismatch


class Migration(NamedTuple):
    number: int
    name: str
    sql: str


@cache
def migrations(dialect: str) -> list[Migration]:
    folder = files("treadle.store.sql").joinpath("migrations", dialect)
    found = []
    for file in sorted(folder.iterdir(), key=lambda one: one.name):
        if file.name.endswith(".sql"):
            name = file.name.removesuffix(".sql")
            found.append(Migration(int(name.split("_")[0]), name, file.read_text()))
    return found


def missing(dialect: str, applied: set[int]) -> list[Migration]:
    """What has to be applied; SchemaMismatch if the database knows migrations that this code does not."""
    known = migrations(dialect)
    if newer := applied - {one.number for one in known}:
        raise SchemaMismatch(
            f"the database has migration {max(newer):04d}, this version of treadle knows "
            f"{known[-1].number:04d} at most; upgrade treadle"
        )
    return [one for one in known if one.number not in applied]
