"""Declared flows: `queue.flow("name")` with its steps, and what a handler of a flow looks like to the rest."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeAlias, overload

from pydantic_core import from_json, to_json
from typing_extensions import TypeVar, Unpack

from treadle.model.durations import Duration, duration_ms
from treadle.model.errors import InvalidInput
from treadle.model.handler import Handler, ResultType, result_type
from treadle.model.job import Job
from treadle.model.payload import dumps_object
from treadle.model.retry import Retry
from treadle.model.steps import DONE, MAX_NAMES, STEP_TIMEOUT_MS, StepSpec, checked_name
from treadle.model.template import Template
from treadle.policy import graph
from treadle.policy.flow import PARALLEL, PlannedStep
from treadle.policy.mapping import LIMIT, ItemKey
from treadle.policy.rules import parse_rule
from treadle.queue.enqueueing.new_jobs import EnqueueOptions, TopicOwner, merged
from treadle.queue.handlers.mapped import MapOptions, results, without_item
from treadle.queue.handlers.steps import from_answer
from treadle.queue.handlers.tasks import JobOptions
from treadle.store.values import ClaimedStep

Call = ParamSpec("Call")
ReturnT = TypeVar("ReturnT")
FlowPayloadT = TypeVar("FlowPayloadT", default=Any)
When = Callable[[Any, Any], Any]
After: TypeAlias = "Iterable[str | Callable[..., Any]] | None"


class FlowOptions(JobOptions, total=False):
    """The options of `queue.flow`."""

    parallel: int
    """How many steps of a job run at the same time at most."""


if TYPE_CHECKING:
    from treadle.queue.handlers.context import Context
    from treadle.queue.handlers.sync_tasks import SyncFlow
    from treadle.queue.queue import Queue

    ArgumentT = TypeVar("ArgumentT")
    StepFunction: TypeAlias = (
        Callable[[Context, ArgumentT], ReturnT]
        | Callable[[ArgumentT], ReturnT]
        | Callable[[Context], ReturnT]
        | Callable[[], ReturnT]
    )


class FlowStep(Generic[Call, ReturnT]):
    """A declared step: call it as before."""

    def __init__(
        self,
        function: Callable[Call, ReturnT] | None,
        handler: Handler | None,
        spec: StepSpec,
        retry: Retry | None = None,
        when: When | None = None,
        answer: Any = None,
        mapped: MapOptions | None = None,
        item: ResultType | None = None,
    ) -> None:
        self.handler = handler
        """None: it waits for an answer."""
        self.spec = spec
        self.answer = answer
        self.name = spec.name
        self.retry = retry
        self.when = when
        self.mapped = mapped
        """It runs once for each item of a list."""
        self.item = item
        """The type of the items."""
        self.__wrapped__ = function
        self.result: ResultType | None = None
        if function is not None:
            self.result = result_type(function)
            self.__name__ = getattr(function, "__name__", spec.name)
            self.__qualname__ = getattr(function, "__qualname__", spec.name)
            self.__module__ = function.__module__
            self.__doc__ = function.__doc__
        elif answer is not None:
            self.result = ResultType(answer, f"the answer to {spec.name}")

    def __call__(self, *args: Call.args, **kwargs: Call.kwargs) -> ReturnT:
        if self.__wrapped__ is None:
            raise InvalidInput(f"step {self.name} has no code; it waits for queue.signal(job_id, {self.name!r}, value)")
        return self.__wrapped__(*args, **kwargs)

    @property
    def shown_title(self) -> str:
        return self.spec.title or self.name

    def typed(self, text: str | None) -> Any:
        """A stored result in the step's type."""
        if self.handler is None:
            return from_answer(self.result, text, self.name)
        if self.mapped is not None:
            return None if text is None else [self._typed_item(one) for one in from_json(text)]
        return self.result.value(text) if self.result else None

    def _typed_item(self, value: Any) -> Any:
        return self.result.value(to_json(value).decode()) if self.result and value is not None else value

    def __repr__(self) -> str:
        return f"<step {self.name}>"


