"""The function behind a topic: how it is called, what its payload and its result look like."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator
from typing_extensions import TypedDict

from treadle import Context
from treadle.model.errors import InvalidInput, InvalidPayload, PayloadTooLarge
from treadle.model.handler import Handler
from treadle.model.template import Template

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForTheTypeChecker

NOON = datetime(2026, 1, 8, 12, tzinfo=UTC)


def handler(function: Callable[..., Any], **options: Any) -> Handler:
    return Handler(function, Template("topic"), **options)


class Format(StrEnum):
    SMALL = "small"


class Video(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    id: UUID
    frame_count: int = Field(default=1, alias="frameCount", ge=0)
    format: Format = Format.SMALL
    at: datetime = NOON


@dataclass
class Mail:
    to: str
    tries: int = 0


class Point(TypedDict):
    x: int
    y: NotRequired[int]


class Node(BaseModel):
    next: "Node | None" = None


class Loose(BaseModel):
    x: Any = None
    y: float | None = None


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)

    at: datetime
    numbers: set[int]


class Opaque:
    pass


VIDEO = {"id": str(UUID(int=7)), "frameCount": 5}
VIDEO_TEXT = '{"id":"00000000-0000-0000-0000-000000000007","frameCount":5,"format":"small","at":"2026-01-08T12:00:00Z"}'


# -- how it is called --------------------------------------------------------------------------------


def nothing() -> None: ...
def only_ctx(ctx) -> None: ...
def only_payload(payload) -> None: ...
def both(ctx, payload) -> None: ...
def by_annotation(c: Context, payload: dict[str, Any]) -> None: ...
def by_annotation_text(c: "Context") -> None: ...
def positional_only(ctx, payload, /) -> None: ...
def with_default(ctx, payload=None) -> None: ...


class Special(Context):
    pass


def by_subclass(c: Special, payload) -> None: ...


class Worker:
    def method(self, ctx, payload) -> None: ...

    @staticmethod
    def static(payload) -> None: ...

    def __call__(self, ctx, payload) -> None: ...


def partly(first, ctx, payload) -> None: ...


@functools.wraps(both)
def wrapped(*args, **kwargs) -> None: ...


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (nothing, ()),
        (only_ctx, ("ctx",)),
        (only_payload, ("payload",)),
        (both, ("ctx", "payload")),
        (by_annotation, ("ctx", "payload")),
        (by_annotation_text, ("ctx",)),
        (by_subclass, ("ctx", "payload")),
        (positional_only, ("ctx", "payload")),
        (with_default, ("ctx", "payload")),
        (Worker().method, ("ctx", "payload")),
        (Worker.static, ("payload",)),
        (Worker(), ("ctx", "payload")),
        (functools.partial(partly, 1), ("ctx", "payload")),
        (wrapped, ("ctx", "payload")),
        (lambda: None, ()),
    ],
)
def test_a_function_gets_what_it_asks_for(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    made = handler(function)
    assert made.arguments("ctx", "payload") == arguments
    assert (made.wants_context, made.wants_payload) == ("ctx" in arguments, "payload" in arguments)


class NotTheContext:
    class Context(BaseModel):
        """A user's payload type that happens to have this name."""

        account: int


def other_context(job: NotTheContext.Context) -> None: ...


def test_only_treadles_own_context_is_one() -> None:
    assert handler(other_context).wants_context is False
    assert handler(other_context).payload('{"account":5}').account == 5


def starred(ctx, *payloads) -> None: ...
def ctx_last(payload, ctx) -> None: ...
def context_last(payload, c: Context) -> None: ...
def ctx_by_name(*, ctx) -> None: ...
def two_contexts(ctx, c: Context) -> None: ...
def yields(ctx):
    yield 1


async def yields_too(ctx):
    yield 1


