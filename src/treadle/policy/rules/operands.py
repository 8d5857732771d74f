"""The names that a rule may use, and what they refer to. Invalid names are refused when the rule is saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from treadle.model.fields import DOCUMENTS, FIELDS, FieldKind
from treadle.model.other_names import FIELD_WORDS
from treadle.policy.rules.conditions import Constant, JobField, JobPath

MACROS = frozenset(
    "@now @yesterday @tomorrow @todayStart @todayEnd @monthStart @monthEnd @yearStart @yearEnd "
    "@second @minute @hour @day @month @weekday @year".split()
)
SECRETS = frozenset(("password", "passwordHash", "tokenKey"))
MODIFIERS = frozenset("isset lower length each changed".split())
_WORDS: Mapping[str, Constant] = {"true": Constant(1), "false": Constant(0), "null": Constant(None)}
# A document has at most a million characters, so no list in it is longer.
_LONGEST_LIST = 1 << 20
MAX_PARTS = 100


@dataclass(frozen=True, slots=True)
class Macro:
    name: str


@dataclass(frozen=True, slots=True)
class RequestValue:
    """`@request.…`: known once there is a request."""

    part: str
    """method, context, headers, query, body or auth"""
    path: tuple[str, ...] = ()
    modifier: str = ""


@dataclass(frozen=True, slots=True)
class Changed:
    """`@request.body.field:changed`: sent, and different from the job's value."""

    field: JobField | JobPath


Name: TypeAlias = Constant | Macro | RequestValue | Changed | JobField | JobPath


class UnknownName(Exception):
    """The problem with a name; the caller knows its position."""


def resolve(name: str) -> Name:
    if name.lower() in _WORDS:
        return _WORDS[name.lower()]
    words, colon, modifier = name.partition(":")
    if ":" in modifier:
        raise UnknownName(f"{_shown(name)} has more than one modifier")
    if colon and modifier not in MODIFIERS:
        raise UnknownName(
            f"{_shown(name)}: there is no modifier :{modifier[:40]}; there are :{', :'.join(sorted(MODIFIERS))}"
        )
    parts = words.split(".")
    if len(parts) > MAX_PARTS:
        raise UnknownName(f"{_shown(name)} has more than {MAX_PARTS} parts")
    if "" in parts:
        raise UnknownName(f"{_shown(name)} has an empty part")
    if name.startswith("@"):
        return _special(name, parts, modifier)
    return _job_name(name, parts, modifier)


def _special(name: str, parts: list[str], modifier: str) -> Name:
    if name in MACROS:
        return Macro(name)
    match parts:
        case ["@request", "method" | "context" as part] if not modifier:
            return RequestValue(part)
        case ["@request", "headers" | "query" as part, *path] if path and modifier in ("", "isset", "lower"):
            return RequestValue(part, tuple(path), modifier)
        case ["@request", "body", *path] if path:
            return _body_name(name, path, modifier)
        case ["@request", "auth", *path] if path:
            return _auth_name(name, path, modifier)
        case ["@request", "headers" | "query", _, *_] | ["@request", "method" | "context"]:
            raise UnknownName(f"{_shown(name)}: :{modifier} can't be used here")
        case ["@collection", *_]:
            raise UnknownName(f"{_shown(name)}: there are no collections here, only the job's own fields and @request")
        case _:
            known = "@request.method, .context, .headers.*, .query.*, .body.* and .auth.*, and macros such as @now"
            raise UnknownName(f"{_shown(name)} is not known; there are {known}")


def _body_name(name: str, path: list[str], modifier: str) -> Name:
    if modifier == "changed":
        if len(path) > 1 or path[0] not in (*FIELDS, *DOCUMENTS):
            raise UnknownName(f"{_shown(name)}: :changed is for fields of the job")
        return Changed(JobPath(path[0], ()) if path[0] in DOCUMENTS else JobField(path[0]))
    if modifier in ("length", "each"):
        raise UnknownName(f"{_shown(name)}: :{modifier} is for lists, and no field of a job is one")
    return RequestValue("body", tuple(path), modifier)


def _auth_name(name: str, path: list[str], modifier: str) -> Name:
    if path[0] in SECRETS:
        raise UnknownName(f"{_shown(name)}: an account's {path[0]} is hidden, even from rules")
    if modifier in ("isset", "changed"):
        raise UnknownName(f"{_shown(name)}: :{modifier} is for what the request sends; compare with '' instead")
    if modifier and len(path) > 1:
        raise UnknownName(f"{_shown(name)}: no modifier can be used below a field")
    return RequestValue("auth", tuple(path), modifier)


def _job_name(name: str, parts: list[str], modifier: str) -> Name:
    first, *rest = parts
    first = FIELD_WORDS.get(first, first)
    if first in DOCUMENTS:
        if modifier:
            raise UnknownName(f"{_shown(name)}: no modifier can be used on {first} or below it")
        return _path(first, rest)
    if first not in FIELDS:
        raise UnknownName(f"{_shown(name)} is not a field of a job that can be used here")
    if rest:
        raise UnknownName(f"{_shown(name)}: {first} has no parts; only {', '.join(DOCUMENTS)} have")
    if modifier and (modifier != "lower" or FIELDS[first] is not FieldKind.TEXT):
        raise UnknownName(f"{_shown(name)}: :{modifier} can't be used on {first}")
    return JobField(first, lower=modifier == "lower")


def _path(document: str, steps: list[str]) -> JobPath:
    return JobPath(document, tuple(_index(step) if step.isdigit() else step for step in steps))


def _index(digits: str) -> int:
    """Databases differ on very large indexes, and no document has such an element."""
    return int(digits) if len(digits) < 8 else _LONGEST_LIST


def _shown(name: str) -> str:
    return repr(name if len(name) <= 60 else name[:59] + "…")
