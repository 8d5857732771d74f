"""The function behind a topic: how to call it, and the types of its payload and result."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NotRequired
from weakref import WeakKeyDictionary

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json
from typing_extensions import TypedDict, is_typeddict

from treadle.model.errors import InvalidAnswer, InvalidInput, InvalidPayload, TreadleError
from treadle.model.lazy_list import LazyList
from treadle.model.payload import MAX_BYTES, MAX_PATH, check_finite, dumps, dumps_object, is_plain
from treadle.model.raised import not_ctrl_c, one_line
from treadle.model.template import Template
from treadle.model.typed_dicts import understood

HandlerKind = Literal["async", "thread", "process", "flow"]


class HandlerContext:
    """Marks the class that handlers receive as `ctx`; that class is defined in a higher layer."""

    __slots__ = ()


class Handler:
    """A function registered for a topic, with its template and its types.

    A first parameter named `ctx` or annotated `Context` gets the context. If one parameter is left and its type is
    object-like, `Any` or missing, it gets the whole payload. With any other signature the members of the payload are
    the function's arguments, by name.
    """

    flow: Handler | None = None
    """The flow that it is a step of."""
    _default: Any = inspect.Parameter.empty
    """Of the parameter that gets the whole payload."""

    def __init__(self, function: Callable[..., Any], template: Template, process: bool = False) -> None:
        self.function = function
        self.name = f"{function.__module__}.{_name(function)}" if callable(function) else repr(function)
        self.template = template
        self.topic = template.topic
        signature = _signature(function)
        self.kind: HandlerKind = "process" if process else "async" if _is_async(function) else "thread"
        self.wants_context, parameters = _parameters(function, signature)
        self._payload: TypeAdapter[Any] | None = None
        self._parameters: Sequence[inspect.Parameter] = ()
        self.wants_payload = len(parameters) == 1 and self._take_payload(parameters[0])
        if parameters and not self.wants_payload:
            self._take_arguments(parameters)
        self._result = _adapter(signature.return_annotation, self.topic)
        # Call the validator directly, as below: the adapter's method takes as long again as validating a small payload.
        self._validate_json = self._payload.validator.validate_json if self._payload else from_json

    def _take_payload(self, parameter: inspect.Parameter) -> bool:
        """Whether the only parameter gets the whole payload."""
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            return False
        adapter = _adapter(parameter.annotation, self.topic)
        if adapter and not _is_object(_schema(adapter) or {}):
            return False
        self._payload = adapter
        self._default = parameter.default
        return True

    def _take_arguments(self, parameters: Sequence[inspect.Parameter]) -> None:
        self._parameters = parameters
        self._payload = _arguments_adapter(self.topic, parameters)
        if any(one.kind in (one.KEYWORD_ONLY, one.VAR_KEYWORD) for one in parameters):
            self.function = _called_by_position(self.function, parameters, int(self.wants_context))

    @property
    def takes_arguments(self) -> bool:
        """True if the payload contains the function's arguments by name."""
        return bool(self._parameters)

    def takes(self, argument: str) -> bool:
        return any(argument == one.name for one in self._parameters)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The payload for a call of the function with these arguments, without the context."""
        try:
            given = inspect.Signature(self._parameters).bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidPayload(f"{self.topic}: {error}", field="payload") from None
        named = dict(given.arguments)
        for one in self._parameters:
            if one.kind is one.VAR_KEYWORD:
                named |= named.pop(one.name, {})
        return named

    def schema(self) -> dict[str, Any] | None:
        """The JSON schema of the payload, for the saved template; None allows any object."""
        return _schema(self._payload) if self._payload else None

    def result_schema(self) -> dict[str, Any] | None:
        """The JSON schema of the stored result; None allows anything."""
        return _schema(self._result, "serialization") if self._result else None

    def payload(self, text: str) -> Any:
        """The payload in the type that the function expects."""
        try:
            return self._validate_json(text)
        except ValidationError as error:
            if self._default is None and text == "{}":
                return None
            raise _explained(self.topic, "payload", error) from None

    def payload_text(self, payload: Any) -> str:
        """The payload as stored: validated, an object, plain JSON. Without one, the parameter's own default."""
        given = self._default if payload is None and self._default is not inspect.Parameter.empty else payload
        if self._payload is None:
            return dumps_object(given)
        try:
            value = self._payload.validator.validate_python({} if given is None else given)
            return dumps_object(_written(self._payload, value, "payload"))
        except ValidationError as error:
            if payload is None and self._default is None:
                return "{}"
            raise _explained(self.topic, "payload", error) from None
        except TreadleError:
            raise
        except BaseException as error:  # its type may raise anything, which must not reach those who make jobs of it
            told = one_line(not_ctrl_c(error))
            raise InvalidPayload(f"{self.topic}: payload: its type can't read it: {told}", field="payload") from error

    @property
    def default_payload(self) -> Any:
        """The payload of a job that was given none, in JSON types; None if the function has no default for it."""
        if self._default is None or self._default is inspect.Parameter.empty:
            return None
        return from_json(self.payload_text(None))

    def result_text(self, result: Any) -> str | None:
        """The result as stored; None if there is none."""
        if result is None:
            return None
        if isinstance(result, LazyList):
            result = list(result)
        if self._result is not None and not is_plain(result):
            result = _written(self._result, result, "result")
        return dumps(result, "result", MAX_BYTES if self.flow is None else self.template.step_result_bytes)

    def result(self, value: Any) -> Any:
        """A stored result, converted to the function's return type."""
        if self._result is None or value is None:
            return value
        try:
            return self._result.validate_json(to_json(value))
        except ValidationError as error:
            raise _explained(self.topic, "result", error) from None

    def arguments(self, context: Any, payload: Any) -> tuple[Any, ...]:
        """The arguments to call `function` with."""
        if self._parameters:
            found = _by_position(self._parameters, payload)
            return (context, *found) if self.wants_context else tuple(found)
        if self.wants_context:
            return (context, payload) if self.wants_payload else (context,)
        return (payload,) if self.wants_payload else ()


