"""`typing.TypedDict` before Python 3.12, where pydantic takes only the one from typing_extensions."""

from __future__ import annotations

import sys
from types import GenericAlias, UnionType
from typing import Annotated, Any, NotRequired, Required, Union, get_args, get_origin, get_type_hints

from typing_extensions import TypedDict, is_typeddict


def understood(annotation: Any, outer: frozenset[Any] = frozenset()) -> Any:
    """The annotation with every `typing.TypedDict` in it replaced by an equal one that pydantic understands.

    A type that contains itself stays as it is.
    """
    if sys.version_info >= (3, 12):
        return annotation
    if is_typeddict(annotation):
        foreign = type(annotation).__module__ == "typing" and annotation not in outer
        return _copied(annotation, outer | {annotation}) if foreign else annotation
    arguments = get_args(annotation)
    changed = tuple(understood(one, outer) for one in arguments)
    if all(new is old for new, old in zip(changed, arguments, strict=True)):
        return annotation
    if isinstance(annotation, UnionType):
        return Union[changed]  # noqa: UP007 - the arguments are known at run time
    if isinstance(annotation, GenericAlias):
        return GenericAlias(get_origin(annotation), changed)
    if get_origin(annotation) is Annotated:
        return Annotated[changed]
    return annotation.copy_with(changed) if hasattr(annotation, "copy_with") else annotation


def _copied(shape: Any, outer: frozenset[Any]) -> Any:
    try:
        hints = get_type_hints(shape, include_extras=True)
    except NameError:  # pydantic says which name it does not find
        return shape
    members: dict[str, Any] = {}
    for name, hint in hints.items():
        plain = get_args(hint)[0] if get_origin(hint) in (Required, NotRequired) else hint
        wrap: Any = Required if name in shape.__required_keys__ else NotRequired
        members[name] = wrap[understood(plain, outer)]
    make: Any = TypedDict  # type checkers only accept literal TypedDicts
    copy = make(shape.__name__, members)
    copy.__module__, copy.__doc__ = shape.__module__, shape.__doc__
    if hasattr(shape, "__pydantic_config__"):
        copy.__pydantic_config__ = shape.__pydantic_config__
    return copy