class FlowHandler(Handler):
    """The steps of a flow, as the rest of the program knows a handler."""

    def __init__(self, template: Template, limited: bool, parallel: int = PARALLEL) -> None:
        self.parallel = _checked_parallel(template.topic, parallel)
        self.topic = template.topic
        self.name = f"the flow {template.topic}"
        self.kind = "flow"
        self.steps: list[FlowStep[..., Any]] = []
        self.limited = limited
        """A time limit was given for the whole flow."""
        self.wants_context = True
        self.wants_payload = True
        self._parameters = ()
        self._base = template
        self._template: Template | None = None

    @property
    def template(self) -> Template:
        if self._template is None:
            self._template = self._made_template()
        return self._template

    @template.setter
    def template(self, template: Template) -> None:
        self._base = replace(template, steps=())
        self._template = None

    def _made_template(self) -> Template:
        timeout = self._base.timeout
        if not self.limited:
            total = sum(step.spec.timeout_ms or 0 for step in self.steps if not step.spec.external)
            timeout = max(total, STEP_TIMEOUT_MS) / 1000
        specs = tuple(step.spec for step in self.steps)
        return replace(self._base, timeout=timeout, steps=specs, payload_schema=self.schema())

    def declare(self, step: FlowStep[..., Any]) -> None:
        if any(one.name == step.name for one in self.steps):
            raise InvalidInput(
                f"{self.topic}: step {step.name} is declared already; give each step its own name", field="step"
            )
        if len(self.steps) >= MAX_NAMES:
            raise InvalidInput(f"{self.topic}: a flow has at most {MAX_NAMES} steps", field="step")
        if step.handler is not None:
            step.handler.flow = self
        self.steps.append(step)
        self._template = None

    def step(self, name: str) -> FlowStep[..., Any] | None:
        return next((one for one in self.steps if one.name == name), None)

    def planned(self, newer: Sequence[ClaimedStep] = ()) -> list[PlannedStep]:
        """The declared steps. `newer` are the steps of a job that was made by newer code: steps without code here
        have to wait for a worker that has it."""
        planned = [
            PlannedStep(one.name, one.spec.external, one.when is not None, after=one.spec.after) for one in self.steps
        ]
        names = {one.name for one in self.steps}
        for one in sorted(newer, key=lambda step: step.place):
            if one.declared and one.name not in names and one.state not in DONE:
                planned.insert(min(one.place, len(planned)), PlannedStep(one.name, served=False))
        return planned

    @property
    def _head(self) -> Handler | None:
        return next((step.handler for step in self.steps if step.handler is not None), None)

    @property
    def function(self) -> Callable[..., Any]:  # type: ignore[override]
        """The first step's, which says where the flow is written."""
        return self._head.function if self._head else _no_code

    # -- what a handler can do ---------------------------------------------------------------------

    @property
    def takes_arguments(self) -> bool:
        return False

    def schema(self) -> dict[str, Any] | None:
        return self._head.schema() if self._head else None

    def payload(self, text: str) -> Any:
        return self._head.payload(text) if self._head else from_json(text)

    def payload_text(self, payload: Any) -> str:
        return self._head.payload_text(payload) if self._head else dumps_object(payload)

    def result(self, value: Any) -> Any:
        """The job's result is its last step's, or the results of all its ends by name."""
        if value is None or not self.steps:
            return value
        ends = graph.ends([step.spec for step in self.steps])
        if len(ends) > 1 and isinstance(value, dict):
            return {name: self._typed(name, one) for name, one in value.items()}
        return self._typed(ends[0], value)

    def _typed(self, name: str, value: Any) -> Any:
        step = self.step(name)
        return value if step is None or value is None else step.typed(to_json(value).decode())


def _checked_parallel(topic: str, parallel: int) -> int:
    if not isinstance(parallel, int) or isinstance(parallel, bool) or not 1 <= parallel <= MAX_NAMES:
        raise InvalidInput(f"{topic}: parallel: {parallel!r} is not a number from 1 to {MAX_NAMES}", field="parallel")
    return parallel


def _no_code(payload: Any) -> None:
    """In the place of a function, for a flow of external steps alone."""


