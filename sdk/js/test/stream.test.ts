import assert from "node:assert/strict";
import { test } from "node:test";
import { type JobEvent, type JobStream, Treadle, TreadleError } from "treadle";
import { CuttingProxy, Fetches, json, Sse, signedIn, topicOf, URL_OF_SERVER, until } from "./support.js";

/** A client whose streams are in the test's hands. */
function streaming(options = {}): { client: Treadle; fetches: Fetches; opened: Sse[] } {
  const fetches = new Fetches();
  const opened: Sse[] = [];
  fetches.answer = (_, init) => {
    const sse = new Sse(init.signal);
    opened.push(sse);
    return sse.response;
  };
  return { client: new Treadle("http://queue.test", { fetch: fetches.fetch, ...options }), fetches, opened };
}

const job = (n: number, more = {}) => ({ job: { id: `j${n}`, topic: "mail", status: "pending", ...more } });

async function next(stream: JobStream): Promise<JobEvent> {
  const { value } = await stream.next();
  assert.ok(value, "the stream has ended");
  return value;
}

test("events come typed, with dates, and pings do not come", async () => {
  const { client, opened } = streaming();
  const stream = client.jobs.stream();
  const first = stream.next();
  const sse = await until(() => opened[0]);
  sse.write("event: ping\ndata: {}\n\n: a comment\n\n");
  sse.tell(7, "job:enqueued", { at: "2026-01-01T00:00:00.000Z", ...job(1, { runAt: "2026-01-02T00:00:00.000Z" }) });
  const { value } = await first;
  assert.ok(value?.event === "job:enqueued" && "job" in value);
  assert.equal(value.at.getUTCFullYear(), 2026);
  assert.equal(value.job.runAt.getUTCDate(), 2);
  assert.deepEqual([value.id, stream.lastEventId], ["7", "7"]);
  stream.close();
});

test("pieces of any size make the same events", async () => {
  const text = `id: 1\r\nevent: job:deleted\r\ndata: {"deletedJobId":\r\ndata: "ä€😀"}\r\n\r\n`;
  const bytes = new TextEncoder().encode(text);
  const body = new ReadableStream({
    async start(controller) {
      for (const byte of bytes) controller.enqueue(Uint8Array.of(byte));
    },
  });
  const { fetches } = streaming();
  fetches.answer = () => new Response(body, { headers: { "Content-Type": "text/event-stream" } });
  const other = new Treadle("http://queue.test", { fetch: fetches.fetch }).jobs.stream();
  const told = await next(other);
  assert.ok(told.event === "job:deleted" && "deletedJobId" in told);
  assert.equal(told.deletedJobId, "ä€😀");
  other.close();
});

test("Last-Event-ID advances over two reconnects", async () => {
  const { client, fetches, opened } = streaming();
  const stream = client.jobs.stream();
  const told = stream.next();
  (await until(() => opened[0])).tell(1, "job:enqueued", job(1));
  assert.equal((await told).value?.id, "1");
  const second = stream.next();
  opened[0]?.drop();
  (await until(() => opened[1])).write("id: 5\r\nretry: 2000\r\n\r\n");
  opened[1]?.tell(6, "job:enqueued", job(2));
  assert.equal((await second).value?.id, "6");
  const third = stream.next();
  opened[1]?.drop();
  await until(() => opened[2]);
  opened[2]?.write(`id: 8\r\nevent: job:enqueued\r\ndata: {"job":`); // cut in the middle of an event
  opened[2]?.drop();
  (await until(() => opened[3])).tell(8, "job:enqueued", job(3));
  assert.equal((await third).value?.id, "8");
  const sent = [0, 1, 2, 3].map((index) => fetches.header(index, "Last-Event-ID"));
  assert.deepEqual(sent, [null, "1", "6", "6"]);
  stream.close();
});

test("an id without an event counts as a place too", async () => {
  const { client, fetches, opened } = streaming();
  const stream = client.jobs.stream();
  const told = stream.next();
  const first = await until(() => opened[0]);
  first.write("id: 41\r\nretry: 2000\r\n\r\n");
  first.write("event: ping\r\ndata: {}\r\n\r\n");
  await new Promise((resolve) => setTimeout(resolve, 20));
  first.drop();
  await until(() => opened[1]);
  assert.equal(fetches.header(1, "Last-Event-ID"), "41");
  stream.close();
  assert.equal((await told).done, true);
});

test("`break` closes the connection at once", async () => {
  const { client, opened } = streaming();
  until(() => opened[0]).then((sse) => sse.tell(1, "job:enqueued", job(1)));
  for await (const event of client.jobs.stream()) {
    assert.equal(event.event, "job:enqueued");
    break;
  }
  assert.equal(opened[0]?.cancelled, true);
  assert.equal(opened.length, 1);
});

test("`return` closes it while an event is awaited", async () => {
  const { client, opened } = streaming();
  const stream = client.jobs.stream();
  const waiting = stream.next();
  await until(() => opened[0]);
  assert.equal((await stream.return?.())?.done, true);
  assert.equal((await waiting).done, true);
  assert.equal(opened[0]?.cancelled, true);
});