def annotated_with_nothing(payload: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def annotated_for_checkers(payload: "OnlyForTheTypeChecker") -> None: ...
def annotated_with_nonsense(payload: "1 +") -> None: ...  # type: ignore[valid-type]  # noqa: F722
def annotated_with_an_opaque(payload: Opaque) -> None: ...
def returns_an_opaque() -> Opaque:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (starred, r"arguments are stored by name, and \*payloads has none"),
        (ctx_last, "the context comes once, before all other parameters"),
        (context_last, "the context comes once, before all other parameters"),
        (ctx_by_name, "the context comes once, before all other parameters"),
        (two_contexts, "the context comes once, before all other parameters"),
        (yields, "does not yield"),
        (yields_too, "does not yield"),
        (annotated_with_nothing, "'Missing' is not defined; its annotations must be importable"),
        (annotated_for_checkers, "must be importable"),
        (annotated_with_nonsense, "must be importable"),
        (annotated_with_an_opaque, "can't be a payload or result type"),
        (returns_an_opaque, "can't be a payload or result type"),
        (3, "not a callable"),
        (None, "not a callable"),
    ],
)
def test_a_function_that_cannot_be_a_handler_is_refused_immediately(function: Any, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        handler(function)


def in_a_thread() -> None: ...
async def on_the_loop() -> None: ...


class AsyncWorker:
    async def __call__(self, ctx) -> None: ...

    async def method(self, ctx) -> None: ...


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (in_a_thread, "thread"),
        (on_the_loop, "async"),
        (AsyncWorker(), "async"),
        (AsyncWorker().method, "async"),
        (functools.partial(AsyncWorker().method, None), "async"),
        (Worker(), "thread"),
    ],
)
def test_coroutines_run_on_the_loop_and_the_rest_in_threads(function: Any, kind: str) -> None:
    assert handler(function).kind == kind
    assert handler(function, process=True).kind == "process"


# -- payloads ----------------------------------------------------------------------------------------


def untyped(payload) -> None: ...
def takes_any(payload: Any) -> None: ...
def takes_dict(payload: dict) -> None: ...
def takes_dict_of_any(payload: dict[str, Any]) -> None: ...
def takes_video(ctx, video: Video) -> None: ...
def takes_mail(mail: Mail) -> None: ...
def takes_point(point: Point) -> None: ...
def takes_numbers(numbers: dict[str, int]) -> None: ...
def takes_mapping(numbers: Mapping[str, int]) -> None: ...
def takes_node(node: Node) -> None: ...
def takes_either(either: Mail | Node) -> None: ...
def takes_perhaps(mail: Mail | None) -> None: ...
def takes_annotated(mail: Annotated[Mail, Field(title="a mail")]) -> None: ...
def takes_loose(loose: Loose) -> None: ...


@pytest.mark.parametrize("function", [nothing, only_ctx, untyped, takes_any, takes_dict, takes_dict_of_any])
def test_without_a_type_a_payload_is_any_object(function: Callable[..., Any]) -> None:
    made = handler(function)
    assert made.schema() is None
    assert made.payload_text({"a": [1, None]}) == '{"a":[1,null]}'
    assert made.payload_text(None) == "{}"
    assert made.payload('{"a":1}') == {"a": 1}
    with pytest.raises(InvalidPayload, match="must be a JSON object"):
        made.payload_text([1])


@pytest.mark.parametrize(
    ("function", "given", "text", "received"),
    [
        (takes_video, VIDEO, VIDEO_TEXT, Video.model_validate(VIDEO)),
        (takes_video, Video.model_validate(VIDEO), VIDEO_TEXT, Video.model_validate(VIDEO)),
        (takes_video, {"id": UUID(int=7), "frame_count": 5}, VIDEO_TEXT, Video.model_validate(VIDEO)),
        (takes_mail, Mail("ann"), '{"to":"ann","tries":0}', Mail("ann")),
        (takes_mail, {"to": "ann", "tries": "2"}, '{"to":"ann","tries":2}', Mail("ann", 2)),
        (takes_point, {"x": 1}, '{"x":1}', {"x": 1}),
        (takes_point, {"x": "1", "y": 2}, '{"x":1,"y":2}', {"x": 1, "y": 2}),
        (takes_numbers, {"a": "5"}, '{"a":5}', {"a": 5}),
        (takes_numbers, None, "{}", {}),
        (takes_mapping, {"a": 5}, '{"a":5}', {"a": 5}),
        (takes_node, {"next": {}}, '{"next":{"next":null}}', Node(next=Node())),
        (takes_node, None, '{"next":null}', Node()),
        (takes_either, Mail("ann"), '{"to":"ann","tries":0}', Mail("ann")),
        (takes_perhaps, Mail("ann"), '{"to":"ann","tries":0}', Mail("ann")),
        (takes_annotated, {"to": "ann"}, '{"to":"ann","tries":0}', Mail("ann")),
        (takes_loose, {"x": [None, 1.5]}, '{"x":[null,1.5],"y":null}', Loose(x=[None, 1.5])),
        (takes_loose, {"x": {"é": "ü"}}, '{"x":{"é":"ü"},"y":null}', Loose(x={"é": "ü"})),
    ],
)
def test_a_typed_payload_is_checked_written_by_its_aliases_and_read_back(
    function: Callable[..., Any], given: Any, text: str, received: Any
) -> None:
    made = handler(function)
    assert made.payload_text(given) == text
    assert made.payload(text) == received


