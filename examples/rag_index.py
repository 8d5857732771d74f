"""Index documents for search: one step for each document, beside a summary, then an approval, then publishing.

python examples/rag_index.py
"""

import asyncio

from pydantic import BaseModel

from treadle import Context, Flow, Queue, Retry, Worker

queue = Queue("sqlite:///jobs.db")


class Corpus(BaseModel):
    name: str
    documents: int


class Doc(BaseModel):
    id: str
    text: str


class Approval(BaseModel):
    ok: bool


index: Flow[Corpus] = queue.flow("rag_index", timeout="1h")


@index.step
async def fetch(ctx: Context, corpus: Corpus) -> list[Doc]:
    return [Doc(id=f"doc-{number}", text="loom " * number) for number in range(corpus.documents)]


@index.step(map=fetch, key="id", limit=8, max_failed="10%", retry=Retry(2, backoff="fixed", delay="10ms"))
async def embed(ctx: Context, corpus: Corpus, doc: Doc) -> list[int]:
    if not doc.text:
        raise ValueError(f"{doc.id} is empty")
    return [len(doc.text), doc.text.count("loom")]


@index.step(after=[fetch])
async def summarise(ctx: Context, corpus: Corpus) -> str:
    return f"{len(ctx.results['fetch'])} documents about looms"


approve = index.external("approve", after=[embed, summarise], answer=Approval, timeout="3d")


@index.step(when=lambda ctx, corpus: ctx.results["approve"].ok, cancelable=False)
async def publish(ctx: Context, corpus: Corpus) -> str:
    vectors = [vector for vector in ctx.results["embed"] if vector is not None]
    return f"{corpus.name}: {len(vectors)} vectors; {ctx.results['summarise']}"


async def main() -> None:
    async with queue, asyncio.TaskGroup() as tasks:
        worker = Worker(queue)
        tasks.create_task(worker.run())

        job = await index.enqueue(Corpus(name="weaving", documents=20))
        while (await job.refresh()).status != "waiting":
            await asyncio.sleep(0.02)
        embedded = next(step for step in job.steps if step["id"] == "embed")
        print(embedded["items"])
        first = (await queue.steps(job.id, "embed", limit=1)).items[0]
        print(first["key"], first["status"], "after", first["attempt"], "tries")
        await queue.signal(job.id, "approve", {"ok": True})
        print(await job.result(timeout="10s"))

        worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