class Flow(TopicOwner, Generic[FlowPayloadT]):
    """A template with steps that come one after the other, or as `after=` says.

    `flow: Flow[Corpus] = queue.flow("index")` tells type checkers the payload of its steps and of `enqueue`.
    """

    def __init__(self, queue: Queue, handler: FlowHandler) -> None:
        self.queue = queue
        self.handler = handler
        self.topic = handler.topic
        self._options: EnqueueOptions = {}

    @overload
    def step(self, function: StepFunction[FlowPayloadT, ReturnT], /) -> FlowStep[..., ReturnT]: ...

    @overload
    def step(
        self,
        /,
        *,
        name: str | None = None,
        title: str = "",
        timeout: Duration | None = None,
        retry: Retry | None = None,
        when: When | None = None,
        after: After = None,
        cancelable: bool = True,
        process: bool = False,
    ) -> Callable[[StepFunction[FlowPayloadT, ReturnT]], FlowStep[..., ReturnT]]: ...

    @overload
    def step(
        self,
        /,
        *,
        map: str | Callable[..., Any],
        key: ItemKey = None,
        limit: int = LIMIT,
        max_failed: int | str = 0,
        name: str | None = None,
        title: str = "",
        timeout: Duration | None = None,
        retry: Retry | None = None,
        when: When | None = None,
        after: After = None,
        cancelable: bool = True,
        process: bool = False,
    ) -> Callable[[Callable[Call, ReturnT]], FlowStep[Call, ReturnT]]: ...

    def step(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        title: str = "",
        timeout: Duration | None = None,
        retry: Retry | None = None,
        when: When | None = None,
        after: After = None,
        map: str | Callable[..., Any] | None = None,
        key: ItemKey = None,
        limit: int = LIMIT,
        max_failed: int | str = 0,
        cancelable: bool = True,
        process: bool = False,
    ) -> Any:
        """Declare the decorated function as the next step, by default under its own name.

        It comes after the step declared before it, or after the steps that `after` names; steps that can run at the
        same time do. With `map` it runs once for each item of the list which that step returned, at most `limit` at the
        same time: its function takes the item as its last parameter.
        """

        def declare(function: Callable[Call, ReturnT]) -> FlowStep[Call, ReturnT]:
            chosen = checked_name(name or getattr(function, "__name__", ""))
            if "/" in chosen:
                raise InvalidInput(f"step: {chosen!r} has a slash, which is reserved for nested steps", field="step")
            timeout_ms = STEP_TIMEOUT_MS if timeout is None else duration_ms(timeout, "timeout")
            if timeout_ms < 1:
                raise InvalidInput(f"step {chosen}: timeout: must be longer than 0", field="timeout")
            template = replace(self.handler._base, timeout=timeout_ms / 1000)
            called, item = (function, None) if map is None else without_item(function)
            made = Handler(called, template, process)
            if made.takes_arguments:
                raise InvalidInput(f"step {chosen}: a step takes (ctx, payload), not the members of the payload")
            result = result_type(function).schema
            follows = self._after(chosen, after)
            spec = StepSpec(chosen, title, False, timeout_ms, cancelable, result, after=follows)
            mapped = None
            if map is not None:
                source = self._name_of(chosen, map, "map")
                spec = replace(spec, map=source, limit=limit, after=self._after_source(chosen, source, follows))
                options = MapOptions(key, limit, max_failed, timeout_ms / 1000, retry, cancelable)
                mapped = options.checked(chosen)
            step = FlowStep(function, made, spec, retry, _checked_when(when, chosen), None, mapped, item)
            self.handler.declare(step)
            return step

        return declare if function is None else declare(function)

    def external(
        self,
        name: str,
        /,
        *,
        answer: Any = None,
        timeout: Duration | None = None,
        title: str = "",
        when: When | None = None,
        after: After = None,
        answer_rule: str | None = None,
    ) -> FlowStep[..., Any]:
        """Declare a step without code: the job waits for `queue.signal(job_id, name, value)`."""
        limit = None if timeout is None else duration_ms(timeout, "timeout")
        if answer_rule is not None:
            parse_rule(answer_rule)
        schema = None if answer is None else ResultType(answer, checked_name(name)).schema
        follows = self._after(checked_name(name), after)
        spec = StepSpec(name, title, True, limit, True, None, schema, answer_rule, follows)
        step: FlowStep[..., Any] = FlowStep(None, None, spec, None, _checked_when(when, name), answer)
        self.handler.declare(step)
        return step

    def _after(self, name: str, after: After) -> tuple[str, ...] | None:
        if after is None:
            return None
        if isinstance(after, str) or not isinstance(after, Iterable):
            hint = f"[{after!r}]" if isinstance(after, str) else "a list of steps or their names"
            raise InvalidInput(f"step {name}: after: use {hint}", field="after")
        names = [self._name_of(name, one) for one in after]
        return graph.checked_after(name, names, [step.name for step in self.handler.steps])

    def _after_source(self, name: str, source: str, after: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """A mapped step comes after the step whose list it maps over."""
        declared = self.handler.steps
        graph.checked_after(name, [source], [step.name for step in declared])
        before = [declared[-1].name] if after is None else list(after)
        if graph.comes_before([step.spec for step in declared], source, before):
            return after
        return (*before, source)

    def _name_of(self, name: str, before: Any, option: str = "after") -> str:
        """The name of a step that was given as itself, as its function, or by name."""
        if isinstance(before, str):
            return before
        for step in self.handler.steps:
            if before is step or (step.__wrapped__ is not None and before is step.__wrapped__):
                return step.name
        shown = getattr(before, "__qualname__", None) or repr(before)
        raise InvalidInput(f"step {name}: {option}: {shown} is not a step of {self.topic}", field=option)

    def options(self, **options: Unpack[EnqueueOptions]) -> Flow[FlowPayloadT]:
        """The same flow with options of `Queue.enqueue`: `flow.options(delay="15m").enqueue(…)`."""
        chosen: Flow[FlowPayloadT] = Flow(self.queue, self.handler)
        chosen._options = merged(self._options, options)
        return chosen

    @overload
    async def enqueue(self, payload: FlowPayloadT, **options: Unpack[EnqueueOptions]) -> Job[Any]: ...

    @overload
    async def enqueue(self: Flow[dict[str, Any]], **options: Unpack[EnqueueOptions]) -> Job[Any]: ...

    async def enqueue(self, payload: Any = None, **options: Unpack[EnqueueOptions]) -> Job[Any]:
        """See `Queue.enqueue`."""
        return await self.queue.enqueue(self.topic, payload, **merged(self._options, options))

    async def enqueue_many(self, payloads: Sequence[FlowPayloadT], **options: Unpack[EnqueueOptions]) -> list[Job[Any]]:
        """See `Queue.enqueue_many`."""
        return await self.queue.enqueue_many(self.topic, payloads, **merged(self._options, options))

    @property
    def sync(self) -> SyncFlow[FlowPayloadT]:
        """The same methods, blocking."""
        from treadle.queue.handlers.sync_tasks import SyncFlow

        return SyncFlow(self.queue.sync, self.topic, self._options)

    def __repr__(self) -> str:
        return f"<Flow {self.topic}, {len(self.handler.steps)} steps>"


def _checked_when(when: When | None, name: str) -> When | None:
    if when is not None and not callable(when):
        raise InvalidInput(f"step {name}: when: {when!r} is not a function of (ctx, payload)", field="when")
    return when


NO_LISTS: Mapping[str, int] = {}


class Results(Mapping[str, Any]):
    """The results of completed steps, in the types of their functions; converted when they are asked for."""

    def __init__(
        self,
        texts: Mapping[str, str | None],
        handler: Handler,
        find_type: Callable[[str], ResultType | None] = lambda name: None,
        lists: Mapping[str, int] = NO_LISTS,
        read: Callable[[str, int, int], Sequence[tuple[int, str | None]]] | None = None,
    ) -> None:
        """`lists`: how many items mapped steps have, whose results are read in pages."""
        self._texts = texts
        self._lists = lists
        self._read = read
        self._flow = handler.flow
        self._find_type = find_type
        """For a function that does not know its flow, because a process found it by its name."""

    def __getitem__(self, name: str) -> Any:
        name = getattr(name, "name", name)
        if name not in self._texts:
            raise KeyError(f"step {name} has not completed")
        step = self._flow.step(name) if isinstance(self._flow, FlowHandler) else None
        if name in self._lists and self._read is not None:
            type_ = step.result if step else self._find_type(name)
            return results(self._lists[name], functools.partial(self._read, name), type_)
        text = self._texts[name]
        return step.typed(text) if step else (self._find_type(name) or ResultType(None, name)).value(text)

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __repr__(self) -> str:
        return f"<results of {', '.join(self._texts)}>"
