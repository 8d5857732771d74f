import assert from "node:assert/strict";
import { test } from "node:test";
import { Fail, Treadle } from "treadle";
import { asSuperuser, Fetches, json, signedIn, topicOf, URL_OF_SERVER, until } from "./support.js";

test("a worker runs jobs and reports progress and results", async () => {
  const service = new Treadle(URL_OF_SERVER, { apiKey: process.env.TREADLE_TEST_API_KEY });
  const user = await signedIn();
  const topic = topicOf("js");
  const worker = service.jobs.work(topic, async (job, context) => {
    await context.progress(40, "half");
    assert.ok(job.runAt instanceof Date && !("token" in job));
    assert.deepEqual([context.attempt, context.isRetry, context.isLastAttempt], [1, false, false]);
    await context.heartbeat();
    return { doubled: job.payload.n * 2 };
  });
  const { id } = await user.jobs.enqueue(topic, { n: 21 });
  assert.deepEqual(await user.jobs.track(id).result(), { doubled: 42 });
  assert.equal((await user.jobs.get(id)).lastWorker, worker.name);
  await worker.stop();
  await worker.done;
});

test("as many jobs at once as it has places", async () => {
  const client = await asSuperuser();
  const topic = topicOf("many");
  const jobs = await client.jobs.enqueueMany(Array.from({ length: 9 }, () => ({ topic })));
  let running = 0;
  let most = 0;
  const worker = client.jobs.work(
    topic,
    async () => {
      most = Math.max(most, ++running);
      await new Promise((resolve) => setTimeout(resolve, 50));
      running--;
    },
    { concurrency: 3 },
  );
  for (const job of jobs) await client.jobs.track(job.id).result();
  await worker.stop();
  assert.equal(most, 3);
});

test("an error is a failed attempt with its stack, Fail the end", async () => {
  const client = await asSuperuser();
  const topic = topicOf("fails");
  const worker = client.jobs.work(topic, async (job) => {
    if (job.payload.fatal) throw new Fail("no such user");
    throw new TypeError("try again");
  });
  const again = await client.jobs.enqueue(topic, {});
  const failed = await until(async () => {
    const job = await client.jobs.get(again.id);
    return job.retries === 1 && job;
  });
  assert.equal(failed.status, "pending");
  assert.match(failed.lastError ?? "", /TypeError: try again[\s\S]*work\.test\.js/);
  const { id } = await client.jobs.enqueue(topic, { fatal: true });
  await assert.rejects(client.jobs.track(id).result(), { code: "job_failed" });
  assert.equal((await client.jobs.get(id)).attempt, 1);
  await worker.stop();
});

test("a cancel aborts the handler, and is confirmed", async () => {
  const client = await asSuperuser();
  const topic = topicOf("cancel");
  const worker = client.jobs.work(
    topic,
    (_, { signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason))),
    { heartbeatSeconds: 0.1 },
  );
  const { id } = await client.jobs.enqueue(topic, {});
  await until(async () => (await client.jobs.get(id)).status === "processing");
  await client.jobs.cancel(id, { reason: "enough" });
  await assert.rejects(client.jobs.track(id).result(), { code: "job_cancelled" });
  await worker.stop();
});

test("a stopped worker finishes what runs; by force it gives it back unspent", async () => {
  const client = await asSuperuser();
  const topic = topicOf("stop");
  let release = () => {};
  const finished = new Promise<void>((resolve) => {
    release = resolve;
  });
  let started = 0;
  const gentle = client.jobs.work(topic, () => {
    started++;
    return finished;
  });
  const { id } = await client.jobs.enqueue(topic, {});
  await until(() => started === 1);
  const stopped = gentle.stop();
  release();
  await stopped;
  assert.equal((await client.jobs.get(id)).status, "completed");

  const forced = client.jobs.work(topic, (_, { signal }) => {
    started++;
    return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
  });
  const other = await client.jobs.enqueue(topic, {});
  await until(() => started === 2);
  await forced.stop({ force: true });
  const back = await client.jobs.get(other.id);
  assert.deepEqual([back.status, back.attempt], ["pending", 0]);
});

test("a worker that lost its lease stops the handler and tells nothing", async () => {
  const client = await asSuperuser();
  const topic = topicOf("lost");
  let reason: unknown;
  let started = false;
  const worker = client.jobs.work(
    topic,
    (_, { signal }) =>
      new Promise((_, reject) => {
        started = true;
        signal.addEventListener("abort", () => {
          reason = signal.reason;
          reject(signal.reason);
        });
      }),
    { heartbeatSeconds: 0.1 },
  );
  const { id } = await client.jobs.enqueue(topic, {});
  await until(() => started);
  const stopped = worker.stop();
  await client.jobs.release(id);
  await stopped;
  assert.equal((reason as { status: number }).status, 409);
  assert.equal((await client.jobs.get(id)).status, "pending");
});

test("a worker goes on after an outage, and ends when it is refused", async () => {
  const fetches = new Fetches();
  let calls = 0;
  fetches.answer = () => {
    calls++;
    if (calls === 1) throw new TypeError("fetch failed");
    return calls === 2 ? json(503, {}) : json(403, { code: "forbidden", message: "no", data: {} });
  };
  const client = new Treadle("http://queue.test", { fetch: fetches.fetch, apiKey: "key" });
  await assert.rejects(client.jobs.work("mail", () => null).done, { status: 403 });
  assert.equal(calls, 3);
});