class ResultType:
    """The return type of a function: how its results are stored and read back."""

    def __init__(self, annotation: Any, what: str) -> None:
        self.annotation = annotation
        self._what = what
        self._adapter = _adapter(annotation, what)

    @property
    def schema(self) -> dict[str, Any] | None:
        return _schema(self._adapter) if self._adapter else None

    def text(self, value: Any, limit: int = MAX_BYTES) -> str | None:
        """The result as stored; None if there is none."""
        if value is None:
            return None
        if isinstance(value, LazyList):
            value = list(value)
        if self._adapter is not None and not is_plain(value):
            value = _written(self._adapter, value, "result")
        return dumps(value, "result", limit)

    def value(self, text: str | None) -> Any:
        """A stored result in its type."""
        if text is None or self._adapter is None:
            return None if text is None else from_json(text)
        try:
            return self._adapter.validate_json(text)
        except ValidationError as error:
            raise _explained(self._what, "result", error) from None

    def checked(self, value: Any) -> str:
        """A value from outside as stored, validated by the type; the error names the path."""
        if self._adapter is not None:
            try:
                value = self._adapter.validate_json(to_json(value), strict=None)
            except ValidationError as error:
                first = error.errors(include_url=False, include_input=False)[0]
                path = ".".join(str(part) for part in ("result", *first["loc"]))
                raise InvalidAnswer(f"{self._what}: {path}: {first['msg']}", field=path[:200]) from None
        return self.text(value) or "null"


_result_types: WeakKeyDictionary[Callable[..., Any], ResultType] = WeakKeyDictionary()


def result_type(function: Callable[..., Any]) -> ResultType:
    """The return type that a function's annotation names."""
    try:
        known = _result_types.get(function)
    except TypeError:  # it can't be referenced weakly
        return ResultType(_return_annotation(function), _name(function))
    if known is None:
        known = _result_types[function] = ResultType(_return_annotation(function), _name(function))
    return known


def _return_annotation(function: Callable[..., Any]) -> Any:
    """Functions of C modules, such as `time.sleep`, may have no signature."""
    return None if inspect.isbuiltin(function) else _signature(function).return_annotation


