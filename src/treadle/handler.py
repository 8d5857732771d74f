"""The function behind a topic: how it wants to be called, and what its payload and result look like."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, get_type_hints

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import from_json

from treadle.errors import InvalidInput, InvalidPayload
from treadle.payload import dumps, dumps_object
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
        self.kind: Kind = "process" if process else "async" if inspect.iscoroutinefunction(function) else "thread"
        self.wants_context, payload_name, hints = _parameters(function)
        self.wants_payload = payload_name is not None
        self._payload = _adapter(hints.get(payload_name, Any) if payload_name else Any, self.topic)
        self._result = _adapter(hints.get("return", Any), self.topic)

    def schema(self) -> dict[str, Any] | None:
        """JSON schema of the payload, for the saved template; None: any object."""
        return self._payload.json_schema() if self._payload else None

    def payload(self, text: str) -> Any:
        """The payload as the function wants it."""
        if self._payload is None:
            return from_json(text)
        try:
            return self._payload.validate_json(text)
        except ValidationError as error:
            raise InvalidPayload(_explain(self.topic, error), field="payload") from None

    def payload_text(self, payload: Any) -> str:
        """The payload as the store keeps it: validated, object-like, plain JSON."""
        if self._payload is None:
            return dumps_object(payload)
        try:
            value = self._payload.validate_python({} if payload is None else payload)
            return dumps_object(self._payload.dump_python(value, mode="json", by_alias=True))
        except ValidationError as error:
            raise InvalidPayload(_explain(self.topic, error), field="payload") from None

    def result_text(self, result: Any) -> str | None:
        """The result as the store keeps it; None for none."""
        if result is None:
            return None
        if self._result is not None:
            result = self._result.dump_python(result, mode="json", by_alias=True, warnings="none")
        return dumps(result, "result")

    def result(self, value: Any) -> Any:
        """A stored result in the type that the function returns."""
        return value if self._result is None or value is None else self._result.validate_python(value)

    def arguments(self, context: Any, payload: Any) -> tuple[Any, ...]:
        """What to call the function with."""
        if self.wants_context:
            return (context, payload) if self.wants_payload else (context,)
        return (payload,) if self.wants_payload else ()


def _parameters(function: Callable[..., Any]) -> tuple[bool, str | None, dict[str, Any]]:
    hints = _hints(function)
    wants_context, payload_name = False, None
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise InvalidInput(f"{function.__qualname__}: a handler takes (ctx, payload), not *{name}")
        if name == "ctx" or getattr(hints.get(name), "__name__", "") == "Context":
            if payload_name is not None:
                raise InvalidInput(f"{function.__qualname__}: the context comes before the payload")
            wants_context = True
        elif payload_name is None:
            payload_name = name
        elif parameter.default is parameter.empty:
            raise InvalidInput(f"{function.__qualname__}: a handler takes (ctx, payload), nothing more")
    return wants_context, payload_name, hints


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise InvalidInput(f"{function.__qualname__}: {error}; its annotations must be importable") from None


def _adapter(annotation: Any, topic: str) -> TypeAdapter[Any] | None:
    """None where there is nothing to check: no annotation, Any, None, plain dict."""
    if annotation in (Any, None, type(None), dict, inspect.Parameter.empty) or annotation == dict[str, Any]:
        return None
    try:
        return TypeAdapter(annotation)
    except PydanticUserError as error:
        raise InvalidInput(f"{topic}: {annotation!r} can't be a payload or result type: {error}") from None


def _explain(topic: str, error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    path = ".".join(str(part) for part in ("payload", *first["loc"]))
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{topic}: {path}: {first['msg']}{more}"
