"""The differences between the two databases in conditions; `where.py` builds the SQL from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Bind = Callable[[str | int | float], str]
Path = Sequence[str | int]


class SqlValue(NamedTuple):
    """One side of a comparison: its number and its text, None if it can't be one."""

    number: str | None = None
    text: str | None = None


class Lookup(NamedTuple):
    """A JSON path that is looked up once per job: the inner select's column for it, and the outer one's reference."""

    join: str
    select: str
    value: SqlValue
    written: str
    """The text that ~ looks at."""


class Dialect(ABC):
    """One database's SQL. `bind` gives a value its placeholder."""

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
        """A text that sorts by its bytes, which is by code points."""

    @abstractmethod
    def contains(self, whole: str, part: str) -> str: ...

    @abstractmethod
    def everything(self) -> str:
        """A limit without effect, except that the planner computes the select's columns only once."""

    @abstractmethod
    def lookup(self, column: str, path: Path, number: int) -> Lookup:
        """The value at a path of a document; `s` is the select that has it."""


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

    def everything(self) -> str:
        return "LIMIT -1"

    def lookup(self, column: str, path: Path, number: int) -> Lookup:
        step, v, w = self.bind(_sqlite_path(path)), f"s.v{number}", f"s.w{number}"
        # Selected twice, because a value must come back as written in the document; a REAL would lose digits.
        whole = f"CASE json_type({column}, {step}) WHEN 'real' THEN json_extract({column}, {step}, {step}) END"
        raw = f"substr({w}, 2, (length({w}) - 3) / 2)"
        short = f"CASE WHEN substr({raw}, -2) = '.0' THEN substr({raw}, 1, length({raw}) - 2) ELSE {raw} END"
        return Lookup(
            "",
            f"json_extract({column}, {step}) AS v{number}, {whole} AS w{number}",
            SqlValue(
                f"CASE WHEN typeof({v}) <> 'text' THEN {v} END",
                f"CASE WHEN typeof({v}) = 'text' THEN {v} END",
            ),
            f"CASE typeof({v}) WHEN 'real' THEN {short} ELSE CAST({v} AS TEXT) END",
        )


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
        # Without the collation it would follow the database's locale; only ASCII letters have two cases here.
        return f'lower(({text}) COLLATE "C")'

    def in_bytes(self, text: str) -> str:
        return f'({text}) COLLATE "C"'

    def contains(self, whole: str, part: str) -> str:
        return f"strpos({whole}, {part}) > 0"

    def everything(self) -> str:
        return "OFFSET 0"

    def lookup(self, column: str, path: Path, number: int) -> Lookup:
        steps = (str(step) if isinstance(step, int) else self.bound_text(step) for step in path)
        found = " -> ".join([column, *steps])
        kind, text = f"s.t{number}", f"s.x{number}"  # null for JSON's null
        return Lookup(
            f"CROSS JOIN LATERAL (SELECT {found} AS v OFFSET 0) d{number}",
            f"json_typeof(d{number}.v) AS t{number}, d{number}.v #>> '{{}}' AS x{number}",
            SqlValue(
                f"CASE {kind} WHEN 'number' THEN CAST({text} AS numeric) "
                f"WHEN 'boolean' THEN CASE {text} WHEN 'true' THEN 1 ELSE 0 END END",
                f"CASE WHEN {kind} IN ('string', 'object', 'array') THEN {text} END",
            ),
            f"CASE {kind} WHEN 'number' THEN CASE WHEN right({text}, 2) = '.0' THEN left({text}, -2) ELSE {text} END "
            f"WHEN 'boolean' THEN CASE {text} WHEN 'true' THEN '1' ELSE '0' END ELSE {text} END",
        )


def _sqlite_path(path: Path) -> str:
    # Keys come from names, which contain only letters, digits and _, so a quote is impossible.
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f'."{step}"' for step in path)


DIALECTS: Mapping[str, type[Dialect]] = {"sqlite": Sqlite, "postgres": Postgres}