@pytest.mark.parametrize(
    ("function", "payload", "complaint"),
    [
        (takes_video, {}, "^topic: payload.id: Field required$"),
        (takes_video, {"id": "x"}, "^topic: payload.id: Input should be a valid UUID"),
        (takes_video, VIDEO | {"frameCount": -1}, "^topic: payload.frameCount: Input should be greater"),
        (takes_video, VIDEO | {"frameCount": "many", "at": "never"}, r"\(and 1 more\)$"),
        (takes_mail, {"to": None}, "^topic: payload.to: "),
        (takes_mail, [1], "^topic: payload: "),
        (takes_mail, "ann", "^topic: payload: "),
        (takes_point, {"y": 1}, "^topic: payload.x: Field required$"),
        (takes_numbers, {"a": "x"}, "^topic: payload.a: "),
        (takes_node, {"next": {"next": 5}}, "^topic: payload.next.next: "),
    ],
)
def test_a_payload_that_its_type_refuses_is_refused_with_the_path(
    function: Callable[..., Any], payload: Any, complaint: str
) -> None:
    made = handler(function)
    with pytest.raises(InvalidPayload, match=complaint) as refusal:
        made.payload_text(payload)
    assert refusal.value.data == {"field": refusal.value.message.split(": ")[1]}, "the path that the message names"


def test_a_stored_payload_that_fits_no_longer_is_refused_at_the_handlers_door() -> None:
    with pytest.raises(InvalidPayload, match=r"^topic: payload\.to: Field required$"):
        handler(takes_mail).payload('{"recipient":"ann"}')


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        ({"x": object()}, "payload can't be written as JSON"),
        ({"x": b"\xff"}, "payload can't be written as JSON"),
        ({"x": "\x00"}, r"payload\.x has a NUL character"),
        ({"x": 2**64}, r"payload\.x is an integer of more than 64 bits"),
        ({"x": math.nan}, "payload has a nan"),
        ({"y": math.nan}, "payload has a nan"),
        ({"x": [{"deep": math.inf}]}, "payload has a inf"),
        ({"x": (1, {-math.inf})}, "payload has a -inf"),
    ],
)
def test_a_typed_payload_is_plain_json_like_any_other(payload: Any, complaint: str) -> None:
    with pytest.raises(InvalidPayload, match=complaint):
        handler(takes_loose).payload_text(payload)


def test_a_typed_payload_has_the_same_limit_as_any_other() -> None:
    with pytest.raises(PayloadTooLarge):
        handler(takes_mail).payload_text({"to": "x" * 1_048_576})


def takes_int(number: int) -> None: ...
def takes_text(text: str) -> None: ...
def takes_list(items: list[int]) -> None: ...
def takes_tuple(items: tuple[int, int]) -> None: ...


@pytest.mark.parametrize("function", [takes_int, takes_text, takes_list, takes_tuple])
def test_a_type_that_is_no_object_is_an_argument_with_a_name(function: Callable[..., Any]) -> None:
    assert handler(function).takes_arguments
    assert not handler(function).wants_payload


# -- ordinary arguments ------------------------------------------------------------------------------


def add(a: int, b: int = 2) -> int:
    return a + b


def scale(ctx, by: float, /, image: Mail, *, sharp: bool = False) -> list[Any]:
    return [ctx, by, image, sharp]


async def gather(ctx: Context, first: str, **more: Any) -> dict[str, Any]:
    return {"first": first, **more}


def perhaps(at: datetime | None = None) -> datetime | None:
    return at


