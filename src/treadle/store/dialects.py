"""What the two databases say differently in a condition; `conditions.py` puts it together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Bind = Callable[[str | int | float], str]
Path = Sequence[str | int]


class Value(NamedTuple):
    """One side of a comparison: its number and its text, None where it can't be one."""

    number: str | None = None
    text: str | None = None


class Dialect(ABC):
    """How one database says it. `bind` gives a value its placeholder."""

    same: str
    differs: str
    greatest: str
    empty_list: str

    def __init__(self, bind: Bind) -> None:
        self.bind = bind

    @abstractmethod
    def bound_text(self, text: str) -> str: ...

    @abstractmethod
    def bound_number(self, number: float) -> str: ...

    @abstractmethod
    def id_text(self, column: str) -> str: ...

    @abstractmethod
    def bound_id(self, id_: str) -> str: ...

    @abstractmethod
    def date_text(self, column: str) -> str: ...

    @abstractmethod
    def lower(self, text: str) -> str: ...

    @abstractmethod
    def in_bytes(self, text: str) -> str:
        """A text that is put in order by its bytes, which is by code points."""

    @abstractmethod
    def contains(self, whole: str, part: str) -> str: ...

    @abstractmethod
    def inside(self, column: str, path: Path) -> Value: ...

    @abstractmethod
    def inside_written(self, column: str, path: Path) -> str: ...


class Sqlite(Dialect):
    same, differs = "IS", "IS NOT"
    greatest, empty_list = "max", "'[]'"

    def bound_text(self, text: str) -> str:
        return self.bind(text)

    def bound_id(self, id_: str) -> str:
        return self.bind(id_)

    def bound_number(self, number: float) -> str:
        return self.bind(number)

    def id_text(self, column: str) -> str:
        return column

    def date_text(self, column: str) -> str:
        return f"strftime('%Y-%m-%dT%H:%M:%fZ', ({column}) / 1000.0, 'unixepoch')"

    def lower(self, text: str) -> str:
        return f"lower({text})"

    def in_bytes(self, text: str) -> str:
        return text

    def contains(self, whole: str, part: str) -> str:
        return f"instr({whole}, {part}) > 0"

    def inside(self, column: str, path: Path) -> Value:
        found = f"json_extract({column}, {self.bind(_sqlite_path(path))})"
        return Value(
            f"CASE WHEN typeof({found}) <> 'text' THEN {found} END",
            f"CASE WHEN typeof({found}) = 'text' THEN {found} END",
        )

    def inside_written(self, column: str, path: Path) -> str:
        step = self.bind(_sqlite_path(path))
        # Asked for twice, a value comes as it is written in the document; as a REAL it would have lost digits.
        found = f"SELECT json_extract({column}, {step}) AS v, json_extract({column}, {step}, {step}) AS w"
        raw = f"SELECT v, substr(w, 2, (length(w) - 3) / 2) AS w FROM ({found})"  # noqa: S608
        short = "CASE WHEN substr(w, -2) = '.0' THEN substr(w, 1, length(w) - 2) ELSE w END"
        return f"(SELECT CASE typeof(v) WHEN 'real' THEN {short} ELSE CAST(v AS TEXT) END FROM ({raw}))"  # noqa: S608


class Postgres(Dialect):
    same, differs = "IS NOT DISTINCT FROM", "IS DISTINCT FROM"
    greatest, empty_list = "greatest", "CAST('[]' AS json)"

    def bound_text(self, text: str) -> str:
        return f"CAST({self.bind(text)} AS text)"

    def bound_id(self, id_: str) -> str:
        return f"CAST({self.bind(id_)} AS uuid)"

    def bound_number(self, number: float) -> str:
        if isinstance(number, int):
            return f"CAST({self.bind(number)} AS bigint)"
        return f"CAST(CAST({self.bind(repr(number))} AS text) AS numeric)"

    def id_text(self, column: str) -> str:
        return f"CAST({column} AS text)"

    def date_text(self, column: str) -> str:
        return (
            f"to_char(timestamp '1970-01-01' + ({column}) * interval '1 millisecond', "
            '\'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"\')'
        )

    def lower(self, text: str) -> str:
        # lower() would follow the database's locale; only ASCII letters have two cases here.
        return f"translate({text}, 'ABCDEFGHIJKLMNOPQRSTUVWXYZ', 'abcdefghijklmnopqrstuvwxyz')"

    def in_bytes(self, text: str) -> str:
        return f'({text}) COLLATE "C"'

    def contains(self, whole: str, part: str) -> str:
        return f"strpos({whole}, {part}) > 0"

    def _found(self, column: str, path: Path) -> tuple[str, str]:
        """The type of the JSON at a path, and its text (null for JSON's null)."""
        steps = (str(step) if isinstance(step, int) else self.bound_text(step) for step in path)
        found = " -> ".join([column, *steps])
        return f"json_typeof({found})", f"({found}) #>> '{{}}'"

    def inside(self, column: str, path: Path) -> Value:
        kind, text = self._found(column, path)
        return Value(
            f"CASE {kind} WHEN 'number' THEN CAST({text} AS numeric) "
            f"WHEN 'boolean' THEN CASE {text} WHEN 'true' THEN 1 ELSE 0 END END",
            f"CASE WHEN {kind} IN ('string', 'object', 'array') THEN {text} END",
        )

    def inside_written(self, column: str, path: Path) -> str:
        kind, text = self._found(column, path)
        return (
            f"CASE {kind} WHEN 'number' THEN CASE WHEN right({text}, 2) = '.0' THEN left({text}, -2) ELSE {text} END "
            f"WHEN 'boolean' THEN CASE {text} WHEN 'true' THEN '1' ELSE '0' END ELSE {text} END"
        )


def _sqlite_path(path: Path) -> str:
    # Keys come from names, which have letters, digits and _ only: a quote can't be among them.
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f'."{step}"' for step in path)


DIALECTS: Mapping[str, type[Dialect]] = {"sqlite": Sqlite, "postgres": Postgres}
