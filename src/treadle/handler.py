"""The function behind a topic: how it wants to be called, and what its payload and result look like."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from treadle.errors import InvalidInput, InvalidPayload
from treadle.payload import check_finite, dumps, dumps_object, is_plain
from treadle.template import Template

Kind = Literal["async", "thread", "process"]


class Handler:
    """A function registered for a topic, with its template and its types.

    The function takes `(ctx, payload)`, `(ctx)`, `(payload)` or nothing: a parameter named `ctx` or
    annotated `Context` gets the context, any other the payload.
    """

    def __init__(self, function: Callable[..., Any], template: Template, process: bool = False) -> None:
        self.function = function
        self.template = template
        self.topic = template.topic
        signature = _signature(function)
        self.kind: Kind = "process" if process else "async" if _is_async(function) else "thread"
        self.wants_context, payload = _parameters(function, signature)
        self.wants_payload = payload is not None
        self._payload = _payload_adapter(payload.annotation, self.topic) if payload else None
        self._result = _adapter(signature.return_annotation, self.topic)
        # The validator itself, as below: the adapter's own method costs as much again as a small payload.
        self._validate_json = self._payload.validator.validate_json if self._payload else from_json

    def schema(self) -> dict[str, Any] | None:
        """JSON schema of the payload, for the saved template; None: any object."""
        return _schema(self._payload) if self._payload else None

    def payload(self, text: str) -> Any:
        """The payload as the function wants it."""
        try:
            return self._validate_json(text)
        except ValidationError as error:
            raise _explained(self.topic, "payload", error) from None

    def payload_text(self, payload: Any) -> str:
        """The payload as the store keeps it: validated, object-like, plain JSON."""
        if self._payload is None:
            return dumps_object(payload)
        try:
            value = self._payload.validator.validate_python({} if payload is None else payload)
        except ValidationError as error:
            raise _explained(self.topic, "payload", error) from None
        return dumps_object(_written(self._payload, value, "payload"))

    def result_text(self, result: Any) -> str | None:
        """The result as the store keeps it; None for none."""
        if result is None:
            return None
        if self._result is not None and not is_plain(result):
            result = _written(self._result, result, "result")
        return dumps(result, "result")

    def result(self, value: Any) -> Any:
        """A stored result in the type that the function returns."""
        if self._result is None or value is None:
            return value
        try:
            return self._result.validate_json(to_json(value))
        except ValidationError as error:
            raise _explained(self.topic, "result", error) from None

    def arguments(self, context: Any, payload: Any) -> tuple[Any, ...]:
        """What to call the function with."""
        if self.wants_context:
            return (context, payload) if self.wants_payload else (context,)
        return (payload,) if self.wants_payload else ()


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(f"{_name(function)}: a handler returns its result, it does not yield")
    try:
        return inspect.signature(function, eval_str=True)
    except Exception as error:  # an annotation is any expression, so it may raise anything
        raise InvalidInput(f"{_name(function)}: {error}; its annotations must be importable") from None


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _parameters(function: Callable[..., Any], signature: inspect.Signature) -> tuple[bool, inspect.Parameter | None]:
    """Whether it takes the context, and its parameter for the payload."""
    wants_context, payload = False, None
    for name, parameter in signature.parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise InvalidInput(f"{_name(function)}: a handler takes (ctx, payload), not *{name}")
        if name == "ctx" or _is_context(parameter.annotation):
            if wants_context or payload is not None:
                raise InvalidInput(f"{_name(function)}: the context comes once, before the payload")
            wants_context = True
        elif payload is None:
            payload = parameter
        elif parameter.default is parameter.empty:
            raise InvalidInput(f"{_name(function)}: a handler takes (ctx, payload), nothing more")
    return wants_context, payload


def _is_context(annotation: Any) -> bool:
    """By name: the class lives in a layer above this one."""
    families = getattr(annotation, "__mro__", ())
    return any((one.__module__, one.__qualname__) == ("treadle.context", "Context") for one in families)


def _adapter(annotation: Any, topic: str) -> TypeAdapter[Any] | None:
    """None where there is nothing to check: no annotation, Any, None, plain dict."""
    if annotation in (Any, None, type(None), dict, inspect.Parameter.empty) or annotation == dict[str, Any]:
        return None
    try:
        return TypeAdapter(annotation)
    except PydanticUserError as error:
        raise InvalidInput(f"{topic}: {annotation!r} can't be a payload or result type: {error}") from None


def _payload_adapter(annotation: Any, topic: str) -> TypeAdapter[Any] | None:
    adapter = _adapter(annotation, topic)
    # No "type" at its top: a reference, a union or something of the user's own; each enqueue will tell.
    if adapter and (_schema(adapter) or {}).get("type", "object") != "object":
        raise InvalidInput(
            f"{topic}: a payload is a JSON object, so {annotation!r} can't be its type; wrap it in a model"
        )
    return adapter


def _schema(adapter: TypeAdapter[Any]) -> dict[str, Any] | None:
    try:
        return adapter.json_schema()
    except PydanticUserError:  # a type that JSON schema has no words for
        return None


def _written(adapter: TypeAdapter[Any], value: Any, what: str) -> Any:
    """The value in JSON's types, as its own type spells it."""
    try:
        written = adapter.serializer.to_python(value, mode="json", by_alias=True, warnings="none")
        suspect = adapter.serializer.to_python(value, warnings="none") if _has_null(written) else None
    except ValueError as error:
        raise InvalidPayload(f"{what} can't be written as JSON: {error}", field=what) from None
    check_finite(suspect, what)
    return written


def _has_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_null, value.values()))
    return value is None or (isinstance(value, list) and any(map(_has_null, value)))


def _explained(topic: str, what: str, error: ValidationError) -> InvalidPayload:
    first = error.errors(include_url=False, include_input=False)[0]
    path = ".".join(str(part) for part in (what, *first["loc"]))
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return InvalidPayload(f"{topic}: {path}: {first['msg']}{more}", field=what)
