"""Query parameters: unknown and repeated names are refused.

Otherwise a misspelled `dryRun` would run for real, and of `force=false&force=true` a rule could see one value and the
route the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any, get_args, get_origin

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.requests import Request

from treadle.http.errors import bad_field, not_known


def check_query(request: Request, more: Collection[str] = ()) -> None:
    """`more` are names that rules use."""
    if not request.scope["query_string"]:
        return
    names = Counter(name for name, _ in request.query_params.multi_items())
    route: APIRoute = request.scope["route"]
    known = set(_names(route.dependant))
    if unknown := [name for name in names if name not in known and name not in more]:
        raise not_known(unknown, sorted(known), "parameter")
    lists = set(_lists(route.dependant))
    if repeated := [name for name, count in names.items() if count > 1 and name not in lists]:
        raise bad_field(repeated[0], "is given more than once", "repeated_parameter")


def _names(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for one in dependant.dependencies:
        yield from _names(one)


def _lists(dependant: Dependant) -> Iterator[str]:
    """The parameters that may be given more than once."""
    yield from (field.alias for field in dependant.query_params if _is_list(field.field_info.annotation))
    for one in dependant.dependencies:
        yield from _lists(one)


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is list or any(get_origin(part) is list for part in get_args(annotation))


def flag(name: str, in_query: bool | None, in_body: bool | None) -> bool:
    """A flag that can be in the query or in the body; if it is in both, the values must agree."""
    if in_query is not None and in_body is not None and in_query != in_body:
        raise bad_field(name, "the query and the body say different things")
    return bool(in_body if in_query is None else in_query)


def flags_of(request: Request) -> dict[str, bool]:
    """The flags in the query. Rules see them as if they were in the body."""
    found = {}
    for name in ("force", "dryRun"):
        if (text := request.query_params.get(name)) is not None:
            found[name] = text.lower() in ("true", "1", "on", "yes", "t", "y")
    return found