def named_like_a_model(copy: str, json: list[int], _private: int) -> None: ...


def only_by_name(*, user: dict) -> dict:
    return user


def mixed(kind: Literal[1, "a"]) -> None: ...


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "text"),
    [
        (add, (1,), {"b": 3}, '{"a":1,"b":3}'),
        (add, (), {"a": 1}, '{"a":1}'),
        (add, ("5",), {}, '{"a":5}'),
        (scale, (0.5, Mail("ann")), {"sharp": True}, '{"by":0.5,"image":{"to":"ann","tries":0},"sharp":true}'),
        (gather, ("x",), {"n": 1}, '{"first":"x","n":1}'),
        (perhaps, (NOON,), {}, '{"at":"2026-01-08T12:00:00Z"}'),
        (perhaps, (), {}, "{}"),
        (named_like_a_model, ("c", [1], 2), {}, '{"copy":"c","json":[1],"_private":2}'),
        (only_by_name, (), {"user": {"id": 1}}, '{"user":{"id":1}}'),
        (mixed, ("a",), {}, '{"kind":"a"}'),
    ],
)
def test_arguments_are_stored_by_name(function: Callable[..., Any], args: Any, kwargs: Any, text: str) -> None:
    made = handler(function)
    assert made.takes_arguments
    assert made.payload_text(made.bind(args, kwargs)) == text


@pytest.mark.parametrize(
    ("function", "text", "result"),
    [
        (add, '{"a":1}', 3),
        (add, '{"b":3,"a":1}', 4),
        (scale, '{"by":2,"image":{"to":"ann"}}', ["ctx", 2.0, Mail("ann"), False]),
        (perhaps, "{}", None),
        (perhaps, '{"at":"2026-01-08T12:00:00Z"}', NOON),
        (only_by_name, '{"user":{"id":1}}', {"id": 1}),
    ],
)
def test_a_function_is_called_with_its_arguments(function: Callable[..., Any], text: str, result: Any) -> None:
    made = handler(function)
    assert made.function(*made.arguments("ctx", made.payload(text))) == result


async def test_a_coroutine_with_open_arguments_is_called_with_all_of_them() -> None:
    made = handler(gather)
    assert made.kind == "async"
    assert made.function.__name__ == "gather"
    assert await made.function(*made.arguments("ctx", made.payload('{"first":"x","n":1}'))) == {"first": "x", "n": 1}


