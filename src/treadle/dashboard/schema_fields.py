"""A JSON schema as people read it, and as a form: its fields, and a payload made from what was filled in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from treadle.dashboard.words import as_json
from treadle.model.errors import InvalidPayload
from treadle.model.payload import check_plain
from treadle.model.schema import schema_problems

# The prefix of the form's names, so that no field of a payload clashes with a field of the form.
PREFIX = "payload."
MOST_DEPTH = 4
_TYPES = {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false", "object": "object"}
_BOUNDS = (
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
    ("minimum", "{} or more"),
    ("maximum", "{} or less"),
    ("exclusiveMinimum", "more than {}"),
    ("exclusiveMaximum", "less than {}"),
    ("multipleOf", "a multiple of {}"),
    ("minItems", "at least {} items"),
    ("maxItems", "at most {} items"),
    ("pattern", "matches {}"),
    ("format", "a {}"),
)
_EXAMPLES: Mapping[str, Any] = {"text": "text", "integer": 1, "number": 1.5, "true or false": True, "object": {}}
_MISSING = object()


@dataclass(frozen=True, slots=True)
class SchemaField:
    path: tuple[str, ...]
    type: str
    rule: str
    default: str
    """As JSON; empty if there is none."""
    meaning: str
    required: bool
    kind: str
    """How a form asks for it: text, number, choice or json."""
    choices: Sequence[str] = ()
    """As JSON."""

    @property
    def name(self) -> str:
        return self.path[-1]

    @property
    def depth(self) -> int:
        return len(self.path) - 1

    @property
    def id(self) -> str:
        return PREFIX + ".".join(self.path)


def schema_fields(schema: Mapping[str, Any] | None) -> list[SchemaField]:
    """All fields, those of nested objects after their object."""
    return list(_fields(schema or {}, schema or {}, ()))


def form_fields(schema: Mapping[str, Any] | None) -> list[SchemaField]:
    """The fields that a form asks for: the outermost ones. Nested objects and lists are written as JSON."""
    return [field for field in schema_fields(schema) if field.depth == 0]


def _fields(schema: Mapping[str, Any], root: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[SchemaField]:
    schema = _resolved(schema, root)
    required = schema.get("required", ())
    for name, inner in _properties(schema).items():
        field = _field((*path, name), inner, root, name in required)
        yield field
        if field.type == "object" and len(path) < MOST_DEPTH:
            yield from _fields(_not_null(_resolved(inner, root), root), root, field.path)


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def _resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without `$ref`, as far as it points into the schema itself."""
    for _ in range(10):
        if not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/$defs/"):
            return schema
        rest = {name: value for name, value in schema.items() if name != "$ref"}
        schema = {**root.get("$defs", {}).get(reference.removeprefix("#/$defs/"), {}), **rest}
    return {}