def is_async(function: Callable[..., Any]) -> bool:
    return _is_async(function)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(f"{_name(function)}: a handler returns its result, it does not yield")
    try:
        return inspect.signature(function, eval_str=True)
    except Exception as error:  # annotations are arbitrary expressions and may raise anything
        raise InvalidInput(f"{_name(function)}: {error}; its annotations must be importable") from None


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _parameters(function: Callable[..., Any], signature: inspect.Signature) -> tuple[bool, Sequence[inspect.Parameter]]:
    """Whether it takes the context, and the remaining parameters."""
    wants_context = False
    others: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise InvalidInput(f"{_name(function)}: arguments are stored by name, and *{name} has none; take a list")
        if name == "ctx" or _is_context(parameter.annotation):
            if wants_context or others or parameter.kind is parameter.KEYWORD_ONLY:
                raise InvalidInput(f"{_name(function)}: the context comes once, before all other parameters")
            wants_context = True
        else:
            others.append(parameter)
    return wants_context, others


def _called_by_position(
    function: Callable[..., Any], parameters: Sequence[inspect.Parameter], before: int
) -> Callable[..., Any]:
    """Wrap it so that every argument can be passed by position; `before` counts those before `parameters`."""
    named = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
    positional = before + sum(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in parameters)
    open_ended = parameters[-1].kind is inspect.Parameter.VAR_KEYWORD

    def split(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        keywords = dict(zip(named, args[positional:], strict=False))
        return args[:positional], keywords | args[-1] if open_ended else keywords

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        first, keywords = split(args)
        return function(*first, **keywords)

    @functools.wraps(function)
    async def call_async(*args: Any) -> Any:
        first, keywords = split(args)
        return await function(*first, **keywords)

    return call_async if _is_async(function) else call


def _by_position(parameters: Sequence[inspect.Parameter], arguments: Mapping[str, Any]) -> list[Any]:
    found = [arguments.get(one.name, one.default) for one in parameters if one.kind is not one.VAR_KEYWORD]
    if parameters[-1].kind is inspect.Parameter.VAR_KEYWORD:
        known = {one.name for one in parameters[:-1]}
        found.append({name: value for name, value in arguments.items() if name not in known})
    return found


def _is_context(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, HandlerContext)


def _adapter(annotation: Any, topic: str) -> TypeAdapter[Any] | None:
    """None if there is nothing to check: no annotation, Any, None, plain dict."""
    if annotation in (Any, None, type(None), dict, inspect.Parameter.empty) or annotation == dict[str, Any]:
        return None
    try:
        return TypeAdapter(understood(annotation))
    except PydanticUserError as error:
        what = "its arguments" if is_typeddict(annotation) else repr(annotation)
        raise InvalidInput(f"{topic}: {what} can't be a payload or result type: {error}") from None


def _arguments_adapter(topic: str, parameters: Sequence[inspect.Parameter]) -> TypeAdapter[Any]:
    """One member per parameter. Only the given arguments are stored; defaults stay in the function."""
    members: dict[str, Any] = {}
    for one in parameters:
        annotation = Any if one.annotation is one.empty else understood(one.annotation)
        if one.kind is not one.VAR_KEYWORD:
            members[one.name] = annotation if one.default is one.empty else NotRequired[annotation]
    make_shape: Any = TypedDict  # type checkers only accept literal TypedDicts
    shape = make_shape(topic, members)
    open_ended = parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
    shape.__pydantic_config__ = ConfigDict(extra="allow" if open_ended else "forbid")
    adapter = _adapter(shape, topic)
    assert adapter
    return adapter


def _is_object(schema: Mapping[str, Any], definitions: Mapping[str, Any] | None = None) -> bool:
    """Whether values of this JSON schema are objects. True if the schema does not say; each enqueue checks then."""
    definitions = schema.get("$defs", {}) if definitions is None else definitions
    if "$ref" in schema:
        return _is_object(definitions.get(schema["$ref"].rpartition("/")[2], {}), definitions)
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return all(_is_object(one, definitions) for one in choices if one.get("type") != "null")
    return schema.get("type", "object") == "object" and not {"const", "enum"} & schema.keys()


def _schema(
    adapter: TypeAdapter[Any], mode: Literal["validation", "serialization"] = "validation"
) -> dict[str, Any] | None:
    try:
        return adapter.json_schema(mode=mode)
    except PydanticUserError:  # a type without a JSON schema
        return None


def _written(adapter: TypeAdapter[Any], value: Any, what: str) -> Any:
    """The value in JSON types, serialized by its type."""
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
    return InvalidPayload(f"{topic}: {path}: {first['msg']}{more}", field=path[:MAX_PATH])
