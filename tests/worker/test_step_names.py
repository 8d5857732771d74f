"""Names of steps with any printable text, and results larger than a payload."""

from typing import Any

import pytest

from tests.worker import child_handlers as handlers
from tests.worker.conftest import Start
from treadle import Context, InvalidInput, JobFailed, Queue, Retry
from treadle.model.steps import escaped

ONCE = Retry(1)
BIG = 3_000_000


async def one() -> int:
    return 1


@pytest.mark.parametrize("name", ["tool: a/b", "50% done", "é" * 255, "%2F", "a/b/c", "x" * 255])
async def test_a_name_is_any_printable_text(queue: Queue, start: Start, name: str) -> None:
    @queue.job(retry=ONCE)
    async def named(ctx: Context) -> int:
        async def outer() -> int:
            return int(await ctx.step("inner", one))

        return int(await ctx.step(name, outer))

    job = await named.enqueue()
    await start(queue)
    assert await job.result("30s") == 1
    assert [step["id"] for step in (await job.refresh()).steps] == [escaped(name), f"{escaped(name)}/inner"]


def test_no_two_names_are_escaped_to_one() -> None:
    names = ["a/b", "a%2Fb", "a%252Fb", "%25", "%", "/", "%/", "%%2F", "50% done", "%2", "2F"]
    assert len({escaped(name) for name in names}) == len(names)
    assert not any("/" in escaped(name) for name in names)
    assert escaped("50% done") == "50% done"


@pytest.mark.parametrize("name", ["", "x" * 256, " x", "a\nb", "a\x00b", "\ud800", 7, None])
async def test_bad_names(queue: Queue, start: Start, name: Any) -> None:
    @queue.job(retry=ONCE)
    async def named(ctx: Context) -> str:
        with pytest.raises(InvalidInput):
            await ctx.step(name, one)
        return "refused"

    job = await named.enqueue()
    await start(queue)
    assert await job.result("30s") == "refused"


async def test_a_nested_name_that_is_too_long_is_refused(queue: Queue, start: Start) -> None:
    @queue.job(retry=ONCE)
    async def named(ctx: Context) -> Any:
        async def deeper(level: int) -> Any:
            return await ctx.step("é" * 255, deeper, level + 1) if level < 5 else None

        return await deeper(0)

    job = await named.enqueue()
    await start(queue)
    with pytest.raises(JobFailed, match="nested too deep"):
        await job.result("30s")


async def test_the_longest_names_and_keys_fit(queue: Queue, start: Start) -> None:
    @queue.job(topic="child", retry=ONCE)
    async def child() -> int:
        return 1

    @queue.job(retry=ONCE)
    async def named(ctx: Context) -> Any:
        async def inner() -> Any:
            return await ctx.map("\U0001f600" * 100, child, [{}], key=lambda _: "\U0001f600" * 255)

        return await ctx.step("\U0001f600" * 255, inner)

    job = await named.enqueue()
    await start(queue)
    assert await job.result("30s") == [1]


@pytest.mark.parametrize("kind", ["coroutine", "thread", "process"])
async def test_a_step_may_have_a_larger_result(queue: Queue, start: Start, kind: str) -> None:
    function = handlers.returns_much if kind == "coroutine" else handlers.returns_much_in_thread
    queue.register("much", function, process=kind == "process", step_result_limit="8MiB", retry=ONCE)
    queue.register("little", function, process=kind == "process", retry=ONCE)
    much, little = await queue.enqueue("much", {"n": BIG}), await queue.enqueue("little", {"n": BIG})
    await start(queue)
    assert await much.result("60s") == BIG
    with pytest.raises(JobFailed, match="the limit is 1,048,576"):
        await little.result("60s")


async def test_a_step_of_a_flow_may_too(queue: Queue, start: Start) -> None:
    flow = queue.flow("index", step_result_limit=4 * BIG)

    @flow.step
    async def fetch(payload: dict[str, Any]) -> str:
        return "x" * BIG

    @flow.step
    async def count(ctx: Context) -> int:
        return len(ctx.results["fetch"])

    job = await flow.enqueue({})
    await start(queue)
    assert await job.result("60s") == BIG
    assert (await queue.template("index")).as_json()["stepResultLimit"] == 4 * BIG


@pytest.mark.parametrize("limit", ["13MiB", 0, -1, "8 apples", "", True, 1.5, 12 * 1024 * 1024 + 1])
def test_bad_limits(queue: Queue, limit: Any) -> None:
    with pytest.raises(InvalidInput, match="step_result_limit"):
        queue.register("much", one, step_result_limit=limit)


def test_limits() -> None:
    queue = Queue("sqlite:///names.db")
    for limit, size in (("12MiB", 12_582_912), ("8 MiB", 8_388_608), (5, 5), ("2kB", 2000)):
        queue.register(f"t{size}", one, step_result_limit=limit)
        assert queue.handlers[f"t{size}"].template.step_result_bytes == size
