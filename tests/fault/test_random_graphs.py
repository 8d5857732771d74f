"""Random graphs against what they give in memory, with kills, early and late answers, cancels and requeues: the same
results, and no finished step runs again. 300 graphs and 200 kills with TREADLE_FAULT=full."""

from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

from tests.fault.audit import in_order
from tests.fault.crew import Crew
from tests.fault.graphs import Graph, answer_to, make_graphs, random_graph
from tests.fault.journal import Pen
from tests.fault.scale import scaled
from tests.waiting import until
from treadle import Job, Queue, Status, StepEnded, TreadleError, WrongState

GRAPHS = scaled(12, 300)
KILLS = scaled(5, 200)
WORKERS = 2


async def test_random_graphs_give_what_they_give_in_memory(crew: Crew) -> None:
    chance = Random(9)
    seeds = range(GRAPHS)
    async with make_graphs(crew.url, Pen(crew.journal.path, "client"), seeds) as queue:
        await queue.save_templates()
        graphs = [random_graph(seed) for seed in seeds]
        jobs = [await queue.enqueue(graph.topic, {}) for graph in graphs]
        team = [crew.hire("work_on_graphs", limit=GRAPHS, lease="1s") for _ in range(WORKERS)]
        for kill in range(KILLS):
            enough = crew.journal.size + chance.randrange(4_000)
            await until(lambda: _moved_on(crew, queue, graphs, jobs, chance, enough), 60, crew.tails, every=0.02)  # noqa: B023
            victim = team.pop(chance.randrange(WORKERS))
            victim.kill()
            assert await victim.gone() == -9
            team.append(crew.hire("work_on_graphs", limit=GRAPHS, lease="1s"))
            if kill % 2:
                await _cancel_one(queue, jobs, chance)
        await until(lambda: _all_ended(queue, graphs, jobs, chance), 120, crew.tails, every=0.05)
        again = await _requeued(queue, graphs, jobs, chance)
        await until(lambda: _all_ended(queue, graphs, jobs, chance), 120, crew.tails, every=0.05)
        await crew.dismiss()
        await in_order(queue)
        for graph, job in zip(graphs, jobs, strict=True):
            await _check(queue, graph, job, again[job.id])


async def _answer_some(queue: Queue, graphs: list[Graph], jobs: list[Job], chance: Random, share: float) -> None:
    for graph, job in zip(graphs, jobs, strict=True):
        for name in graph.external:
            if chance.random() < share:
                try:
                    with suppress(StepEnded):
                        await queue.signal(job.id, name, answer_to(name))
                except TreadleError:
                    ended = (await job.refresh()).ended
                    assert ended, f"{name} was not taken"


async def _moved_on(
    crew: Crew, queue: Queue, graphs: list[Graph], jobs: list[Job], chance: Random, enough: int
) -> bool:
    """The workers have done something since the last kill, or have nothing to do."""
    await _answer_some(queue, graphs, jobs, chance, 0.05)
    return crew.journal.size >= enough or await queue.count(status="running") == 0


async def _all_ended(queue: Queue, graphs: list[Graph], jobs: list[Job], chance: Random) -> bool:
    await _answer_some(queue, graphs, jobs, chance, 0.5)
    return all([(await job.refresh()).ended for job in jobs])


async def _cancel_one(queue: Queue, jobs: list[Job], chance: Random) -> None:
    with suppress(WrongState):
        await queue.cancel(chance.choice(jobs).id)


async def _requeued(queue: Queue, graphs: list[Graph], jobs: list[Job], chance: Random) -> dict[str, set[str]]:
    """What was cancelled goes on; of some of the others, a step and all that depends on it runs again."""
    again: dict[str, set[str]] = {job.id: set() for job in jobs}
    for graph, job in zip(graphs, jobs, strict=True):
        if job.status is not Status.COMPLETED:
            assert job.status is Status.CANCELLED, job.last_error
            await queue.requeue(job.id)
        elif chance.random() < 0.5:
            name = chance.choice(graph.steps).name
            again[job.id] = graph.depending(name)
            plan = await queue.requeue_plan(job.id, mode="from", step=name, force=True)
            assert {one for one in plan.steps if not one.startswith("list_")} == again[job.id]
            again[job.id] |= {one for one in plan.steps if one.startswith("list_")}
            await queue.requeue(job.id, mode="from", step=name, force=True)
    return again


async def _check(queue: Queue, graph: Graph, job: Job, again: set[str]) -> None:
    job = await job.refresh()
    assert (job.status, job.progress) == (Status.COMPLETED, 100), job.last_error
    assert job.result_value == graph.result(), graph
    states = {step["id"]: step["status"] for step in job.steps}
    assert states == {
        **dict.fromkeys([name for name in states if name.startswith("list_")], "completed"),
        **{step.name: "skipped" if step.kind == "skipped" else "completed" for step in graph.steps},
    }
    told = Counter(_step_of(event) for event in await queue.events(job.id) if event.type == "job:step:completed")
    assert told == {name: 1 + (name in again) for name, state in states.items() if state == "completed"}


def _step_of(event: Any) -> str:
    return str(event.message)