def _not_null(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """`anyOf: [X, null]` as X."""
    choices = schema.get("anyOf")
    if not isinstance(choices, list):
        return schema
    others = [one for one in choices if _resolved(one, root).get("type") != "null"]
    rest = {name: value for name, value in schema.items() if name != "anyOf"}
    return {**_resolved(others[0], root), **rest} if len(others) == 1 else schema


def _field(path: tuple[str, ...], given: Any, root: Mapping[str, Any], required: bool) -> SchemaField:
    schema = _not_null(_resolved(given, root), root)
    choices = _choices(schema)
    type_ = _type(schema, root)
    default = schema.get("default", _MISSING)
    return SchemaField(
        path,
        type_,
        _rule(schema, choices),
        "" if default is _MISSING else as_json(default),
        str(schema.get("description", "")),
        required,
        _kind(type_, choices),
        choices,
    )


def _choices(schema: Mapping[str, Any]) -> list[str]:
    if "const" in schema:
        return [as_json(schema["const"])]
    found = schema.get("enum")
    return [as_json(one) for one in found] if isinstance(found, list) else []


def _type(schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    if kind == "array":
        items = _type(_resolved(schema.get("items", {}), root), root)
        return "list" if items == "any" else f"list of {items}"
    if isinstance(kind, str):
        return _TYPES.get(kind, kind)
    if "enum" in schema or "const" in schema:
        return "choice"
    return "object" if "properties" in schema else "any"


def _rule(schema: Mapping[str, Any], choices: Sequence[str]) -> str:
    if choices:
        return "one of " + ", ".join(_unquoted(one) for one in choices)
    rules = [
        "not empty" if name in ("minLength", "minItems") and schema[name] == 1 else words.format(schema[name])
        for name, words in _BOUNDS
        if name in schema
    ]
    if properties := _properties(schema):
        rules.append(f"{len(properties)} {'field' if len(properties) == 1 else 'fields'}")
    return "; ".join(rules)


def _unquoted(text: str) -> str:
    return text[1:-1] if text.startswith('"') else text


def _kind(type_: str, choices: Sequence[str]) -> str:
    if choices or type_ == "true or false":
        return "choice"
    return {"text": "text", "integer": "number", "number": "number"}.get(type_, "json")


def example_payload(schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """The required fields with a first choice, a default, or some value of their type."""
    payload: dict[str, Any] = {}
    for field in schema_fields(schema):
        place: Any = payload
        for part in field.path[:-1]:
            place = place.get(part) if isinstance(place, dict) else None
        if field.required and isinstance(place, dict):
            place[field.name] = _example(field)
    return payload


def _example(field: SchemaField) -> Any:
    known = field.choices[0] if field.choices else field.default
    return from_json(known) if known else deepcopy(_EXAMPLES.get(field.type, []))


# -- from a form -----------------------------------------------------------------------------------


def field_choices(field: SchemaField) -> list[tuple[str, str]]:
    """The values of a choice with their words; the empty one leaves the field out."""
    values = field.choices or ("true", "false")
    empty = (
        [] if field.required else [("", f"not given ({_unquoted(field.default)})" if field.default else "not given")]
    )
    return [*empty, *((one, _unquoted(one)) for one in values)]


def start_value(field: SchemaField) -> str:
    """What a fresh form shows. Defaults stay with the handler, except where a choice is required."""
    return field.choices[0] if field.kind == "choice" and field.required and field.choices else ""


def payload_of(fields: Sequence[SchemaField], form: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The payload that a form describes, and the problems of fields that can't be read."""
    payload: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for field in fields:
        text = form.get(field.id, "")
        if text == "":
            continue
        try:
            payload[field.name] = _value(field, text)
        except ValueError as error:
            problems[field.id] = f"Not JSON: {str(error)[:120]}"
    return payload, problems


def _value(field: SchemaField, text: str) -> Any:
    """A number that is not one stays a text, so that the schema says what is wrong with it."""
    if field.kind == "text":
        return text
    if field.kind == "number":
        try:
            value = from_json(text.strip(), allow_inf_nan=False)
        except ValueError:
            return text
    else:
        value = from_json(text, allow_inf_nan=False)
    check_plain(value, field.name)
    return value


def form_problems(schema: Mapping[str, Any] | None, payload: Mapping[str, Any]) -> dict[str, str]:
    """What the schema refuses, by the form's field; "payload" for what concerns no field."""
    problems: dict[str, str] = {}
    for path, message in schema_problems(dict(schema), payload) if schema else []:
        inside = "".join(f".{part}" for part in path[1:])
        text = f"{inside[1:]}: {message}" if inside else message[:1].upper() + message[1:]
        problems.setdefault(PREFIX + path[0] if path else "payload", text)
    return problems


def refused_field(error: InvalidPayload, fields: Sequence[SchemaField]) -> dict[str, str]:
    """The problem of a payload that the handler's type refused, at its field."""
    path = str(error.data.get("field", "payload")).split(".")
    names = {field.name: field.id for field in fields}
    place = names.get(path[1], "payload") if len(path) > 1 else "payload"
    return {place: error.message.partition(": ")[2] or error.message}