test("a signal ends it with an abort", async () => {
  const { client, opened } = streaming();
  const abort = new AbortController();
  const waiting = client.jobs.stream({}, { signal: abort.signal }).next();
  await until(() => opened[0]);
  abort.abort();
  await assert.rejects(waiting, { isAbort: true });
  assert.equal(opened[0]?.cancelled, true);
});

test("a place can be resumed after a reload, and no ids are no events", async () => {
  const { client, fetches, opened } = streaming();
  const stream = client.jobs.stream({ ids: ["a", "b"], topic: "mail", fields: ["status"], lastEventId: "17" });
  assert.equal(stream.lastEventId, "17");
  const waiting = stream.next();
  await until(() => opened[0]);
  assert.equal(fetches.urls[0], "http://queue.test/api/jobs/stream?id=a&id=b&topic=mail&fields=status");
  assert.equal(fetches.header(0, "Last-Event-ID"), "17");
  stream.close();
  await waiting;
  assert.equal((await client.jobs.stream({ ids: [] }).next()).done, true);
  assert.equal(opened.length, 1);
});

test("a proxy's page and a full server are tried again, a refusal is not", async () => {
  const { client, fetches, opened } = streaming();
  const answers = [
    () => new Response("<html>", { headers: { "Content-Type": "text/html" } }),
    () => json(503, {}),
    () => json(429, {}),
    () => json(403, { code: "forbidden", message: "no", data: {} }),
  ];
  fetches.answer = () => answers.shift()?.() ?? null;
  await assert.rejects(client.jobs.stream().next(), { status: 403, code: "forbidden" });
  assert.equal(fetches.urls.length, 4);
  assert.equal(opened.length, 0);
});

test("a fetch without streams says so", async () => {
  const { client, fetches } = streaming();
  fetches.answer = () => new Response(null, { headers: { "Content-Type": "text/event-stream" } });
  await assert.rejects(client.jobs.stream().next(), { code: "no_streams" });
});

test("a real stream: a snapshot, then what happens, some fields only", async () => {
  const client = await signedIn();
  const topic = topicOf("real");
  const { id } = await client.jobs.enqueue(topic, { secret: "no" });
  const stream = client.jobs.stream({ topic, snapshot: true, fields: ["status", "progress"] });
  const snapshot = await next(stream);
  assert.ok(snapshot.event === "snapshot");
  assert.deepEqual(snapshot.jobs, [{ id, status: "pending", progress: 0 }]);
  await client.jobs.cancel(id);
  const cancelled = await next(stream);
  assert.ok(cancelled.event === "job:cancelled" && "job" in cancelled);
  assert.deepEqual(cancelled.job, { id, status: "cancelled", progress: 0 });
  await client.jobs.delete(id);
  const deleted = await next(stream);
  assert.ok("deletedJobId" in deleted && deleted.deletedJobId === id);
  const place = stream.lastEventId;
  stream.close();
  const more = await client.jobs.enqueue(topic, {});
  const resumed = client.jobs.stream({ topic, lastEventId: place });
  const enqueued = await next(resumed);
  assert.ok("job" in enqueued && enqueued.job.id === more.id);
  resumed.close();
});

test("more than 100 ids are the server's to refuse", async () => {
  const client = await signedIn();
  const ids = Array.from({ length: 101 }, (_, n) => `j${n}`);
  const error = await client.jobs
    .stream({ ids })
    .next()
    .catch((error) => error);
  assert.ok(error instanceof TreadleError);
  assert.equal(error.status, 400);
});

test("a connection dropped 200 times in the middle of a stream loses nothing and doubles nothing", async () => {
  const proxy = new CuttingProxy(URL_OF_SERVER);
  const direct = await signedIn();
  const client = await signedIn({}, await proxy.listen());
  const topic = topicOf("cut");
  // One job in an event is about 1.5 kB, so most cuts are inside of one.
  proxy.cutAfter = () => (proxy.accepted <= 200 ? 600 + Math.floor(Math.random() * 4000) : null);
  const stream = client.jobs.stream({ topic });
  const made: string[] = [];
  const heard: string[] = [];
  const ids: number[] = [];
  let over = false;
  // A reader that is further behind than the server's ring of 10,000 events gets `resync` instead of what it missed.
  // The server enqueues that many before the 200th cut, so the jobs wait for the reader.
  const making = async () => {
    while (!over && (proxy.accepted <= 200 || made.length < 300)) {
      made.push((await direct.jobs.enqueue(topic, { n: made.length })).id);
      await until(() => over || made.length - heard.length < 1000);
    }
    await until(() => over || heard.includes(made.at(-1) ?? ""));
  };
  const hearing = async () => {
    for await (const event of stream) {
      assert.ok("job" in event, event.event);
      heard.push(event.job.id);
      ids.push(Number(event.id));
    }
  };
  try {
    await Promise.race([making(), hearing()]);
  } finally {
    over = true;
    stream.close();
    proxy.close();
  }
  assert.ok(proxy.accepted > 200);
  assert.deepEqual(heard, made);
  assert.deepEqual(
    ids,
    [...new Set(ids)].sort((a, b) => a - b),
  );
});