@pytest.mark.parametrize(
    ("args", "kwargs", "complaint"),
    [
        ((), {}, "missing a required argument: 'a'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"c": 1}, "got an unexpected keyword argument 'c'"),
        ((1,), {"a": 1}, "multiple values for argument 'a'"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_when_it_is_enqueued(args: Any, kwargs: Any, complaint: str) -> None:
    with pytest.raises(InvalidPayload, match=f"^topic: {complaint}"):
        handler(add).bind(args, kwargs)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"a":"x"}', r"payload\.a: Input should be a valid integer"),
        ("{}", r"payload\.a: Field required"),
        ('{"a":1,"c":2}', r"payload\.c: Extra inputs are not permitted"),
    ],
)
def test_a_payload_that_does_not_fit_the_signature_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(InvalidPayload, match=f"^topic: {complaint}"):
        handler(add).payload(text)


def test_the_schema_is_the_signature() -> None:
    schema = handler(add).schema()
    assert schema
    assert schema["properties"] == {"a": {"title": "A", "type": "integer"}, "b": {"title": "B", "type": "integer"}}
    assert (schema["required"], schema["additionalProperties"]) == (["a"], False)
    assert (handler(gather).schema() or {})["additionalProperties"] is True


def takes_opaque_argument(a: Opaque, b: int) -> None: ...


def test_an_argument_that_is_no_json_is_refused() -> None:
    with pytest.raises(InvalidInput, match="topic: its arguments can't be a payload or result type"):
        handler(takes_opaque_argument)


def test_the_schema_of_a_typed_payload_is_for_the_template() -> None:
    schema = handler(takes_video).schema()
    assert schema is not None
    assert schema["type"] == "object"
    assert schema["required"] == ["id"]
    assert "frameCount" in schema["properties"]


def read_opaque(value: Any) -> Opaque:
    return value if isinstance(value, Opaque) else Opaque()


class Unspeakable(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    thing: Annotated[Opaque, PlainValidator(read_opaque), PlainSerializer(lambda _: "thing", when_used="json")]
    call: Callable[[], int] | None = None


def takes_unspeakable(payload: Unspeakable) -> None: ...


def test_a_type_without_a_schema_works_all_the_same() -> None:
    made = handler(takes_unspeakable)
    assert made.schema() is None
    text = made.payload_text({"thing": Opaque()})
    assert text == '{"thing":"thing","call":null}'
    assert isinstance(made.payload(text).thing, Opaque)


# -- results -----------------------------------------------------------------------------------------


def returns_nothing() -> None: ...
def returns_anything(): ...
def returns_video() -> Video:
    raise NotImplementedError


def returns_mail() -> Mail:
    raise NotImplementedError


def returns_point() -> Point:
    raise NotImplementedError


def returns_number() -> int:
    raise NotImplementedError


def returns_times() -> list[datetime]:
    raise NotImplementedError


def returns_strict() -> Strict:
    raise NotImplementedError


def returns_perhaps() -> Mail | None: ...
async def returns_later() -> Mail:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("function", "returned", "text", "read"),
    [
        (returns_nothing, None, None, None),
        (returns_anything, None, None, None),
        (returns_anything, {"a": 1}, '{"a":1}', {"a": 1}),
        (returns_anything, [1, "é"], '[1,"é"]', [1, "é"]),
        (returns_anything, NOON, '"2026-01-08T12:00:00Z"', "2026-01-08T12:00:00Z"),
        (returns_nothing, 5, "5", 5),
        (returns_video, Video.model_validate(VIDEO), VIDEO_TEXT, Video.model_validate(VIDEO)),
        (returns_mail, Mail("ann"), '{"to":"ann","tries":0}', Mail("ann")),
        (returns_later, Mail("ann"), '{"to":"ann","tries":0}', Mail("ann")),
        (returns_mail, {"to": "ann", "tries": 1}, '{"to":"ann","tries":1}', Mail("ann", 1)),
        (returns_point, {"x": 1}, '{"x":1}', {"x": 1}),
        (returns_number, 42, "42", 42),
        (returns_number, 0, "0", 0),
        (returns_times, [NOON], '["2026-01-08T12:00:00Z"]', [NOON]),
        (
            returns_strict,
            Strict(at=NOON, numbers={1}),
            '{"at":"2026-01-08T12:00:00Z","numbers":[1]}',
            Strict(at=NOON, numbers={1}),
        ),
        (returns_perhaps, None, None, None),
    ],
)
def test_a_result_is_written_by_its_type_and_comes_back_in_it(
    function: Callable[..., Any], returned: Any, text: str | None, read: Any
) -> None:
    made = handler(function)
    assert made.result_text(returned) == text
    if text is not None:
        assert made.result(handler(returns_anything).payload(text)) == read
    assert made.result(None) is None


@pytest.mark.parametrize(
    ("function", "returned", "complaint"),
    [
        (returns_anything, object(), "result can't be written as JSON"),
        (returns_anything, math.nan, "result is nan"),
        (returns_anything, {"a": "\x00"}, r"result\.a has a NUL"),
        (returns_mail, Opaque(), "result can't be written as JSON"),
        (returns_mail, Mail("a\x00"), r"result\.to has a NUL"),
        (returns_number, math.inf, "result has a inf"),
    ],
)
def test_a_result_that_cannot_be_stored_is_refused_with_the_reason(
    function: Callable[..., Any], returned: Any, complaint: str
) -> None:
    with pytest.raises(InvalidPayload, match=f"^{complaint}"):
        handler(function).result_text(returned)


def test_a_stored_result_that_fits_no_longer_is_told_apart() -> None:
    with pytest.raises(InvalidPayload, match=r"^topic: result\.to: Field required$") as refusal:
        handler(returns_mail).result({"tries": 1})
    assert refusal.value.data == {"field": "result.to"}


def test_a_handler_keeps_its_function_its_topic_and_its_template() -> None:
    template = Template("mail.digest")
    made = Handler(both, template)
    assert (made.function, made.topic, made.template) == (both, "mail.digest", template)
